"""The frames of a report, compared with brute force on a small profile."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuscope.profiler import ProfileError, ProfileWriter, Report, analysis, open_report, pva
from ipuscope.profiler.enums import Purpose
from ipuscope.profiler.file import records, schema
from ipuscope.profiler.file.trace import Bodies, Tasks, slices, step_kind
from ipuscope.profiler.timeline import liveness
from ipuscope.profiler.timeline import tile_usage as memory
from ipuscope.profiler.timeline.liveness import Intervals
from tests.paths import ROOT
from tests.synthetic import synthetic_profile

TILES, MICRO_BATCHES, ITERATIONS = 16, 8, 3


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("report") / "profile.pop"
    return synthetic_profile(
        where, ipus=3, tiles=TILES, micro_batches=MICRO_BATCHES, iterations=ITERATIONS
    )


@pytest.fixture(scope="module")
def report(path) -> Report:
    return open_report(path)


# -- the contract ---

COLUMNS = {
    "stages": (
        "stage ipu blocks forward_cycles backward_cycles recompute_cycles update_cycles cycles"
        " share stash_depth stash_bytes weight_bytes copy_bytes"
    ),
    "blocks": (
        "block name stage ipu forward_cycles backward_cycles update_cycles weight_bytes input_bytes"
        " copy_bytes copy_back_bytes"
    ),
    "ops": (
        "name aten direction block stage ipu module file line forward_op flops cycles estimated"
        " plan popart_name block_name"
    ),
    "program": "id parent position type name repeat",
    "bodies": "body name ipu stage kind direction cycles task steps",
    "runs": "run name iterations start end cycles host_start_us host_end_us predicted",
    "variables": (
        "name ipu category role op block stage dtype shape bytes interleaved always_live start stop"
        " tensor parameter step"
    ),
    "program_steps()": (
        "step ipu position name type kind purpose tensor direction stage block op cycles program"
        " bytes_in bytes_out active_tiles tile_balance times"
    ),
    "pipeline_cycles()": "position phase start end cycles slowest_ipu",
    "tasks()": (
        "iteration pipeline_cycle phase ipu body name kind task direction stage micro_batch start"
        " end cycles"
    ),
    "steps()": (
        "iteration pipeline_cycle phase ipu body stage direction micro_batch step op block kind"
        " type name start end cycles"
    ),
    "cycle_proportions()": (
        "ipu compute exchange sync external%sync global%exchange host%I/O idle total"
    ),
    "tiles(0)": (
        "tile total total_excluding_gaps always_live not_always_live_peak peak peak_step free"
        " overflow"
    ),
    "memory()": "ipu category role bytes max_tile_bytes",
    "liveness(0)": (
        "position name op block direction always_live not_always_live total max_tile max_tile_bytes"
    ),
    "live_variables(0, 2)": "variable name category role op block bytes",
    "vertices(2)": "vertex_type count tiles code_bytes state_bytes",
}
TEXTS = {
    "name",
    "blocks",
    "aten",
    "direction",
    "module",
    "file",
    "plan",
    "popart_name",
    "block_name",
    "type",
    "kind",
    "purpose",
    "task",
    "phase",
    "category",
    "role",
    "dtype",
    "shape",
    "vertex_type",
}
KINDS = {"predicted": "bool", "share": "float64", "tile_balance": "float64"}


@pytest.mark.parametrize("what", COLUMNS)
def test_frames_have_the_columns_of_the_contract(report, what):
    check_frame(report, what, COLUMNS[what])


def test_frames_of_a_profile_without_rows_have_the_same_columns(tmp_path):
    with ProfileWriter(tmp_path / "profile.pop") as writer:
        writer.add([records.Target("mk2", "ipu2", 1, 1, 1, 4, 100, 50, 1e9, 6)])
        report = open_report(writer.publish())
    for what, columns in COLUMNS.items():
        if what.split("(")[0] not in (
            "pipeline_cycles",
            "tasks",
            "steps",
            "cycle_proportions",
            "vertices",
        ):
            check_frame(report, what.replace("2", "0"), columns)


def check_frame(report: Report, what: str, columns: str) -> None:
    def ask() -> pd.DataFrame:
        name, *arguments = what.rstrip(")").split("(")
        return (
            getattr(report, name)(*map(int, filter(None, arguments[0].split(","))))
            if arguments
            else (getattr(report, name))
        )

    frame = ask()
    assert list(frame) == [name.replace("%", " ") for name in columns.split()]
    for name in frame:
        kind = "str" if name in TEXTS else KINDS.get(name, "int64")
        assert frame[name].dtype == kind, name
    if not what.startswith(("live_variables", "vertices")):
        assert ask() is frame, "a frame is made once"


def test_meta_options_and_target(report):
    assert {
        "format": schema.VERSION,
        "kind": "training",
        "model": "Synthetic",
        "state": "executed",
        "complete": True,
        "micro_batch": 40,
        "warnings": [],
    }.items() <= report.meta.items()
    assert report.options["Training.gradientAccumulation"] == MICRO_BATCHES
    assert (report.target.num_ipus, report.target.tiles_per_ipu) == (3, TILES)


def test_a_directory_above_one_named_model_is_that_model(path, tmp_path):
    """Options.modelName names the folder of the profile."""
    shutil.copytree(path.parent, tmp_path / "mine")
    assert open_report(tmp_path).path == tmp_path / "mine" / "profile.pop"
    shutil.copytree(path.parent, tmp_path / "other")
    with pytest.raises(ProfileError, match="has none of"):
        open_report(tmp_path)


def test_opening_loads_neither_pandas_nor_torch(path):
    code = (
        "import sys\nfrom ipuscope.profiler import open_report\nopen_report(sys.argv[1]).meta\n"
        "print('pandas' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]


def test_the_slowest_stage_has_share_1_and_stages_name_their_blocks(report):
    stages = report.stages
    assert (stages["cycles"] == stages["forward_cycles"] + stages["backward_cycles"]).all()
    assert stages["share"].max() == 1
    assert stages["share"].idxmax() == 1
    assert stages["blocks"].tolist() == ["B1", "B2", "B3"]
    assert stages["stash_depth"].tolist() == [5, 3, 0]


# -- the program ---


def test_the_program_lists_parents_before_children_and_siblings_in_order(report):
    program = report.program
    seen: list[int] = []
    last: dict[int, int] = {}
    path_to: list[int] = []
    for row in program.itertuples():
        while path_to and path_to[-1] != row.parent:
            path_to.pop()
        assert row.parent == -1 or path_to, "a child follows its parent's subtree"
        assert row.position == last.get(row.parent, -1) + 1
        last[row.parent] = row.position
        path_to.append(row.id)
        seen.append(row.id)
    assert sorted(seen) == list(range(len(program)))


@pytest.mark.parametrize("name", ["purpose", "type", "kind", "direction", "name"])
@pytest.mark.parametrize("backwards", [False, True])
def test_steps_are_chosen_by_their_texts_as_by_comparing_each(path, name, backwards):
    report = open_report(path)
    if backwards:  # a file may have its steps in any order
        steps = len(report.sequence.steps_in_order("step"))
        report.__dict__["_program_order"] = np.arange(steps)[::-1]
    texts = report.sequence.steps_in_order(name).tolist()
    known = list(dict.fromkeys(texts))
    assert len(known) > 1
    for words in ([one] for one in known):
        assert report.sequence.steps_with(name, *words).tolist() == [
            text in words for text in texts
        ]
    for words in (known[:2], known, ["none has this"], [known[-1], "none has this"], []):
        assert report.sequence.steps_with(name, *words).tolist() == [
            text in words for text in texts
        ]


def test_program_steps_sum_up_their_tiles(report):
    frame = report.program_steps()
    assert frame["position"].tolist() == [i for n in frame.groupby("ipu").size() for i in range(n)]
    assert report.program_steps(1).equals(frame[frame["ipu"] == 1].reset_index(drop=True))
    for row in frame.itertuples():
        tiles = report.step_tiles(row.step)
        for name in ("bytes_in", "bytes_out"):
            assert getattr(row, name) == (0 if tiles[name] is None else tiles[name].sum())
        if tiles["cycles"] is None:
            assert np.isnan(row.tile_balance)
        else:
            assert row.active_tiles == (tiles["cycles"] > 0).sum()
            assert row.tile_balance == pytest.approx(tiles["cycles"].mean() / tiles["cycles"].max())
        if row.op >= 0:
            assert (row.direction, row.block) == tuple(
                report.ops.loc[row.op, ["direction", "block"]]
            )


def test_kinds_of_steps():
    kinds = [step_kind(type, "") for type in records.PROGRAM_TYPES[:7]]
    assert kinds == [
        "compute",
        "exchange",
        "global exchange",
        "host I/O",
        "host I/O",
        "host I/O",
        "sync",
    ]
    assert step_kind(records.SYNC, Purpose.EXTERNAL_SYNC) == "external sync"


def test_vertices_of_a_step(report):
    compute = report.program_steps(0).query("kind == 'compute'").iloc[0]
    cycles = report.step_tiles(compute["step"])["cycles"]
    frame = report.vertices(compute["step"]).set_index("vertex_type")
    busy = int((cycles > 0).sum())
    assert frame["tiles"].tolist() == [busy, busy]
    assert frame.loc["popops::Fill<float>"].tolist() == [6 * busy, busy, 120 * busy, 6 * busy * 8]
    assert len(report.vertices(0)) == 0, "a sync has none"


# -- execution ---


def naive_steps(report: Report, path: Path, run: int) -> list[tuple]:
    """List every step of every task, straight from the stored rows."""
    from ipuscope.profiler.file.reader import Reader

    reader = Reader(path)
    traces, runs, bodies = (
        reader.columns(kind) for kind in (records.Trace, records.Run, records.Body)
    )
    at = runs["trace"][run]
    task = {
        name: reader.vector(traces[f"task_{name}"][at]).tolist()
        for name in ("start", "end", "body", "ipu")
    }
    rows = []
    for iteration in range(traces["iterations"][at]):
        offset = runs["cycle_start"][run] + iteration * traces["iteration_cycles"][at]
        for start, end, body, ipu in zip(*task.values(), strict=True):
            ids = reader.vector(bodies["steps"][body]).tolist() or [-1]
            begins = [start + s for s in reader.vector(bodies["starts"][body]).tolist() or [0]]
            for id, begin, finish in zip(ids, begins, [*begins[1:], end], strict=True):
                rows.append((iteration, ipu, offset + begin, offset + finish, body, id))
    return sorted(rows)


@pytest.mark.parametrize("run", [0, 1])
def test_steps_equal_a_naive_unrolling(report, path, run):
    columns = ["iteration", "ipu", "start", "end", "body", "step"]
    frame = report.steps(run)
    assert list(frame[columns].itertuples(index=False, name=None)) == naive_steps(report, path, run)
    names, types = (
        report.program_steps().set_index("step")["name"],
        report.program_steps().set_index("step")["type"],
    )
    bodies = report.bodies.set_index("body")
    for row in frame.head(200).itertuples():
        assert row.name == (names[row.step] if row.step >= 0 else bodies.loc[row.body, "name"])
        assert row.type == (types[row.step] if row.step >= 0 else "")
        assert (row.stage, row.direction) == tuple(bodies.loc[row.body, ["stage", "direction"]])
        assert row.kind in records.KINDS


@pytest.mark.parametrize("frame", ["steps", "tasks"])
def test_every_ipu_is_accounted_for_at_every_moment(report, frame):
    for run in range(len(report.runs)):
        total = report.runs.loc[run]
        for ipu in range(3):
            rows = getattr(report, frame)(run, ipu=ipu)
            assert rows["start"].iloc[0] == total["start"]
            assert rows["end"].iloc[-1] == total["end"]
            assert (rows["start"].to_numpy()[1:] == rows["end"].to_numpy()[:-1]).all()
            assert (rows["cycles"] == rows["end"] - rows["start"]).all()
            assert (rows["cycles"] >= 0).all()


def test_a_part_of_a_run_equals_that_part_of_the_whole(report):
    for make in (report.steps, report.tasks):
        whole = make(1)
        part = make(1, ipu=2, iteration=1)
        chosen = whole[(whole["ipu"] == 2) & (whole["iteration"] == 1)].reset_index(drop=True)
        assert len(part) > 0
        assert part.equals(chosen)


def test_phases_and_micro_batches_follow_the_pipeline(report):
    cycles = report.pipeline_cycles(0, iteration=1)
    assert cycles["phase"].tolist() == ["ramp-up"] * 4 + ["steady"] * 4 + ["ramp-down"] * 4 + [
        "update"
    ]
    assert (cycles["start"].to_numpy()[1:] == cycles["end"].to_numpy()[:-1]).all()
    assert cycles["start"].iloc[0] == report.runs["cycles"][0] // ITERATIONS
    tasks = report.tasks(0, iteration=1)
    by_position = cycles.set_index("position")
    assert (
        tasks["phase"].to_numpy() == by_position.loc[tasks["pipeline_cycle"], "phase"].to_numpy()
    ).all()
    assert (
        tasks["start"].to_numpy() >= by_position.loc[tasks["pipeline_cycle"], "start"].to_numpy()
    ).all()
    forward = tasks[(tasks["direction"] == "forward") & (tasks["stage"] == 1)]
    assert forward["micro_batch"].tolist() == list(range(MICRO_BATCHES))
    assert (forward["pipeline_cycle"] == forward["micro_batch"] + 1).all()


def test_proportions_add_up_to_the_run(report):
    frame = report.cycle_proportions(1)
    steps = report.steps(1)
    for row in frame.to_dict("records"):
        assert row["total"] == report.runs["cycles"][1] == sum(row[kind] for kind in records.KINDS)
        for kind in records.KINDS:
            assert (
                row[kind]
                == steps.loc[(steps["ipu"] == row["ipu"]) & (steps["kind"] == kind), "cycles"].sum()
            )


@given(
    st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=8),
)
@settings(max_examples=40, deadline=None)
def test_slices_of_any_bodies_tile_their_tasks(lengths, tasks):
    """Bodies are lists of step lengths; a task is a body and how much longer the task takes."""
    steps = [np.arange(len(body)) for body in lengths]
    bodies = Bodies.make(
        steps, [np.cumsum([0, *body[:-1]]) if body else np.zeros(0, dtype=int) for body in lengths]
    )
    body = np.array([b % len(lengths) for b, _ in tasks], dtype=int)
    length = np.array(
        [sum(lengths[b]) + extra for b, (_, extra) in zip(body, tasks, strict=True)], dtype=int
    )
    end = np.cumsum(length)
    none = np.zeros(len(tasks), dtype=int)
    actual = slices(Tasks(none, none, none, body, none, end - length, end), bodies)
    expected = []
    for i, b in enumerate(body):
        at = int(end[i] - length[i])
        for step, spent in enumerate(lengths[b] or [0]):
            last = step == max(len(lengths[b]), 1) - 1
            finish = int(end[i]) if last else at + spent
            expected.append((i, step if lengths[b] else -1, at, finish))
            at = finish
    assert list(
        zip(
            *(getattr(actual, name).tolist() for name in ("task", "step", "start", "end")),
            strict=True,
        )
    ) == (expected)


def test_bodies_with_gaps_or_steps_going_back_are_refused():
    for starts in ([1, 2], [0, 5, 3], [0]):
        with pytest.raises(ValueError, match="body 0"):
            Bodies.make([np.arange(max(2, len(starts)))], [np.array(starts)])
    bodies = Bodies.make([np.arange(2)], [np.array([0, 10])])
    one, none = np.array([5]), np.array([0])
    with pytest.raises(ValueError, match="ends before its last step"):
        slices(Tasks(none, none, none, none, none, none, one), bodies)


def test_what_is_not_there_is_an_index_error_that_says_what_is(report):
    for call, words in (
        (lambda: report.tasks(7), "holds runs 0 to 1, not run 7"),
        (lambda: report.steps(0, iteration=9), "iterations 0 to 2, not 9"),
        (lambda: report.tiles(5), "IPUs 0 to 2, not 5"),
        (lambda: report.live_variables(0, 999), "has steps 0 to"),
        (lambda: report.live_variables(0, 0, tile=99), "tiles 0 to 15, not 99"),
    ):
        with pytest.raises(IndexError, match=words):
            call()
    with pytest.raises(KeyError, match="no variable 12345"):
        report.usage.variable_tiles(12345)
    with pytest.raises(ValueError, match="what must be"):
        report.liveness_map(0, what="all")


# -- memory ---


def naive_map(report: Report, ipu: int, what: str = "total") -> np.ndarray:
    steps = len(report.program_steps(ipu))
    live = [[0] * TILES for _ in range(steps)]
    for row in report.variables[report.variables["ipu"] == ipu].itertuples():
        tile_bytes = report.usage.variable_tiles(row.Index).tolist()
        for step in range(steps):
            if what == "total" if row.always_live else row.start <= step < row.stop:
                for tile in range(TILES):
                    live[step][tile] += tile_bytes[tile]
    return np.array(live)


@pytest.mark.parametrize("what", ["total", "not_always_live"])
def test_the_liveness_map_equals_a_sum_tile_by_tile(report, what):
    for ipu in range(3):
        np.testing.assert_array_equal(
            report.liveness_map(ipu, what=what), naive_map(report, ipu, what)
        )


def test_a_rectangle_of_the_map_and_its_resampling(report):
    whole = naive_map(report, 1)
    part = report.liveness_map(1, steps=slice(3, 11), tiles=slice(5, 14))
    np.testing.assert_array_equal(part, whole[3:11, 5:14])
    small = report.liveness_map(1, steps=slice(3, 11), tiles=slice(5, 14), shape=(3, 4))
    rows, tiles = [0, 2, 5, 8], [0, 2, 4, 6, 9]
    expected = [[part[a:b, c:d].max() for c, d in pairwise(tiles)] for a, b in pairwise(rows)]
    assert small.tolist() == expected
    assert report.liveness_map(1, shape=(10_000, 10_000)).shape == whole.shape, (
        "nothing is stretched"
    )
    assert report.liveness_map(1, steps=slice(4, 4)).shape == (0, TILES)


@st.composite
def interval_cases(draw):
    tiles, steps = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    vectors = draw(
        st.lists(
            st.lists(st.integers(0, 9), min_size=tiles, max_size=tiles), min_size=1, max_size=3
        )
    )
    lives = draw(
        st.lists(
            st.tuples(
                st.integers(0, steps), st.integers(0, steps), st.integers(0, len(vectors) - 1)
            ),
            max_size=8,
        )
    )
    columns = (
        np.array([(min(a, b), max(a, b), v) for a, b, v in lives], dtype=np.int64).reshape(-1, 3).T
    )
    return Intervals(*columns, np.array(vectors)), steps


@given(
    interval_cases(), st.integers(0, 12), st.integers(1, 13), st.integers(1, 6), st.integers(1, 30)
)
@settings(max_examples=80, deadline=None)
def test_any_intervals_in_any_window_pieces_and_shape(case, first, height, width, cells):
    intervals, steps = case
    first = min(first, steps)
    whole = np.zeros((steps, intervals.tiles), dtype=int)
    for start, stop, vector in zip(intervals.start, intervals.stop, intervals.vector, strict=True):
        whole[start:stop] += intervals.vectors[vector]
    old, liveness.PIECE = liveness.PIECE, cells
    try:
        window = whole[first:]
        every = liveness.resampled(intervals, first, steps, window.shape)
        np.testing.assert_array_equal(every, window)
        resampled = liveness.resampled(intervals, first, steps, (height, width))
        peaks = liveness.peaks(intervals, steps, np.ones(intervals.tiles, dtype=np.int64))
    finally:
        liveness.PIECE = old
    rows = np.arange(resampled.shape[0] + 1) * len(window) // max(1, resampled.shape[0])
    columns = np.arange(resampled.shape[1] + 1) * intervals.tiles // max(1, resampled.shape[1])
    for i in range(resampled.shape[0]):
        for j in range(resampled.shape[1]):
            assert (
                resampled[i, j] == window[rows[i] : rows[i + 1], columns[j] : columns[j + 1]].max()
            )
    assert peaks.step_total.tolist() == (whole + 1).sum(axis=1).tolist()
    assert peaks.max_tile_bytes.tolist() == (whole + 1).max(axis=1).tolist()
    assert peaks.tile_peak.tolist() == (whole + 1).max(axis=0).tolist()
    assert peaks.tile_peak_step.tolist() == whole.argmax(axis=0).tolist()
    assert peaks.max_tile.tolist() == whole.argmax(axis=1).tolist()


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**32 - 1))
@settings(max_examples=24, deadline=None)
def test_the_fullest_of_any_states(states, vectors, tiles, seed):
    random = np.random.default_rng(seed)
    counts = random.integers(0, 4, (states, vectors)).astype(np.int32)
    of_each = random.integers(0, random.choice([3, 1 << 40]), (vectors, tiles))
    held = counts @ of_each
    most, first = liveness.fullest_states(counts, of_each)
    assert most.tolist() == held.max(axis=0).tolist()
    assert first.tolist() == held.argmax(axis=0).tolist()


def test_liveness_sums_the_map(report):
    frame, whole = report.liveness(2), naive_map(report, 2)
    assert frame["total"].tolist() == whole.sum(axis=1).tolist()
    assert (frame["total"] == frame["always_live"] + frame["not_always_live"]).all()
    assert frame["max_tile_bytes"].tolist() == whole.max(axis=1).tolist()
    assert frame["max_tile"].tolist() == whole.argmax(axis=1).tolist()
    assert frame["name"].tolist() == report.program_steps(2)["name"].tolist()
    for ipu in range(report.target.ipus_per_replica):
        assert np.array_equal(report.usage.live_bytes(ipu), report.liveness(ipu)["total"])


def test_live_variables_add_up_to_the_map(report):
    whole = naive_map(report, 0)
    for step in (0, 2, 8, len(whole) - 1):
        everywhere = report.live_variables(0, step)
        assert everywhere["bytes"].sum() == whole[step].sum()
        assert everywhere["bytes"].is_monotonic_decreasing
        here = report.live_variables(0, step, tile=3)
        assert here["bytes"].sum() == whole[step, 3]
        for row in here.itertuples():
            assert row.bytes == report.usage.variable_tiles(row.variable)[3]
            assert row.name == report.variables.loc[row.variable, "name"]


def test_memory_by_kind_adds_up_to_the_peak(report):
    frame = report.memory()
    for ipu in range(3):
        here = frame[frame["ipu"] == ipu]
        assert here["bytes"].sum() == report.liveness(ipu)["total"].max()
        assert report.memory(ipu).equals(here.reset_index(drop=True))
        weight = here[here["role"] == "weight"].iloc[0]
        variable = report.variables.query("ipu == @ipu and role == 'weight'")
        assert weight["bytes"] == variable["bytes"].sum()
        assert weight["max_tile_bytes"] == report.usage.variable_tiles(variable.index[0]).max()


def test_tiles_with_and_without_gaps(report):
    frame, whole = report.tiles(1), naive_map(report, 1)
    assert frame["peak"].tolist() == whole.max(axis=0).tolist()
    assert frame["peak_step"].tolist() == whole.argmax(axis=0).tolist()
    assert (frame["always_live"] + frame["not_always_live_peak"]).tolist() == frame["peak"].tolist()
    interleaved = np.zeros_like(whole)
    for row in report.variables.query("ipu == 1 and interleaved == 1").itertuples():
        interleaved[row.start : row.stop] += report.usage.variable_tiles(row.Index)
    assert 0 < np.count_nonzero(interleaved.max(axis=0)) < TILES, "tiles of both sorts"
    assert frame["total_excluding_gaps"].tolist() == frame["peak"].tolist()
    # at each step all of region 0 lies below what is in region 1
    below = np.maximum(whole - interleaved, report.target.region0_bytes)
    extent = np.where(interleaved > 0, below + interleaved, whole)
    assert frame["total"].tolist() == extent.max(axis=0).tolist()
    assert (frame["free"] == report.target.bytes_per_tile - frame["peak"]).all()
    assert (frame["overflow"] == np.maximum(frame["total"] - report.target.bytes_per_tile, 0)).all()


def test_one_tile_has_one_number_in_every_view(report):
    """Frames, liveness, variables, libpva's model, SQL and the tables agree on what a tile uses."""
    bytes_per_tile = report.target.bytes_per_tile
    device = pva.openReport(report.path).compilation
    for ipu in range(report.target.ipus_per_replica):
        frame, live = report.tiles(ipu), report.liveness_map(ipu)
        tile = analysis.fullest(report, ipu)
        row = frame.iloc[tile]
        used = int(row["peak"])
        assert used == frame["peak"].max() == live[:, tile].max() == live.max()
        assert used == report.liveness(ipu)["max_tile_bytes"].max()
        assert used == report.live_variables(ipu, int(row["peak_step"]), tile)["bytes"].sum()
        memory = device.ipus[ipu].tiles[tile].memory
        assert memory.total.excludingGaps == used
        assert memory.alwaysLiveBytes + memory.notAlwaysLiveBytes == used
        assert analysis.fullest_tiles(report)[ipu] == used
        assert analysis.fullest(report, ipu) == tile
        assert analysis.held_at_peak(report, ipu)["bytes"].sum() == used
        with closing(sqlite3.connect(report.path)) as connection:
            room = "SELECT fullest_tile, bytes, free_bytes FROM tile_headroom WHERE ipu = ?"
            assert connection.execute(room, (ipu,)).fetchall() == [
                (tile, used, bytes_per_tile - used)
            ]


def test_the_fullest_tile_is_the_one_that_uses_most_or_overflows_most():
    used, none = np.array([5, 9, 9, 7]), np.zeros(4, dtype=np.int64)
    assert memory.fullest_tile(used, none) == 1
    assert memory.fullest_tile(used, np.array([0, 1, 0, 3])) == 3


def test_gaps_of_the_vendors_tutorial():
    """Of 1,472 tiles, 1,400 use region 1, 6,400 bytes each: 307,309,104 bytes with gaps [TUT4]."""
    used = np.arange(1_472) < 1_400
    held = np.where(used, 36_267 + 6_400, 160_304 // 72)
    total = memory.including_gaps(held, np.where(used, 6_400, 0), 212_992)
    assert total.sum() == 1_400 * (212_992 + 6_400) + 72 * (160_304 // 72)
    assert total.sum() == pytest.approx(307_309_104, abs=72)


def test_regions_share_what_they_need_at_different_steps():
    """300 kB without region 1, later 100 kB in region 1 beside 50: not the sum of both peaks."""
    steps = np.array([[300_000, 0], [50_000, 100_000], [230_000, 40_000]])  # region 0, region 1
    used, interleaved = steps.sum(axis=1).max(), steps[:, 1].max()
    by_step = [max(below, 212_992) + above if above else below for below, above in steps.tolist()]
    total = memory.including_gaps(np.array([used]), np.array([interleaved]), 212_992)
    assert total.tolist() == [max(by_step)] == [212_992 + 100_000]


def test_a_tile_that_is_too_full_overflows(path, tmp_path):
    copy = shutil.copy(path, tmp_path / "profile.pop")
    with sqlite3.connect(copy) as connection:
        connection.execute("UPDATE target SET bytes_per_tile = 220000")
    connection.close()
    frame = open_report(copy).tiles(1)
    assert (frame["overflow"] > 0).any()
    assert (frame["overflow"] == np.maximum(frame["total"] - 220_000, 0)).all()
    assert (frame["free"] == np.maximum(220_000 - frame["peak"], 0)).all()
