"""The figures' level of detail and content, compared with the frames they are made from."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.rebalance.random_costs import random_costs
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.profiler import Report, analysis, open_report
from ipuscope.profiler.analysis import critical_path
from ipuscope.profiler.analysis.kinds import cycles_of_ipus
from ipuscope.profiler.timeline.executed_steps import Executed, Spent
from ipuscope.profiler.timeline.tile_usage import KINDS
from ipuscope.viewer.figures import (
    bars,
    counters,
    flame,
    lod,
    memory,
    pipeline,
    pod,
    rebalance,
    theme,
    trace,
    units,
)
from ipuscope.viewer.figures import lanes as laning
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import common, hits, timespan
from ipuscope.viewer.pages import rebalance as rebalance_page
from ipuscope.viewer.profiles import Profiles
from tests.synthetic import synthetic_profile
from tests.viewer import outlines


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return open_report(synthetic_profile(tmp_path_factory.mktemp("figures") / "profile.pop"))


@pytest.fixture(scope="module")
def lanes(report: Report) -> laning.Lanes:
    return laning.lanes(
        report.tasks(0, iteration=0),
        report.trace.executed(0, iteration=0),
        report.pipeline_cycles(0, 0),
        report.stages,
    )


def executed(report: Report) -> laning.StepRows:
    """The steps of all IPUs of the first device iteration."""
    steps = report.trace.executed(0, iteration=0)
    return laning.StepRows.of(steps, range(report.target.ipus_per_replica))


rows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 50), st.integers(0, 4)), min_size=1, max_size=60
)


def test_a_split_in_an_address_has_its_ipus_or_one_a_stage() -> None:
    costs: Any = range(6)  # only counted
    assert rebalance_page.asked(costs, "0,2,4@0,1,0") == Assignment((0, 2, 4), (0, 1, 0))
    assert rebalance_page.asked(costs, "0,2,4") == Assignment((0, 2, 4), (0, 1, 2))


@given(rows, st.integers(1, 80))
@settings(deadline=None)
def test_pieces_cover_what_the_slices_covered_and_count_them(
    parts: list[tuple[int, int, int]], pixels: int
) -> None:
    gap, length, code = (np.array(column) for column in zip(*parts, strict=True))
    end = np.cumsum(gap + length)
    start = end - length
    pieces = lod.pieces(start, end, code, 0, float(end[-1]), pixels)
    assert pieces.count.sum() == len(parts)
    assert pieces.first.tolist() == (np.cumsum(pieces.count) - pieces.count).tolist()
    assert pieces.start.tolist() == start[pieces.first].tolist()
    assert pieces.end.tolist() == end[pieces.first + pieces.count - 1].tolist()
    assert pieces.code.tolist() == code[pieces.first].tolist()


@given(rows, st.integers(1, 80))
@settings(deadline=None)
def test_a_merged_bar_is_filled_in_proportion_to_what_it_stands_for(
    parts: list[tuple[int, int, int]], pixels: int
) -> None:
    gap, length, code = (np.array(column) for column in zip(*parts, strict=True))
    end = np.cumsum(gap + length)
    one_row = lod.Rows.make(np.zeros(len(parts), np.int64), end - length, end, code, 1)
    pieces, _ = one_row.around(0, 0, float(end[-1]), pixels)
    merged = pieces.where(pieces.count > 1)
    piece, of, below, share = one_row.bands(merged)
    area = share * (merged.end - merged.start)[piece]
    for number in range(len(merged)):
        slices = slice(merged.first[number], merged.first[number] + merged.count[number])
        exact = np.bincount(code[slices], weights=length[slices], minlength=5)
        bands = piece == number
        assert np.bincount(of[bands], weights=area[bands], minlength=5) == pytest.approx(exact)
        assert below[bands] == pytest.approx(np.cumsum(share[bands]) - share[bands])


def test_like_replicas_and_neighbours_of_equal_work_share_a_lane() -> None:
    work = np.array([[5, 0], [7, 0], [7, 0], [9, 0]])
    cycles = np.zeros((8, len(theme.ACTIVITIES)), dtype=np.int64)
    cycles[:, :2] = np.vstack([work, work])
    cycles[:, theme.WAITING] = [4, 2, 2, 0, 4, 2, 2, 1]  # the last of the second replica differs
    cycles[2, theme.NAMES.index("exchange")] = cycles[6, theme.NAMES.index("exchange")] = 3
    at = np.array([2, 3])
    path = laning.CriticalPath(at, np.array([0, 10]), np.array([10, 12]))
    lane, shown = laning.folded(cycles, path, 4)
    assert lane.tolist() == [0, 1, 1, 2, 0, 1, 1, 3]
    assert shown.tolist() == [0, 2, 3, 7]
    assert laning.spans(np.flatnonzero(lane == 1)) == "IPU 1–2, 5–6"


def test_a_figure_of_many_slices_stays_under_a_megabyte() -> None:
    start = np.arange(400_000)
    ipu = start % 256
    kind, direction = np.array(["task", "idle"])[start % 2], np.array(["forward", "backward"])
    tasks = pd.DataFrame(
        {
            "ipu": ipu,
            "start": start // 256 * 100 + ipu,
            "end": start // 256 * 100 + ipu + 40 + ipu % 7,
            "cycles": 40 + ipu % 7,
            "kind": kind,
            "name": "a task",
            "direction": direction[start // 3 % 2],
            "micro_batch": start % 64,
            "phase": "steady",
            "pipeline_cycle": 0,
        }
    )
    stages = pd.DataFrame({"ipu": np.arange(256), "stage": np.arange(256), "blocks": ""})
    columns = ["position", "phase", "start", "end", "cycles", "slowest_ipu"]
    none = pd.DataFrame(columns=pd.Index(columns))
    lanes = laning.lanes(tasks, Executed.nothing(), none, stages)
    figure = pipeline.drawing(lanes, Clock(1e9), theme.LIGHT).checked()
    assert len(figure.to_json()) < 1_000_000
    assert figure.layout.height < 1100


@given(rows)
def test_slices_that_are_long_enough_to_see_stay_as_they_are(
    parts: list[tuple[int, int, int]],
) -> None:
    gap, length, code = (np.array(column) for column in zip(*parts, strict=True))
    end = np.cumsum(gap + length)
    pieces = lod.pieces(end - length, end, code, 0, float(end[-1]), lod.FINEST * int(end[-1]))
    assert (pieces.end - pieces.start).tolist() == length.tolist()
    assert pieces.code.tolist() == code.tolist()


def test_many_slices_become_few_pieces() -> None:
    start = np.arange(1_000_000)
    code = (start // 7) % 5
    pieces = lod.pieces(start, start + 1, code, 0, 1e6, 1000)
    assert len(pieces) <= 2000
    assert pieces.count.sum() == 1_000_000


def test_a_zoom_draws_only_what_reaches_into_it() -> None:
    start = np.arange(0, 1000, 10)
    pieces = lod.pieces(start, start + 10, np.zeros(100, dtype=int), 95, 125, 300)
    assert pieces.first.tolist() == [9, 10, 11, 12]


def bars_by_name(figure: object) -> dict[str, object]:
    return {bar.name: bar for bar in figure.data if bar.type == "bar"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "ipus"),
    [("ipu 1", [1]), ("IPU 1 | stage 0", [0, 1]), ("IPU 12", [0, 1, 2, 3]), ("b3", [2])],
)
def test_lanes_are_chosen_by_their_names(report: Report, words: str, ipus: list[int]) -> None:
    arrangement = timespan.Arrangement.of("all", "", "", words)
    lanes = timespan.Span(Profiles([report]), report, arrangement=arrangement).lanes()
    assert lanes.shown.tolist() == ipus == np.flatnonzero(lanes.lane >= 0).tolist()
    assert {*lanes.path.ipu.tolist()} <= {*ipus}
    pipeline.drawing(lanes, Clock(1e9), theme.LIGHT, follow=0).checked()


def test_the_lanes_show_every_cycle_of_every_task(report: Report, lanes: laning.Lanes) -> None:
    figure = pipeline.drawing(lanes, Clock(1e9), theme.LIGHT, pixels=1_000_000).checked()
    tasks = report.tasks(0, iteration=0)
    for name, direction in (("forward", "forward"), ("backward", "backward")):
        bar = bars_by_name(figure)[name]
        assert sum(bar.x) == tasks.loc[tasks["direction"] == direction, "cycles"].sum()  # type: ignore[attr-defined]


def test_where_cycles_go_is_what_the_steps_do(report: Report) -> None:
    kinds, cycles = cycles_of_ipus(report)
    proportions = report.cycle_proportions(0)
    iterations = int(report.runs["iterations"].iloc[0])
    assert (cycles.sum(axis=1) * iterations == proportions["total"]).all()
    for at, kind in enumerate(kinds):
        assert (cycles[:, at] * iterations == proportions[kind]).all(), kind


def test_a_bar_of_several_ipus_is_their_mean_and_says_how_they_differ() -> None:
    """Of one that waits 10 % and one that waits 50 %, neither speaks for both."""
    cycles, both = np.array([[90, 10], [50, 50], [90, 10]]), np.array([0, 1])
    groups = [("IPU 0–1", both), ("IPU 2", np.array([2]))]
    figure = bars.busy(groups, ("compute", "idle"), cycles, Clock(1e9), theme.LIGHT)
    waiting = bars_by_name(figure.checked())["waiting"]
    assert list(waiting.x) == [30, 10]  # type: ignore[attr-defined]
    assert [note["text"] for note in figure.layout["annotations"]] == ["10 to 50% waiting"]


def test_microseconds_are_cycles_over_the_clock(lanes: laning.Lanes) -> None:
    cycles = pipeline.drawing(lanes, Clock(1e9), theme.LIGHT).checked()
    micro = pipeline.drawing(lanes, Clock(1e9, "µs"), theme.LIGHT).checked()
    assert np.allclose(np.array(cycles.data[0].x) / 1000, micro.data[0].x)
    assert "µs" in micro.layout.xaxis.title.text


def test_ramp_up_and_ramp_down_are_shaded_where_the_report_has_them(
    report: Report, lanes: laning.Lanes
) -> None:
    figure = pipeline.drawing(lanes, Clock(1e9), theme.LIGHT).checked()
    cycles = report.pipeline_cycles(0, 0)
    shaded = [(shape.x0, shape.x1) for shape in figure.layout.shapes if shape.type == "rect"]
    for phase in ("ramp-up", "ramp-down"):
        part = cycles[cycles["phase"] == phase]
        start, end = part["start"].min() - lanes.origin, part["end"].max() - lanes.origin
        assert any(left <= start and end <= right for left, right in shaded)
    steady = cycles[cycles["phase"] == "steady"]
    for start, end in zip(
        steady["start"] - lanes.origin, steady["end"] - lanes.origin, strict=True
    ):
        assert all(right <= start or end <= left for left, right in shaded)
    assert any("ramp-up" in note.text for note in figure.layout.annotations)


def test_following_a_micro_batch_meets_it_on_every_ipu(report: Report, lanes: laning.Lanes) -> None:
    figure = pipeline.drawing(lanes, Clock(1e9), theme.LIGHT, follow=2).checked()
    path = next(trace for trace in figure.data if trace.name == "micro-batch 2")
    assert set(np.round(np.array(path.y) + 0.1).astype(int)) == set(range(report.target.num_ipus))


def test_ipus_that_share_tensors_are_one_lane_that_opens(
    report: Report, lanes: laning.Lanes
) -> None:
    of = lanes.tasks, lanes.steps, lanes.cycles, report.stages
    ipus = report.target.num_ipus
    closed = laning.lanes(*of, shards=4)
    assert closed.names == tuple(f"IPU {ipu} × 4" for ipu in range(ipus))
    assert all(lane.mark == "▸ " for lane in closed.arranged)
    group = closed.arranged[1].group
    opened = laning.lanes(*of, opened=(group,), shards=4)
    assert opened.names[1:5] == ("IPU 1 / 0", "IPU 1 / 1", "IPU 1 / 2", "IPU 1 / 3")
    assert [lane.group for lane in opened.arranged[1:5]] == [group] * 4
    assert opened.arranged[1].mark == "▾ " and len(opened.names) == ipus + 3
    rows = opened.task_rows
    assert len({tuple(rows.source[rows.of(lane)]) for lane in range(1, 5)}) == 1
    assert opened.lane.tolist() == [0, 1, *range(5, ipus + 3)]
    at = laning.task_at(opened, 0.5 * lanes.end, 4)
    assert at is not None and lanes.tasks["ipu"].iloc[at] == 1
    twice = trace.flat(laning.StepRows.of(lanes.steps, lanes.ipus), [(0, "a"), (1, "b"), (1, "c")])
    assert twice.names == ("a", "b", "c") and twice.ipu.tolist() == [0, 1, 1]
    assert twice.of_steps.tolist() == [True, True, False]


def test_names_are_text_in_figures() -> None:
    assert units.plain("<b>&x") == "&lt;b&gt;&amp;x"
    stages = pd.DataFrame({"stage": [0], "ipu": [0], "blocks": ["<img src=x onerror=alert(1)>"]})
    lane = laning.Lane(0, np.array([0]))
    assert "<img" not in laning.lane_label(lane, stages)


# What of red, green and blue is seen without red's, green's and blue's cones (Machado, 2009).
_COLOUR_BLIND = (
    ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
)
_XYZ = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8729))


def _lab(colour: str, seen: tuple[tuple[float, ...], ...] | None) -> np.ndarray:
    """CIELAB of "#rrggbb", as it is ``seen``."""
    parts = [theme.luminance("#" + colour[at : at + 2] * 3) for at in (1, 3, 5)]
    rgb = np.array(parts) if seen is None else (np.array(seen) @ parts).clip(0, 1)
    x, y, z = np.cbrt(np.array(_XYZ) @ rgb)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("name", ["light", "dark"])
def test_every_activity_is_told_apart(name: str) -> None:
    one = theme.THEMES[name]
    activities = [activity.edge(one) or activity.colour(one) for activity in theme.ACTIVITIES]
    kinds = [memory.fill(at, one) for at in range(len(KINDS))]
    for colours, seen in product((activities, kinds), (None, *_COLOUR_BLIND)):
        labs = np.array([_lab(colour, seen) for colour in colours])
        apart = np.linalg.norm(labs[:, None] - labs, axis=2) + 1000 * np.eye(len(labs))
        assert apart.min() > 12, colours[int(apart.min(axis=1).argmin())]


def test_the_heat_map_shows_the_bytes_of_the_report(report: Report) -> None:
    values = report.liveness_map(0)
    program = report.program_steps(0)
    figure = memory.heat_map(
        values, (0, len(values)), (0, values.shape[1]), program, 638_976, theme.LIGHT
    ).checked()
    drawn = np.array(figure.data[0].z)
    assert np.allclose(drawn * 1024, values.T, rtol=1e-6)
    assert figure.data[0].x[0] == 0.5
    assert sum(sum(bar.x) for bar in figure.data[1:]) == len(values)


def test_memory_by_kind_adds_up_to_the_report(report: Report) -> None:
    figure = memory.categories(report.memory(), theme.LIGHT)
    total = sum(np.array(bar.x) for bar in figure.data)
    expected = report.memory().groupby("ipu")["bytes"].sum() / memory.MIB
    assert np.allclose(total, expected)


def test_a_tile_over_the_limit_is_drawn_in_the_limits_colour() -> None:
    figure = memory.headroom(np.array([100, 700_000]), 638_976, theme.LIGHT).checked()
    assert list(figure.data[0].marker.color) == [theme.LIGHT.accent, theme.LIGHT.limit]


@pytest.mark.parametrize(
    ("count", "words"), [(950, "950"), (31_234, "31.2 k"), (1_150_000, "1.15 M"), (2.5e9, "2.50 G")]
)
def test_cycles_are_written_short(count: float, words: str) -> None:
    assert units.cycles(count) == words


def test_long_names_keep_both_ends() -> None:
    short = units.shortened("encoder/" + "x" * 100 + "/MatMul", 40)
    assert len(short) == 40
    assert short.startswith("encoder/")
    assert short.endswith("/MatMul")


def test_the_host_and_the_calls_are_bars_on_one_axis():
    lanes = pd.DataFrame(
        {
            "process": 1,
            "thread": 7,
            "channel": ["train", "model", "model"],
            "label": ["epoch", "run 0", "run 1"],
            "start_us": [-100.0, 0.0, 900.0],
            "end_us": [1_800.0, 600.0, 1_500.0],
            "depth": [0, 1, 1],
        }
    )
    figure = counters.host_timeline(lanes, 2, theme.theme("light"))
    on_host, first, second = figure.data
    assert list(on_host.y) == ["host thread 7", *["host thread 7, in 1"] * 2]
    assert list(on_host.base) == [-0.1, 0.0, 0.9] and list(on_host.x) == [1.9, 0.6, 0.6]
    assert set(first.y) == {"IPU 0"} and set(second.y) == {"IPU 1"}
    assert list(first.base) == list(second.base) == [0.0, 0.9]


def test_the_red_line_is_the_critical_path_from_beginning_to_end(
    report: Report, lanes: laning.Lanes
) -> None:
    path = lanes.path
    assert path.start[0] == 0
    assert path.end[-1] == lanes.end
    assert (path.start[1:] == path.end[:-1]).all()
    assert (path.ipu[1:] != path.ipu[:-1]).all()
    drawn = pipeline.critical(path, Clock(1e9), theme.LIGHT, (0.0, float(lanes.end)))
    line = drawn[0]["x"].reshape(-1, 3)
    assert (line[:, 1] - line[:, 0]).sum() == lanes.end
    arrows = drawn[1]["x"].reshape(-1, 3)
    assert len(arrows) == len(line) - 1


def test_a_waterfall_begins_each_bar_where_the_last_one_ends(report: Report) -> None:
    table = critical_path.waterfall(critical_path.critical_path(report))
    figure = bars.waterfall(table, Clock(1e9), theme.LIGHT).checked()
    spacer, *phases = figure.data
    assert spacer.meta == bars.SPACER
    length = np.sum([bar.x for bar in phases], axis=0)
    assert np.asarray(spacer.x).tolist() == (np.cumsum(length) - length).tolist()
    assert length.sum() == table["cycles"].sum()


def test_the_slowest_is_an_ipu_where_ipus_have_several_stages() -> None:
    def slowest(*rows: tuple[int, int, int]) -> tuple[str, str, int, float] | None:
        stage, ipu, cycles = np.array(rows).T
        blocks = np.array([f"B{one}" for one in stage], dtype=object)
        stages = {"stage": stage, "ipu": ipu, "blocks": blocks, "cycles": cycles}
        return analysis.slowest(cast(Report, SimpleNamespace(stage_columns=stages)))

    assert slowest((0, 0, 10), (1, 1, 30)) == ("stage 1", "B1", 30, 1.5)
    assert slowest((0, 0, 20), (1, 1, 25), (2, 0, 11)) == (
        "IPU 0 (stages 0, 2)",
        "B0, B2",
        31,
        31 / 28,
    )


def test_many_stages_of_the_slowest_ipu_are_counted() -> None:
    stage, one = np.arange(48), np.ones(48, dtype=np.int64)
    blocks = np.array([f"B{at}" for at in stage], dtype=object)
    stages = {"stage": stage, "ipu": 0 * one, "blocks": blocks, "cycles": one}
    report = cast(Report, SimpleNamespace(stage_columns=stages))
    name, named, _, _ = analysis.slowest(report) or ("", "", 0, 0.0)
    assert name == "IPU 0 (48 stages)"
    assert named == "B0, B1, B2, B3, B4, B5 and 42 more"


def test_a_search_steps_through_its_hits_and_round(report: Report) -> None:
    steps = report.steps(0, iteration=0)
    rows = trace.flat(executed(report))
    name = str(steps.loc[steps["step"] >= 0, "name"].iloc[0])
    slices, _ = trace.matches(rows, name)
    window, starts = None, []
    for number in range(slices + 1):
        hit = hits.in_rows(rows, name, (-1.0, -1.0) if window is None else window, True)
        assert hit is not None
        window = hit.around(window, rows.end)
        starts.append(window)
        cycle, row = map(float, hit.at.split(","))
        position = rows.rows.at(round(row), cycle + rows.origin)
        assert trace.number_of_hit(rows, name, position) == (number % slices + 1, slices)
    assert starts[0] == starts[slices]
    assert starts[:slices] == sorted(starts[:slices])
    assert hits.in_rows(rows, "no such name", None, True) is None


def test_where_rows_have_tasks_a_search_finds_their_steps(report: Report) -> None:
    """It finds what it finds in the rows of the steps, and those that have it are not faint."""
    rows = trace.flat(executed(report))
    name = str(report.steps(0, iteration=0).query("step >= 0")["name"].iloc[0])
    profiles = Profiles([report])
    found = hits.executed(timespan.Span(profiles, report), rows, name)
    assert (len(found), found.cycles) == trace.matches(rows, name)
    here: tuple[float, float] | None = (-1.0, -1.0)
    for _ in range(3):
        one, other = (
            hits.in_rows(rows, name, here, True),
            hits.in_tasks(found, rows, here, True),
        )
        assert one == other and one is not None
        here = one.around(here, rows.end)
    tasks = report.trace.executed_tasks(0, [0, 1], 0)
    coarse = trace.flat(laning.StepRows.of(tasks, [0, 1]))
    faint = trace._codes(coarse, name, found.names) == trace._FAINT
    assert 0 < faint.sum() < len(faint) and (trace._codes(coarse, name, ()) == trace._FAINT).all()


def test_a_search_goes_from_hit_to_hit_also_where_several_are_at_once(report: Report) -> None:
    rows = trace.flat(executed(report))
    steps = report.steps(0, iteration=0).query("step >= 0 and end > start")
    name = str(steps.groupby(["name", "start", "end"])["ipu"].nunique().idxmax()[0])
    found = hits.executed(timespan.Span(Profiles([report]), report), rows, name)
    now: hits.Hit | None = None
    seen = []
    for _ in range(len(found)):
        one = hits.in_rows(rows, name, (-1.0, -1.0), True, now)
        assert one == hits.in_tasks(found, rows, (-1.0, -1.0), True, now) and one is not None
        now = hits.chosen(rows, name, timespan.point_of(one.at), None)
        assert now == one
        seen.append(one)
    assert len(set(seen)) == len(found) > len({one.start for one in seen})
    assert hits.in_rows(rows, name, None, False, now) == seen[-2]
    assert hits.in_tasks(found, rows, None, False, now) == seen[-2]
    last = seen[-1]
    assert hits.chosen(rows, name, timespan.point_of(last.at), (0.0, last.start - 1.0)) is None


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK])
def test_steps_of_any_direction_and_of_none_stand_out_from_the_card(colours: theme.Theme) -> None:
    program = {"position": [0, 1, 2], "direction": ["", "forward", ""]}
    bars = memory._directions({k: np.array(v) for k, v in program.items()}, (0, 3), colours)
    assert {bar["name"] for bar in bars} == {"copies and waits", "forward"}
    assert all(theme.contrast(bar["marker"]["color"], colours.card) >= 3 for bar in bars)


@pytest.mark.parametrize("by", ["operator", "aten", "module", "block", "stage"])
def test_what_is_shown_adds_up_however_it_is_grouped(report: Report, by: str) -> None:
    first, last = report.trace.extent(0, None, 0)
    window = (first + (last - first) // 5, first + (last - first) * 3 // 5)
    spent = report.trace.spent(0, None, 0, window)
    by_activity = trace.by_activity(spent)
    grouped = hits.aggregated(report, spent, by)
    assert sum(row[2] for row in grouped) == sum(row[2] for row in by_activity)
    assert sum(row[1] for row in grouped) == sum(row[1] for row in by_activity)
    assert [row[1] for row in grouped] == sorted((row[1] for row in grouped), reverse=True)


@pytest.mark.parametrize(
    ("pixels", "named", "numbered"), [(1184, True, True), (770, True, True), (712, False, True)]
)
def test_names_of_machines_have_room_on_the_map_or_are_left_out(
    pixels: int, named: bool, numbered: bool
) -> None:
    """256 IPUs of which 8 share tensors: a name of eight letters beside each of four racks."""
    number = np.arange(256)
    ipus = pd.DataFrame(
        {
            "number": number,
            "rack": number // 64,
            "machine": number // 4,
            "replica": number // 64,
            "ipu": number // 8 % 8,
            "stages": "0",
            "shard": number % 8,
            "busy": 0.5,
            "memory": 0.5,
            "link_bytes": 0,
        }
    )
    figure = pod.pod_map(ipus, ipus["busy"].to_numpy(), "busy", theme.LIGHT, pixels)
    texts = [one for one in figure.data if one.type == "scatter"]
    names = [one for one in texts if one.text[0] == "r0 p0 t0"]
    assert bool(names) is named
    assert any(one.text[0] == "50" for one in texts) is numbered
    margin = figure.layout.margin
    across = (pixels - margin.l - margin.r) / figure.layout.xaxis.range[1]  # pixels of a cell
    assert across >= 20
    for one in names:
        assert min(one.x) * across >= len("r0 p0 t0") * 5.8  # as wide as letters of 11 pixels are
        apart = np.diff(sorted(set(one.x))).min()
        assert (apart - 4) * across >= len("r0 p0 t0") * 5.8


def test_a_difference_has_its_sign_before_cycles_and_time() -> None:
    both = Clock(1.33e9).both
    assert flame.signed(1_330_000, both) == "+1,330,000 cycles, +1.00 ms"
    assert flame.signed(-1_330_000, both) == "−1,330,000 cycles, −1.00 ms"
    assert flame.signed(0, both) == both(0)
    assert flame.signed(-2048, units.size) == "−2.0 KiB"


def test_what_a_search_finds_is_high_enough_to_be_seen() -> None:
    canvas = lod.Canvas(1.0, 0, 1.0, faint=11)
    bands = [np.array(values) for values in ([0, 0, 1, 1, 2], [4, 11, 4, 11, 11])]
    below = np.array([0.0, 0.02, 0.0, 0.5, 0.0])
    share = np.array([0.02, 0.98, 0.5, 0.4, 1.0])
    _, _, bottom, height = canvas._seen(*bands, below, share)
    assert bottom == pytest.approx([0.0, 0.3, 0.0, 0.5, 0.0])
    assert height == pytest.approx([0.3, 0.7, 0.5, 0.4, 1.0])
    _, _, _, plain = lod.Canvas(1.0, 0, 1.0)._seen(*bands, below, share)
    assert plain.tolist() == share.tolist()


def test_levers_stand_where_no_blocks_can_be_moved(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise ValueError("it has no Blocks")

    profiles = Profiles([report])
    monkeypatch.setattr(rebalance_page, "check", none)
    view = common.View(profiles, "rebalance", {}, theme.theme("light"))
    page = str(rebalance_page.layout(view))
    assert "It has no Blocks" in page and "rebalance-levers" in page


def test_streaming_memory_is_told_from_the_host() -> None:
    def numbers(*values: int) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    kinds = ("compute", "host I/O", "streaming memory")
    spent = Spent(numbers(-1, 3, 4), numbers(0, 1, 2), numbers(5, 7, 9), numbers(1, 2, 3), kinds)
    assert trace.by_activity(spent) == [
        ("streaming memory", 9, 3),
        ("host I/O", 7, 2),
        ("compute", 5, 1),
    ]


@pytest.mark.parametrize("one", theme.THEMES.values(), ids=lambda one: one.name)
def test_what_an_ipu_does_stands_out_from_the_page(one: theme.Theme) -> None:
    for activity in theme.ACTIVITIES:
        colour = activity.edge(one) or activity.colour(one)
        assert theme.contrast(colour, one.card) >= 3, activity.name
        fill = activity.colour(one)
        assert theme.contrast(theme.text_on(fill), fill) >= 4.5, activity.name
    for at, (name, _) in enumerate(KINDS):
        assert theme.contrast(memory.fill(at, one), one.card) >= 3, name


def test_colours_diverge_where_a_tile_has_too_much() -> None:
    fits = memory.chip(np.array([1.0, 50.0]), 100.0, theme.LIGHT, to_limit=True).data[0]
    over = memory.chip(np.array([1.0, 199.0]), 100.0, theme.LIGHT, to_limit=True).data[0]
    assert (fits.zmax, over.zmax) == (100.0, 199.0)
    at_limit = [colour for position, colour in over.colorscale if position == 100 / 199]
    assert len(at_limit) == 2
    assert at_limit[0] == fits.colorscale[-1][1]
    assert over.colorscale[-1][1] not in [colour for _, colour in fits.colorscale]


def like_blocks(count: int, larger: int) -> Costs:
    """Costs of Blocks with equal cycles, except for one larger Block."""
    costs = random_costs(np.random.default_rng(0), count, stages=count, micro_batches=2 * count)
    of_all = np.full(count, 1000)
    of_all[larger] = 3000
    zero = np.zeros_like(of_all)
    equal = replace(
        costs.cycles, forward=of_all, backward=2 * of_all, update=of_all, again=zero, again_end=zero
    )
    names = tuple(f"layer{block}" for block in range(count))
    no_stash = costs.stash.free
    return replace(costs, names=names, cycles=equal, stash=no_stash, recompute=False)


def test_like_stages_of_many_are_one_bar_and_none_is_left_out() -> None:
    costs = like_blocks(40, larger=20)
    assignment = Assignment(tuple(range(40)), tuple(range(40)))
    prediction = what_if(costs, assignment)
    groups = rebalance._alike(costs, prediction)
    assert [stage for group in groups for stage in group] == list(range(40))
    for group in groups:
        assert len({int(prediction.stage_cycles[stage]) for stage in group}) == 1
    assert [20] in groups and len(groups) < 8
    slowest = int(prediction.stage_cycles.max())
    figure = rebalance.stages(costs, prediction, slowest, Clock(1e9), theme.LIGHT).checked()
    labels = list(figure.layout.yaxis.categoryarray)
    assert {*labels} == {label for bar in figure.data for label in bar.y}
    assert len(labels) == len(groups)
    assert "stage 20 · IPU 20" in labels
    assert len(rebalance.predicted_lanes(costs, prediction).names) < 20


def test_of_many_ipus_the_fullest_are_drawn() -> None:
    few, many = np.arange(16), np.random.default_rng(0).permutation(64)
    assert memory.fullest_ipus(few).tolist() == few.tolist()
    shown = memory.fullest_ipus(many)
    assert len(shown) == memory.FULLEST and (np.diff(shown) > 0).all()
    assert set(many[shown].tolist()) == set(range(64 - memory.FULLEST, 64))


def test_the_waterfall_has_room_for_its_shares(report: Report) -> None:
    """The labels 'share · cycles' beside the bars take about six pixels per letter."""
    table = critical_path.waterfall(critical_path.critical_path(report))
    clock = Clock(report.target.clock_hz)
    figure = bars.waterfall(table, clock, theme.LIGHT).checked()
    longest = max(len(note.text) for note in figure.layout.annotations)
    assert figure.layout.margin.r >= 6 * longest


def test_hundreds_of_stages_of_few_costs_share_their_bars() -> None:
    count = 100
    cycles = np.arange(count) % 4 + 10
    stages = pd.DataFrame(
        {
            "stage": np.arange(count),
            "ipu": np.arange(count) % 8,
            "blocks": [f"B{number}" for number in range(count)],
            "forward_cycles": cycles,
            "backward_cycles": 2 * cycles,
            "recompute_cycles": 0 * cycles,
            "cycles": 3 * cycles,
        }
    )
    figure = bars.stage_costs(stages, Clock(1e9), theme.theme("light"))
    labels = figure.data[0]["y"]
    assert [label.split(" · ")[0] for label in labels] == [
        f"stage {stage} and 24 alike" for stage in range(4)
    ]


def test_tasks_of_a_body_share_what_it_is() -> None:
    values = np.array([7, 3, 7, 0, 3, 9])
    first, which = laning.first_of_each(values)
    assert first.tolist() == [0, 1, 3, 5]
    assert which.tolist() == [0, 1, 0, 2, 1, 3]
    none = laning.first_of_each(np.zeros(0, dtype=np.int64))
    assert [part.tolist() for part in none] == [[], []]


def test_codes_by_body_are_those_of_each_task(report: Report) -> None:
    tasks = report.tasks(0, iteration=0)
    each = laning.codes(tasks.drop(columns="body"))
    assert laning.codes(tasks).tolist() == each.tolist()


def test_many_lanes_are_judged_by_some(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = report.tasks(0, iteration=0)
    executed = report.trace.executed(0, None, 0)
    lanes = laning.lanes(tasks, executed, report.pipeline_cycles(0, 0), report.stages)
    clock, light = Clock(1e9), theme.LIGHT
    drawn = [pipeline.drawing(lanes, clock, light).checked().to_json()]
    monkeypatch.setattr(pipeline, "_JUDGED_BY", 1)
    monkeypatch.setattr(pipeline, "_MANY_SLICES", 1)
    drawn.append(pipeline.drawing(lanes, clock, light).checked().to_json())
    assert drawn[0] == drawn[1]  # light enough as they are
    monkeypatch.setattr(lod, "_MOST_NARROW", 40)
    light_one = pipeline.drawing(lanes, clock, light).checked().to_json()
    assert len(light_one) < len(drawn[0])


def test_rows_of_slices_in_any_order_are_those_of_sorted_ones() -> None:
    random = np.random.default_rng(3)
    row, start = random.integers(-1, 4, 200), random.permutation(200)
    rows = lod.Rows.make(row.astype(np.int32), start, start + 1, row, 3)
    wanted = np.flatnonzero((row >= 0) & (row < 3))
    order = wanted[np.lexsort((start[wanted], row[wanted]))]
    assert rows.source.tolist() == order.tolist()
    assert rows.start.tolist() == start[order].tolist()
    again = lod.Rows.make(rows.code.astype(np.int32), rows.start, rows.end, rows.code, 3)
    assert again.source.tolist() == list(range(len(order)))
    assert again.first.tolist() == rows.first.tolist()


def test_live_bytes_keep_their_peaks_and_name_their_steps(report: Report) -> None:
    names = report.program_steps(1)["name"].to_numpy(dtype=object)
    steps = memory.LiveSteps(
        report.usage.live_columns(1), lambda at: report.sequence.names_of_steps(1, at)
    )
    figure = memory.liveness(steps, 1 << 20, theme.LIGHT)
    always, rest, fullest = figure.data
    frame = report.liveness(1)
    assert (np.array(always.y) + np.array(rest.y)).max() * memory.MIB == frame["total"].max()
    assert np.array(fullest.y).max() * memory.KIB == frame["max_tile_bytes"].max()
    at = np.array(rest.x)
    assert list(rest.customdata) == [
        memory.plain(memory.units.shortened(name)) for name in names[at]
    ]
    one = memory.liveness(steps, 1 << 20, theme.LIGHT, (5, np.arange(len(frame)) * 1024))
    assert np.array(one.data[2].y).tolist() == list(range(len(frame)))
    assert {cells[0] for cells in one.data[2].customdata} == {5}


@pytest.mark.parametrize("seed", range(8))
def test_an_outline_encloses_each_rectangle_and_nothing_besides(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, rows = int(rng.integers(1, 60)), 3
    left = np.cumsum(rng.integers(0, 9, count)).astype(float)
    right = left + 1
    base = rng.integers(0, rows, count) + 0.43
    height = rng.choice([0.86, 0.3, 0.01], count)
    floats = rng.random(count) < 0.5
    y = base - height / 2 - np.where(floats, rng.random(count) * (0.86 - height), 0)
    x, heights = lod.outline((left, right), y, height, base, left // 20)
    parts = [*outlines.parts_of(x, heights)]
    assert len(parts) == len({*zip(base.tolist(), (left // 20).tolist(), strict=True)})
    # each rectangle is of its part, and inside of it; nothing else is
    for at_x in (left + 0.5).tolist():
        for row in range(rows):
            for at_y in rng.uniform(row - 0.43, row + 0.43, 4).tolist():
                wanted = ((left < at_x) & (at_x < right) & (abs(y - at_y) < height / 2)).sum()
                assert sum(winding(part, at_x, at_y) for part in parts) == wanted
    area = sum(map(outlines.enclosed, parts))
    assert area == pytest.approx(float(((right - left) * height).sum()))


def winding(part: tuple[np.ndarray, np.ndarray], x: float, y: float) -> int:
    """How often a closed path goes around a point."""
    (x0, y0), (x1, y1) = part, (np.roll(one, -1) for one in part)
    crosses = (x0 <= x) != (x1 <= x)
    at = y0 + (x - x0) * (y1 - y0) / np.where(crosses, x1 - x0, 1)
    return abs(int((np.sign(x1 - x0) * (crosses & (at < y))).sum()))
