"""The state that the timeline pages share: parsing it from any address, and its lanes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from ipuscope.profiler import Report, open_report
from ipuscope.profiler.analysis import hierarchy
from ipuscope.profiler.report.query import Answer, select
from ipuscope.viewer.figures import counters, flame, pipeline, theme, trace
from ipuscope.viewer.figures import drawing as drawings
from ipuscope.viewer.figures import lanes as laning
from ipuscope.viewer.figures.drawing import Selection
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import common, costs, details, hits, query, tables, timespan
from ipuscope.viewer.pages.timespan import Arrangement, Span
from ipuscope.viewer.profiles import Profiles
from tests.synthetic import synthetic_profile
from tests.viewer.outlines import enclosed, parts_of

LIGHT, CLOCK = theme.LIGHT, Clock(1e9)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return open_report(synthetic_profile(tmp_path_factory.mktemp("timeline") / "profile.pop"))


@pytest.fixture(scope="module")
def profiles(report: Report) -> Profiles:
    return Profiles([report])


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("30,10,10,5", [5, 10, 30]),
        ("7,x,-3,900,,1e1", [7, 10]),
        (None, []),
        (["3", "1"], [1, 3]),
    ],
)
def test_marks_are_times_within_what_is_shown(words: object, found: list[int]) -> None:
    assert timespan.marks_of(words, 100) == found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("10,20", Selection(10, 20)),
        ("10,20,1,3", Selection(10, 20, (1, 3))),
        ("10,500", Selection(10, 100)),
        ("10,20,3,1", Selection(10, 20)),
        ("20,10", None),
        ("200,500", None),
        ("<b>", None),
        (None, None),
    ],
)
def test_a_selection_is_a_range_within_what_is_shown(
    words: object, found: Selection | None
) -> None:
    assert timespan.selection_of(words, 100) == found


@pytest.mark.parametrize("words", ["", "1", "1,2,3", "nan,x", "1e300,0", None])
def test_a_click_that_makes_no_sense_is_none(words: object) -> None:
    assert timespan.point_of(words) is None


def test_marks_and_a_selection_are_drawn_beside_what_is_there(
    report: Report, profiles: Profiles
) -> None:
    lanes = Span(profiles, report).lanes()
    drawing = pipeline.drawing(lanes, CLOCK, LIGHT)
    before = len(drawing.layout["shapes"]), len(drawing.layout["annotations"])
    drawings.marked(drawing, [10, 50], Selection(10, 50, (1, 2)), CLOCK, LIGHT)
    figure = drawing.checked()
    assert len(figure.layout.shapes) == before[0] + 3
    assert [note.text for note in figure.layout.annotations[before[1] :]] == [
        "<b>A</b>",
        "<b>B</b>",
    ]
    frame = figure.layout.shapes[-1]
    assert (frame.x0, frame.x1, frame.y0, frame.y1) == (10, 50, 0.5, 2.5)


def groups(*members: list[int]) -> list[laning.Lane]:
    return [laning.Lane(one[0], np.array(one), one[0]) for one in members]


def arranged(opened: set[int], pinned: list[int]) -> list[tuple[int, list[int], bool]]:
    lanes = laning._arranged(groups([0], [1, 2, 3], [4, 5]), opened, pinned)
    return [(one.shown, one.members.tolist(), one.pinned) for one in lanes]


def test_a_lane_opens_and_a_pinned_ipu_stands_above_its_own() -> None:
    folded = [(0, [0], False), (1, [1, 2, 3], False), (4, [4, 5], False)]
    assert arranged(set(), []) == folded
    each = [(ipu, [ipu], False) for ipu in (1, 2, 3)]
    assert arranged({2}, []) == [folded[0], *each, folded[2]]
    assert arranged(set(), [1, 5, 0]) == [
        (1, [1], True),
        (5, [5], True),
        (0, [0], True),
        (2, [2, 3], False),
        (4, [4], False),
    ]


def test_every_ipu_is_drawn_once_however_lanes_are_arranged(
    report: Report, profiles: Profiles
) -> None:
    lanes = Span(profiles, report, arrangement=Arrangement(False, (), (2,))).lanes()
    assert lanes.shown.tolist() == [2, 0, 1, 3]
    assert lanes.lane.tolist() == [1, 2, 0, 3]
    for lane, ipu in enumerate(lanes.shown.tolist()):
        here = lanes.task_rows.of(lane)
        rows = lanes.tasks.iloc[lanes.task_rows.source[here]]
        assert set(rows["ipu"]) == {ipu}


def test_profiles_are_named_apart() -> None:
    training, inference = Path("/runs/demo/training"), Path("/runs/demo/inference")
    assert common.apart([training, inference]) == ["training", "inference"]
    assert common.apart([Path("/a/one/training"), Path("/b/two/training")]) == [
        "one/training",
        "two/training",
    ]
    assert common.apart([training, training]) == ["training", "training"]


def test_a_wait_says_what_the_update_waits_for_meanwhile(
    report: Report, profiles: Profiles
) -> None:
    span = Span(profiles, report)
    path = span.path()
    at = int((path.end - path.start).argmax())
    begin, end = int(path.start[at]), int(path.end[at])
    ((_, said),) = span.meanwhile(begin, end)
    assert said[0] == f"IPU {path.ipu[at]}, for 100.0% of it: "
    assert f"from={begin}&to={end}" in said[1].href
    assert Span(profiles, report, iteration=None).meanwhile(begin, end) == []
    assert span.meanwhile(-20, -10) == []


def test_a_point_is_the_task_that_runs_there(report: Report, profiles: Profiles) -> None:
    lanes = Span(profiles, report).lanes()
    task = lanes.tasks[lanes.tasks["ipu"] == 2].iloc[5]
    middle = (task["start"] + task["end"]) / 2 - lanes.origin
    position = laning.task_at(lanes, middle, 2.1)
    assert position is not None
    assert lanes.tasks.iloc[position].equals(task)
    assert laning.task_at(lanes, middle, 77) is None
    assert laning.task_at(lanes, -5, 2) is None
    words = json.dumps(
        details.task_details(report, lanes, (middle, 2.1), CLOCK),
        default=lambda o: o.to_plotly_json(),
    )
    assert str(task["name"]) in words
    assert f"/operations?stage={task['stage']}" in words or task["stage"] < 0


def test_a_selection_of_lanes_sums_up_those_lanes(report: Report, profiles: Profiles) -> None:
    rows = Span(profiles, report).rows(None, "flat")
    window = (rows.end * 0.25, rows.end * 0.5)
    between = (int(window[0]) + rows.origin, int(window[1]) + rows.origin)
    each = [trace.by_activity(report.trace.spent(0, [ipu], 0, between)) for ipu in range(4)]
    whole = {
        name: cycles
        for name, cycles, _ in trace.by_activity(report.trace.spent(0, None, 0, between))
    }
    assert sum(cycles for one in each for _, cycles, _ in one) == sum(whole.values())
    assert timespan.ipus_in(rows, (1, 2)) == [1, 2]
    assert hits.aggregated(report, report.trace.spent(0, [], 0, between), "operator") == []


def _of_steps(rows: trace.Trace) -> np.ndarray:
    """Positions of the slices that are steps."""
    return np.concatenate(
        [np.arange(len(rows.rows.start))[rows.rows.of(r)] for r in rows.rows_of_steps()]
    )


def test_a_flame_of_all_ipus_has_every_ipus_steps(report: Report, profiles: Profiles) -> None:
    span = Span(profiles, report)
    flames = span.rows(None, "flame")
    flat = span.rows(None, "flat")
    steps = [np.sort(one.step[one.rows.source[_of_steps(one)]]) for one in (flames, flat)]
    assert np.array_equal(*steps)
    assert sorted(set(flames.ipu.tolist())) == [0, 1, 2, 3]
    assert [name for name in flames.names if name.startswith("IPU")] == [
        f"IPU {ipu}" for ipu in range(4)
    ]
    path = span.path_on_rows(flames)
    assert path is not None
    assert {flames.names[row] for row in path.ipu} <= {f"IPU {ipu}" for ipu in range(4)}


def test_the_row_of_a_slice_is_found_at_any_time_of_it(report: Report, profiles: Profiles) -> None:
    rows = Span(profiles, report).rows(1, "flat").rows
    for at in (0, len(rows.start) // 2, len(rows.start) - 1):
        assert rows.at(0, rows.start[at]) == at
        assert rows.at(0, rows.end[at] - 0.5) == at
    assert rows.at(0, rows.end.max()) == -1
    assert rows.at(1, 0) == rows.at(-1, 0) == -1


def test_the_steps_that_are_counted_are_those_of_the_frame(report: Report) -> None:
    for ipu in (None, 0, 3):
        assert report.trace.step_count(0, ipu, 0) == len(report.steps(0, ipu, 0))
    assert report.trace.step_count(0, [0, 3], 0) == sum(
        len(report.steps(0, ipu, 0)) for ipu in (0, 3)
    )
    assert report.trace.step_count(0, np.array([2]), None) == len(report.steps(0, 2))


def test_what_has_too_many_steps_is_drawn_by_tasks(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As GPT-3 over 256 IPUs, with 13 million steps on each."""
    counts = [report.trace.step_count(0, ipu, 0) for ipu in range(4)]
    monkeypatch.setattr(laning, "MOST_STEPS", min(counts) - 1)
    profiles = Profiles([report])
    span = Span(profiles, report)
    lanes = span.with_steps(span.lanes())
    assert not len(lanes.steps) and len(lanes.tasks)
    rows = span.rows(1, "flat")
    assert len(rows.rows.start) == len(report.tasks(0, 1, 0))
    assert (rows.step == -1).all()
    (said,) = span.as_tasks([1])
    assert f"{counts[1]:,} steps" in said.children and "Zoom in" in said.children
    monkeypatch.setattr(laning, "MOST_STEPS", sum(counts))
    assert span.as_tasks([0, 1, 2, 3]) == []
    all_of_it = Span(Profiles([report]), report).with_steps(lanes)
    assert len(all_of_it.steps) == sum(counts)


def test_a_statement_that_is_refused_ends_in_one_full_stop() -> None:
    assert query._refusal("You can only execute one statement at a time.") == (
        "No answer: You can only execute one statement at a time."
    )
    assert query._refusal("not authorized").endswith("tables and views is answered.")
    assert query._refusal("it took longer than 10 s") == "No answer: it took longer than 10 s."


def test_lanes_without_a_row_are_not_left_out_in_silence(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = Profiles([report])
    span = Span(profiles, report)
    assert span.left_out() == []
    monkeypatch.setattr(timespan, "FEW", 3)
    rows = span.rows(None, "flat")
    assert len(rows.names) == 3
    (said,) = span.left_out()
    assert said.children.startswith("3 of 4 lanes: the pinned ones")


def test_a_window_of_what_has_too_many_steps_shows_its_steps(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Span(Profiles([report]), report).rows(1, "flat")
    monkeypatch.setattr(laning, "MOST_STEPS", 0)
    profiles = Profiles([report])
    window = (whole.end * 0.4, whole.end * 0.5)
    span = Span(profiles, report)
    assert span.as_tasks([1], window) == []
    rows = span.rows(1, "flat", window=window)
    assert (rows.origin, rows.end) == (whole.origin, whole.end)
    assert len(rows.rows.start) < len(whole.rows.start)
    drawn = [trace.drawing(one, CLOCK, LIGHT, window).data[0] for one in (rows, whole)]
    for name in ("base", "x"):
        assert np.array_equal(*(np.asarray(one[name]) for one in drawn))
    lanes = span.lanes()
    lanes = span.with_steps(lanes, window)
    assert 0 < len(lanes.steps) < sum(report.trace.step_count(0, ipu, 0) for ipu in range(4))


@pytest.fixture(scope="module")
def detailed(tmp_path_factory: pytest.TempPathFactory) -> Report:
    path = tmp_path_factory.mktemp("detailed") / "profile.pop"
    return open_report(synthetic_profile(path, steps_per_body=80))


@pytest.fixture
def large(detailed: Report, monkeypatch: pytest.MonkeyPatch) -> Profiles:
    """Profiles that are drawn as one of a million steps is."""
    monkeypatch.setattr(timespan, "_EACH", 0)
    monkeypatch.setattr(timespan, "_COLUMNS", 64)
    return Profiles([detailed])


def drawn_cycles(figure: go.Figure) -> dict[str, float]:
    """By activity but waiting, the cycles that bars and outlines fill."""
    found: dict[str, float] = {}
    for one in figure.data:
        if one.type == "bar" and one.x[0] is not None:
            found[one.name] = found.get(one.name, 0) + float(np.sum(one.x))
        elif one.type == "scatter" and one.fill == "toself":
            filled = sum(map(enclosed, parts_of(one.x, one.y))) / trace._HEIGHT
            found[one.name] = found.get(one.name, 0) + filled
    return {name: cycles for name, cycles in found.items() if name != "waiting"}


def test_a_notebooks_flame_graph_has_all_cycles_or_bytes(report: Report) -> None:
    whole = hierarchy.by_direction(report).shown[0].value
    for by in hierarchy.ORDERS:
        assert report.figures.costs(by).data[0].values[0] == whole
    assert report.figures.costs(of="bytes").data[0].values[0] == report.memory()["bytes"].sum()


def test_merged_steps_fill_what_each_of_them_does(detailed: Report, large: Profiles) -> None:
    span = Span(large, detailed)
    each = span.rows(None, "flat", each=True)
    fewer = span.rows(None, "flat")
    assert len(fewer.rows.start) < len(each.rows.start) / 2
    for name in ("names", "origin", "end"):
        assert getattr(fewer, name) == getattr(each, name)
    drawn = [trace.drawing(one, CLOCK, LIGHT, None, 200) for one in (each, fewer)]
    filled = [drawn_cycles(one.checked()) for one in drawn]
    assert len(filled[0]) > 3
    assert filled[0] == pytest.approx(filled[1], rel=0.02)
    edges = np.linspace(0, each.end, 30) + each.origin
    found = [
        counters.over_time(counters.tracks(one, span.counters(one)), edges) for one in (each, fewer)
    ]
    for one, other in zip(*found, strict=True):
        assert one.max() == pytest.approx(other.max(), rel=0.2)
    assert found[0][0].max() == found[1][0].max()  # the most that is live
    for at in (1, 2):
        assert found[0][at].sum() == pytest.approx(found[1][at].sum())


def test_a_click_on_merged_steps_is_on_the_one_that_is_there(
    detailed: Report, large: Profiles
) -> None:
    span = Span(large, detailed)
    each = span.rows(None, "flat", each=True)
    for at in range(0, len(each.rows.start), 37):
        row = int(np.searchsorted(each.rows.first, at, side="right")) - 1
        time = float(each.rows.start[at] - each.origin)
        here = span.rows(None, "flat", moment=time)
        assert here.names == each.names
        found = here.rows.at(row, time + here.origin)
        assert (here.rows.start[found], here.rows.end[found]) == (
            each.rows.start[at],
            each.rows.end[at],
        )
        assert here.step[here.rows.source[found]] == each.step[each.rows.source[at]]


def test_zooms_and_moves_share_what_the_first_of_them_made(
    detailed: Report, large: Profiles
) -> None:
    span = Span(large, detailed)
    whole = span.rows(1, "flat")
    windows = [(0.4 * whole.end, 0.5 * whole.end), (0.1 * whole.end, 0.11 * whole.end)]
    near, again = (span.rows(1, "flat", window=window) for window in windows)
    assert again is near
    assert (near.origin, near.end, near.names) == (whole.origin, whole.end, whole.names)
    assert near.finest <= 1 < whole.finest


def test_counters_are_of_the_rows_that_are_shown(report: Report, profiles: Profiles) -> None:
    span = Span(profiles, report)
    rows = span.rows(2, "flat")
    known = span.counters(rows)
    of = counters.tracks(rows, known)
    whole = (rows.end, rows.origin, report.target.tiles_per_ipu)
    figure = counters.drawn(of, *whole, CLOCK, LIGHT)
    live = figure.data[0]["y"]
    assert live.max() * 2**20 == pytest.approx(report.liveness(2)["total"].max(), rel=1e-6)
    assert figure.data[1]["y"].max() <= 100
    edges = np.linspace(0, rows.end, 400) + rows.origin
    part = slice(100, 200)
    every, some = counters.over_time(of, edges), counters.over_time(of, edges[100:201])
    for one, other in zip(every, some, strict=True):
        assert np.allclose(one[part], other)


def test_a_flame_graph_names_known_parents_and_is_light(report: Report, profiles: Profiles) -> None:
    nodes = costs.tree_of(profiles, report, None, "cycles", "module", False)
    from ipuscope.profiler.analysis import hierarchy

    shown = hierarchy.visible(nodes, (), 1 / 1400)
    figure = flame.drawn(shown, (), str, LIGHT, bytes_of=False, compared=False).checked()
    ids = set(figure.data[0].ids)
    assert len(ids) == len(figure.data[0].ids)
    assert set(figure.data[0].parents) - {""} <= ids
    assert len(figure.to_json()) < 1_000_000


def test_a_path_in_an_address_leads_back_to_itself() -> None:
    for path in ((), ("a",), ("a b", "c/d.e")):
        assert flame.path_of(flame.id_of(path)) == path


def test_a_table_of_an_answer_holds_any_name_and_number() -> None:
    large = (1 << 62) + 1
    answer = Answer(("a.b", "a.b:1", "d3.x"), ((large, "<i>", 1.5),), cut=False)
    _, grid = query._table(answer, LIGHT)
    assert grid.rowData == [{"c0": str(large), "c1": "<i>", "c2": 1.5}]
    assert [column["headerName"] for column in grid.columnDefs] == ["a.b", "a.b:1", "d3.x"]


def test_what_is_of_calls_has_no_rows_where_none_was_profiled(
    report: Report, tmp_path: Path
) -> None:
    compiled = open_report(synthetic_profile(tmp_path / "compiled.pop", runs=0))
    full = []
    for name in query.OF_CALLS:
        sql = f"SELECT * FROM {name} LIMIT 5"
        full.append(len(select(report, sql).rows) > 0)
        assert len(select(compiled, sql).rows) == 0
        (said,) = query._none_profiled(compiled, sql)
        assert f"No call was profiled, so {name} has no rows" in said.children
        assert query._none_profiled(report, sql) == []
    assert sum(full) == len(full) - 2  # it has no host events
    assert query._none_profiled(compiled, "SELECT * FROM ops WHERE 0") == []


@pytest.mark.parametrize(("later", "height"), [(True, "500px"), (False, "142px")])
def test_a_table_that_is_filled_later_has_room_for_its_rows(later: bool, height: str) -> None:
    """The program's tree has none at first, and hundreds then."""
    none = pd.DataFrame({"name": []})
    grid = tables.table(
        "grid",
        none,
        [tables.Column("name", "name")],
        LIGHT,
        500,
        sortable=False,
        filled_later=later,
    )
    assert grid.style["height"] == height


def test_a_column_has_room_for_its_longest_number() -> None:
    cycles = pd.DataFrame({"name": ["a", "b"], "cycles": [1, 162_198_128_092]})
    columns = [tables.Column("name", "name"), tables.Column("cycles", "cycles", ",.0f", width=90)]
    grid = tables.table("grid", cycles, columns, LIGHT, 500)
    width = {one["field"]: one["width"] for one in grid.columnDefs}
    limits = {one["colId"]: one for one in grid.dashGridOptions["autoSizeStrategy"]["columnLimits"]}
    assert width["cycles"] == limits["cycles"]["minWidth"] > 15 * 7  # digits and commas
