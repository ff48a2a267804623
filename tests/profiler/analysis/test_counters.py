"""Counters over time, compared with slices counted one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuscope.profiler import Report, open_report
from ipuscope.profiler.analysis import counters
from tests.synthetic import synthetic_profile

slices = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 30), st.integers(0, 9)), min_size=1, max_size=30
)


def laid_out(parts: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lay out slices, each given as (gap before it, length, value)."""
    gaps, lengths, values = (np.array(column) for column in zip(*parts, strict=True))
    end = np.cumsum(gaps + lengths)
    return end - lengths, end, values


@given(slices, st.integers(1, 17))
@settings(deadline=None)
def test_the_mean_and_the_most_are_those_of_every_cycle(
    parts: list[tuple[int, int, int]], bins: int
) -> None:
    start, end, value = laid_out(parts)
    width = -(-int(end[-1]) // bins)
    by_cycle = np.zeros(width * bins, dtype=np.int64)
    for one, other, number in zip(start, end, value, strict=True):
        by_cycle[one:other] = number
    edges = np.arange(bins + 1) * width
    table = by_cycle.reshape(bins, width)
    assert np.allclose(
        counters.mean(start, end, counters.until(value * (end - start)), edges), table.mean(axis=1)
    )
    assert counters.most(start, end, value, edges).tolist() == table.max(axis=1).tolist()


def test_without_slices_all_is_nothing() -> None:
    none = np.zeros(0, dtype=np.int64)
    edges = np.array([0, 5, 10])
    assert counters.mean(none, none, counters.until(none), edges).tolist() == [0, 0]
    assert counters.most(none, none, none, edges).tolist() == [0, 0]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return open_report(synthetic_profile(tmp_path_factory.mktemp("counters") / "profile.pop"))


def test_steps_hold_what_the_report_says_and_waits_keep_it(report: Report) -> None:
    known = counters.of_steps(report, 1)
    program, live = report.program_steps(1), report.liveness(1)["total"].to_numpy()
    first, second = program["step"].iloc[3], program["step"].iloc[7]
    step = np.array([-1, first, -1, -1, second, -1])
    held, tiles, _ = (values.tolist() for values in counters.at_slices(known, step))
    assert held == [live[3], live[3], live[3], live[3], live[7], live[7]]
    active = program["active_tiles"].tolist()
    assert tiles == [0, active[3], 0, 0, active[7], 0]


@pytest.mark.parametrize("ids", [[4, 5, 6], [2, 5, 9], [4, 5000, 1 << 33]])
def test_steps_whose_ids_count_or_do_not(ids: list[int]) -> None:
    known = counters.OfSteps(*map(np.array, (ids, [10, 20, 30], [1, 2, 3], [7, 0, 9])))
    step = np.array([-1, 3, ids[1], -1, ids[0], ids[2], 1 << 40])
    live, tiles, link = (values.tolist() for values in counters.at_slices(known, step))
    assert live == [20, 20, 20, 20, 10, 30, 30]
    assert tiles == [0, 0, 2, 0, 1, 3, 0]
    assert link == [0, 0, 0, 0, 7, 9, 0]
    live, tiles, link = (values.tolist() for values in counters.at_slices(known, np.array([-1])))
    assert live == tiles == link == [0]
    whole = counters.at_slices(known, np.array(ids)[[2, 0]])
    assert [values.tolist() for values in whole] == [[30, 10], [3, 1], [9, 7]]


def test_links_carry_what_the_exchanges_between_ipus_send(report: Report) -> None:
    steps = report.steps(0, 1, 0)
    known = counters.of_steps(report, 1)
    step, start, end = (steps[name].to_numpy() for name in ("step", "start", "end"))
    _, _, sent = counters.at_slices(known, step)
    program = report.program_steps(1).set_index("step")
    across = steps[steps["kind"] == "global exchange"]["step"]
    assert sent.sum() == program.loc[across, "bytes_out"].sum()
    edges = np.linspace(start.min(), end.max(), 50)
    rate = counters.mean(start, end, counters.until(sent), edges)
    assert (rate * np.diff(edges)).sum() == pytest.approx(sent.sum())
