"""Where no split is sure to fit: what is within the margin is proposed, for a compile to decide."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from benchmarks.rebalance.random_costs import random_costs
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.mappings import Candidate, Key, Question
from ipuscope.planner.mappings.mapping_search import or_much_quicker, try_split
from ipuscope.planner.mappings.priced import Place, Priced
from ipuscope.planner.predict.memory_verdict import ABOVE, Answer
from ipuscope.planner.predict.split_text import profiled
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.search.refusal import nearest, nearest_in_words
from ipuscope.planner.search.split_search import Split, best_split
from ipuscope.planner.search.what_fits import UNSURE, or_close, quicker_if_it_fits
from ipuscope.profiler import Report
from ipuscope.reports.cli import main as ipu_report

STAGES = 3


def into(stages: int) -> Callable[[Costs], Split]:
    return lambda costs: best_split(costs, stages)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_near_is_proposed_and_what_is_not_is_refused(seed: int) -> None:
    costs = random_costs(np.random.default_rng(seed), 8, 4, stages=STAGES)
    fullest = max(what_if(costs, nearest(costs, range(STAGES))).fullest)
    cuts = combinations(range(1, len(costs)), STAGES - 1)
    every = (Assignment((0, *cut), tuple(range(STAGES))) for cut in cuts)
    assert fullest == min(max(what_if(costs, one).fullest) for one in every)
    sure, short, far = (
        costs.with_tile_bytes(int(fullest * share)) for share in (1.0, 1 - ABOVE / 2, 0.8)
    )
    assert or_close(sure, into(STAGES)) == best_split(sure, STAGES)
    with pytest.raises(ValueError, match="no split"):
        best_split(short, STAGES)
    found = or_close(short, into(STAGES))
    assert found.why[0] == UNSURE and found.prediction.costs is short
    assert not found.prediction.problems
    assert {one.answer for one in found.prediction.memory} >= {Answer.CLOSE}
    with pytest.raises(ValueError, match="no split"):
        or_close(far, into(STAGES))


def test_a_quicker_split_that_may_fit_is_not_left_out_in_silence() -> None:
    gains = 0
    for seed in range(20):
        costs = random_costs(np.random.default_rng(seed), 12, 4, stages=STAGES, full=1.0)
        try:
            found = into(STAGES)(costs)
        except ValueError:
            continue
        other = quicker_if_it_fits(costs, into(STAGES), found)
        if other is None:
            continue
        gains += 1
        assert other.prediction.total < found.prediction.total
        assert not other.prediction.problems and other.prediction.notes
    assert gains > 1


def test_a_plan_prefers_what_may_fit_where_that_is_quicker() -> None:
    preferred = 0
    for seed in range(20):
        costs = random_costs(np.random.default_rng(seed), 12, 4, stages=STAGES, full=1.0)
        place = Place(Priced(Key(), costs), (0, 1, 2), 1, costs.micro_batches)
        question = Question(STAGES, costs.micro_batches, (1,))
        tried = try_split(place, question, None, within=or_much_quicker)
        sure = try_split(place, question, None, surely=True)
        if isinstance(tried, Candidate) and isinstance(sure, Candidate) and tried != sure:
            preferred += tried.fullest > tried.limit
            assert tried.memory != Answer.FITS and tried.rate > sure.rate
    assert preferred > 1


def test_what_a_compile_has_shown_to_be_too_full_is_not_proposed(two: Report) -> None:
    """By a byte: the profiled split, and its fuller IPU's Blocks in any other."""
    costs = Costs.from_report(two)
    own = what_if(costs, profiled(costs))
    short = costs.with_tile_bytes(max(own.fullest) - 1)
    assert what_if(short, own.assignment).problems
    assert "does not fit by 1 bytes" in nearest_in_words(short, costs.ipus)
    found = or_close(short, into(2)).prediction
    assert found.assignment != own.assignment and not found.problems
    full = own.assignment.spans(len(costs))[int(np.argmax(own.fullest))]
    assert full not in found.assignment.spans(len(costs))


def test_rebalance_says_that_a_compile_decides(
    two: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = shutil.copytree(Path(two.path).parent, tmp_path / "before")
    fullest = max(what_if(Costs.from_report(two), profiled(Costs.from_report(two))).fullest)
    with closing(sqlite3.connect(before / "profile.pop")) as profile, profile:
        profile.execute("UPDATE target SET bytes_per_tile = ?", [fullest - 1])
    assert ipu_report(["rebalance", "--stages", "2", str(before)]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert UNSURE[1:] in words and "too close to call: compile to know" in words
