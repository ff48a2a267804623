"""Errors of the rows by class of operator, for `ipu_exec.lowering.measured`.

Rows of cycles and of throughput of single operators count, each benchmark once. Rows marked as
other work than ours, rows measured on software of 2019 [JIA] and whole models do not. Stages of a
pipeline are a class: what is known of operators that no row measures on their own.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.fidelity.poplibs import CELLS
from ipu_exec.lowering.measured import FILE, STAGES

if TYPE_CHECKING:
    from benchmarks.fidelity.__main__ import Result
    from benchmarks.fidelity.cases import Row

CLASSES = {
    "products": "product",
    "layers": "product",
    "convolutions": "convolution",
    "depthwise": "grouped convolution",
    "LSTM": "recurrent",
    "GRU": "recurrent",
    "LSTM, all passes": "recurrent",
    "GRU, all passes": "recurrent",
    "reductions": "reduction",
    "CTC loss": "CTC loss",
    "pooling": "pooling",
}
OLD = ("JIA",)


def class_of(row: Row) -> str | None:
    """The class that a row measures; None if it counts for no class."""
    if row.source.startswith(OLD) or row.unit == "bytes" or row.quantity.startswith("tiles"):
        return None
    if row.mark == CELLS:  # the same benchmark once more
        return None
    if row.mark and row.operator not in ("GRU", "GRU, all passes", "reductions"):
        return None
    if re.match(r"(forward|backward) of stage", row.quantity):
        return STAGES
    if row.group.startswith("whole models"):
        return None
    return CLASSES.get(row.operator)


def by_class(results: Sequence[Result]) -> dict[str, list[float]]:
    """|ln ratio| of the rows of each class."""
    errors: dict[str, list[float]] = {}
    for result in results:
        name = class_of(result.row)
        if name is not None and result.ratio is not None:
            errors.setdefault(name, []).append(result.error)
    return errors


def write(results: Sequence[Result]) -> None:
    """Write measured.csv: rows, median, and the error that four in five rows stay within."""
    with FILE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["class", "rows", "median", "likely"])
        for name, errors in sorted(by_class(results).items()):
            likely = statistics.quantiles(errors, n=5)[-1]
            row = (name, len(errors), f"{statistics.median(errors):.3f}", f"{likely:.3f}")
            writer.writerow(row)
