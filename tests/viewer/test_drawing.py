"""Figures of time and bars are plain JSON: what plotly would accept and send."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dash._utils import to_json

from benchmarks.rebalance.random_costs import random_costs
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.profiler import Report, open_report
from ipuscope.profiler.analysis import critical_path
from ipuscope.profiler.analysis.kinds import cycles_of_ipus
from ipuscope.viewer.figures import bars, counters, memory, pipeline, rebalance, trace
from ipuscope.viewer.figures.drawing import Drawing, Selection, marked, nothing
from ipuscope.viewer.figures.theme import DARK, LIGHT
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import timespan
from ipuscope.viewer.profiles import Profiles
from tests.synthetic import synthetic_profile
from tests.viewer.page_requests import plain

CLOCK = Clock(1e9)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    path: Path = tmp_path_factory.mktemp("drawn") / "profile.pop"
    return open_report(synthetic_profile(path, steps_per_body=40))


def lanes(report: Report, profiles: Profiles) -> Drawing:
    known = timespan.Span(profiles, report).lanes()
    known = timespan.Span(profiles, report).with_steps(known)
    return pipeline.drawing(known, CLOCK, LIGHT, follow=1)


def steps(report: Report, profiles: Profiles) -> Drawing:
    rows = timespan.Span(profiles, report).rows(None, "flat")
    path = timespan.Span(profiles, report).path_on_rows(rows)
    return trace.drawing(rows, CLOCK, DARK, (0, rows.end / 7), find="a", path=path)


def flames(report: Report, profiles: Profiles) -> Drawing:
    return trace.drawing(timespan.Span(profiles, report).rows(1, "flame"), CLOCK, LIGHT)


def counted(report: Report, profiles: Profiles) -> Drawing:
    rows = timespan.Span(profiles, report).rows(2, "flat")
    of = counters.tracks(rows, timespan.Span(profiles, report).counters(rows))
    return counters.drawn(of, rows.end, rows.origin, 1472, CLOCK, LIGHT)


def busy(report: Report, profiles: Profiles) -> Drawing:
    rows = timespan.Span(profiles, report).rows(None, "flat")
    return trace.overview(rows, CLOCK, DARK)


def empty(report: Report, profiles: Profiles) -> Drawing:
    return nothing("There are none: none were counted.", LIGHT)


def spent(report: Report, profiles: Profiles) -> Drawing:
    each = [(f"IPU {ipu}", np.array([ipu])) for ipu in range(report.target.num_ipus)]
    return bars.busy(each, *cycles_of_ipus(report), CLOCK, DARK)


def stages(report: Report, profiles: Profiles) -> Drawing:
    return bars.stage_costs(report.stages, CLOCK, LIGHT)


def waits(report: Report, profiles: Profiles) -> Drawing:
    path = critical_path.critical_path(report)
    return bars.waterfall(critical_path.waterfall(path), CLOCK, LIGHT)


def tiles(report: Report, profiles: Profiles) -> Drawing:
    return memory.headroom(np.array([100, 700_000]), 638_976, DARK)


def split(report: Report, profiles: Profiles) -> Drawing:
    costs = random_costs(np.random.default_rng(3), 9)
    found = what_if(costs, Assignment.of(costs.stage.tolist(), costs.ipus))
    return rebalance.stages(costs, found, int(found.stage_cycles.max()), CLOCK, LIGHT)


def heat(report: Report, profiles: Profiles) -> Drawing:
    values, program = report.liveness_map(1, shape=(40, 24)), report.program_steps(1)
    bounds = (0, len(program)), (0, report.target.tiles_per_ipu)
    return memory.heat_map(values, *bounds, program, report.target.bytes_per_tile, LIGHT)


TIMELINES = [lanes, steps, flames, counted, empty]
OTHERS = [spent, stages, waits, tiles, split, busy, heat]


@pytest.mark.parametrize("draw", TIMELINES + OTHERS)
def test_what_is_sent_is_what_plotly_accepts_and_sends(
    report: Report, draw: Callable[[Report, Profiles], Drawing]
) -> None:
    drawing = draw(report, Profiles([report]))
    if draw in TIMELINES:
        moved(drawing)
    sent = json.loads(to_json(drawing))
    figure = json.loads(to_json(drawing.checked()))
    assert len(sent["data"]) == len(figure["data"])
    for one, other in zip(sent["data"], figure["data"], strict=True):
        assert plain(one) == plain(other)
    assert plain(sent["layout"]) == plain(figure["layout"])


def moved(drawing: Drawing) -> None:
    """With marks, a selection and what the browser is told."""
    marked(drawing, [3, 70], Selection(5, 60), CLOCK, LIGHT)
    timespan.keep_zoom(drawing, "trace", CLOCK, (0.0, 10.0), "key", 100)
    assert drawing.layout["meta"] == {
        "page": "trace",
        "scale": 1.0,
        "x": ["from", "to"],
        "end": 100,
        "timeline": True,
        "lanes": [],
        "rows": 0,
    }


def test_a_change_keeps_what_is_beside_it_and_other_figures_as_they_were() -> None:
    shared = {"color": "red", "size": 12}
    one, other = (Drawing([], {"font": shared, "shapes": [1]}) for _ in range(2))
    assert one.update_layout(font={"size": 11}, shapes=[2, 3], height=7) is one
    assert one.layout == {"font": {"color": "red", "size": 11}, "shapes": [2, 3], "height": 7}
    assert other.layout == {"font": {"color": "red", "size": 12}, "shapes": [1]}


def test_a_property_that_plotly_has_not_is_an_error_where_it_is_checked() -> None:
    with pytest.raises(ValueError, match="colour"):
        Drawing([{"type": "scatter", "colour": "red"}], {}).checked()
