"""Exports for other tools, held against the report's frames."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from profiler import Report, open_report, records
from reports.cli import main
from reports.stacks import stacks
from reports.trace import FIRST_HOST, FIRST_IPU, PIPELINE, STEPS, TASKS, events, microseconds
from tests.synthetic import synthetic_profile
from viewer.pages.trace import rows_of
from viewer.profiles import Profiles

Place = tuple[int, int]


@pytest.fixture(scope="module")
def report(demo: Path) -> Report:
    return open_report(demo / "training")


@pytest.fixture(scope="module")
def found(report: Report) -> list[dict[str, Any]]:
    return list(events(report, None, None, True))


def in_perfetto(value: float) -> int:
    """Nanoseconds as Perfetto reads microseconds: multiplied and cut off."""
    return int(value * 1000)


def spans(found: list[dict[str, Any]]) -> dict[Place, list[tuple[int, int, dict[str, Any]]]]:
    """Of each thread its slices as (start, end, event), sorted. Units: nanoseconds."""
    by_place: dict[Place, list[tuple[int, int, dict[str, Any]]]] = {}
    for event in found:
        if event["ph"] == "X":
            start, length = in_perfetto(event["ts"]), in_perfetto(event["dur"])
            place = event["pid"], event["tid"]
            by_place.setdefault(place, []).append((start, start + length, event))
    for mine in by_place.values():
        mine.sort(key=lambda one: one[:2])
    return by_place


def test_no_slices_overlap_by_even_a_nanosecond(found: list[dict[str, Any]]) -> None:
    """Of all slices of the demo; and an IPU's tasks meet, for it always does something."""
    count = 0
    for place, mine in spans(found).items():
        for (_, end, _), (start, _, _) in itertools.pairwise(mine):
            assert end <= start, place
            if place[1] == TASKS and place[0] != PIPELINE:
                assert end == start, "an IPU's tasks leave no gap"
        count += len(mine)
    assert count > 30_000


@pytest.mark.parametrize("number", [0, 1, 1001, 12_345_678, 10**13 + 7])
def test_nanoseconds_survive_being_written_as_microseconds(number: int) -> None:
    said = json.loads(json.dumps(microseconds(number)))
    assert in_perfetto(said) == number
    whole, _, part = repr(said).partition(".")  # the way of its tokenizer, which reads the text
    assert int(whole) * 1000 + int(float(f"0.{part}") * 1000) == number
    assert said == pytest.approx(number / 1000, abs=1e-4)


def test_slices_last_as_long_as_their_cycles(report: Report, found: list[dict[str, Any]]) -> None:
    for mine in spans(found).values():
        for start, end, event in mine:
            exact = event["args"]["cycles"] * 1e9 / report.target.clock_hz
            assert abs(end - start - exact) <= 1


def test_tracks_are_named_by_stage(found: list[dict[str, Any]]) -> None:
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in found
        if event["name"] == "thread_name"
    }
    for ipu in range(4):
        assert names[FIRST_IPU + ipu, TASKS] == f"stage {ipu} tasks"
        assert names[FIRST_IPU + ipu, STEPS] == f"stage {ipu} program steps"


def largest(found: list[dict[str, Any]], ipu: int, name: str) -> int:
    """The most that a counter of an IPU reaches."""
    values = [
        value
        for event in found
        if event["ph"] == "C" and event["pid"] == FIRST_IPU + ipu and event["name"] == name
        for value in event["args"].values()
    ]
    return max(values)


def test_counters_are_the_reports(report: Report, found: list[dict[str, Any]]) -> None:
    """The most of each is that of the steps that ran."""
    ran = set(report.steps(0, iteration=0)["step"])
    program = report.program_steps()
    for ipu in range(4):
        mine = program[(program["ipu"] == ipu) & program["step"].isin(ran)]
        links = mine[mine["kind"] == "global exchange"]
        live = report.liveness(ipu)["total"][mine["position"]].max()
        assert largest(found, ipu, "live bytes") == live
        assert largest(found, ipu, "busy tiles") == mine["active_tiles"].max()
        assert largest(found, ipu, "link bytes") == links["bytes_out"].max(skipna=True)


def test_all_runs_are_in_one_trace(tmp_path: Path) -> None:
    profile = synthetic_profile(tmp_path / "profile.pop", runs=3)
    with open_report(profile) as report:
        every = list(events(report, None, None, False))
        hz = report.target.clock_hz
        wanted = [round(start * 1e9 / hz) for start in report.runs["start"].tolist()]
        one = list(events(report, 1, None, False))
    calls = [e for e in every if e.get("cat") == "call"]
    assert [in_perfetto(e["ts"]) for e in calls] == wanted
    assert [e["name"] for e in one if e.get("cat") == "call"] == ["run 1"]
    assert min(e["ts"] for e in one if e["ph"] == "X") == 0
    arrows = Counter(e["ph"] for e in every)
    assert arrows["s"] == arrows["f"] == 3 * sum(e["ph"] == "s" for e in one)
    assert len({e["id"] for e in every if e["ph"] == "s"}) == arrows["s"]


@pytest.mark.parametrize("by", ["module", "source"])
def test_stacks_add_up_to_the_device_iteration(report: Report, by: str) -> None:
    length = int(report.runs["cycles"].iloc[0] // report.runs["iterations"].iloc[0])
    for frame in stacks(report, 0, 0, by).values():
        assert frame["cycles"].sum() == length


def test_stacks_by_module_and_by_source_line(report: Report, tmp_path: Path, capsys: Any) -> None:
    """An operator's cycles over a device iteration, in both forms."""
    op = report.ops[report.ops["name"] == "layer1/conv/convolution"].iloc[0]
    steps = report.steps(0, iteration=0)
    spent = int(
        steps.loc[(steps["op"] == op.name) & (steps["direction"] == "forward"), "cycles"].sum()
    )
    for by, start in (
        ("module", "IPU 0;forward;layer1;conv;convolution;"),
        ("source", f"IPU 0;forward;{op['file']}:{op['line']};layer1/conv/convolution;"),
    ):
        path = tmp_path / f"{by}.folded"
        argv = ["export", str(report.path), "--by", by, "-o", str(path)]
        assert main(argv) == 0
        lines = path.read_text().splitlines()
        assert (
            sum(int(line.rpartition(" ")[2]) for line in lines if line.startswith(start)) == spent
        )
    assert "stacks" in capsys.readouterr().out


def test_speedscope_has_a_profile_an_ipu(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "demo.speedscope.json"
    assert main(["export", str(report.path), "--by", "source", "-o", str(path)]) == 0
    said = json.loads(path.read_text())
    names = [frame["name"] for frame in said["shared"]["frames"]]
    assert len(set(names)) == len(names)
    assert any(frame.get("file", "").endswith("digits.py") for frame in said["shared"]["frames"])
    length = int(report.runs["cycles"].iloc[0] // report.runs["iterations"].iloc[0])
    assert [profile["name"] for profile in said["profiles"]] == [f"IPU {i}" for i in range(4)]
    for profile in said["profiles"]:
        assert sum(profile["weights"]) == profile["endValue"] == length
        assert len(profile["weights"]) == len(profile["samples"])
        assert max(max(stack) for stack in profile["samples"]) < len(names)


def test_a_rank_a_file_for_holistic_trace_analysis(report: Report, tmp_path: Path) -> None:
    """What it tells kernels by: a stream, and the beginnings of their names
    (docs/trace-tools.md has what it then says).
    """
    argv = ["export", str(report.path), "--format", "hta", "--iteration", "0"]
    assert main([*argv, "-o", str(tmp_path / "ranks")]) == 0
    steps = report.steps(0, iteration=0)
    for ipu in range(4):
        said = json.loads((tmp_path / "ranks" / f"rank-{ipu}.json").read_text())
        assert said["distributedInfo"]["rank"] == ipu
        spent: Counter[str] = Counter()
        for event in said["traceEvents"]:
            assert event["args"]["stream"] == 0
            kind = "nccl" if event["name"].startswith("ncclDevKernel") else "other"
            spent[kind] += event["args"]["cycles"]
        mine = steps[(steps["ipu"] == ipu) & (steps["kind"] != "idle")]
        between = mine[mine["kind"] == "global exchange"]
        assert spent["nccl"] == between["cycles"].sum()
        assert spent.total() == mine["cycles"].sum()


def with_host(path: Path) -> Path:
    """A profile of three calls, and what two threads of the host did meanwhile."""
    synthetic_profile(path, runs=3)
    rows = [
        (0, -1, 7, 8, "train", "epoch", 1_000, 9_000),
        (1, 0, 7, 8, "train", "batch", 1_500, 5_000),
        (2, -1, 7, 9, "data", "load", 900, 8_000),
    ]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            f"INSERT INTO {records.HostEvent.table} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows
        )
        for run, start in enumerate((2_000, 2_001, 7_000)):
            sql = f"UPDATE {records.Run.table} SET host_start_us = ?, host_end_us = ? WHERE id = ?"
            connection.execute(sql, (start, start + 900, run))
    return path


def test_host_and_ipus_are_on_one_timeline(tmp_path: Path) -> None:
    """A call begins on the device when the host called, or when the call before is through."""
    with open_report(with_host(tmp_path / "profile.pop")) as report:
        found = list(events(report, None, None, False))
        length = round(int(report.runs["cycles"].iloc[0]) * 1e9 / report.target.clock_hz)
    assert length > 1_000  # so that the second waits for the first
    zero = 900_000
    on_device = [e for e in found if e.get("cat") == "call" and e["pid"] == PIPELINE]
    assert [in_perfetto(e["ts"]) for e in on_device] == [
        2_000_000 - zero,
        2_000_000 + length - zero,
        7_000_000 - zero,
    ]
    host = {e["name"]: e for e in found if e["pid"] == FIRST_HOST and e["ph"] == "X"}
    assert set(host) == {"epoch", "batch", "load", "run 0", "run 1", "run 2"}
    assert (host["load"]["ts"], host["load"]["dur"], host["load"]["cat"]) == (0, 7_100, "data")
    assert (host["batch"]["tid"], host["batch"]["ts"]) == (8, 600)
    assert host["run 2"]["dur"] == 900
    for place, mine in spans(found).items():
        if place[0] < FIRST_HOST:
            for (_, end, _), (start, _, _) in itertools.pairwise(mine):
                assert end <= start, place


def test_the_trace_page_has_the_host_beneath_the_ipus(tmp_path: Path) -> None:
    """A row for each depth of a thread, cut to the time that is shown."""
    report = open_report(with_host(tmp_path / "profile.pop"))
    plain = open_report(synthetic_profile(tmp_path / "plain.pop", runs=3))
    shown = rows_of(Profiles([report]), report, 0, 0, None, "flat")
    without = rows_of(Profiles([plain]), plain, 0, 0, None, "flat")
    assert shown.names == (*without.names, "host", "", "host")
    for row in range(len(without.names)):
        assert shown.rows.of(row) == without.rows.of(row)
    for row in range(len(without.names), len(shown.names)):
        (start,) = shown.rows.start[shown.rows.of(row)]
        (end,) = shown.rows.end[shown.rows.of(row)]
        assert (start, end) == (shown.origin, shown.origin + shown.end), "longer than the call"
    labels = [shown.labels[label] for label in shown.label[-3:]]
    assert sorted(labels) == ["batch", "epoch", "load"]
