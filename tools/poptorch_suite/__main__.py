"""Run PopTorch's own tests on IPUscope, and say what came of them.

``python -m tools.poptorch_suite CHECKOUT`` takes a checkout of graphcore/poptorch; the suite's code
stays there. A file a process, since some tests remove the folder that they run in; those of
poptorch_geometric a folder a process, which takes a third of the time. It goes on where it stopped:
``--outcomes`` names the file that says what is done. ``--page`` prints docs/poptorch-suite.md of
it, without running.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tools.poptorch_suite import outcomes as results
from tools.poptorch_suite import sources
from tools.poptorch_suite.page import page
from tools.poptorch_suite.plugin_name import OUTCOMES_VARIABLE, PLUGIN

ROOT = Path(__file__).resolve().parents[2]
INTERNALS = ROOT / "tests" / "poptorch" / "internals.txt"
SECONDS_PER_TEST = 300
MOST_CRASHES = 5  # of a process: each costs the test it was in
# pytest's exit statuses
_PASSED, _FAILED, _UNUSABLE, _NOTHING_LEFT = 0, 1, 4, 5
_STAND_IN = "from ipu_exec.base.stand_in import stand_in\n\nstand_in()\n"
_NOT_TESTS = ("generate_test_file.py", "test_doc_urls.py")  # the latter reads web pages


def main() -> int:
    """Run the suite or print the results; returns 1 if a test failed that should pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="of graphcore/poptorch")
    parser.add_argument("files", nargs="*", help="of its tests/; all of them by default")
    parser.add_argument("--outcomes", type=Path, default=Path("poptorch-suite.jsonl"))
    parser.add_argument("--page", action="store_true", help="print the page; run nothing")
    parser.add_argument(
        "--causes", action="store_true", help="print failures by cause; run nothing"
    )
    parser.add_argument("--note", default="", help="a paragraph for the page: which commits ran")
    args = parser.parse_intermixed_args()
    tests = args.checkout / "tests"
    # In the background a shell has its children ignore it, and tests send it to theirs.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not (tests / "conftest.py").exists():
        parser.error(f"{tests} has no conftest.py: give a checkout of graphcore/poptorch")
    outcomes = args.outcomes.resolve()
    if not args.page and not args.causes:
        for files in together(args.files or test_files(tests)):
            run(tests, files, outcomes)
    done, known = results.read(outcomes), results.reasons(INTERNALS)
    if args.page:
        sourced = sources.read(tests, test_files(tests))
        print(page(done, known, datetime.date.today(), args.note, sourced))
    elif args.causes:
        print_causes(done, known)
    counts = sum(results.by_file(done, known).values(), Counter())
    print(dict(counts), file=sys.stderr)
    return int(counts["failed"] > 0)


def test_files(tests: Path) -> list[str]:
    """All files with tests, relative to the folder."""
    files = {*tests.rglob("*_test.py"), *tests.rglob("test_*.py")}
    return sorted(str(path.relative_to(tests)) for path in files if path.name not in _NOT_TESTS)


def together(files: Sequence[str]) -> list[list[str]]:
    """The files that run in one process: those of a subfolder, one after another."""
    groups: list[list[str]] = []
    for file in files:
        folder = Path(file).parent
        if groups and folder.name and folder == Path(groups[-1][0]).parent:
            groups[-1].append(file)
        else:
            groups.append([file])
    return groups


def run(tests: Path, files: Sequence[str], outcomes: Path) -> None:
    """Run the remaining tests of some files, starting again whenever their process dies."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "poptorch.py").write_text(_STAND_IN)  # for what the tests start themselves
        library = tests.resolve().parent / "poptorch_geometric" / "python"
        (Path(folder) / "poptorch_geometric").symlink_to(library, target_is_directory=True)
        path = os.pathsep.join([str(ROOT), folder, os.environ.get("PYTHONPATH", "")])
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PYTHONPATH": path, "PATH": programs, "OMP_NUM_THREADS": "1"}
        environment[OUTCOMES_VARIABLE] = str(outcomes)
        words = ["-p", PLUGIN, "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:dash"]
        words += ["--continue-on-collection-errors", "--extended-tests", "-q", "--tb=short"]
        words += ["--timeout", str(SECONDS_PER_TEST), *files]
        for _ in range(MOST_CRASHES):
            ran = subprocess.run(
                [sys.executable, "-m", "pytest", *words], cwd=tests, env=environment, check=False
            )
            if ran.returncode == _UNUSABLE:
                for file in files:
                    _not_collected(file, outcomes)
            if ran.returncode in (_PASSED, _FAILED, _UNUSABLE, _NOTHING_LEFT):
                return


def _not_collected(file: str, outcomes: Path) -> None:
    """Record a file that cannot be collected because its conftest.py cannot be imported."""
    row = {"id": file, "when": "collect", "outcome": "failed", "text": "E   no conftest.py"}
    with outcomes.open("a") as rows:
        rows.write(json.dumps(row) + "\n")


def print_causes(done: dict[str, results.Outcome], known: list[results.Reason]) -> None:
    """Print the failures that are not excused by cause, each with its count and an example."""
    failed = [test for test in done.values() if test.kind in ("failed", "cut")]
    failed = [test for test in failed if not results.excused(test, known)]
    causes = Counter(results.cause(test.text) for test in failed)
    for words, count in causes.most_common():
        example = next(test.test for test in failed if results.cause(test.text) == words)
        print(f"{count:4} {words}   [{example}]")


if __name__ == "__main__":
    sys.exit(main())
