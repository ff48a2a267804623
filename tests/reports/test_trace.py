"""Exports for other tools, held against the report's frames."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ipuscope.profiler import Report, open_report
from ipuscope.profiler.analysis import source
from ipuscope.reports.chrome_trace import FIRST_IPU, PIPELINE, STEPS, TASKS, events, microseconds
from ipuscope.reports.cli import main
from ipuscope.reports.stacks import stacks
from tests.synthetic import synthetic_profile

Place = tuple[int, int]


@pytest.fixture(scope="module")
def report(demo: Path) -> Report:
    return open_report(demo / "training")


@pytest.fixture(scope="module")
def found(report: Report) -> list[dict[str, Any]]:
    return list(events(report, None, None, True))


def in_perfetto(value: float) -> int:
    """Convert microseconds to nanoseconds as Perfetto does: multiply and truncate."""
    return int(value * 1000)


def spans(found: list[dict[str, Any]]) -> dict[Place, list[tuple[int, int, dict[str, Any]]]]:
    """Return the slices of each thread as (start, end, event), sorted, in nanoseconds."""
    by_place: dict[Place, list[tuple[int, int, dict[str, Any]]]] = {}
    for event in found:
        if event["ph"] == "X":
            start, length = in_perfetto(event["ts"]), in_perfetto(event["dur"])
            place = event["pid"], event["tid"]
            by_place.setdefault(place, []).append((start, start + length, event))
    for slices in by_place.values():
        slices.sort(key=lambda one: one[:2])
    return by_place


def test_no_slices_overlap_by_even_a_nanosecond(found: list[dict[str, Any]]) -> None:
    """No two slices of the demo overlap, and an IPU's tasks leave no gaps."""
    count = 0
    for place, slices in spans(found).items():
        for (_, end, _), (start, _, _) in itertools.pairwise(slices):
            assert end <= start, place
            if place[1] == TASKS and place[0] != PIPELINE:
                assert end == start, "an IPU's tasks leave no gap"
        count += len(slices)
    assert count > 30_000


@pytest.mark.parametrize("number", [0, 1, 1001, 12_345_678, 10**13 + 7])
def test_nanoseconds_survive_being_written_as_microseconds(number: int) -> None:
    said = json.loads(json.dumps(microseconds(number)))
    assert in_perfetto(said) == number
    whole, _, part = repr(said).partition(".")  # the way of its tokenizer, which reads the text
    assert int(whole) * 1000 + int(float(f"0.{part}") * 1000) == number
    assert said == pytest.approx(number / 1000, abs=1e-4)


def test_slices_last_as_long_as_their_cycles(report: Report, found: list[dict[str, Any]]) -> None:
    for slices in spans(found).values():
        for start, end, event in slices:
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
    """Return the largest value of a counter of an IPU."""
    values = [
        value
        for event in found
        if event["ph"] == "C" and event["pid"] == FIRST_IPU + ipu and event["name"] == name
        for value in event["args"].values()
    ]
    return max(values)


def test_counters_are_the_reports(report: Report, found: list[dict[str, Any]]) -> None:
    """The maximum of each counter is that of the steps that ran."""
    ran = set(report.steps(0, iteration=0)["step"])
    program = report.program_steps()
    for ipu in range(4):
        ran_on_ipu = program[(program["ipu"] == ipu) & program["step"].isin(ran)]
        links = ran_on_ipu[ran_on_ipu["kind"] == "global exchange"]
        live = report.liveness(ipu)["total"][ran_on_ipu["position"]].max()
        assert largest(found, ipu, "live bytes") == live
        assert largest(found, ipu, "busy tiles") == ran_on_ipu["active_tiles"].max()
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


def test_stacks_by_module_and_by_call_stack(report: Report, tmp_path: Path, capsys: Any) -> None:
    """Both forms give an operator's cycles over a device iteration."""
    at = report.ops["name"].tolist().index("layer1/conv/convolution")
    op, above = report.ops.iloc[at], source.callers(report)[at]
    steps = report.steps(0, iteration=0)
    spent = int(
        steps.loc[(steps["op"] == op.name) & (steps["direction"] == "forward"), "cycles"].sum()
    )
    for by, start in (
        ("module", "IPU 0;forward;layer1;conv;convolution;"),
        ("source", f"IPU 0;forward;{';'.join(above)};{op['file']}:{op['line']};{op['name']};"),
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


# google/pprof's profile.proto, as far as we write it: message, then (field, number, type)
_PPROF = {
    "Value": [("type", 1, "int64"), ("unit", 2, "int64")],
    "Sample": [("location_id", 1, "*uint64"), ("value", 2, "*int64")],
    "Line": [("function_id", 1, "uint64"), ("line", 2, "int64")],
    "Location": [("id", 1, "uint64"), ("line", 4, "*Line")],
    "Function": [("id", 1, "uint64"), ("name", 2, "int64"), ("filename", 4, "int64")],
    "Profile": [
        ("sample_type", 1, "*Value"),
        ("sample", 2, "*Sample"),
        ("location", 4, "*Location"),
        ("function", 5, "*Function"),
        ("string_table", 6, "*string"),
    ],
}


def pprof(path: Path) -> Any:
    """A pprof profile as protobuf reads it."""
    pb = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    file = pb.FileDescriptorProto(name="profile.proto", package="p", syntax="proto3")
    for name, fields in _PPROF.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            one = message.field.add(name=field, number=number, label=3 if kind[0] == "*" else 1)
            kind = kind.lstrip("*")
            one.type = {"int64": 3, "uint64": 4, "string": 9}.get(kind, 11)
            if kind[0].isupper():
                one.type_name = f".p.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    profile = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Profile"))()
    profile.ParseFromString(gzip.decompress(path.read_bytes()))
    return profile


@pytest.mark.parametrize("by", ["module", "source"])
def test_pprof_has_the_cycles_and_bytes_of_each_stack(
    report: Report, tmp_path: Path, by: str
) -> None:
    path = tmp_path / "demo.pb.gz"
    assert main(["export", str(report.path), "--by", by, "-o", str(path)]) == 0
    profile = pprof(path)
    text, functions = profile.string_table, {one.id: one for one in profile.function}
    assert text[0] == ""
    units = [(text[one.type], text[one.unit]) for one in profile.sample_type]
    assert units == [("cycles", "count"), ("bytes", "bytes")]
    name_of = {one.id: text[functions[one.line[0].function_id].name] for one in profile.location}
    stacks = [[name_of[id] for id in reversed(one.location_id)] for one in profile.sample]
    length = int(report.runs["cycles"].iloc[0] // report.runs["iterations"].iloc[0])
    for ipu in range(4):
        of_ipu = [
            one.value
            for stack, one in zip(stacks, profile.sample, strict=True)
            if stack[0] == f"IPU {ipu}"
        ]
        assert sum(cycles for cycles, _ in of_ipu) == length
    made = source.bytes_at_peak(report)
    assert sum(one.value[1] for one in profile.sample) == made[made.index >= 0].sum() > 0
    if by == "source":
        lines = {
            (text[functions[one.line[0].function_id].filename], one.line[0].line)
            for one in profile.location
        }
        where = report.ops[["file", "line"]].drop_duplicates()
        assert {tuple(row) for row in where.to_numpy().tolist() if row[0]} <= lines
