"""Damaged and forged profiles (`tools.fuzz`), a few in CI: an answer or an error that names the
file, from everything that reads a profile, within time and memory.
"""

from __future__ import annotations

import csv
import io
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ipuscope.profiler.file import records, schema
from ipuscope.reports.cli import main
from tests.strangers import TERMINAL, named
from tools import fuzz
from tools.fuzz import Change

Readers = dict[str, Callable[[Path], None]]

numbers = st.integers(0, (1 << 16) - 1)
changes = st.lists(st.builds(Change, *[numbers] * 5), min_size=1, max_size=fuzz.CHANGES)
bounded = settings(
    max_examples=12,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),  # shrinking would take minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fuzz.small_profile(tmp_path_factory.mktemp("fuzz") / "profile.pop")


@pytest.fixture(scope="module")
def readers(sound: Path) -> Readers:
    return fuzz.surfaces(sound)


def test_a_sound_profile_is_read_by_all(sound: Path, readers: Readers) -> None:
    assert len(readers) > 25
    assert fuzz.run(sound, (), readers) == []


@given(changes=changes)
@bounded
def test_frames_and_libpva_answer_or_name_the_file(
    sound: Path, readers: Readers, changes: list[Change]
) -> None:
    some = {name: readers[name] for name in ("frames", "libpva")}
    with fuzz.limited():
        assert fuzz.run(sound, changes, some) == []


@given(changes=changes, which=numbers)
@bounded
def test_every_subcommand_answers_or_names_the_file(
    sound: Path, readers: Readers, changes: list[Change], which: int
) -> None:
    commands = sorted(set(readers) - {"frames", "libpva", "viewer"})
    some = [commands[(which + step) % len(commands)] for step in (0, 7, 13, 19)]
    with fuzz.limited():
        assert fuzz.run(sound, changes, {name: readers[name] for name in some}) == []


@given(changes=changes)
@settings(bounded, max_examples=4)
def test_every_page_and_callback_of_the_viewer_answers(
    sound: Path, readers: Readers, changes: list[Change]
) -> None:
    with fuzz.limited():
        assert fuzz.run(sound, changes, {"viewer": readers["viewer"]}) == []


def test_every_number_and_every_closed_list_of_a_profile_has_a_bound() -> None:
    columns = [
        (record.table, column.name, column.kind)
        for record in records.STORED
        for column in schema.columns(record)
        if column.bound is None
    ]
    assert {kind for _, _, kind in columns} == {"str", "vector"}
    assert {name for table, name, kind in columns if kind == "vector"} == {"steps", "starts"}


@given(which=st.integers(0, 1 << 20), command=numbers)
@settings(bounded, max_examples=8)
def test_a_wrong_value_in_a_column_is_answered_or_names_the_file(
    sound: Path, readers: Readers, which: int, command: int
) -> None:
    every = fuzz.wrong_values(sound)
    commands = sorted(set(readers) - {"viewer", "html", "advise"})
    some = [commands[(command + step) % len(commands)] for step in (0, 7, 13)]
    with fuzz.limited():
        found = fuzz.run(sound, [every[which % len(every)]], {name: readers[name] for name in some})
        assert found == []


# What a review found, each with what it did.
FOUND = {
    "a deleted stage": "DELETE FROM stages WHERE id = 1",
    "another number of IPUs": "UPDATE target SET num_ipus = num_ipus + 1",
    "a Block out of range": "UPDATE ops SET block = 99 WHERE id = 0",
    "halved replicas": "UPDATE target SET num_replicas = 2, num_ipus = 3",
    "no program steps": "DELETE FROM program_step_rows",
    "a stage twice": "UPDATE stages SET id = 7 WHERE id = 1",
    "an IPU out of range": "UPDATE bodies SET ipu = 9 WHERE id = 0",
    "negative cycles": "UPDATE blocks SET forward_cycles = -1 WHERE id = 0",
    "cycles beyond the clock": "UPDATE bodies SET cycles = 9223372036854775807 WHERE id = 0",
    "a forward operator that is not there": "UPDATE ops SET forward_op = 777 WHERE id = 1",
    "a task elsewhere": "UPDATE traces SET task_ipu = task_pipeline_cycle",
    "a body of no direction there is": "UPDATE bodies SET direction = 'sideways' WHERE id = 0",
    "a body of no kind there is": "UPDATE bodies SET kind = 'x' WHERE id = 0",
    "a body whose direction is not its task": "UPDATE bodies SET direction = 'update' WHERE id = 0",
    "no device iteration": "UPDATE traces SET iterations = 0",
    "a clock that stands": "UPDATE target SET clock_hz = 1e-300",
    "a shape that is none": "UPDATE variables SET shape = '[' WHERE id = 0",
    "a model that is no name": "UPDATE meta SET value = 'true' WHERE key = 'model'",
}


@pytest.mark.parametrize("what", FOUND)
def test_doctor_finds_what_does_not_fit(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    path = Path(shutil.copy(sound, tmp_path / "profile.pop"))
    with sqlite3.connect(path) as base:
        base.execute(FOUND[what])
    base.close()
    assert main(["doctor", str(path)]) in (1, 3)
    for command in ("insights", "whatif"):
        assert main([command, str(path)]) in (0, 1, 3)
    assert "Traceback" not in capsys.readouterr().err


# a compute step that computes nothing; an iteration without cycles, or of updates alone; an id of
# 2^31; a stage without Blocks; steps of one body alone; no samples; shards that are no number
FUZZED = (
    fuzz.Wrong("program_step_rows", "purpose", "1", "all-gather over shards"),
    fuzz.Wrong("traces", "iteration_cycles", "1", 0),
    fuzz.Wrong("pipeline_cycles", "phase", "1", "update"),
    fuzz.Wrong(
        "compute_set_info", "id", "rowid = (SELECT max(rowid) FROM compute_set_info)", 2**31 - 1
    ),
    fuzz.Wrong("blocks", "stage", "rowid = (SELECT max(rowid) FROM blocks)", 1),
    fuzz.Wrong("program_step_rows", "body", "1", 2),
    fuzz.Wrong("meta", "value", "key = 'micro_batch'", "0"),
    fuzz.Wrong("meta", "value", "key = 'tensor_sharding'", '"x"'),
)


@pytest.mark.parametrize("wrong", FUZZED, ids=lambda wrong: f"{wrong.column} {wrong.rows}"[:32])
def test_what_the_fuzzer_found_is_cured(sound: Path, readers: Readers, wrong: fuzz.Wrong) -> None:
    some = {name: readers[name] for name in ("insights", "advise", "summary", "compare")}
    assert fuzz.run(sound, [wrong], some) == []


@pytest.mark.parametrize("key", ["Training.gradientAccumulation", "deviceIterations"])
def test_memory_does_not_follow_an_option(sound: Path, tmp_path: Path, key: str) -> None:
    path = Path(shutil.copy(sound, tmp_path / "profile.pop"))
    with sqlite3.connect(path) as base:
        base.execute("UPDATE options SET value = '2147483648' WHERE name = ?", (key,))
    base.close()
    with fuzz.limited(seconds=60, beyond=1 << 29):
        for command in ("summary", "insights", "rebalance", "whatif"):
            assert main([command, str(path)]) in (0, 1)


def test_nothing_that_a_terminal_obeys_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """This holds for text, CSV and JSON output."""
    path = named(fuzz.small_profile(tmp_path / "profile.pop"), TERMINAL)
    readers = fuzz.surfaces(path)
    for name in sorted(set(readers) - {"frames", "libpva", "viewer"}):
        readers[name](path)
    capsys.readouterr()
    for command in ("stages", "ops", "variables", "memory", "program", "summary"):
        for form in ("--csv", "--json"):
            main([command, form, str(path)])
            out = capsys.readouterr().out
            assert all(c.isprintable() for line in out.split("\n") for c in line), (command, form)


@pytest.mark.parametrize("sign", ["=", "-", "\t="])
def test_no_cell_of_a_csv_is_a_formula(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sign: str
) -> None:
    path = named(fuzz.small_profile(tmp_path / "profile.pop"), f"{sign}cmd|' /C calc'!A0 ")
    said = []
    for command in ("stages", "ops", "variables", "summary"):
        main([command, "--csv", str(path)])
        said.append(capsys.readouterr().out)
    main(["query", "select name from ops", "--csv", str(path)])
    said.append(capsys.readouterr().out)
    for table in ("ops", "variables", "tasks"):
        main(["export", "--table", table, str(path), "-o", str(tmp_path / "out.csv")])
        said.append((tmp_path / "out.csv").read_text())
    for out in said:
        rows = list(csv.reader(io.StringIO(out)))
        assert "cmd|" in out and len(rows) > 1
        assert not [cell for row in rows for cell in row if _computes(cell)]


def _computes(cell: str) -> bool:
    """Whether a spreadsheet takes a cell for a formula: not a negative number."""
    begins = cell.lstrip().startswith(("=", "+", "@", "-"))
    return begins and not cell.lstrip("-").replace(".", "").isdigit()
