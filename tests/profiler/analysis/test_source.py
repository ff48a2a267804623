"""Costs of the user's lines: the operators' sums, beside the text that the compile read."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from ipu_exec.graph import Graph
from ipu_exec.option_groups.engine_options import NO_SOURCE_VARIABLE
from ipu_exec.session import autoreport
from ipuscope.profiler import Report, analysis, open_report
from ipuscope.profiler.analysis import hierarchy, source
from ipuscope.reports.cli import main
from ipuscope.viewer.pages import costs as page


@pytest.fixture(scope="module")
def report(demo: Path) -> Report:
    return open_report(demo / "training")


def test_lines_add_up_to_their_operators_and_to_sql(report: Report) -> None:
    rows, ops = source.lines(report), analysis.operators(report)
    assert rows["cycles"].sum() == (ops["total_cycles"] + ops["recompute_cycles"]).sum()
    assert rows["operators"].sum() == len(ops) and rows["cycles"].is_monotonic_decreasing
    hottest = rows.iloc[0]
    own = ops[(ops["file"] == hottest["file"]) & (ops["line"] == hottest["line"])]
    for direction in ("forward", "backward", "update"):
        spent = own.loc[own["direction"] == direction, "total_cycles"].sum()
        assert hottest[f"{direction}_cycles"] == spent
    assert hottest["ipus"] == ", ".join(map(str, sorted(set(own["ipu"]))))
    with closing(sqlite3.connect(report.path)) as sql:
        spent = sql.execute(
            "SELECT sum(p.cycles) FROM tasks JOIN bodies ON bodies.id = tasks.body JOIN body_steps"
            " USING (body) JOIN program_steps p ON p.id = body_steps.step JOIN ops ON ops.id = p.op"
            " WHERE trace = 0 AND file = ? AND line = ? AND purpose = 'operator'",
            (hottest["file"], int(hottest["line"])),
        ).fetchone()[0]
    assert spent == hottest["cycles"]


def test_an_operators_call_stack_leads_to_its_line(report: Report) -> None:
    ops, stacks = report.ops, source.callers(report)
    forward = [at for at, one in enumerate(ops["direction"]) if one == "forward" and stacks[at]]
    assert forward and all(len(stacks[at]) <= 16 for at in forward)
    files = {Path(one.rpartition(":")[0]) for at in forward for one in stacks[at]}
    assert {"digits.py", "mnist_pipeline.py"} <= {file.name for file in files}
    assert all(file.is_file() for file in files)  # the user's, not ours nor torch's
    assert not any("ipu_exec" in file.parts[-3:] or "torch" in file.parts for file in files)
    backward = dict(zip(ops.index, stacks, strict=True))
    for op, of in zip(ops.index, ops["forward_op"], strict=True):
        if of in backward and ops.loc[op, "direction"] == "backward":
            assert backward[op] == backward[of]
    leaves = [hierarchy.leaves_of_cycles(report, order) for order in ("stack", "source")]
    assert leaves[0]["value"].sum() == leaves[1]["value"].sum()


@pytest.mark.parametrize("entry", [None, [], {"texts": ["a"]}, {"texts": ["a"], "of": [7] * 9}])
def test_callers_that_are_not_sound_are_none(report: Report, entry: object) -> None:
    whole = len(report.ops)
    if isinstance(entry, dict) and "of" in entry:
        entry["of"] = [7] * whole
    stub = SimpleNamespace(ops=report.ops, meta={"callers": entry})
    assert source.callers(stub) == [()] * whole  # type: ignore[arg-type]


def test_bytes_of_lines_are_those_of_the_fullest_steps(report: Report) -> None:
    leaves = hierarchy.leaves_of_bytes(report, "source")
    rows = source.lines(report)
    for file, line, held in rows[["file", "line", "bytes"]].head(3).itertuples(index=False):
        named = leaves[[path[:2] == (file, f"{Path(file).name}:{line}") for path in leaves["path"]]]
        assert named["value"].sum() == held


def test_a_listing_has_the_text_of_the_compile(
    report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    file = source.lines(report)["file"].iloc[0]
    text = Path(file).read_text().splitlines()
    found = source.listing(report, file)
    assert [one.text for one in found] == text
    assert sum(one.costs.cycles for one in found if one.costs) == sum(
        source.lines(report).query("file == @file")["cycles"]
    )
    main(["source", "--file", "digits", str(report.path)])
    printed = capsys.readouterr().out.splitlines()
    line = int(source.lines(report)["line"].iloc[0])
    assert printed[line + 1].endswith(f"{line} {text[line - 1]}")
    main(["source", "--json", str(report.path)])
    assert json.loads(capsys.readouterr().out)[0]["source"][0]["text"] == text[line - 1].strip()


def test_the_text_is_bounded_and_may_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Op:
        def __init__(self, file: Path) -> None:
            self.file = str(file)

    small, large = tmp_path / "small.py", tmp_path / "large.py"
    small.write_text("x = 1\n")
    large.write_text("#" * (autoreport.MOST_OF_ONE + 1))
    graph = Graph.__new__(Graph)
    graph.ops = [Op(large), Op(large), Op(small), Op(tmp_path / "gone.py")]  # type: ignore[list-item]
    assert autoreport.source_text(graph) == {str(small): "x = 1\n"}
    monkeypatch.setenv(NO_SOURCE_VARIABLE, "1")
    assert autoreport.source_text(graph) == {}


def test_a_strangers_text_is_data(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file that a profile names is opened, and its text neither colours nor moves a terminal."""
    path = tmp_path / "profile.pop"
    path.write_bytes(report.path.read_bytes())
    file = source.lines(report)["file"].iloc[0]
    texts = {file: "\x1b[31m<script>alert(1)</script>\n" * 40}
    with closing(sqlite3.connect(path)) as sql:
        sql.execute("UPDATE meta SET value = ? WHERE key = 'sources'", (json.dumps(texts),))
        sql.commit()
    with open_report(path) as changed:
        assert "<script>" in str(page.file_listing(changed, file))  # text, which React escapes
    main(["source", "--file", "digits", str(path)])
    printed = capsys.readouterr().out
    assert "<script>" in printed and "\x1b" not in printed
    with closing(sqlite3.connect(path)) as sql:
        sql.execute("DELETE FROM meta WHERE key = 'sources'")
        sql.commit()
    with open_report(path) as without:
        assert not source.texts(without)
        assert {one.text for one in source.listing(without, file)} == {""}
        assert "no text of this file" in str(page.file_listing(without, file))
