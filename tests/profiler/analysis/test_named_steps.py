"""Executed steps by name, against all steps unrolled."""

from __future__ import annotations

import numpy as np
import pytest

from ipuscope.profiler import Report, open_report
from ipuscope.profiler.analysis.named_steps import NamedSteps
from tests.synthetic import synthetic_profile


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    path = tmp_path_factory.mktemp("named") / "profile.pop"
    return open_report(synthetic_profile(path, ipus=3, runs=1))


@pytest.mark.parametrize("iteration", [1, None])
def test_what_a_name_is_found_in_is_what_all_steps_say(
    report: Report, iteration: int | None
) -> None:
    steps = report.steps(0, iteration=iteration)
    words = str(steps.loc[steps["step"] >= 0, "name"].iloc[0]).rsplit("/", 1)[-1]
    hits = steps[steps["name"].str.contains(words.upper(), case=False, regex=False)]
    found = NamedSteps.of(report, words).executed(report, 0, [0, 1, 2], iteration)
    assert len(found) == len(hits) > 0
    assert found.cycles == hits["cycles"].sum()
    middles = np.unique((hits["start"] + hits["end"]) / 2)
    for time in middles[:: max(1, len(middles) // 20)].tolist():
        assert found.before(time) == ((hits["start"] + hits["end"]) / 2 < time).sum()
        for forward, side in ((True, middles[middles > time]), (False, middles[middles < time])):
            one = found.next(time, forward)
            assert (one is None) == (not len(side))
            if one is not None:
                assert (one[1] + one[2]) / 2 == (side.min() if forward else side.max())
                assert ((hits["ipu"] == one[0]) & (hits["start"] == one[1])).any()


def test_hits_at_the_same_time_on_other_ipus_are_not_stepped_over(report: Report) -> None:
    """Both ways through all of them, each once, by time and IPU."""
    steps = report.steps(0, iteration=0)
    middle = (steps["start"] + steps["end"]) / 2
    at_once = steps[steps["step"] >= 0].groupby(["name", middle])["ipu"].nunique()
    words = str(at_once.idxmax()[0])  # type: ignore[index]
    assert at_once.max() > 1
    hits = steps[steps["name"].str.contains(words, regex=False)].assign(middle=middle)
    hits = hits[hits["start"] < hits["end"]].sort_values(["middle", "ipu"])
    wanted = list(zip(hits["ipu"], hits["start"], hits["end"], strict=True))
    found = NamedSteps.of(report, words).executed(report, 0, [0, 1, 2], 0)
    for forward, way in ((True, wanted), (False, wanted[::-1])):
        one = found.next(-np.inf if forward else np.inf, forward)
        for nth, expected in enumerate(way):
            assert one == expected
            now = (one[1] + one[2]) / 2
            assert found.before(now, one[0]) == (nth if forward else len(way) - 1 - nth)
            one = found.next(now, forward, one[0])
        assert one is None


def test_a_name_that_nothing_has_is_found_nowhere(report: Report) -> None:
    found = NamedSteps.of(report, "no such name").executed(report, 0, [0, 1, 2], 0)
    assert len(found) == found.cycles == found.before(np.inf) == 0
    assert found.next(-np.inf, forward=True) is None
