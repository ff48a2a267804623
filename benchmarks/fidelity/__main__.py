"""``python -m benchmarks.fidelity``: run every row, store its prediction, write the page.

python -m benchmarks.fidelity                   # all rows; predictions, error bars and the page
python -m benchmarks.fidelity --only tut4       # the same of the rows whose id contains this
python -m benchmarks.fidelity --page            # error bars and the page from what is stored
python -m benchmarks.fidelity --rows mine.csv   # other rows of the same columns: a table, no page
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from multiprocessing import get_context
from pathlib import Path

from benchmarks.fidelity import errors, fits, page, poplibs, store
from benchmarks.fidelity.cases import Row
from benchmarks.fidelity.running import run
from benchmarks.fidelity.store import Result
from benchmarks.scaling.cases import PUBLISHED
from benchmarks.scaling.cases import row as scaling_row

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "fidelity.md"
CHUNK = 60  # rows that are run before they are stored
FILES = ("validation.csv", "more.csv", "gcp.csv", "c600.csv", "small.csv")


def read(path: Path) -> list[Row]:
    """The rows of a file; the value of one that is predicted before it is registered is nan."""
    with path.open(newline="") as file:
        names = [field.name for field in fields(Row)]
        return [
            Row(**{**{n: line.get(n, "") for n in names}, "value": float(line["value"] or "nan")})
            for line in csv.DictReader(file)
        ]


def registered() -> list[Row]:
    """The rows of all sources, in the order of the page."""
    first, *others = (read(HERE / name) for name in FILES)
    return first + poplibs.rows() + [row for rows in others for row in rows] + scaling()


def scaling() -> list[Row]:
    """The pods of the MLPerf submission (docs/scaling.md) that no row of a file is about."""
    systems = [
        (f"mlp-{model.split(',')[0].lower()}-{system.pod.lower()}", system)
        for model, systems in PUBLISHED.items()
        for system in systems
        if system.published is not None and system.source == "MLP v1.1"
    ]
    return [replace(scaling_row(system), id=name) for name, system in systems]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows",
        type=Path,
        help="rows to run (default: all that are registered)",
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only rows whose id contains TEXT"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="so many processes, of one thread each"
    )
    parser.add_argument(
        "--page", action="store_true", help="run nothing: bars and page from what is stored"
    )
    args = parser.parse_args()
    if args.rows is not None:
        results = list(run([row for row in read(args.rows) if args.only in row.id]))
        print(f"{page.table(results)}\n\n{page.groups(results)}")
        return 0
    if not args.page:
        start = time.perf_counter()
        rows = [row for row in registered() + fits.rows() if args.only in row.id]
        results: list[Result] = []
        size = CHUNK if args.jobs == 1 else 6  # whole models take up to half a minute each
        chunks = [rows[at : at + size] for at in range(0, len(rows), size)]
        with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
            for part in map(run, chunks) if args.jobs == 1 else pool.map(run, chunks):
                store.save(part)  # a run that is cut short has these
                results += part
        print(f"{page.table(results)}\n\n{page.groups(results)}")
        print(f"\n{len(rows)} rows in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    first = store.load(read(HERE / FILES[0]))
    every = store.load(registered())
    verdicts = fits.verdicts(store.load(fits.rows()) + every)
    errors.write(every)
    PAGE.write_text(page.whole(first, every[len(first) :], verdicts))
    print(f"written: {PAGE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
