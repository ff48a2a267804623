"""The profile file: it reads back as written, and survives killed runs and hostile contents."""

from __future__ import annotations

import operator
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipuscope.profiler import ProfileError, ProfileWriter, open_report, pva
from ipuscope.profiler.file import records, schema
from ipuscope.profiler.file.reader import Reader
from ipuscope.profiler.report import query
from ipuscope.reports.cli import main
from tests.paths import ROOT
from tests.synthetic import synthetic_profile
from tools import pop_format


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Path:
    return synthetic_profile(
        tmp_path_factory.mktemp("profile") / "profile.pop", ipus=2, tiles=8, micro_batches=4
    )


@pytest.fixture
def copy(profile, tmp_path) -> Path:
    return Path(shutil.copy(profile, tmp_path / "profile.pop"))


def alter(path: Path, sql: str, *values: object) -> Path:
    """Change a profile behind the library's back."""
    with sqlite3.connect(path, isolation_level=None) as connection:
        for statement in sql.split(";"):
            connection.execute(statement, values if "?" in statement else ())
    connection.close()
    return path


def read_everything(path: Path) -> None:
    """Read every frame of a profile that its IPUs and runs allow."""
    with open_report(path) as report:
        _ = (
            report.meta,
            report.target,
            report.options,
            report.stages,
            report.blocks,
            report.ops,
            report.program,
            report.bodies,
            report.runs,
            report.variables,
        )
        report.program_steps()
        for run in range(min(2, len(report.runs))):
            if report.runs["iterations"][run] > 0:
                report.pipeline_cycles(run)
                report.steps(run, iteration=0)
                report.tasks(run, iteration=0)
                report.cycle_proportions(run)
        for step in report.program_steps()["step"].head(3):
            report.step_tiles(step)
            report.vertices(step)
        for ipu in range(min(2, report.target.num_ipus)):
            report.tiles(ipu)
            report.memory(ipu)
            report.liveness(ipu)
            report.liveness_map(ipu, shape=(5, 5))
            if len(report.program_steps(ipu)):
                report.live_variables(ipu, 0)
        for id in report.variables.index[:3]:
            report.usage.variable_tiles(id)


def read_as_libpva(path: Path) -> None:
    """Read the beginning of each list in libpva's model, and the attributes of its entries."""
    report = pva.openReport(path)
    compilation = report.compilation
    for program in compilation.programs[:40]:
        _ = (
            program.name,
            program.type,
            program.children,
            program.controlCodeByTile,
            list(program.vars[:3]),
        )
    for step in compilation.livenessProgramSteps[:10]:
        _ = (step.notAlwaysLiveMemory.variables, step.notAlwaysLiveMemoryForTile(0).bytes)
    for compute_set in compilation.computeSets[:5]:
        _ = [vertex.countByTile for vertex in compute_set.vertices]
    memory = compilation.tiles[0].memory
    _ = (
        repr(report),
        memory.total,
        memory.category.vertexCode.total,
        memory.vertices,
        compilation.graph.numVertices,
    )
    _ = (compilation.alwaysLiveVariables, compilation.loweredVariables.forTile(0))
    for step in list(report.execution.steps[:10]):
        _ = (step.program, step.cyclesByTile, step.computeSets, step.ipus)
    for operation in pva.OperationAnalysis(report).operations[:10]:
        _ = (operation.debugContext.json, operation.programs(), list(operation.vars[:3]))


# -- round trip ---


def row_strategy(record, length):
    """Rows of a record with any content but ids; their vectors have ``length`` entries."""
    vector = st.lists(st.integers(-(2**59), 2**59), min_size=length, max_size=length)
    kinds = {
        "int": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(allow_nan=False).map(lambda x: x + 0.0),  # SQLite knows no -0.0
        "str": st.text(st.characters(exclude_categories=["Cs"])),
        "vector": vector.map(lambda v: np.array(v, dtype=np.int64)),
    }
    columns = {
        column.name: st.none() | kinds[column.kind] if column.optional else kinds[column.kind]
        for column in schema.columns(record)
    }
    unique = getattr(record, "key", "name" if record is records.Option else "id").split(", ")
    keys = [operator.attrgetter(*unique)] if unique[0] in columns else [id]
    if record is records.Step:  # each has a program of its own, or texts like another's
        keys.append(operator.attrgetter("program"))
    return st.lists(st.builds(record, **columns), max_size=4, unique_by=tuple(keys))


def with_programs(rows):
    """The rows and, in front of steps, their programs."""
    steps = [row for row in rows if isinstance(row, records.Step)]
    return [*(records.Program(s.program, -1, 0, s.type, s.name, 1) for s in steps), *rows]


@pytest.mark.parametrize("record", records.TABLES, ids=lambda record: record.__name__)
@given(data=st.data())
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_rows_of_every_record_come_back(record, data, tmp_path):
    rows = data.draw(row_strategy(record, data.draw(st.integers(0, 6))))
    with ProfileWriter(tmp_path / "some.pop") as writer:
        writer.add(with_programs(rows))
        path = writer.publish()
    reader = Reader(path)
    columns = reader.columns(record)
    read = {
        record(
            **{
                column.name: _value(reader, column, columns[column.name][i])
                for column in schema.columns(record)
            }
        ).__repr__()
        for i in range(len(rows))
    }
    reader.close()
    assert read == {repr(row) for row in rows}


def _value(reader: Reader, column: schema.Column, value: object) -> object:
    if column.kind == "vector":
        return None if value < 0 else reader.vector(value)
    return value.item() if isinstance(value, np.generic) else value


def test_equal_vectors_are_stored_once(tmp_path):
    uses = [records.VertexUse(0, kind, np.arange(9) * (kind % 2)) for kind in range(10)]
    with ProfileWriter(tmp_path / "some.pop") as writer:
        for use in uses:
            writer.add([use])
        writer.add(uses)
        path = writer.publish()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM vectors").fetchone() == (2,)


def test_numpy_scalars_and_bools_are_stored_as_numbers(tmp_path):
    use = records.VertexUse(np.int32(3), np.uint8(4), np.array([True, False]))
    with ProfileWriter(tmp_path / "some.pop") as writer:
        writer.add([use])
        reader = Reader(writer.publish())
    assert reader.columns(records.VertexUse)["vertex_type"].tolist() == [4]
    assert reader.vector(0).tolist() == [1, 0]


@pytest.mark.parametrize("bad", [{"value": 3}, {"name": None}, {"name": b"x"}])
def test_a_row_of_wrong_types_is_named_and_nothing_of_its_batch_is_stored(tmp_path, bad):
    with ProfileWriter(tmp_path / "some.pop") as writer:
        with pytest.raises(TypeError, match=f"Option.{next(iter(bad))}"):
            writer.add(
                [records.Option("a", "1"), records.Option(**{"name": "b", "value": "2", **bad})]
            )
        with pytest.raises(TypeError, match="str is not a record"):
            writer.add(["a"])
        assert len(Reader(writer.publish()).columns(records.Option)["name"]) == 0


@pytest.mark.parametrize("other", [{"name": "add"}, {"type": records.SYNC}, {"program": 4}])
def test_a_step_comes_with_its_program_whose_type_and_name_it_has(tmp_path, other):
    program = records.Program(3, -1, 0, records.DO_EXCHANGE, "copy", 1)
    of_step = {"program": 3, "type": program.type, "name": program.name}
    fields = {column.name: 0 for column in schema.columns(records.Step)} | of_step
    fields |= {"tile_cycles": None, "bytes_in": None, "bytes_out": None, "purpose": "stash"}
    with ProfileWriter(tmp_path / "some.pop") as writer:
        writer.add([program, records.Step(**fields)])
        with pytest.raises(ValueError, match="step 1: add it with its program"):
            writer.add([program, records.Step(**fields | {"id": 1} | other)])


def test_the_same_rows_give_the_same_tables_in_any_sqlite_client(profile):
    with sqlite3.connect(profile) as connection:
        names = {
            row[0]
            for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        tables = {schema.stored_in(record) for record in records.TABLES}
        assert names == tables | {"meta", "vectors"}
        stages = connection.execute(
            "SELECT stage, ipu, cycles, forward_cycles, backward_cycles FROM stage_cycles"
        )
        report = open_report(profile).stages
        columns = ["stage", "ipu", "cycles", "forward_cycles", "backward_cycles"]
        assert stages.fetchall() == list(report[columns].itertuples(index=False, name=None))
        for view in schema.VIEWS:
            rows = connection.execute(f"SELECT {view.columns} FROM {view.name}").fetchall()
            assert rows, view.name
        categories = dict(connection.execute("SELECT id, name FROM var_categories"))
        assert tuple(categories[i] for i in range(len(categories))) == records.CATEGORIES


def test_the_documentation_of_the_format_is_up_to_date():
    written = (ROOT / "docs" / "pop-format.md").read_text()
    assert written == pop_format.documentation(), (
        "run: python -m tools.pop_format > docs/pop-format.md"
    )
    for record in records.TABLES:
        for item in fields(record):
            assert f"| `{item.name}` |" in written


# -- publishing ---


def test_publishing_again_replaces_the_profile_and_closing_leaves_only_it(tmp_path):
    path = tmp_path / "new" / "profile.pop"
    with ProfileWriter(path) as writer:
        assert not path.exists()
        writer.add([records.Option("a", "1")])
        writer.publish()
        assert open_report(path).options == {"a": 1}
        writer.add([records.Option("b", "2")])
        writer.meta(state="executed")
        assert open_report(path).options == {"a": 1}
        writer.publish()
        report = open_report(path)
        assert (report.options, report.meta["state"], report.meta["complete"]) == (
            {"a": 1, "b": 2},
            "executed",
            True,
        )
        partial = open_report(writer.partial)
        assert (partial.options, partial.meta["complete"]) == ({"a": 1, "b": 2}, False)
        inode = path.stat().st_ino
        assert writer.publish().stat().st_ino == inode  # nothing was added
        path.unlink()
        assert writer.publish().is_file()
    assert [file.name for file in path.parent.iterdir()] == ["profile.pop"]


def test_rows_that_were_never_published_stay_in_the_partial_file(tmp_path):
    with ProfileWriter(tmp_path / "profile.pop") as writer:
        writer.add([records.Option("a", "1")])
        writer.publish()
        writer.add([records.Option("b", "2")])
    assert open_report(tmp_path / "profile.pop").options == {"a": 1}
    assert open_report(writer.partial).options == {"a": 1, "b": 2}


def test_a_reader_keeps_the_profile_it_opened_when_it_is_replaced(tmp_path):
    with ProfileWriter(tmp_path / "profile.pop") as writer:
        report = open_report(writer.publish())
        writer.add([records.Option("a", "1")])
        writer.publish()
    assert report.options == {}


KILLED = """
import os, signal, sys
from ipuscope.profiler import ProfileWriter
from ipuscope.profiler.file import records
writer = ProfileWriter(sys.argv[1])
writer.add([records.Option(f"kept {i}", "1") for i in range(100)])
if sys.argv[2] == "spill":
    writer._connection.execute("PRAGMA cache_size = 5")
    writer._connection.execute("PRAGMA cache_spill = 1")
calls = 0
def kill():
    global calls
    calls += 1
    if calls > 30:
        os.kill(os.getpid(), signal.SIGKILL)
writer._connection.set_progress_handler(kill, 1000)
writer.add([records.Option(f"lost {i}", "x" * 500) for i in range(100_000)])
print("not killed")
"""


def test_a_pipe_with_a_profiles_name_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "profile.pop")
    with pytest.raises(ProfileError, match="not a regular file"):
        open_report(tmp_path / "profile.pop")


@pytest.mark.parametrize("where", ["in memory", "spill"])
def test_a_run_killed_while_writing_leaves_the_old_profile_and_a_partial_one(copy, where):
    before = copy.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, copy, where], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (-9, ""), done.stderr
    assert copy.read_bytes() == before
    partial = copy.with_name("profile.pop.partial")
    journal = copy.with_name("profile.pop.partial-journal")
    assert where == "in memory" or journal.stat().st_size > 0
    on_disk = partial.read_bytes()
    with open_report(partial) as report:
        assert list(report.options) == [f"kept {i}" for i in range(100)]
        assert report.meta["complete"] is False
        [warning] = report.meta["warnings"]
        assert warning.startswith("This profile was not finished: it has no target, stages")
        assert warning.endswith("runs")
    assert partial.read_bytes() == on_disk, "reading must not change the file"
    # The next run starts over.
    with ProfileWriter(copy) as writer:
        writer.add([records.Option("new", "1")])
        writer.publish()
    assert open_report(copy).options == {"new": 1}
    assert not partial.exists()
    assert not journal.exists()


def test_a_foreign_journal_beside_a_partial_file_deletes_nothing(tmp_path):
    """SQLite deletes the super-journal that a hot journal names, which may be any file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path / "p.pop", "spill"], cwd=ROOT, capture_output=True
    )
    partial, journal = tmp_path / "p.pop.partial", tmp_path / "p.pop.partial-journal"
    name = str(victim).encode()
    tail = struct.pack(">I", 0x7FFFFFFF) + name + struct.pack(">II", len(name), sum(name))
    with open(journal, "ab") as file:
        file.write(tail + bytes.fromhex("d9d505f920a163d7"))
    with suppress(ProfileError):
        open_report(partial).close()
    assert victim.read_text() == "precious"


def test_a_full_disk_is_an_error_that_names_the_profile_and_keeps_what_was_written(tmp_path):
    with ProfileWriter(tmp_path / "profile.pop") as writer:
        writer.add([records.Option("a", "1")])
        pages = writer._connection.execute("PRAGMA page_count").fetchone()[0]
        writer._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(ProfileError, match=r"profile\.pop: .*full.* Free some space"):
            writer.add([records.Option(f"b{i}", "x" * 1000) for i in range(100)])
        writer.publish()
    assert open_report(tmp_path / "profile.pop").options == {"a": 1}


def test_a_place_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(ProfileError, match=r"file/profile\.pop: the profile cannot be written"):
        ProfileWriter(tmp_path / "file" / "profile.pop")
    (tmp_path / "profile.pop").mkdir()
    writer = ProfileWriter(tmp_path / "profile.pop")
    with pytest.raises(ProfileError, match=r"profile\.pop: the profile cannot be written"):
        writer.publish()
    writer.close()
    assert sorted(os.listdir(tmp_path)) == ["file", "profile.pop", "profile.pop.partial"]


# -- finding ---


def test_a_directory_stands_for_the_profile_in_it(profile, tmp_path):
    assert open_report(profile.parent).path == profile
    for name in ("inference", "training"):
        (tmp_path / name).mkdir()
        shutil.copy(profile, tmp_path / name / "profile.pop")
        assert open_report(tmp_path).path == tmp_path / name / "profile.pop"


def test_nothing_to_open_is_an_error_with_a_way_out(tmp_path):
    with pytest.raises(ProfileError, match=r"no such file.*profile-dir"):
        open_report(tmp_path / "nothing.pop")
    with pytest.raises(
        ProfileError, match=r"none of profile\.pop, training/profile\.pop.*profile-dir"
    ):
        open_report(tmp_path)
    ProfileWriter(tmp_path / "training" / "profile.pop").close()
    with pytest.raises(ProfileError, match=r"open that") as caught:
        open_report(tmp_path)
    assert str(tmp_path / "training" / "profile.pop.partial") in caught.value.remedy
    with pytest.raises(ProfileError, match="open that"):
        open_report(tmp_path / "training" / "profile.pop")


# -- hostile files ---


def test_a_file_that_is_no_profile_is_named_as_such(tmp_path):
    path = tmp_path / "profile.pop"
    for content, problem in (
        (b"", "empty"),
        (b"hello", "not a profile"),
        (os.urandom(5000), "not a profile"),
    ):
        path.write_bytes(content)
        with pytest.raises(ProfileError, match=f"profile.pop: .*{problem}"):
            open_report(path)


def test_a_foreign_or_too_new_database_is_named_as_such(copy):
    alter(copy, f"PRAGMA user_version = {schema.VERSION + 1}")
    with pytest.raises(
        ProfileError,
        match=rf"format {schema.VERSION + 1}, .* up to {schema.VERSION}. Update IPUscope",
    ):
        open_report(copy)
    alter(copy, "PRAGMA user_version = 2")
    with pytest.raises(ProfileError, match=r"format 2; .* Run the model again"):
        open_report(copy)
    alter(copy, "PRAGMA application_id = 7")
    with pytest.raises(ProfileError, match="not one that IPUscope wrote"):
        open_report(copy)


def test_a_profile_of_format_3_gives_the_same_answers(tmp_path):
    """A file of `synthetic_profile` from when steps had a table with their types and names."""
    packed = (ROOT / "tests" / "data" / "format3.pop.zst").read_bytes()
    path = tmp_path / "profile.pop"
    path.write_bytes(zstandard.ZstdDecompressor().decompress(packed))
    sql = "SELECT id, type, name, cycles FROM program_steps ORDER BY ipu, position"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)
        rows = connection.execute(sql).fetchall()
    with open_report(path) as report:
        steps = report.program_steps()[["step", "type", "name", "cycles"]]
        assert len(rows) == 31 and list(steps.itertuples(index=False, name=None)) == rows
        assert list(query.select(report, sql).rows) == rows
        for view in schema.VIEWS:
            assert len(query.select(report, f"SELECT * FROM {view.name}")), view.name
    read_everything(path)
    read_as_libpva(path)
    assert main(["doctor", str(path)]) == 0


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_a_file_cut_off_is_named_as_such(copy, share):
    content = copy.read_bytes()
    copy.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ProfileError, match="cut off"):
        open_report(copy)


@given(
    st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4
    )
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_flipped_bytes_give_a_profile_error_or_frames_and_nothing_else(profile, tmp_path, flips):
    content = bytearray(profile.read_bytes())
    for at, change in flips:
        content[int(at * len(content))] ^= change
    path = tmp_path / "flipped.pop"
    path.write_bytes(content)
    with suppress(ProfileError):
        read_everything(path)
    with suppress(ProfileError):
        read_as_libpva(path)


CELLS = [
    (schema.stored_in(record), getattr(record, "key", "rowid"), column.name)
    for record in records.STORED
    for column in schema.columns(record)
    if column.stored
]
HOSTILE = st.sampled_from(
    [-1, 0, 1, 7, 63, 2**31, 2**53, -(2**63), 2**63 - 1, "", "x", "[", "\0", 0.5, None, b"\x00"]
)


@given(
    st.lists(st.tuples(st.sampled_from(CELLS), st.integers(0, 50), HOSTILE), min_size=1, max_size=3)
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_value_in_any_cell_gives_a_profile_error_or_frames_and_nothing_else(
    profile, tmp_path, changes
):
    path = tmp_path / "altered.pop"
    shutil.copy(profile, path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for (table, key, column), row, value in changes:
            which = f"({key}) IN (SELECT {key} FROM {table} LIMIT 1 OFFSET {row})"
            with suppress(sqlite3.Error):
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE {which}", (value,))
    for read in (read_everything, read_as_libpva):
        with suppress(ProfileError):
            read(path)


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        (
            "UPDATE target SET num_ipus = 60000, num_replicas = 30000, tiles_per_ipu = 60000",
            "tiles are more than",
        ),
        ("UPDATE target SET num_replicas = 3", "2 IPUs are not 3 replicas of 2"),
        ("UPDATE target SET ipus_per_replica = 0", "ipus_per_replica has 0, which is not within"),
        (
            "UPDATE program_tree SET parent = 999 WHERE id = 1",
            "program_tree.parent is 999, which is not in program_tree",
        ),
    ],
)
def test_hostile_content_is_named_by_libpvas_model_too(copy, sql, problem):
    alter(copy, sql)
    with pytest.raises(ProfileError, match=problem):
        read_as_libpva(copy)


BOMB = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 27))


@pytest.mark.parametrize(
    ("sql", "values", "problem"),
    [
        ("UPDATE vectors SET length = 1 << 60", (), "vectors together|at most"),
        ("UPDATE vectors SET length = -1", (), "at most"),
        ("UPDATE vectors SET length = 'many'", (), "at most"),
        ("UPDATE vectors SET dtype = '|O'", (), "unknown element type"),
        ("UPDATE vectors SET data = ?", (BOMB,), "bytes where"),
        (
            "UPDATE vectors SET data = ?, length = 1 << 24, dtype = '<i8'",
            (BOMB,),
            "vectors together|at most 8",
        ),
        ("UPDATE vectors SET data = ?", (b"garbage",), "damaged blob"),
        ("DELETE FROM vectors", (), "vector .* is missing"),
        ("DROP TABLE vectors", (), "table vectors is missing"),
        ("DROP TABLE variables", (), "table variables is missing"),
        ("ALTER TABLE stages DROP COLUMN stash_depth", (), "column stages.stash_depth is missing"),
        ("UPDATE variables SET stop = 1 << 30 WHERE always_live = 0", (), "live outside"),
        ("UPDATE variables SET start = -1 WHERE always_live = 0", (), "start has -1"),
        ("UPDATE variables SET ipu = 'x'", (), "variables.ipu holds str where int belongs"),
        ("UPDATE ops SET name = x'ff'", (), "ops.name holds bytes where str belongs"),
        ("UPDATE ops SET name = CAST(x'ff' AS TEXT)", (), "cannot be read"),
        (
            "UPDATE target SET tiles_per_ipu = 1 << 40",
            (),
            "tiles_per_ipu has 1099511627776, which is not within",
        ),
        ("UPDATE target SET tiles_per_ipu = 9", (), "8 entries instead of 9"),
        ("INSERT INTO target SELECT * FROM target", (), "must have one row, and has 2"),
        ("DELETE FROM target", (), "must have one row, and has 0"),
        ("UPDATE program_tree SET parent = 4 WHERE id = 1", (), "cycle"),
        ("UPDATE program_tree SET parent = id", (), "cycle"),
        ("UPDATE program_step_rows SET position = 5 WHERE position = 4", (), "do not count from 0"),
        ("UPDATE traces SET iterations = 1 << 50", (), "traces.iterations has"),
        ("UPDATE traces SET task_start = task_end", (), "."),
        ("UPDATE traces SET task_body = task_end", (), "has the body .* missing"),
        ("UPDATE bodies SET starts = (SELECT task_end FROM traces)", (), "steps and .* starts"),
        ("UPDATE runs SET trace = 7", (), "runs.trace is 7, which is not in traces"),
        ("UPDATE options SET value = '{'", (), "not JSON"),
        ("UPDATE meta SET value = '[' || replace(hex(zeroblob(100000)), '0', '[')", (), "not JSON"),
        (
            (
                "DROP TABLE stages; CREATE VIEW stages AS WITH RECURSIVE n(i) AS (SELECT 1 UNION"
                " ALL SELECT i + 1 FROM n) SELECT i AS id FROM n"
            ),
            (),
            "table stages is missing",
        ),
        (
            (
                "DROP TABLE options; CREATE TABLE options(name TEXT, value TEXT AS (hex(zeroblob(1"
                " << 20))) VIRTUAL)"
            ),
            (),
            "column options.value is missing",
        ),
        (
            "DROP TABLE blocks; CREATE TABLE blocks AS SELECT * FROM stages",
            (),
            "column blocks.name is missing",
        ),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_hostile_content_is_named(copy, sql, values, problem):
    alter(copy, sql, *values)
    with pytest.raises(ProfileError, match=problem) as caught:
        read_everything(copy)
    assert caught.value.path == str(copy)
    assert caught.value.remedy


def test_an_id_twice_is_named(copy):
    views = "".join(f"DROP VIEW {view.name};" for view in schema.VIEWS)
    alter(
        copy,
        views
        + "CREATE TABLE other AS SELECT * FROM bodies; INSERT INTO other SELECT * FROM bodies",
    )
    alter(copy, "DROP TABLE bodies; ALTER TABLE other RENAME TO bodies")
    with pytest.raises(ProfileError, match=r"bodies\.id has an id twice"):
        read_everything(copy)


def test_reading_changes_neither_the_file_nor_its_directory(copy):
    before, stamp = copy.read_bytes(), copy.stat().st_mtime_ns
    read_everything(copy)
    assert copy.read_bytes() == before
    assert copy.stat().st_mtime_ns == stamp
    assert os.listdir(copy.parent) == ["profile.pop"]


def test_names_with_signs_that_mean_something_in_a_uri_open(profile, tmp_path):
    odd = tmp_path / "a?mode=rwc#b%20 ü.pop"
    shutil.copy(profile, odd)
    assert len(open_report(odd).stages) == 2
