"""The checksum of a profile: damage is found, an edit is told from it, and trust has an end."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from ipuscope.profiler import open_report, pva
from ipuscope.profiler.file import schema, seal
from ipuscope.profiler.file.seal import State
from ipuscope.reports.cli import main
from tests.synthetic import synthetic_profile

SWAPPED = (
    "UPDATE packed_columns SET (dtype, data) = (SELECT dtype, data FROM packed_columns"
    " WHERE of = 'program_steps' AND name = 'position') WHERE of = 'program_steps' AND"
    " name = 'cycles'"
)


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "LEAST_PACKED", 50)
        path = tmp_path_factory.mktemp("sealed") / "profile.pop"
        return synthetic_profile(path, ipus=2, tiles=4, steps_per_body=20)


@pytest.fixture
def copy(profile, tmp_path) -> Path:
    return Path(shutil.copy(profile, tmp_path / "profile.pop"))


def state(path: Path) -> State:
    with open_report(path) as report:
        return report.file.as_written


def alter(path: Path, sql: str, *values: object) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(sql, values)
    connection.close()


def doctor(path: Path, capsys, *options: str) -> str:
    main(["doctor", str(path), *options])
    return " ".join(capsys.readouterr().out.split())


def test_what_was_written_is_intact_wherever_it_lies(profile, copy):
    assert state(profile) is state(copy) is State.INTACT


def test_any_byte_that_changed_is_damage(profile, copy, capsys):
    data = bytearray(copy.read_bytes())
    with open_report(copy) as report:
        data[data.index(report.ops["name"].iloc[0].encode())] ^= 1
    copy.write_bytes(data)
    assert state(copy) is State.DAMAGED
    assert "bytes have changed since" in doctor(copy, capsys)
    both = [str(profile), str(copy)]
    for asked in (["stages", both[1]], ["insights", both[1]], ["compare", *both], ["runs", *both]):
        assert main(asked) in (0, 3)
        said = " ".join("".join(capsys.readouterr()).split())
        assert "Bytes of this file have changed" in said
    with open_report(copy) as report:
        assert any("ipu-report doctor" in note for note in report.notes)
    with pytest.warns(UserWarning, match="Bytes of this file have changed"):
        pva.openReport(copy)


def test_an_edit_with_sql_is_no_damage(copy, capsys):
    alter(copy, "UPDATE meta SET value = '\"another\"' WHERE key = 'model'")
    assert state(copy) is State.EDITED
    assert "bytes have changed" not in doctor(copy, capsys)


@pytest.mark.parametrize("said", [None, 7, "", "blake2b:0", seal.BLANK])
def test_a_file_without_a_checksum_is_unknown(copy, said):
    if said is None:
        alter(copy, "DELETE FROM meta WHERE key = 'checksum'")
    assert seal.state(copy, said) is State.UNKNOWN


def test_a_checksum_that_a_stranger_wrote_is_not_taken_for_a_comparison(copy, capsys):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "LEAST_PACKED", 50)
        alter(copy, SWAPPED)
        assert "packed with other values" in doctor(copy, capsys)  # edited: its rows are compared
        alter(copy, "UPDATE meta SET value = ? WHERE key = 'checksum'", json.dumps(seal.BLANK))
        seal.seal(copy)
        assert state(copy) is State.INTACT
        assert "packed with other values" in doctor(copy, capsys, "--rows")


def test_a_checksum_across_the_pieces_that_are_read_is_seen(tmp_path, monkeypatch):
    path = tmp_path / "profile.pop"
    content = b"x" * 100 + seal.BLANK.encode() + b"y" * 50
    path.write_bytes(content)
    seal.seal(path)
    said = path.read_bytes()[100 : 100 + len(seal.BLANK)].decode()
    for piece in (1, 7, 60, 101, 1 << 20):
        monkeypatch.setattr(seal, "_PIECE", piece)
        assert seal.state(path, said) is State.INTACT
    path.write_bytes(content + content)
    assert seal.state(path, said) is not State.INTACT
