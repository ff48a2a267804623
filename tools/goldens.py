"""Frozen answers, to see that a change of the code changes none of them.

``python -m tools.goldens freeze DIR`` compiles a few models into DIR/profiles, and writes into
DIR/outputs what `ipu-report` says about them (the JSON of each subcommand, exports, a placement)
and a digest of each table's rows. ``python -m tools.goldens compare DIR`` asks the same profiles
again with the present code, and prints what differs; ``--recompile`` also compiles the models
again and compares rows. Times, checksums, versions and the places of files are left out.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import itertools
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = Path(sys.executable).parent  # where the console scripts are

MODELS = {
    "mnist": ("examples/mnist_pipeline.py",),
    "mnist_sharded": ("examples/mnist_pipeline.py", "--strategy", "sharded", "--replicas", "2"),
    "lstm": ("-m", "examples.lstm"),
    "vit": ("-m", "examples.vit"),
    "resnet50": ("-m", "examples.resnet50_synthetic"),
    "bert_large": ("-m", "examples.bert_large_pod16", "--pipeline", "8"),
}
EXPORTS = {  # files of `ipu-report export`, with the options for them
    "trace.json": ("--level", "tasks"),
    "stacks.folded": (),
    "lines.folded": ("--by", "source"),
    "ops.csv": ("--table", "ops"),
    "variables.csv": ("--table", "variables"),
}
MOST_LINES = 2_000  # of a file that are compared line by line, from the first difference on
COPIES = {"packed_columns"}  # tables of what is computed from the others
PASSING = {"format", "writer", "created", "torch", "python", "rules", "checksum"}  # keys of meta
PLACES = re.compile(r"(?:/[\w.+-]+)+/(?=(?:examples|ipu_exec|site-packages)/)")
TIMES = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[+-]\d\d:\d\d| UTC)?")
CHECKSUMS = re.compile(r"blake2b:[0-9a-f]+(?::[0-9a-f]+)?")


def main(argv: Sequence[str] | None = None) -> int:
    """Freeze, or compare; 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.goldens", description=__doc__)
    parser.add_argument("action", choices=("freeze", "compare"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("models", nargs="*", default=tuple(MODELS), help="default: all")
    parser.add_argument("--recompile", action="store_true", help="compare rows of new profiles too")
    parser.add_argument(
        "--lines", type=int, default=40, help="of each difference to print (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    directory = args.directory.resolve()
    if args.action == "freeze":
        compile_all(args.models, directory / "profiles")
        write_answers(args.models, directory / "profiles", directory / "outputs")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        outputs, profiles = Path(scratch) / "outputs", Path(scratch) / "profiles"
        write_answers(args.models, directory / "profiles", outputs)
        differences = list(compare_texts(args.models, directory / "outputs", outputs))
        if args.recompile:
            compile_all(args.models, profiles)
            differences += compare_rows(args.models, directory / "profiles", profiles)
        for difference in differences:
            print("\n".join(itertools.islice(difference, args.lines)), end="\n\n")
    print(f"{len(differences)} differences")
    return 1 if differences else 0


def compile_all(models: Sequence[str], profiles: Path) -> None:
    """Write profiles/MODEL/training/profile.pop for each model."""
    for name in models:
        options = ("--compile-only", "--profile-dir", str(profiles / name))
        command = (str(COMMANDS / "ipu-run"), *options, *MODELS[name])
        report(f"compile {name}", run(command, ROOT))


def write_answers(models: Sequence[str], profiles: Path, outputs: Path) -> None:
    """Ask all commands about all profiles, two at a time; a file for each answer."""
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(2) as pool:
        os.environ["IPUSCOPE_CACHE"] = cache  # answers of this code only
        asked, answers = json_commands(), []
        for name in models:
            (outputs / name).mkdir(parents=True, exist_ok=True)
            tables = read_tables(profiles / name / "training" / "profile.pop")
            digests = {table: digest(rows) for table, rows in tables.items()}
            (outputs / name / "rows.json").write_text(json.dumps(digests, indent=1))
            for file, words in (*asked.items(), *written(outputs / name).items()):
                task = pool.submit(write_answer, profiles, name, words, outputs / name / file)
                answers.append(task)
        for answer in answers:
            answer.result()


def json_commands() -> dict[str, tuple[str, ...]]:
    """The subcommands that answer about a profile in JSON, by the name of the file for it."""
    listed = run((str(COMMANDS / "ipu-report"), "--help"), ROOT).stdout
    names = re.findall(r"^    ([a-z-]+) ", listed.split("subcommands:")[1], re.MULTILINE)
    extra = {
        "compare": ("mnist/training",),
        "query": ("select name, type from sqlite_master where type = 'view' order by name",),
    }
    asked = {}
    for name in names:
        if "--json" in run((str(COMMANDS / "ipu-report"), name, "--help"), ROOT).stdout:
            asked[f"{name}.json"] = (name, *extra.get(name, ()), "--json")
    return asked


def written(outputs: Path) -> dict[str, tuple[str, ...]]:
    """The commands that write a file: exports and a placement, by the name of their output's."""
    commands = {}
    for file, options in EXPORTS.items():
        commands[f"export.{file}.txt"] = ("export", "-o", str(outputs / file), *options)
    placement = str(outputs / "placement.json")
    return commands | {"placement.json.txt": ("rebalance", "-o", placement)}


def write_answer(profiles: Path, name: str, words: tuple[str, ...], file: Path) -> None:
    """What a command prints, and the file it writes, without what changes from run to run."""
    command = (str(COMMANDS / "ipu-report"), *words, f"{name}/training")
    done = run(command, profiles)
    report(f"{name} {' '.join(words[:1])} -> {file.name}", done)
    answer = neutral(done.stdout.replace(str(file.parent), ""))
    file.write_text(f"exit code {done.returncode}\n{answer}\n")
    if "-o" in words and (output := Path(words[words.index("-o") + 1])).exists():
        output.write_text(neutral(output.read_text()))


def neutral(text: str) -> str:
    """A text without places, times and checksums; JSON in one line a value, to be compared."""
    try:
        text = json.dumps(json.loads(text), indent=1, ensure_ascii=False)
    except ValueError:
        pass  # not JSON
    for pattern, word in ((PLACES, ""), (TIMES, "TIME"), (CHECKSUMS, "CHECKSUM")):
        text = pattern.sub(word, text)
    return text


def read_tables(file: Path) -> dict[str, list[str]]:
    """The rows of each table as sorted texts, vectors by the hash of their content."""
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    named = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    hashes = dict(connection.execute("SELECT id, hex(hash) FROM vectors"))
    tables = {}
    for (table,) in named.fetchall():
        if table in COPIES or table == "vectors":
            continue
        linked = {row[3] for row in connection.execute(f"PRAGMA foreign_key_list({table})")}
        cursor = connection.execute(f"SELECT * FROM {table}")
        columns = [column[0] for column in cursor.description]
        vectors = {at for at, name in enumerate(columns) if name in linked | {"vector"}}
        rows = []
        for row in cursor:
            if table == "meta" and row[0] in PASSING:
                continue
            values = [hashes.get(v, v) if at in vectors else v for at, v in enumerate(row)]
            rows.append(neutral(repr(values)))
        tables[table] = sorted(rows)
    return tables


def digest(rows: list[str]) -> str:
    """How many rows, and a hash of them."""
    return f"{len(rows)} rows {hashlib.blake2b('|'.join(rows).encode(), digest_size=8).hexdigest()}"


def compare_texts(models: Sequence[str], before: Path, after: Path) -> Iterator[Iterator[str]]:
    """A unified diff for each file that differs or is in one directory only."""
    tops = [top / name for top in (before, after) for name in models]
    files = {path.relative_to(top.parent) for top in tops for path in top.iterdir()}
    for file in sorted(files):
        a, b = (read_lines(top / file) for top in (before, after))
        if a != b:
            pairs = enumerate(itertools.zip_longest(a, b))
            first = next(at for at, (x, y) in pairs if x != y)
            begin, stop = max(0, first - 3), first + MOST_LINES  # a trace has millions of lines
            titles = (f"frozen/{file} from line {begin + 1}", f"now/{file}")
            yield difflib.unified_diff(a[begin:stop], b[begin:stop], *titles, lineterm="")


def read_lines(file: Path) -> list[str]:
    """The lines of a file; none where it is missing."""
    return file.read_text().splitlines() if file.exists() else []


def compare_rows(models: Sequence[str], before: Path, after: Path) -> Iterator[Iterator[str]]:
    """The rows of each table that are in one of two profiles only."""
    for name in models:
        old, new = (read_tables(top / name / "training/profile.pop") for top in (before, after))
        for table in sorted(old.keys() | new.keys()):
            a, b = set(old.get(table, ())), set(new.get(table, ()))
            if a != b or len(old.get(table, ())) != len(new.get(table, ())):
                gone, came = sorted(a - b), sorted(b - a)
                counts = f"{len(gone)} rows gone, {len(came)} rows new"
                changed = itertools.zip_longest((f"-{r}" for r in gone), (f"+{r}" for r in came))
                pairs = (row for pair in changed for row in pair if row)
                yield itertools.chain([f"{name}: {table}: {counts}"], pairs)


def run(command: tuple[str, ...], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command there; what it prints is text."""
    environment = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )


def report(what: str, done: subprocess.CompletedProcess[str]) -> None:
    """Print one line of progress; with the last of the error where a command failed."""
    failed = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    print(f"{time.strftime('%H:%M:%S')} {what}", *failed, flush=True)


if __name__ == "__main__":
    sys.exit(main())
