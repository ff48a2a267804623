"""Code of other splits, which region 0 alone has room for: against sums by hand and compiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ipu_exec
from benchmarks.rebalance.random_costs import random_costs
from ipu_exec import machine
from ipuscope.planner.advice import relief, way_to_fit
from ipuscope.planner.advice.search import predicted
from ipuscope.planner.costs.code_memory import CodeMemory
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights import insights
from ipuscope.planner.levers.levers import Basis, surely_fit
from ipuscope.planner.levers.settings import Levers
from ipuscope.planner.predict.memory_verdict import BELOW, Answer
from ipuscope.planner.predict.what_if import Assignment, memory_of
from ipuscope.planner.search.split_search import Split, best_split
from ipuscope.planner.search.what_fits import UNSURE, or_close
from ipuscope.profiler import analysis, open_report
from ipuscope.profiler.analysis.facts import facts
from ipuscope.profiler.analysis.memory_hot_spots import most_code
from ipuscope.profiler.report import Report
from tests.models import Mlp


def code_of_three() -> CodeMemory:
    """Three Blocks on two tiles; the first and the last share a piece; IPU 0 ran the first two."""
    return CodeMemory(
        own=np.array([[10, 0], [20, 5], [0, 1]]),
        users=np.array([[True, False, True]]),
        pieces=np.array([[100, 50]]),
        besides=np.array([[1, 2], [3, 0]]),
        ran=np.array([[True, True, False], [False, False, True]]),
    )


def test_a_piece_counts_once_and_what_no_block_has_as_profiled_or_the_most() -> None:
    runs = np.array([[True, True, False], [True, True, True], [False, True, False]])
    on = code_of_three().on(runs).tolist()
    assert on == [[10 + 20 + 100 + 1, 5 + 50 + 2], [30 + 100 + 3, 6 + 50 + 2], [20 + 3, 5 + 2]]


def test_intervals_are_sets_of_blocks_that_follow_each_other() -> None:
    code = code_of_three()
    small = replace(random_costs(np.random.default_rng(1), 3).machine, tiles=2, region0_bytes=100)
    table = code.of_intervals(3, small, 2 * small.bytes_per_tile)
    # Blocks 0; 0 and 1; all; 1; 1 and 2; 2: the fullest tile with 3 and 2 bytes besides
    most = np.array([[113, 133, 133], [23, 123, -1], [103, -1, -1]])
    assert table.tolist() == np.where(most > 100, small.bytes_per_tile + most - 100, 0).tolist()


def test_code_of_all_intervals_is_that_of_their_blocks_up_to_what_is_surely_too_much() -> None:
    random = np.random.default_rng(3)
    for _ in range(20):
        count = int(random.integers(2, 9))
        code = CodeMemory(
            own=random.integers(0, 40, (count, 3)),
            users=random.random((5, count)) < 0.4,
            pieces=random.integers(0, 40, (5, 3)),
            besides=random.integers(0, 9, (1, 3)),
            ran=np.zeros((1, count), dtype=bool),
        )
        tile = replace(random_costs(random, 3).machine, tiles=3, region0_bytes=100)
        table = code.of_intervals(count, tile, tile.bytes_per_tile + 60)
        at = np.arange(count)
        for first in range(count):
            longest = 0
            for last in range(first, count):
                runs = (first <= at) & (at <= last)
                more = int(code.on(runs[None]).max()) - 100
                expected = tile.bytes_per_tile + more if more > 0 else 0
                value = table[first, last - first]
                if value != expected:  # a longer one than one that is surely too full
                    assert longest <= value < expected and value > tile.bytes_per_tile + 60
                longest = max(longest, value)


def test_code_a_little_beyond_region_0_is_for_a_compile_to_tell() -> None:
    costs = random_costs(np.random.default_rng(1), 3)
    tiles = costs.machine.tiles
    code = replace(
        code_of_three(),
        own=np.full((3, tiles), 40),
        pieces=np.zeros((1, tiles), dtype=np.int64),
        besides=np.zeros((2, tiles), dtype=np.int64),
    )
    machine = replace(costs.machine, bytes_per_tile=1 << 40, region0_bytes=100)
    costs = replace(costs, machine=machine, memory=replace(costs.memory, region0=code))

    def onto_one(some: Costs) -> Split:
        return best_split(some, 1)

    with pytest.raises(ValueError, match="fits"):
        onto_one(costs)
    split = or_close(costs, onto_one)
    assert split.why[0] == UNSURE
    (verdict,) = split.prediction.memory
    assert verdict.answer == Answer.CLOSE and verdict.free == 100 - 120


def test_code_beyond_region_0_is_no_split_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an outside look met: 'fits' was said of code that no tile has room for."""
    small = replace(machine.TARGETS["mk2"], region0_bytes=6 << 10)
    monkeypatch.setitem(machine.TARGETS, "mk2", small)
    model = Mlp([256] * 7, [0] * 6)
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    options.showCompilationProgressBar(False)
    executor = ipu_exec.trainingModel(model, options, torch.optim.AdamW(model.parameters()))
    with pytest.raises(ipu_exec.OutOfMemoryError, match="region 0") as caught:
        executor.compile(torch.zeros(4, 256), torch.zeros(4, 256))
    report = open_report(tmp_path / "training")
    costs, (over,) = Costs.from_report(report), analysis.overflows(report)
    as_is = Assignment((0,), (0,))
    (verdict,) = memory_of(costs, as_is)
    assert (verdict.answer, verdict.of_code) == (Answer.OVER, True)
    assert verdict.nbytes - verdict.limit == over.bytes_over
    assert "code, for which only region 0 has room" in str(verdict)
    assert str(facts(report).overflow) == str(over) and "208" not in str(over)
    assert way_to_fit(report).startswith(
        "Its code is too large. Only a compile shows how much code"
    )
    assert way_to_fit(report) in caught.value.message
    assert not any(one.fits == Answer.FITS for one in relief(report))
    first, *others = insights(report)
    assert first.title == "IPU 0 overflows: a tile has more code than room for it"
    assert not any("fullest tile is" in one.title for one in others)


def test_code_that_may_outgrow_region_0_is_for_a_compile_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a Swin of Hugging Face has it: eight times the samples took twice the code."""

    def compiled(folder: str) -> Report:
        torch.manual_seed(0)
        options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path / folder)
        options.showCompilationProgressBar(False)
        model = Mlp([256] * 7, [0] * 6)
        executor = ipu_exec.trainingModel(model, options, torch.optim.AdamW(model.parameters()))
        executor.compile(torch.zeros(4, 256), torch.zeros(4, 256))
        return open_report(tmp_path / folder / "training")

    code = most_code(compiled("roomy"), 0)
    small = replace(machine.TARGETS["mk2"], region0_bytes=round(1.5 * code) // 4 * 4)
    monkeypatch.setitem(machine.TARGETS, "mk2", small)
    report = compiled("small")
    basis = Basis.of(report)
    assert most_code(report, 0) == code
    assert basis.costs.memory.region0.on(np.ones((1, len(basis.costs)), bool)).max() == code
    for levers, is_open in (
        (Levers(), False),
        (Levers(half=True), False),
        (Levers(micro_batch=8), True),
        (Levers(micro_batch=8, half=True), True),
        (Levers(micro_batch=16), True),
    ):
        advice = predicted(basis, levers)
        words = "IPU 0: its code may outgrow its room: compile to know" if is_open else "fits"
        assert (advice.memory, advice.surely) == (words, not is_open)
        (verdict,) = basis.memory_with(levers)
        assert (verdict.open_code, verdict.answer == Answer.CLOSE) == (is_open, is_open)
    doubts = [basis.doubt_of_memory(Levers(micro_batch=size)) for size in (5, 8, 16, 32, 2)]
    assert doubts == pytest.approx([0.12, 0.12, 0.24, 0.36, 0.12])


def test_code_that_may_outgrow_the_tile_is_for_a_compile_to_tell(tmp_path: Path) -> None:
    """Code that has room in region 0 grows at the cost of what else the tile holds."""
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    options.showCompilationProgressBar(False)
    model = Mlp([256] * 7, [0] * 6)
    executor = ipu_exec.trainingModel(model, options, torch.optim.AdamW(model.parameters()))
    executor.compile(torch.zeros(4, 256), torch.zeros(4, 256))
    report = open_report(tmp_path / "training")
    costs, code, half = Costs.from_report(report), most_code(report, 0), Levers(half=True)
    small = replace(costs.machine, region0_bytes=round(1.4 * code))
    (roomy,) = Basis(report, replace(costs, machine=small)).memory_with(half)
    assert (roomy.answer, roomy.open_code) == (Answer.FITS, False)
    for share, answer in ((0.1, Answer.FITS), (0.92, Answer.CLOSE)):
        tile = replace(small, bytes_per_tile=round(roomy.nbytes / share))
        basis = Basis(report, replace(costs, machine=tile))
        (verdict,) = basis.memory_with(half)
        assert verdict.free > BELOW * tile.bytes_per_tile
        assert (verdict.answer, verdict.open_code) == (answer, answer is Answer.CLOSE)
        assert surely_fit((verdict,), basis.doubt_of_memory(half)) == (answer is Answer.FITS)
