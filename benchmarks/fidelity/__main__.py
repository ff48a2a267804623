"""``python -m benchmarks.fidelity``: run every row, print the table, write docs/fidelity.md.

python -m benchmarks.fidelity                   # all rows of both files, and the page
python -m benchmarks.fidelity --rows mine.csv   # other rows of the same columns; no page
python -m benchmarks.fidelity --only tut4       # rows whose id contains this; no page
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks.fidelity import errors, fits, page, poplibs
from benchmarks.fidelity.cases import CannotRun, Compiled, Row, compiled, predict
from ipu_exec.errors import Error

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "fidelity.md"


@dataclass(frozen=True)
class Result:
    """A row and its outcome: a prediction, or the reason why there is none."""

    row: Row
    predicted: float | None
    why: str = ""

    @property
    def ratio(self) -> float | None:
        return None if self.predicted is None else self.predicted / self.row.value

    @property
    def error(self) -> float:
        """|ln ratio|."""
        return math.inf if not self.ratio or self.ratio <= 0 else abs(math.log(self.ratio))


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        names = [field.name for field in fields(Row)]
        return [
            Row(**{**{n: line.get(n, "") for n in names}, "value": float(line["value"])})
            for line in csv.DictReader(file)
        ]


def found_elsewhere() -> list[Row]:
    """The rows we collected: sources registered whole, and those of more.csv."""
    files = ("more.csv", "gcp.csv", "c600.csv")
    return poplibs.rows() + [row for name in files for row in read(HERE / name)]


def run(rows: list[Row]) -> list[Result]:
    """Predict every row; adjacent rows of the same case are compiled once, and nothing is kept."""
    results = []
    last: tuple[str, ...] = ()
    case: Compiled | str = ""
    for row in rows:
        key = (row.case, row.machine, row.dtype)
        if key != last:
            last = key
            try:
                case = compiled(row)
            except (CannotRun, Error) as error:
                case = str(error)
        if isinstance(case, str):
            results.append(Result(row, None, case))
            continue
        row = poplibs.of_its_software(row, case.executable)
        try:
            results.append(Result(row, predict(row, case), case.note))
        except CannotRun as error:
            results.append(Result(row, None, str(error)))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows",
        type=Path,
        default=HERE / "validation.csv",
        help="rows to run (default: %(default)s)",
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only rows whose id contains TEXT"
    )
    args = parser.parse_args()
    start = time.perf_counter()
    rows = [row for row in read(args.rows) if args.only in row.id]
    results = run(rows)
    print(page.table(results))
    print()
    print(page.groups(results))
    print(f"\n{len(rows)} rows in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    if args.rows == HERE / "validation.csv" and not args.only:
        more = run(found_elsewhere())
        errors.write([*results, *more])
        verdicts = fits.run(fits.rows() + fits.submitted()) + fits.of_results([*results, *more])
        PAGE.write_text(page.whole(results, more, fits.section(verdicts)))
        print(f"written: {PAGE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
