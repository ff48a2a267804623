"""Damaged and forged profiles against everything that reads them: ``python -m tools.fuzz --cases
1000``.

A case is a small sound profile with one to three changes: a cell, a row, a table, a vector, a
header entry, some bytes; with ``--columns``, one value that a column cannot hold, of every kind in
every column. All frames of the report, every subcommand, libpva's object model and
every page and callback of the viewer then read it. What may come of it is an answer or an error
that names the file; anything else is a finding, and so are more than `SECONDS` or `BYTES` for one
case. A case is its number and the seed: ``--first 4711 --cases 1`` repeats one.
`tests/test_fuzz.py` runs a few of the same in CI; docs/security.md has figures.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ipuscope import profiler
from ipuscope.profiler import ProfileError, Report, open_report, pva
from ipuscope.profiler.file import bounds, codec, records, schema
from ipuscope.reports import cli

SECONDS = 60  # for one case: all that reads it
BYTES = 1 << 30  # of address space for one case, beyond what the process had before
CHUNK = 25  # cases a process: a crash costs the rest of them, no more
CHANGES = 3
SELDOM = {"viewer": 20, "advise": 10, "html": 10}  # the slow readers: of one case in so many

NUMBERS = (
    -1,
    0,
    1,
    2,
    3,
    7,
    255,
    65_536,
    2**31 - 1,
    2**31,
    2**40,
    2**53,
    2**62,
    2**63 - 1,
    -2,
    -(2**63),
)
TEXTS = (
    "",
    "x",
    "\x1b[31m",
    "=1+1",
    "<script>",
    "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
    "update",
    "0",
)
JSONS = ("null", "0", "-1", "2147483648", "1e999", '"x"', "[]", "{}", "[1, 2]", "true", "{", "")
NESTED = "[" * 100_000 + "]" * 100_000
# What a column may be given that it cannot hold, beside numbers and texts.
OTHERS = (0.5, 1e-300, float("inf"), float("-inf"), None, b"x", NESTED, "x" * (1 << 20))
VECTORS = (
    np.zeros(0, dtype=np.int64),
    np.array([0]),
    np.arange(4),
    np.array([-1, 2**62]),
    np.full(8, 2**62),
    np.full(8, -1),
    np.arange(8)[::-1],
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A change: kind, place and value, each a number taken modulo what is available."""

    kind: int
    table: int
    row: int
    column: int
    value: int


@dataclass(frozen=True)
class Wrong:
    """A value in a column of some rows: which ones is SQL."""

    table: str
    column: str
    rows: str
    value: Any


def wrong_values(sound: Path) -> list[Wrong]:
    """Each kind of value in each column, in the first row, the last one and all of them.

    Of the header and the options, in each entry.
    """
    cells = (*NUMBERS, *TEXTS, *OTHERS)
    some = [
        Wrong(schema.stored_in(record), column.name, rows, value)
        for record in records.STORED
        for column in schema.columns(record)
        if column.stored
        for rows in ("1", *(_one_row(record, least) for least in ("min", "max")))
        for value in (*cells, *_near(column.bound))
    ]
    with _base(sound) as base:
        for table, name in (("meta", "key"), ("options", "name")):
            for (key,) in base.execute(f"SELECT {name} FROM {table}"):
                of_key = f"{name} = '{key}'"
                some += [Wrong(table, "value", of_key, value) for value in (*JSONS, NESTED)]
    return some


def _one_row(record: type[Any], least: str) -> str:
    key = getattr(record, "key", "rowid").split(",")[0]
    return f"{key} = (SELECT {least}({key}) FROM {schema.stored_in(record)})"


def _near(bound: Any) -> tuple[Any, ...]:
    """Values at the edges of what a column may hold, and the words of a closed list."""
    if isinstance(bound, bounds.Within):
        edges = (bound.least - 1, bound.least, bound.most, bound.most + 1)
        return tuple(edge for edge in edges if abs(edge) < 2**63)
    return bound.words if isinstance(bound, bounds.OneOf) else ()


# -- changing a profile ---


def apply(path: Path, changes: Sequence[Change | Wrong]) -> None:
    """Apply the changes to the file in place."""
    for change in changes:
        if isinstance(change, Wrong):
            with contextlib.suppress(sqlite3.Error), _base(path) as base:
                words = f"UPDATE {change.table} SET {change.column} = ? WHERE {change.rows}"
                base.execute(words, (change.value,))
            continue
        kinds = (
            _cell,
            _cell,
            _cell,
            _copy_cell,
            _delete,
            _double,
            _empty,
            _vector,
            _header,
            _bytes,
        )
        with contextlib.suppress(sqlite3.Error):  # a change that SQLite refuses is none
            kinds[change.kind % len(kinds)](path, change)


@contextlib.contextmanager
def _base(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    try:
        yield connection
        connection.commit()
    finally:
        connection.close()


def _place(base: sqlite3.Connection, change: Change) -> tuple[str, str, str, Any]:
    """Table, key of its rows, column and one row's key. sqlite3.Error where the table is empty."""
    record = records.STORED[change.table % len(records.STORED)]
    table, columns = schema.stored_in(record), [c for c in schema.columns(record) if c.stored]
    key = getattr(record, "key", "rowid").split(",")[0]
    keys = base.execute(f"SELECT {key} FROM {table}").fetchall()
    if not keys:
        raise sqlite3.Error("nothing to change")
    return table, key, columns[change.column % len(columns)].name, keys[change.row % len(keys)][0]


def _cell(path: Path, change: Change) -> None:
    with _base(path) as base:
        table, key, column, row = _place(base, change)
        pool = (*NUMBERS, *NUMBERS, *TEXTS, 0.5, float("inf"), None, b"x")
        value = pool[change.value % len(pool)]
        base.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (value, row))


def _copy_cell(path: Path, change: Change) -> None:
    """Another row's value: a reference that is one, but a wrong one."""
    with _base(path) as base:
        table, key, column, row = _place(base, change)
        values = base.execute(f"SELECT {column} FROM {table}").fetchall()
        value = values[change.value % len(values)][0]
        base.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (value, row))


def _delete(path: Path, change: Change) -> None:
    with _base(path) as base:
        table, key, _, row = _place(base, change)
        base.execute(f"DELETE FROM {table} WHERE {key} = ?", (row,))


def _double(path: Path, change: Change) -> None:
    with _base(path) as base:
        table, key, _, row = _place(base, change)
        columns = [entry[1] for entry in base.execute(f"PRAGMA table_info({table})")]
        cells = list(base.execute(f"SELECT * FROM {table} WHERE {key} = ?", (row,)).fetchone())
        if columns[0] == "id":
            cells[0] = NUMBERS[change.value % len(NUMBERS)] if change.value % 2 else 10_000
        marks = ", ".join("?" * len(cells))
        base.execute(f"INSERT INTO {table} VALUES ({marks})", cells)


def _empty(path: Path, change: Change) -> None:
    with _base(path) as base:
        base.execute(f"DELETE FROM {_place(base, change)[0]}")


def _vector(path: Path, change: Change) -> None:
    """Other numbers in a vector, as long as it was or not."""
    with _base(path) as base:
        rows = base.execute("SELECT id, dtype, length, data FROM vectors").fetchall()
        id, dtype, length, data = rows[change.row % len(rows)]
        values = codec.decode(dtype, length, data)
        if change.value % 2 and length:
            values[change.column % length] = NUMBERS[change.value // 2 % len(NUMBERS)]
        else:
            values = VECTORS[change.value // 2 % len(VECTORS)]
            values = np.resize(values, length) if change.column % 2 and len(values) else values
        coded = codec.encode(values)
        base.execute(
            "UPDATE vectors SET dtype = ?, length = ?, data = ? WHERE id = ?",
            (coded.dtype, coded.length, coded.data, id),
        )


def _header(path: Path, change: Change) -> None:
    with _base(path) as base:
        table, name = (("meta", "key"), ("options", "name"))[change.table % 2]
        keys = base.execute(f"SELECT {name} FROM {table}").fetchall()
        key = keys[change.row % len(keys)][0]
        value = JSONS[change.value % len(JSONS)]
        base.execute(f"UPDATE {table} SET value = ? WHERE {name} = ?", (value, key))


def _bytes(path: Path, change: Change) -> None:
    content = bytearray(path.read_bytes())
    at = (change.row * 65_537 + change.column) % len(content)
    if change.value % 8 == 0:
        del content[at:]
    else:
        content[at : at + 4] = (change.value * 2_654_435_761 % 2**32).to_bytes(4, "little")
    path.write_bytes(content)


# -- reading it ---


def surfaces(sound: Path) -> dict[str, Callable[[Path], None]]:
    """Everything that reads a profile, by name. ``sound`` is a good one, for comparison."""
    by_name: dict[str, Callable[[Path], None]] = {
        "frames": frames,
        "libpva": libpva,
        "viewer": viewer,
    }
    for name, words in _commands(sound).items():
        by_name[name] = _command(words)
    return by_name


def frames(path: Path) -> None:
    """Every frame of the report, and every vector behind some."""
    with contextlib.suppress(ProfileError), open_report(path) as report:
        plain = ("meta", "target", "options", "stages", "blocks", "ops", "program", "bodies")
        for name in (*plain, "variables", "runs"):
            _tried(lambda name=name: getattr(report, name))
        for method in (report.program_steps, report.memory):
            _tried(method)
        steps = _tried(report.program_steps)
        if steps is not None:
            for step in steps["step"].head(3).tolist():
                _tried(lambda step=step: (report.step_tiles(step), report.vertices(step)))
        variables = _tried(lambda: report.variables)
        if variables is not None:
            for id in variables.index[:3].tolist():
                _tried(lambda id=id: report.usage.variable_tiles(id))
        target = _tried(lambda: report.target)
        for ipu in range(min(2, target.ipus_per_replica) if target is not None else 0):
            _tried(lambda ipu=ipu: report.tiles(ipu))
            _tried(lambda ipu=ipu: report.liveness(ipu))
            _tried(lambda ipu=ipu: report.liveness_map(ipu, shape=(8, 8)))
            _tried(lambda ipu=ipu: report.live_variables(ipu, 0))
            _tried(lambda ipu=ipu: report.tile_vertices(ipu, 0))
        runs = _tried(lambda: report.runs)
        for run in range(min(2, len(runs)) if runs is not None else 0):
            _tried(lambda run=run: report.pipeline_cycles(run, 0))
            _tried(lambda run=run: report.tasks(run, iteration=0))
            _tried(lambda run=run: report.steps(run, iteration=0))
            _tried(lambda run=run: report.cycle_proportions(run))


def _tried(make: Callable[[], Any]) -> Any:
    """The result of a call; None if it is an error of the profile."""
    try:
        return make()
    except ProfileError:
        return None


def libpva(path: Path) -> None:
    """Every property of libpva's objects, of lists the first items and the last."""
    try:
        pending: list[tuple[Any, int]] = [(pva.openReport(str(path)), 0)]
    except ProfileError:
        return
    for _ in range(400):
        if not pending:
            return
        thing, depth = pending.pop()
        for name in [name for name in dir(type(thing)) if not name.startswith("_")]:
            with contextlib.suppress(ProfileError, AttributeError):
                value = getattr(thing, name)
                if not callable(value) and depth < 5:
                    pending.extend((item, depth + 1) for item in _objects(value))


def _objects(value: Any) -> list[Any]:
    if type(value).__module__.startswith("ipuscope.profiler.pva") and not hasattr(value, "__len__"):
        return [value] if not hasattr(value, "value") else []
    if (
        hasattr(value, "__len__")
        and hasattr(value, "__getitem__")
        and not isinstance(value, (str, dict))
    ):
        some = [*islice(value, 2), *([value[len(value) - 1]] if len(value) > 2 else [])]
        return [item for one in some for item in _objects(one)]
    return []


def _commands(sound: Path) -> dict[str, list[str]]:
    """Words of each subcommand; PROFILE stands for the file, OUT for a new one."""
    from ipuscope.reports.cli import COMMANDS

    left_out = ("completion", "view", "compare", "export", "html", "import", "query")
    commands = {name: [name, "PROFILE"] for name in COMMANDS if name not in left_out}
    commands |= {
        f"{name} --json": [name, "--json", "PROFILE"] for name in ("summary", "insights", "ops")
    }
    return commands | {
        "compare": ["compare", "PROFILE", str(sound)],
        "compare with": ["compare", str(sound), "PROFILE"],
        "query": ["query", "select * from op_cycles", "PROFILE"],
        "html": ["html", "PROFILE", "-o", "OUT.html"],
        "export": ["export", "PROFILE", "-o", "OUT.json"],
        "export csv": ["export", "--table", "program_steps", "PROFILE", "-o", "OUT.csv"],
        "rebalance --stages": ["rebalance", "--stages", "2", "PROFILE"],
        "whatif --micro-batches": ["whatif", "--micro-batches", "1000000", "PROFILE"],
    }


def _command(words: list[str]) -> Callable[[Path], None]:
    def run(path: Path) -> None:
        from ipuscope.reports.cli import main

        named = {
            "PROFILE": str(path),
            "OUT.html": f"{path}.html",
            "OUT.json": f"{path}.json",
            "OUT.csv": f"{path}.csv",
        }
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()) as out:
            code = main([named.get(word, word) for word in words])
        if code not in (0, 1, 3):
            raise AssertionError(f"exit code {code}")
        for line in [*said.getvalue().splitlines(), *out.getvalue().splitlines()]:
            if not all(character.isprintable() for character in line):
                raise AssertionError(f"what a terminal obeys is in {line!r}")

    return run


def viewer(path: Path) -> None:
    """Every page, and every callback with what the page's controls hold."""
    from ipuscope.viewer.app import PAGES, create_app

    try:
        report = open_report(path)
    except ProfileError:
        return
    with report:
        app = create_app(report)
        client = app.server.test_client()
        values: dict[str, Any] = {}
        for page in PAGES:
            values["where.data"] = {
                "path": page.path,
                "search": "",
                "theme": "light",
                "width": 1200,
            }
            answer = _called(client, "show", app, values)
            _controls(answer, values)
        for name in app.callback_map:
            _called(client, name, app, values)


def _called(client: Any, name: str, app: Any, values: dict[str, Any]) -> Any:
    """The answer to one callback. Raises AssertionError if it is not an answer."""
    entry = next(
        one
        for one in app._callback_list
        if (one["output"] == name or (name == "show" and "page.children" in one["output"]))
    )
    if entry.get("clientside_function") is not None:
        return None
    inputs, state = ([_filled(one, values) for one in entry[part]] for part in ("inputs", "state"))
    outputs = [_output(one) for one in entry["output"].strip(".").split("...")]
    body = {
        "output": entry["output"],
        "outputs": outputs if entry["output"].startswith("..") else outputs[0],
        "inputs": inputs,
        "state": state,
        "changedPropIds": [f"{_key(inputs[0])}" if isinstance(inputs[0], dict) else ""],
    }
    answer = client.post("/_dash-update-component", json=body)
    if answer.status_code not in (200, 204):
        raise AssertionError(f"{name}: {answer.status_code} {answer.text[:300]}")
    if "The viewer failed" in answer.text:
        raise AssertionError(
            f"{name}: {answer.text[answer.text.index('The viewer failed') :][:300]}"
        )
    return answer.get_json() if answer.status_code == 200 else None


def _output(words: str) -> Any:
    id, _, prop = words.rpartition(".")
    if "ALL" in id:
        return []
    return {"id": _parsed(id), "property": prop}


def _parsed(id: str) -> Any:
    return json.loads(id) if id.startswith("{") else id


def _key(one: dict[str, Any]) -> str:
    id = one["id"]
    words = json.dumps(id, separators=(",", ":"), sort_keys=True) if isinstance(id, dict) else id
    return f"{words}.{one['property']}"


def _filled(one: dict[str, Any], values: dict[str, Any]) -> Any:
    if '["ALL"]' in str(one["id"]):
        return []
    named = {"id": _parsed(str(one["id"])), "property": one["property"]}
    return {**named, "value": values.get(_key(named))}


def _controls(part: Any, values: dict[str, Any]) -> None:
    """Keep what each component of a page has been given."""
    if isinstance(part, list):
        for item in part:
            _controls(item, values)
    elif isinstance(part, dict):
        props = part.get("props")
        if isinstance(props, dict) and "id" in props:
            for name in ("value", "rowData", "data", "figure"):
                if name in props:
                    values[_key({"id": props["id"], "property": name})] = props[name]
        for item in part.values():
            _controls(item, values)


# -- cases ---


Draw = Callable[[int], Sequence[Change | Wrong]]  # the changes of a case


class TooLong(BaseException):
    """A case has exceeded its time."""


@dataclass(frozen=True)
class Finding:
    """An outcome that a case should not have."""

    case: str
    surface: str
    error: str
    where: str
    changes: tuple[Change | Wrong, ...]


def drawn(seed: int, case: int) -> tuple[Change, ...]:
    """The random changes of a case."""
    source = random.Random(f"{seed} {case}")
    count = source.randint(1, CHANGES)
    return tuple(Change(*(source.randrange(1 << 16) for _ in range(5))) for _ in range(count))


def run(
    sound: Path,
    changes: Sequence[Change | Wrong],
    readers: dict[str, Callable[[Path], None]],
    case: str = "",
) -> list[Finding]:
    """Read a changed copy of ``sound`` by each of ``readers``."""
    failures = []
    with tempfile.TemporaryDirectory(prefix="ipuscope-fuzz-") as folder, _opened_once():
        path = Path(folder) / "profile.pop"
        shutil.copyfile(sound, path)
        apply(path, changes)
        content = path.read_bytes()
        for name, read in readers.items():
            try:
                read(path)
            except (Exception, TooLong) as error:
                frame = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{Path(frame.filename).name}:{frame.lineno}"
                words = f"{type(error).__name__}: {error}"[:300]
                failures.append(Finding(case, name, words, where, tuple(changes)))
                if isinstance(error, TooLong):
                    break
        if path.read_bytes() != content:
            words = "it has changed the file"
            failures.append(Finding(case, "all", words, "", tuple(changes)))
    return failures


_parser = cache(cli.make_parser)


class _Shared(Report):
    """A report that stays open for the next reader: they share what is computed, as pages do."""

    def close(self) -> None:
        """Not yet."""


@contextlib.contextmanager
def _opened_once() -> Iterator[None]:
    """Within, a profile is opened once, and the parser of `ipu-report` is made once."""
    opened: dict[Path, _Shared] = {}

    def shared(path: str | os.PathLike[str]) -> Report:
        if Path(path) not in opened:
            opened[Path(path)] = _Shared(path)
        return opened[Path(path)]

    own = profiler.open_report, cli.make_parser
    profiler.open_report, cli.make_parser = shared, _parser
    try:
        yield
    finally:
        profiler.open_report, cli.make_parser = own
        for report in opened.values():
            Report.close(report)


@contextlib.contextmanager
def limited(seconds: int = SECONDS, beyond: int = BYTES) -> Iterator[None]:
    """Limit the time and memory of a case: of the processor, as others may be at work beside it."""

    def late(*_: object) -> None:
        raise TooLong(f"longer than {seconds} s")

    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + beyond, before[1]))
    old = signal.signal(signal.SIGPROF, late), signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(10 * seconds)  # of one that waits for ever
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        signal.signal(signal.SIGPROF, old[0])
        signal.signal(signal.SIGALRM, old[1])
        resource.setrlimit(resource.RLIMIT_AS, before)


def _chunk(sound: Path, draw: Draw, only: Collection[str], cases: range, out: Path) -> None:
    """Run cases and append a line each."""
    every = surfaces(sound)
    os.environ["IPUSCOPE_CACHE"] = os.devnull  # no answer is asked for twice
    for case in cases:
        readers = {
            name: every[name] for name in only or every if only or not case % SELDOM.get(name, 1)
        }
        start, before = time.monotonic(), _peak()
        with limited():
            findings = run(sound, draw(case), readers, str(case))
        said = {
            "case": case,
            "seconds": time.monotonic() - start,
            "grown": _peak() - before,
            "reads": len(readers),
            "findings": [[f.surface, f.error, f.where] for f in findings],
        }
        with open(out, "a") as file:
            file.write(json.dumps(said) + "\n")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def small_profile(path: Path) -> Path:
    """The profile that cases change: of every table it has rows."""
    from tests.synthetic import synthetic_profile

    path = synthetic_profile(path, ipus=3, tiles=8, micro_batches=4, steps_per_body=3, runs=2)
    with _base(path) as base:
        base.execute(
            "INSERT INTO moved_tensors VALUES (0, 1, 'x', -1, 0, 64), (1, 1, 'x', 0, 1, 8)"
        )
        base.execute(
            "INSERT INTO host_events VALUES (0, -1, 7, 8, 'c', 'outer', 100, 900),"
            " (1, 0, 7, 8, 'c', 'inner', 200, 300)"
        )
        base.execute("INSERT INTO host_values VALUES (0, 7, 'g', 's', 'B', 100, 1.5)")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases; 1 where there are findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--columns",
        action="store_true",
        help="a wrong value in one column each, drawn of every value in every column",
    )
    parser.add_argument("--only", nargs="*", default=(), help="of what reads it, only these")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="ipuscope-fuzz-") as folder:
        sound, out = small_profile(Path(folder) / "profile.pop"), Path(folder) / "out.jsonl"
        clean = run(sound, (), surfaces(sound), "sound")
        last = args.first + args.cases
        chunks = [range(at, min(at + CHUNK, last)) for at in range(args.first, last, CHUNK)]
        draw: Draw = partial(drawn, args.seed)
        if args.columns:
            every = wrong_values(sound)
            random.Random(args.seed).shuffle(every)
            draw = lambda case: (every[case % len(every)],)  # noqa: E731
            print(f"{len(every):,} values in columns")
        crashed = _in_processes(partial(_chunk, sound, draw, args.only), chunks, out, args.jobs)
        lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return _say(lines, [*clean, *crashed])


def _in_processes(
    work: Callable[[range, Path], None], chunks: list[range], out: Path, jobs: int
) -> list[Finding]:
    """Each chunk in a process of its own, ``jobs`` at a time."""
    pending, running, crashed = list(reversed(chunks)), dict[int, range](), []
    while pending or running:
        while pending and len(running) < jobs:
            cases = pending.pop()
            child = os.fork()
            if not child:
                try:
                    work(cases, out)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            running[child] = cases
        ended, status = os.wait()
        cases = running.pop(ended)
        if status:
            words = f"the process ended with status {status} in {cases}"
            crashed.append(Finding(str(cases.start), "process", words, "", ()))
    return crashed


def _say(lines: list[dict[str, Any]], others: list[Finding]) -> int:
    kinds: Counter[tuple[str, str, str]] = Counter()
    example: dict[tuple[str, str, str], Any] = {}
    for line in lines:
        for surface, error, where in line["findings"]:
            key = (surface, error.split(":")[0], where)
            kinds[key] += 1
            example.setdefault(key, (line["case"], error))
    for key, times in kinds.most_common():
        case, error = example[key]
        print(f"{times:6} {key[0]}: {key[2]}: {error} (--first {case} --cases 1)")
    for finding in others:
        print(f"     1 {finding.surface}: {finding.where}: {finding.error} ({finding.case})")
    seconds = [line["seconds"] for line in lines] or [0.0]
    print(
        f"{len(lines)} cases, {sum(line['reads'] for line in lines):,} reads,"
        f" {sum(bool(line['findings']) for line in lines)} with findings;"
        f" longest {max(seconds):.1f} s, mean {np.mean(seconds):.2f} s; most memory a case added:"
        f" {max((line['grown'] for line in lines), default=0) / 2**20:.0f} MiB"
    )
    return 1 if kinds or others else 0


if __name__ == "__main__":
    sys.exit(main())
