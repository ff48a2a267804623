"""Whether a split fits: exact for the profiled one, one of three answers for any other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import ipu_exec as poptorch
from benchmarks.rebalance import bert_pod16
from benchmarks.rebalance.random_costs import random_costs
from examples.models import Example, bert
from ipuscope.planner.costs.carried_tensors import Carried
from ipuscope.planner.costs.cuts import Ties
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.running_memory import Edges
from ipuscope.planner.costs.tile_memory import (
    Part,
    at_the_end,
    ipu_bytes,
    passing_alone,
    usage_of,
    usage_of_each,
)
from ipuscope.planner.predict.interval_memory import interval_memory
from ipuscope.planner.predict.memory_verdict import ABOVE, BELOW, Answer
from ipuscope.planner.predict.split_text import profiled
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.search.refusal import nearest, nearest_in_words
from ipuscope.planner.search.split_search import ALL_CHOICES, best_split
from ipuscope.profiler import Report, open_report
from ipuscope.reports.cli import main as ipu_report


@pytest.fixture(scope="module")
def pod16(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A tiny version of public BERT on a POD16: the head returns to IPU 0, state is sharded."""
    folder = tmp_path_factory.mktemp("pod16")
    bert_pod16.main(["--tiny", "--profile-dir", str(folder)])
    return open_report(folder / "training")


def test_the_profiled_split_holds_what_the_profile_holds(pod16: Report) -> None:
    costs = Costs.from_report(pod16)
    assert costs.ipus == (0, 1, 2, 3, 0)
    prediction = what_if(costs, profiled(costs))
    for one in prediction.memory:
        tiles = pod16.tiles(one.ipu)["total"]
        assert (one.nbytes, one.tile) == (tiles.max(), tiles.argmax())
        assert one.exact


def test_a_split_that_just_fits_and_one_byte_less(pod16: Report) -> None:
    """A split as full as BERT-Large's on a POD16 (99 %) fits, but not with one byte less."""
    costs = Costs.from_report(pod16)
    fullest = max(what_if(costs, profiled(costs)).fullest)
    just = costs.with_tile_bytes(fullest)
    assert not what_if(just, profiled(costs)).problems
    assert best_split(just, ipus=costs.ipus).prediction.total <= what_if(just, profiled(just)).total
    short = what_if(costs.with_tile_bytes(fullest - 1), profiled(costs))
    worst = max(short.memory, key=lambda one: one.nbytes)
    assert worst.answer is Answer.OVER
    assert f"IPU {worst.ipu} {worst}" in short.problems
    assert "does not fit by 1 bytes, on tile" in str(worst) and worst.largest in str(worst)


def test_what_is_near_the_end_of_a_tile_is_for_a_compile_to_say(pod16: Report) -> None:
    costs = Costs.from_report(pod16)
    other = Assignment((0, 3, 4, 5), (0, 1, 2, 3))
    fullest = max(what_if(costs, other).fullest)

    def answer(limit: float) -> Answer:
        prediction = what_if(costs.with_tile_bytes(round(limit)), other)
        assert bool(prediction.problems) == (limit < fullest / (1 + ABOVE))
        return max(prediction.memory, key=lambda one: one.nbytes).answer

    assert answer(fullest / (1 - 1.1 * BELOW)) is Answer.FITS
    assert answer(fullest / (1 - 0.9 * BELOW)) is Answer.CLOSE
    assert answer(fullest) is Answer.CLOSE
    assert answer(fullest / (1 + 0.9 * ABOVE)) is Answer.CLOSE
    assert answer(fullest / (1 + 1.1 * ABOVE)) is Answer.OVER


def test_the_parts_of_a_verdict_add_up(pod16: Report) -> None:
    costs = Costs.from_report(pod16)
    parts = [profiled(costs).parts(costs)[1]]
    used = pod16.usage.ipu_variables(1).peaks().tile_peak
    assert (sum(usage_of(costs, parts).contents.values()) == used).all()


def test_all_stages_at_once_have_the_profiled_ones_exactly(pod16: Report) -> None:
    costs = Costs.from_report(pod16)
    parts = profiled(costs).parts(costs)
    table = interval_memory(costs, len(costs), parts[0].choice)
    for ipu in (1, 2, 3):
        part = parts[ipu]
        fullest = table.fullest(part.depth)[part.first, part.last - part.first]
        assert fullest == pod16.tiles(ipu)["total"].max()


def test_json_says_whether_it_fits(pod16: Report, capsys: pytest.CaptureFixture[str]) -> None:
    assert ipu_report(["whatif", "--json", str(Path(pod16.path))]) == 0
    text = capsys.readouterr().out
    assert json.loads(text) and '"memory": "fits"' in text


def test_a_tied_weight_lies_once_on_an_ipu(pod16: Report) -> None:
    """The embedding's and head's weight is on an IPU once, though two of its stages read it."""
    weights = pod16.variables[pod16.variables["role"] == "weight"]
    tied = weights[weights["name"].str.startswith("embedding.word.weight")]
    assert tied[["ipu", "stage"]].to_numpy().tolist() == [[0, 0]]
    blocks = pod16.stages.set_index("stage")["weight_bytes"]
    assert blocks.sum() == weights["bytes"].sum()


def test_a_head_that_leaves_takes_a_copy_of_the_weight(pod16: Report) -> None:
    """A head on another IPU holds a copy of the weight; beside the embedding it needs none."""
    costs = Costs.from_report(pod16)
    ((home, reader),) = costs.cuts.ties.blocks
    (nbytes,) = costs.memory.copies
    first, last = np.array([home, home + 1, home]), np.array([reader, reader, reader - 1])
    copies = Edges.of(costs, first, last).copies
    assert nbytes.sum() == costs.cuts.ties.nbytes[0] > 0
    assert (copies == [np.zeros_like(nbytes), nbytes, np.zeros_like(nbytes)]).all()


def test_all_stages_at_once_hold_what_each_does_alone() -> None:
    """Holds with tensors passed between Blocks, some past others, and all ways to save memory."""
    random = np.random.default_rng(0)
    blocks, tiles = 7, 5
    for closed in (False, True):
        costs = random_costs(random, blocks, tiles, recompute=closed)
        costs = _handing_on(random, costs, closed)
        for choice in ALL_CHOICES:
            table = interval_memory(costs, blocks, choice)
            for first, last in combinations(range(blocks + 1), 2):
                followed = last < blocks
                way = choice if followed else at_the_end(costs, choice)
                part = Part(first, last - 1, 3 if followed else 0, way)
                (passing,) = passing_alone(costs, np.array([first]), np.array([last - 1]))
                alone = int(ipu_bytes(costs, [part], passing).max())
                assert table.fullest(part.depth)[first, last - 1 - first] == alone


def test_stages_on_ipus_of_their_own_hold_what_each_does_alone() -> None:
    """Stages differ in length and way to save memory, and have residuals and shared code."""
    random = np.random.default_rng(1)
    blocks, tiles = 9, 5
    for starts in ((0, 1, 2, 5, 6), (0, 4, 7), (0,), tuple(range(blocks))):
        costs = _handing_on(random, random_costs(random, blocks, tiles), True)
        memory = replace(
            costs.memory,
            residual=random.integers(-500, 500, (3, tiles)),
            residual_of=np.sort(random.integers(0, 3, blocks)),
            code=random.integers(0, 700, (4, tiles)),
            code_users=random.random((4, blocks)) < 0.5,
        )
        costs = replace(costs, memory=memory)
        choices = tuple(ALL_CHOICES[i] for i in random.integers(0, 4, len(starts)))
        parts = Assignment(starts, tuple(range(len(starts))), choices).parts(costs)
        each = usage_of_each(costs, parts)
        for k, part in enumerate(parts):
            alone = usage_of(costs, [part])
            assert (each.total[k] == alone.total[0]).all()
            for words, nbytes in alone.contents.items():
                assert (each.contents[words][k] == nbytes[0]).all()


def _handing_on(random: np.random.Generator, costs: Costs, closed: bool) -> Costs:
    blocks, tiles = costs.memory.saved.shape
    touched = random.random((12, blocks)) < 0.4
    touched[np.arange(12), random.integers(0, blocks - 1, 12)] = True
    touched[:, -1] |= touched.sum(axis=1) < 2
    back, tied = random.random(12) < 0.5, np.arange(12) == 0
    touched[0], back[0] = np.isin(np.arange(blocks), (1, blocks - 2)), True
    first, last = touched.argmax(axis=1), blocks - 1 - touched[:, ::-1].argmax(axis=1)
    nbytes = random.integers(0, 9_000, (12, tiles))
    carried = Carried(np.where(back, last, first), back, touched, nbytes, tied)
    cycles = replace(costs.cycles, closed=random.random(blocks) < (0.5 if closed else 0))
    ties = Ties(("shared",), ((1, blocks - 2),), (tiles * 700,), (0,))
    memory = replace(
        costs.memory,
        carried=carried,
        updating=random.integers(0, 900, (blocks, tiles)),
        copies=np.full((1, tiles), 700),
        peak_of_copies=random.integers(0, 700, (blocks, tiles)),
    )
    return replace(costs, memory=memory, cycles=cycles, cuts=replace(costs.cuts, ties=ties))


def test_memory_of_splits_far_from_the_profiled_one(tmp_path: Path) -> None:
    """Within the margin of a compile, whether the head is beside the embedding or not."""
    example = bert.example(replace(bert.TINY, hidden=128, intermediate=512, vocabulary=4096))
    splits = [((0, 1, 3, 5), (0, 1, 2, 0)), ((0, 2, 4), (0, 1, 2)), ((0, 4), (0, 1))]
    reports = [open_report(_compiled(example, *split, tmp_path)) for split in splits]
    for report in reports:
        costs = Costs.from_report(report)
        for split, other in zip(splits, reports, strict=True):
            for one in what_if(costs, Assignment(*split)).memory:
                fullest = int(other.tiles(one.ipu)["total"].max())
                assert -0.03 * one.limit <= one.nbytes - fullest <= 0.03 * one.limit


def _compiled(example: Example, starts: Sequence[int], ipus: Sequence[int], folder: Path) -> Path:
    ends = [*starts[1:], len(example.blocks)]
    stages = [
        poptorch.Stage(*example.blocks[a:b]).ipu(ipu)
        for a, b, ipu in zip(starts, ends, ipus, strict=True)
    ]
    options = poptorch.Options().autoRoundNumIPUs(True).showCompilationProgressBar(False)
    options.setExecutionStrategy(poptorch.PipelinedExecution(*stages))
    options.Training.gradientAccumulation(16)
    where = folder / "-".join(map(str, starts))
    options.enableProfiling(where)
    adam = poptorch.optim.AdamW(example.module.parameters(), lr=1e-3)
    model = poptorch.trainingModel(example.module, options, adam)
    model.compile(*example.inputs(16 * 2))
    model.destroy()
    return where / "training"


def test_a_refusal_says_what_comes_nearest_and_what_would_help(pod16: Report) -> None:
    costs = Costs.from_report(pod16)
    near = nearest(costs, costs.ipus)
    fullest = max(what_if(costs, near).fullest)
    assert fullest <= max(what_if(costs, profiled(costs)).fullest)
    assert nearest_in_words(costs, costs.ipus) == ""
    short = costs.with_tile_bytes(round(fullest * (1 - 2 * ABOVE)))
    words = nearest_in_words(short, costs.ipus)
    assert "does not fit by" in words and "on tile" in words and "most of it" in words
