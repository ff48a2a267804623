"""The predictions of every registered row: ``predictions.csv``, a line a row.

The page, the error bars and the tests read this file. ``python -m benchmarks.fidelity`` writes it:
all rows, or with ``--only`` some of them, which then say the commit at which they were made.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.fidelity.cases import Row

FILE = Path(__file__).with_name("predictions.csv")
COLUMNS = ("id", "predicted", "fullest", "why", "commit")


@dataclass(frozen=True)
class Result:
    """A row and its outcome: a prediction, or the reason why there is none.

    ``fullest``: the fullest tile as a share of what a tile has; 0 where nothing was compiled.
    ``commit``: of the sources that made the prediction.
    """

    row: Row
    predicted: float | None
    fullest: float = 0.0
    why: str = ""
    commit: str = ""

    @property
    def ratio(self) -> float | None:
        """Predicted over published; None without the one or, before it is registered, the other."""
        if self.predicted is None or math.isnan(self.row.value):
            return None
        return self.predicted / self.row.value

    @property
    def error(self) -> float:
        """|ln ratio|."""
        return math.inf if not self.ratio or self.ratio <= 0 else abs(math.log(self.ratio))


def commits(results: Iterable[Result]) -> str:
    """The commits of these predictions, the most frequent first."""
    counts = Counter(result.commit for result in results)
    return ", ".join(name for name, _ in counts.most_common())


def load(rows: Iterable[Row], path: Path = FILE) -> list[Result]:
    """The stored results of these rows, in their order; rows that were never run are left out."""
    with path.open(newline="") as file:
        lines = {line["id"]: line for line in csv.DictReader(file)}
    results = []
    for row in rows:
        if (line := lines.get(row.id)) is not None:
            predicted = float(line["predicted"]) if line["predicted"] else None
            about = float(line["fullest"]), line["why"], line["commit"]
            results.append(Result(row, predicted, *about))
    return results


def save(results: Sequence[Result], path: Path = FILE) -> None:
    """Put these results in the place of what is stored of their rows."""
    lines: dict[str, tuple[str, ...]] = {}
    if path.exists():
        with path.open(newline="") as file:
            for line in csv.DictReader(file):
                lines[line["id"]] = tuple(line[name] for name in COLUMNS)
    for result in results:
        predicted = "" if result.predicted is None else f"{result.predicted:.6g}"
        about = predicted, f"{result.fullest:.4f}", result.why, result.commit
        lines[result.row.id] = (result.row.id, *about)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(lines.values())
