"""`ipu-report` as its users call it: what it prints, in which form, and how it ends."""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib.util
import io
import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ipuscope.profiler import open_report
from ipuscope.profiler.analysis import waits
from ipuscope.profiler.enums import Direction
from ipuscope.reports.cli import COMMANDS, common, main, make_parser, ops
from ipuscope.reports.cli.view import free_port, ssh_forward
from tests.synthetic import synthetic_profile

PRINTING = [
    name
    for name in COMMANDS
    if name not in ("html", "view", "query", "compare", "export", "import", "completion")
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a run leaves it, with a training and an inference profile."""
    root = tmp_path_factory.mktemp("runs")
    for seed, kind in enumerate(("training", "inference")):
        (root / kind).mkdir()
        synthetic_profile(root / kind / "profile.pop", seed=seed)
    return root


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def say(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """Run a command that must succeed with no errors printed; returns its standard output."""
    assert main([str(word) for word in argv]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def complain(capsys: pytest.CaptureFixture[str], code: int, *argv: object) -> str:
    """Run a command that must fail with the code; returns its one line on standard error."""
    try:
        exit_code = main([str(word) for word in argv])
    except SystemExit as stop:
        exit_code = int(stop.code or 0)
    captured = capsys.readouterr()
    assert exit_code == code
    assert captured.err.startswith("ipu-report")
    assert captured.err.count("\n") == 1
    return captured.err


# -- for people ---


@pytest.mark.parametrize("name", PRINTING)
def test_every_subcommand_prints_for_people_and_for_programs(
    runs: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Text of eighty columns without colour, JSON and CSV that name the profile."""
    out = say(capsys, name, runs / "training")
    assert out.strip()
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out
    if name == "runs":  # which has one table of all profiles, each in its row
        head = say(capsys, name, "--csv", runs / "training").splitlines()[0].split(",")
        assert head[0] == "profile" and len(set(head)) == len(head)
        return
    (page,) = json.loads(say(capsys, name, "--json", runs / "training"))
    assert page.pop("profile") == str(runs / "training" / "profile.pop")
    assert page and all(page.values())
    frame = pd.read_csv(io.StringIO(say(capsys, name, "--csv", runs / "training")))
    assert set(frame["profile"]) == {str(runs / "training" / "profile.pop")}
    assert frame.shape[1] > 2


def test_summary_says_machine_speed_and_memory(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = " ".join(say(capsys, "summary", runs / "training").split())
    with open_report(runs / "training") as report:
        cycles = report.runs["cycles"].iloc[0] // report.runs["iterations"].iloc[0]
        fullest = report.tiles(0)["total"].max()
    assert "4 IPUs, mk2: 64 tiles with 624 KiB each" in out
    assert f"{cycles:,} cycles" in out
    assert f"{40 * 10 / (cycles / 1.33e9):,.0f} samples a second" in out
    assert "stage 2 (B3)" in out
    with open_report(runs / "training") as report:
        longest = waits.of(report).longest.iloc[0]
    assert f"waits for {longest['share']:.1%} {longest['what']} " in out
    assert f"{fullest / 1024:,.1f}" in out


def test_stages_shows_every_stage_with_its_numbers(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = say(capsys, "stages", runs / "training")
    with open_report(runs / "training") as report:
        for row in report.stages.to_dict("records"):
            line = next(line for line in out.splitlines() if f" {row['blocks']} " in line)
            assert f"{row['forward_cycles']:,}" in line
            assert f"{row['backward_cycles']:,}" in line
            assert f"{row['share']:.1%}" in line


def test_a_directory_with_both_kinds_gives_both(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = say(capsys, "stages", runs)
    both = [str(runs / kind / "profile.pop") for kind in ("training", "inference")]
    assert out.index(both[0]) < out.index(both[1])
    frame = pd.read_csv(io.StringIO(say(capsys, "stages", "--csv", runs)))
    assert frame["profile"].drop_duplicates().tolist() == both


def test_patterns_are_expanded_and_each_profile_is_shown_once(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = json.loads(say(capsys, "stages", "--json", runs / "*", runs / "training"))
    assert [Path(page["profile"]).parent.name for page in said] == ["inference", "training"]


def test_a_directory_stands_for_all_profiles_below_it(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", ".hidden"):
        (tmp_path / name / "training").mkdir(parents=True)
        synthetic_profile(tmp_path / name / "training" / "profile.pop")
    said = json.loads(say(capsys, "stages", "--json", tmp_path))
    assert [page["profile"] for page in said] == [
        str(tmp_path / name / "training" / "profile.pop") for name in "ab"
    ]
    assert "this takes one" in complain(capsys, 2, "html", tmp_path)
    assert "this takes one" in complain(capsys, 2, "compare", runs, tmp_path)


def test_a_profile_that_was_found_is_named(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that lies deeper than where a run puts it; what the argument says is not said again."""
    deep = tmp_path / "of" / "somebody"
    shutil.copytree(runs / "training", deep)
    assert say(capsys, "summary", tmp_path).startswith(str(deep / "profile.pop"))
    assert str(deep) not in say(capsys, "summary", deep)
    assert str(deep) not in say(capsys, "summary", deep / "profile.pop")


def test_a_directory_of_too_much_is_refused_soon(
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything in it is read, and with the first that were found."""
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "profile.pop").write_text("never read")
    monkeypatch.setattr(common, "MOST_BELOW", 2)
    line = complain(capsys, 2, "insights", tmp_path)
    assert f"{tmp_path} has more than 2 profiles below it ({tmp_path}/a/profile.pop, " in line
    assert "Name a directory nearer to those you mean, or give a pattern" in line
    assert "'never read'" not in line
    monkeypatch.setattr(common, "MOST_BELOW", 9)
    monkeypatch.setattr(common, "MOST_DIRECTORIES", 2)
    line = complain(capsys, 2, "insights", tmp_path)
    assert "has more than 2 directories; 2 profiles so far" in line
    shutil.copytree(runs / "training", tmp_path / "d")
    with open_report(tmp_path / "d"):
        said = json.loads(say(capsys, "stages", "--json", tmp_path / "*d"))
    assert len(said) == 1  # a pattern is meant as it is


def test_a_terminal_is_told_what_takes_long(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes standard error for a terminal
    assert main(["stages", str(runs)]) == 0
    assert f"working: 2 of 2, {runs}" in capsys.readouterr().err.replace("\n", "")


def test_one_profile_that_takes_long_is_said_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a word from the work itself; and a command with words of its own says no others."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    said = ""
    with common.waiting("drawing a.html", 0):
        while "drawing a.html" not in said:
            said += capsys.readouterr().err
    with common.waiting("compiling", None):
        pass
    assert "compiling" not in capsys.readouterr().err
    monkeypatch.delenv("FORCE_COLOR")
    with common.waiting("to a file", 0):
        pass
    assert capsys.readouterr().err == ""


def test_a_reader_that_has_seen_enough_is_no_failure(runs: Path) -> None:
    """As of ``| head`` under a shell's pipefail."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "ipuscope.reports.cli", "ops", str(runs / "training")]
        process = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert (process.returncode, process.stderr) == (0, b"")


def test_an_output_that_cannot_take_more_is_said(runs: Path) -> None:
    """A full disk in one line; a standard output that is closed is nothing to write to."""
    command = [sys.executable, "-m", "ipuscope.reports.cli", "ops", str(runs / "training")]
    with open("/dev/full", "w") as full:
        process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    said = "ipu-report: error: the output ends here: No space left on device\n"
    assert (process.returncode, process.stderr.decode()) == (1, said)
    closed = shlex.join(command) + " >&-"
    process = subprocess.run(["sh", "-c", closed], stderr=subprocess.PIPE, check=False)
    assert (process.returncode, process.stderr) == (0, b"")


@pytest.mark.parametrize(
    "words",
    [
        "advise --samples",
        "rebalance --stages",
        "whatif --micro-batches",
        "program --depth",
    ],
)
def test_none_of_what_must_be_some_is_refused(
    words: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nought meant the default, without a word."""
    line = complain(capsys, 2, *words.split(), "0", runs / "training")
    assert f"argument {words.split()[1]}: '0' is not a whole number of at least 1" in line


@pytest.mark.parametrize("command", ["html", "export", "stages"])
def test_every_command_says_that_it_works(
    command: str,
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    @contextmanager
    def waiting(words: str, after: float | None = 1.0) -> Iterator[Callable[[str], None]]:
        assert after == common.PATIENCE
        asked.append(words)
        yield lambda more: None

    monkeypatch.setattr(common, "waiting", waiting)
    where = [] if command == "stages" else ["-o", str(tmp_path / "out.json")]
    assert main([command, *where, str(runs / "training")]) == 0
    assert asked[-1] in ("working", f"drawing {tmp_path}/out.json", f"writing {tmp_path}/out.json")


def test_pipeline_says_who_is_waited_for_and_why(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = " ".join(say(capsys, "pipeline", runs / "training").split())
    assert "In steady state IPU 2 makes the others wait" in out
    assert "37.5% in this profile, 37.5% by the closed form" in out
    (page,) = json.loads(say(capsys, "pipeline", "--json", runs / "training"))
    assert len(page["pipeline"]) == 17
    assert page["bubble"]["time_balanced"] == pytest.approx(3 / 13)
    drawn = say(capsys, "pipeline", "--no-drawing", runs / "training")
    assert "F forward" not in drawn


def test_pipeline_draws_a_lane_an_ipu(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = say(capsys, "pipeline", "--ascii", "--width", 60, runs / "training")
    assert sum(line.startswith("IPU ") for line in out.splitlines()) == 4
    assert out.isascii() or "─" in out.split("phase")[1]  # only the table beneath may have lines


def test_top_limits_the_rows_and_says_how_many_more(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "... and 21 more: --top 0 prints all" in say(
        capsys, "ops", "--top", 3, runs / "training"
    )
    assert "more" not in say(capsys, "ops", "--top", 0, runs / "training")


def test_what_a_terminal_would_obey_is_never_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = synthetic_profile(tmp_path / "profile.pop")
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE blocks SET name = ? WHERE id = 0", ("[red]\x1b]0;owned\x07\nB1",)
        )
    connection.close()
    out = say(capsys, "stages", path)
    assert "[red]" in out
    assert "\x1b" not in out
    assert "\x07" not in out


# -- for programs ---


def test_json_and_csv_have_the_reports_numbers(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_report(runs / "training") as report:
        wanted = report.stages
    (page,) = json.loads(say(capsys, "stages", "--json", runs / "training"))
    table = pd.read_csv(io.StringIO(say(capsys, "stages", "--csv", runs / "training")))
    for column in wanted.columns:
        if wanted[column].dtype.kind in "if":
            np.testing.assert_allclose([row[column] for row in page["stages"]], wanted[column])
            np.testing.assert_allclose(table[column], wanted[column])


def test_memory_tables_agree_with_the_report(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (page,) = json.loads(say(capsys, "memory", "--json", runs / "training"))
    with open_report(runs / "training") as report:
        for row in page["memory"]:
            tiles = report.tiles(row["ipu"])
            assert row["peak"] == tiles["peak"].max() == tiles["peak"][row["fullest_tile"]]
            assert row["total"] == tiles["total"].max()
            assert row["peak"] + row["free"] == report.target.bytes_per_tile
        assert sum(row["bytes"] for row in page["categories"]) == report.memory()["bytes"].sum()


def test_filters_choose_rows(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (page,) = json.loads(
        say(capsys, "ops", "--stage", 1, "--direction", "backward", "--json", runs / "training")
    )
    assert {(row["stage"], row["direction"]) for row in page["ops"]} == {(1, "backward")}
    (page,) = json.loads(
        say(capsys, "variables", "--role", "stash", "--ipu", 0, "--json", runs / "training")
    )
    assert {(row["role"], row["ipu"]) for row in page["variables"]} == {("stash", 0)}


def test_query_answers_sql(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = say(
        capsys,
        "query",
        "--csv",
        "select stage, name as n, 1.5 as half from blocks order by id",
        runs / "training",
    )
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["stage"], row["n"], row["half"]) for row in rows] == [
        ("0", "B1", "1.5"),
        ("1", "B2", "1.5"),
        ("2", "B3", "1.5"),
        ("3", "B4", "1.5"),
    ]
    assert "B3" in say(capsys, "query", "select name, name from blocks", runs / "training")


@pytest.mark.parametrize(
    "sql",
    [
        "delete from blocks",
        "attach database '/tmp/evil.db' as evil",
        "pragma journal_mode = wal",
        "create temp table t (x)",
        "select 1; delete from blocks",
        "select load_extension('x')",
        "nonsense",
    ],
)
def test_query_only_reads(runs: Path, capsys: pytest.CaptureFixture[str], sql: str) -> None:
    before = (runs / "training" / "profile.pop").read_bytes()
    assert "Give one SELECT" in complain(capsys, 1, "query", sql, runs / "training")
    assert (runs / "training" / "profile.pop").read_bytes() == before


def test_a_trace_has_every_task_and_step_where_it_ran(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tracks and times are in test_trace.py."""
    for name in ("trace.json", "trace.json.gz"):
        assert "events" in say(capsys, "export", runs / "training", "-o", tmp_path / name)
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace == json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    events = trace["traceEvents"]
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    slices = [event for event in events if event["ph"] == "X"]
    with open_report(runs / "training") as report:
        tasks = pd.concat([report.tasks(run) for run in (0, 1)])
        steps = pd.concat([report.steps(run) for run in (0, 1)])
    of_tasks, of_steps = (
        [one for one in slices if threads[one["pid"], one["tid"]].endswith(f" {kind}")]
        for kind in ("tasks", "program steps")
    )
    assert sum(event["args"]["cycles"] for event in of_tasks) == tasks["cycles"].sum()
    assert len(of_steps) == (steps["kind"] != "idle").sum()
    # Each micro-batch goes over three cuts, and back over them, in each of the two device
    # iterations of the two calls.
    assert len({event["id"] for event in events if event["ph"] == "s"}) == 2 * 2 * 10 * 6
    path = tmp_path / "one.json"
    say(capsys, "export", runs / "training", "--level", "tasks", "--iteration", 1, "-o", path)
    one = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    of_ipus = [event for event in one if event["pid"] > 1]
    assert len(of_ipus) == (tasks["iteration"] == 1).sum()
    assert min(event["ts"] for event in one) == 0


@pytest.mark.parametrize(
    "table", ["steps", "tasks", "pipeline_cycles", "ops", "stages", "variables", "memory"]
)
def test_a_table_as_csv_is_the_frame(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str
) -> None:
    path = tmp_path / "table.csv"
    say(capsys, "export", runs / "training", "--table", table, "--iteration", 0, "-o", path)
    with open_report(runs / "training") as report:
        frames = {
            "steps": lambda: report.steps(0, iteration=0),
            "tasks": lambda: report.tasks(0, iteration=0),
            "pipeline_cycles": lambda: report.pipeline_cycles(0, 0),
            "memory": report.memory,
        }
        wanted = frames[table]() if table in frames else getattr(report, table)
    read = pd.read_csv(path, keep_default_na=False)
    assert len(read) == len(wanted)
    for column in wanted.columns:
        if wanted[column].dtype.kind in "if":
            np.testing.assert_allclose(read[column].astype(float), wanted[column].astype(float))


def test_parquet_is_the_frame_or_says_what_is_missing(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ("export", runs / "training", "--table", "ops", "-o", tmp_path / "ops.parquet")
    say(capsys, *argv)
    with open_report(runs / "training") as report:
        written = pd.read_parquet(tmp_path / "ops.parquet")["cycles"]
        assert written.tolist() == report.ops["cycles"].tolist()
    with monkeypatch.context() as without:
        without.setattr(importlib.util, "find_spec", lambda name: None)
        assert "pip install pyarrow" in complain(capsys, 1, *argv)
    assert "name it .json" in complain(capsys, 2, *argv[:-1], tmp_path / "ops.xlsx")
    assert "cannot be written" in complain(capsys, 1, *argv[:-1], tmp_path / "no" / "ops.csv")


@pytest.mark.parametrize("words", ["0,0,1,2", "2-1-1", "B1,B2/B3/B4"])
def test_whatif_takes_a_split_as_people_write_it(
    runs: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    (page,) = json.loads(say(capsys, "whatif", "--assign", words, "--json", runs / "training"))
    assert [row["blocks"] for row in page["stages"]] == ["B1, B2", "B3", "B4"]
    (row,) = page["whatif"]
    assert (row["legal"], row["ipus"], row["attached_ipus"]) == ("yes", 3, 4)
    assert "autoRoundNumIPUs" in row["notes"]


def test_whatif_says_what_would_not_compile(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", "--micro-batches", "6", str(runs / "training")]) == 1
    assert "at least 7; it is 6" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("0,1", "2 stages for 4 Blocks"),
        ("0,1,0,1", "stages must count"),
        ("2-2-1", "gives 5 Blocks"),
        ("B1/B2/B3", "leaves out B4"),
        ("B1/B2/B3/B5", "'B5' is not a Block"),
        ("B1,B2/B2,B3,B4", "'B2' is in stage 0 and in stage 1"),
        ("B1/B2,B3,B4@x", "'x' is not an IPU"),
    ],
)
def test_a_split_that_is_none_is_said(
    runs: Path, capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    assert says in complain(capsys, 1, "whatif", "--assign", words, runs / "training")


def test_a_stage_list_may_come_back_to_an_ipu(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (page,) = json.loads(
        say(
            capsys,
            "whatif",
            "--assign",
            "0,1,2,3",
            "--stage-ipus",
            "0,1,2,0",
            "--json",
            runs / "training",
        )
    )
    assert [row["ipu"] for row in page["stages"]] == [0, 1, 2, 0]
    assert "as many IPUs" in complain(
        capsys, 1, "whatif", "--assign", "0,1,2,3", "--stage-ipus", "0,1", runs / "training"
    )


# -- tab completion ---


def completed(script: str, *words: str) -> list[str]:
    """Return the completions that bash offers for the last word."""
    quoted = " ".join(shlex.quote(word) for word in words)
    ask = f"{script}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _shtab_ipu_report"
    ask += '; printf "%s\\n" "${COMPREPLY[@]}"'
    process = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    return process.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_subcommands_options_choices_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = say(capsys, "completion", "bash")
    assert set(completed(script, "ipu-report", "")) == {*COMMANDS}
    assert completed(script, "ipu-report", "sum") == ["summary"]
    assert "--micro-batches" in completed(script, "ipu-report", "whatif", "--")
    assert completed(script, "ipu-report", "stages", "--by", "") == ["stage", "block"]
    assert completed(script, "ipu-report", "completion", "") == ["bash", "fish", "zsh"]
    (tmp_path / "profile.pop").touch()
    assert completed(script, "ipu-report", "stages", f"{tmp_path}/pro") == [
        f"{tmp_path}/profile.pop"
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_option_of_every_subcommand_is_in_the_script(
    capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    script = say(capsys, "completion", shell)
    (commands,) = (one.choices for one in make_parser()._actions if isinstance(one.choices, dict))
    assert len(commands) == len(COMMANDS)
    for name, command in commands.items():
        assert name in script
        shown = [one for one in command._actions if one.help is not argparse.SUPPRESS]
        for flag in (flag for one in shown for flag in one.option_strings):
            assert (flag.lstrip("-") if shell == "fish" else flag) in script
    program = shutil.which(shell)
    if program:
        subprocess.run([program, "-n"], input=script, text=True, check=True)


# -- how it ends ---


def test_a_missing_profile_is_one_line_and_three(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = complain(capsys, 3, "summary", tmp_path / "nowhere.pop")
    assert "nowhere.pop" in line
    assert "ipu-run --profile-dir" in line
    assert "nothing matches" in complain(capsys, 3, "summary", tmp_path / "*.pop")
    assert str(tmp_path) in complain(capsys, 3, "stages", tmp_path)


def test_without_words_the_first_step_is_named(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = complain(capsys, 2)
    assert "ipu-report summary PROFILE" in line and "ipu-run --profile-dir out script.py" in line
    monkeypatch.chdir(runs)
    assert "Begin with: ipu-report summary inference" in complain(capsys, 2)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("sumary", "x"), "'summary'"),
        (("rebalance", "--stagse", "3", "x"), "'--stages'"),
        (("rebalance", "--recompute", "alway", "x"), "'always'"),
    ],
)
def test_a_misspelt_word_meets_the_one_that_was_meant(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], meant: str
) -> None:
    line = complain(capsys, 2, *words)
    assert f"did you mean {meant}?" in line and "choose from" not in line
    assert "did you mean" not in complain(capsys, 2, "zzzz")
    assert "did you mean" not in complain(capsys, 2, "view", "x", "--bogus"), "'--host' is far off"


def test_a_word_too_many_or_too_few_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    many = complain(capsys, 2, "view", "a", "b", "c")
    assert many.startswith("ipu-report view: error: 'c' is too many: it takes PROFILE and OTHER")
    assert "it takes shell" in complain(capsys, 2, "completion", "bash", "x")
    assert "error: give it OTHER (see" in complain(capsys, 2, "compare", "a")


def test_a_profile_of_a_newer_format_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = synthetic_profile(tmp_path / "profile.pop")
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 99")
    line = complain(capsys, 3, "summary", path)
    assert "has format 99" in line and "git pull" in line


def test_a_broken_profile_is_one_line_and_three(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.pop").write_bytes(b"not\na profile" * 100)
    assert "profile.pop" in complain(capsys, 3, "memory", tmp_path)


def test_one_broken_profile_does_not_cost_the_others(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stages", "--json", str(tmp_path / "gone.pop"), str(runs / "training")]) == 3
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 1
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "way_out"),
    [
        (("pipeline", "--run", "9"), "--run 0 to 1"),
        (("pipeline", "--iteration", "9"), "--iteration 0 to 1"),
        (("memory", "--ipu", "7"), "--ipu 0 to 3"),
        (("tile", "--ipu", "1", "--tile", "99999"), "--tile 0 to 63"),
        (("tile", "--step", "99999"), "--step 0 to"),
        (("ops", "--name", "no such thing"), "no such thing"),
        (("variables", "--role", "wheel"), "There are: "),
    ],
)
def test_asking_for_what_is_not_there_says_what_is(
    runs: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], way_out: str
) -> None:
    assert way_out in complain(capsys, 1, *argv, runs / "training")


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("stages",),
        ("stagess", "x"),
        ("memory", "--ipu", "-1", "x"),
        ("ops", "--json", "--csv", "x"),
        ("view", "--port", "70000", "x"),
    ],
)
def test_wrong_usage_is_one_line_and_two(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]
) -> None:
    assert "--help" in complain(capsys, 2, *argv)


def test_a_compiled_profile_shows_the_schedule_of_one_call(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It shows the same numbers as a profile that ran, marked as predicted."""
    path = synthetic_profile(tmp_path / "profile.pop", runs=0)
    (said,) = json.loads(say(capsys, "pipeline", "--json", path))
    (ran,) = json.loads(say(capsys, "pipeline", "--json", runs / "training"))
    assert said | {"profile": ""} == ran | {"profile": ""}
    for name in ("pipeline", "summary"):
        assert "Predicted: no call was profiled" in say(capsys, name, path)
        assert "redicted: no call" not in say(capsys, name, runs / "training")
    out = " ".join(say(capsys, "summary", path).split())
    assert "not run; predicted " in out and "for a call of 2 device iterations" in out
    (said,) = json.loads(say(capsys, "summary", "--json", path))
    (ran,) = json.loads(say(capsys, "summary", "--json", runs / "training"))
    assert said["summary"]["iteration_cycles"] == ran["summary"]["iteration_cycles"]
    assert (said["summary"]["runs"], ran["summary"]["runs"]) == (0, 2)
    assert (said["summary"]["predicted"], ran["summary"]["predicted"]) == (True, False)
    assert "events" in say(capsys, "export", path, "-o", tmp_path / "trace.json")


def test_a_profile_without_a_schedule_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = synthetic_profile(tmp_path / "profile.pop", runs=0)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM traces")
    connection.close()
    assert "no schedule" in say(capsys, "summary", path)
    assert "Compile the model anew" in complain(capsys, 1, "pipeline", path)


def test_doctor_finds_a_profile_that_contradicts_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = synthetic_profile(tmp_path / "profile.pop")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE stages SET forward_cycles = forward_cycles + 1 WHERE id = 1")
    connection.close()
    assert main(["doctor", "--json", str(path)]) == 1
    (page,) = json.loads(capsys.readouterr().out)
    assert [row["check"] for row in page["checks"] if not row["ok"]] == [
        "costs of stages match their bodies"
    ]


def test_memory_fails_where_a_tile_is_too_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = synthetic_profile(tmp_path / "profile.pop")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE target SET bytes_per_tile = 220000")
    connection.close()
    assert main(["memory", str(path)]) == 1
    assert "Out of memory: tile " in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_teaches_by_example(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert f"examples:\n  ipu-report {name} " in out
    assert max(map(len, out.splitlines())) <= 120


def test_a_port_in_use_is_said_before_dash_is_loaded(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert "--port 0" in complain(
            capsys, 1, "view", "--port", port, "--no-browser", runs / "training"
        )
    assert free_port("127.0.0.1", 0) > 0


def test_a_viewer_says_what_ended_it(runs: Path) -> None:
    command = [sys.executable, "-m", "ipuscope.reports.cli", "view", "--port", "0", "--no-browser"]
    with subprocess.Popen([*command, runs], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as it:
        assert it.stdout is not None and b" is at http" in it.stdout.readline()
        it.terminate()
        _, said = it.communicate(timeout=60)
    assert it.returncode == 143 and said.endswith(b"ended by SIGTERM\n")


def test_html_writes_one_file(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = say(capsys, "html", runs / "training", "-o", tmp_path / "report.html")
    assert str(tmp_path / "report.html") in out
    assert "<html" in (tmp_path / "report.html").read_text().lower()
    assert "-o FILE" in complain(
        capsys, 1, "html", runs / "training", "-o", tmp_path / "no" / "such" / "report.html"
    )


def test_operators_are_asked_for_by_the_directions_there_are() -> None:
    no_operators = Direction.RECOMPUTE  # steps have it: of operators that run again
    assert tuple(one for one in Direction if one != no_operators) == ops.DIRECTIONS


def test_what_if_gives_other_schedules_and_the_engines_own_cycles(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = demo / "training"

    def table(name: str, *words: object) -> list[dict[str, object]]:
        (page,) = json.loads(say(capsys, "whatif", profile, *words, "--json"))
        return page[name]

    rows = {row["schedule"]: row for row in table("schedules", "--schedule", "all")}
    cycles = table("whatif")[0]["cycles"]
    assert rows["poptorch"]["cycles"] == cycles
    assert rows["zb-h2"]["stash"] > rows["zb-h1"]["stash"] > rows["1f1b"]["stash"]
    assert rows["tf-sequential"]["free"] > rows["gpipe"]["free"] > rows["zb-h1"]["free"]
    file = tmp_path / "own.csv"
    drawn = say(capsys, "whatif", profile, "--schedule", "zb-h1", "--schedule-csv", file)
    assert "W gradients of weights" in drawn
    (read,) = table("schedules", "--schedule", file)
    assert (read["cycles"], read["free"]) == (rows["zb-h1"]["cycles"], rows["zb-h1"]["free"])
    assert main(["whatif", str(profile), "--schedule", "zb-v"]) != 0
    assert "8 stages need 8 Blocks" in capsys.readouterr().err


def test_in_an_ssh_session_the_viewer_says_how_to_reach_it() -> None:
    session = {"SSH_CONNECTION": "10.0.0.9 51000 10.0.0.2 22"}
    line = ssh_forward(session, "127.0.0.1", 8050, lambda: "ada")
    assert line == "ssh -L 8050:127.0.0.1:8050 ada@10.0.0.2"
    assert ssh_forward({}, "127.0.0.1", 8050, lambda: "ada") == ""
    assert ssh_forward(session, "0.0.0.0", 8050, lambda: "ada") == ""


def test_import_says_where_the_vendors_reader_comes_from(
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pva", None)  # ours, where a script ran in this process
    words = ["import", str(runs / "training" / "profile.pop"), "-o", str(tmp_path / "own.pop")]
    assert main(words) == 1
    assert "the Poplar SDK's pva is not installed" in capsys.readouterr().err


def test_import_without_names_has_none_and_says_what_it_met(
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ipuscope.profiler import pva

    monkeypatch.setitem(sys.modules, "pva", pva)
    own = tmp_path / "own.pop"
    words = ["import", runs / "training" / "profile.pop", "-o", own, "--anonymise"]
    said = say(capsys, *words)
    assert said == Path(f"{own}.txt").read_text()
    assert "24 programs of type OnTileExecute" in said and "layer" not in said
    with open_report(own) as report:
        assert not report.ops["name"].str.contains("layer").any()
        assert not report.variables["name"].str.contains("layer").any()
        assert set(report.ops["file"]) == {""}
    assert "not in this profile" in " ".join(say(capsys, "summary", own).split())
    assert main(["insights", str(own)]) == 1
    assert "are not in this profile" in capsys.readouterr().err
