"""Merged bodies against the steps that they stand for, cycle by cycle."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuscope.profiler import Report, open_report
from ipuscope.profiler.analysis import counters
from ipuscope.profiler.file.trace import Bodies
from ipuscope.profiler.timeline.merged_bodies import lengths, merged
from tests.synthetic import synthetic_profile

steps = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), min_size=1, max_size=60)


def laid_out(of: list[list[tuple[int, int]]]) -> tuple[Bodies, np.ndarray]:
    """Bodies from the cycles and the kind of each of their steps."""
    ids = np.arange(sum(map(len, of)))
    begins = np.cumsum([0, *map(len, of)])
    pieces = [ids[begins[at] : begins[at + 1]] for at in range(len(of))]
    starts = [np.cumsum([0, *(took for took, _ in one[:-1])]) for one in of]
    return Bodies.make(pieces, starts), np.array([kind for one in of for _, kind in one])


def by_kind(of: Bodies, kind: np.ndarray, body: int, width: int) -> np.ndarray:
    """Cycles of each kind until the end of each ``width`` cycles of a body, but for its last."""
    here = slice(int(of.first[body]), int(of.first[body] + of.count[body]))
    of_cycle = np.repeat(kind[here], lengths(of)[here])
    cell = np.arange(len(of_cycle)) // width * 4 + of_cycle
    table = np.bincount(cell, minlength=(len(of_cycle) // width + 1) * 4)
    return table.reshape(-1, 4).cumsum(axis=0)


@given(st.lists(steps, min_size=1, max_size=5), st.integers(1, 50))
@settings(deadline=None)
def test_no_kind_takes_longer_or_shorter_anywhere(
    of: list[list[tuple[int, int]]], finest: int
) -> None:
    bodies, kind = laid_out(of)
    fewer = merged(bodies, kind, finest)
    assert sorted(fewer.order.tolist()) == list(range(len(kind)))
    assert (np.diff(fewer.begin) > 0).all()
    of_entry = kind[fewer.source]
    short = lengths(bodies) < finest
    for body in range(len(of)):
        parts = (fewer.bodies, of_entry), (bodies, kind)
        new, old = (by_kind(*part, body, finest) for part in parts)
        # a step that begins in some cycles ends in the next ones at the latest
        assert (np.abs(new - old) <= finest).all()
        assert (new[-1] == old[-1]).all()
    for entry, (low, high) in enumerate(pairwise(fewer.begin)):
        one = fewer.order[low:high]
        assert len(set(kind[one])) == 1
        assert high - low == 1 or short[one].all()
        assert fewer.bodies.step[entry] == (-1 if high - low > 1 else bodies.step[one[0]])


@given(steps, st.integers(1, 50))
@settings(deadline=None)
def test_what_is_long_and_what_is_first_or_last_stays_where_it_is(
    of: list[tuple[int, int]], finest: int
) -> None:
    bodies, kind = laid_out([of])
    fewer = merged(bodies, kind, finest)
    long = lengths(bodies) >= finest
    long[[0, -1]] = True
    begins = dict(zip(fewer.source.tolist(), fewer.bodies.start.tolist(), strict=True))
    for entry in np.flatnonzero(long).tolist():
        assert begins[entry] == bodies.start[entry]
    assert fewer.bodies.step[[0, -1]].tolist() == bodies.step[[0, -1]].tolist()


def test_a_second_of_short_steps_is_an_entry_for_each_kind() -> None:
    bodies, kind = laid_out([[(3, 1), (2, 0), (3, 1), (1, 1), (1, 0), (20, 1), (5, 0)]])
    fewer = merged(bodies, kind, 16)
    assert fewer.bodies.step.tolist() == [0, -1, -1, 5, 6]
    assert fewer.bodies.start.tolist() == [0, 3, 6, 10, 30]
    assert fewer.most(np.array([1, 9, 2, 7, 3, 4, 5])).tolist() == [1, 9, 7, 4, 5]
    assert fewer.total(np.array([1, 9, 2, 7, 3, 4, 5])).tolist() == [1, 12, 9, 4, 5]


def test_bodies_without_steps_stay() -> None:
    bodies = Bodies.make([np.zeros(0, dtype=np.int64)] * 2, [np.zeros(0, dtype=np.int64)] * 2)
    fewer = merged(bodies, np.array([0, 1]), 100)
    assert fewer.bodies.step.tolist() == [-1, -1]
    assert fewer.bodies.count.tolist() == [1, 1]
    none = merged(Bodies.make([], []), np.zeros(0, dtype=np.int64), 100)
    assert len(none.bodies.step) == len(none.source) == len(none.most(none.order)) == 0


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    path = tmp_path_factory.mktemp("merged") / "profile.pop"
    return open_report(synthetic_profile(path, steps_per_body=40))


@pytest.mark.parametrize("finest", [2, 5_000, 30_000])
def test_what_executes_takes_as_long_by_kind(report: Report, finest: int) -> None:
    whole, fewer = (
        report.trace.executed(0, [0, 2], 0),
        report.trace.executed(0, [0, 2], 0, finest=finest),
    )
    assert len(fewer) < len(whole) or finest == 2
    for ipu in (0, 2):
        spent = []
        for one in (whole, fewer):
            here = one.ipu == ipu
            length, kind = (one.end - one.start)[here], one.kind[here]
            spent.append(np.bincount(kind, weights=length, minlength=len(one.named.kinds)))
            assert (one.start[here][1:] == one.end[here][:-1]).all()
        assert np.array_equal(*spent)
    alone = fewer.step >= 0
    known = {*zip(whole.ipu, whole.step, strict=True)}
    assert {*zip(fewer.ipu[alone], fewer.step[alone], strict=True)} <= known
    assert fewer.named.name[fewer.what[alone]].tolist() == [
        report.program_steps().set_index("step")["name"][step] for step in fewer.step[alone]
    ]


@pytest.mark.parametrize("finest", [5_000, 30_000])
def test_counters_keep_their_peaks_and_their_sums(report: Report, finest: int) -> None:
    known = [counters.of_steps(report, ipu) for ipu in range(4)]
    of_entries = counters.of_merged(report, known, finest)
    for ipu in range(4):
        each, fewer = (
            report.trace.executed(0, [ipu], 0),
            report.trace.executed(0, [ipu], 0, finest=finest),
        )
        assert fewer.merged is not None
        found = (
            counters.at_slices(known[ipu], each.step),
            counters.at_slices(of_entries, fewer.merged),
        )
        spans = each.end - each.start, fewer.end - fewer.start
        (live, tiles, link), (live_m, tiles_m, link_m) = found
        assert live.max() == live_m.max()
        assert (tiles * spans[0]).sum() == pytest.approx((tiles_m * spans[1]).sum())
        assert link.sum() == link_m.sum()
        # what is the most between two edges is a level of detail beside them at most
        edges = np.linspace(each.start.min(), each.end.max(), 12)
        for low, high in pairwise(edges):
            near, far = np.array([low, high]), np.array([low - finest, high + finest])
            (peak,), (drawn,) = (
                counters.most(one.start, one.end, value, near)
                for one, value in ((each, live), (fewer, live_m))
            )
            assert drawn <= counters.most(each.start, each.end, live, far)[0]
            assert peak <= counters.most(fewer.start, fewer.end, live_m, far)[0]
