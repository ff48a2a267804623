"""How far cycles of each class of operator were from published measurements.

`measured.csv` is written by ``python -m benchmarks.fidelity`` from its rows (docs/fidelity.md).
Operators that no published row measures are given the error of reductions, whose parts (maps of
few elements a tile, small exchanges) they are made of: an estimate by likeness.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ipu_exec.lowering.operators import info

FILE = Path(__file__).with_name("measured.csv")
UNMEASURED = "other"
LIKE = "reduction"  # what unmeasured operators resemble
_WORDS = {
    "pool": "pooling",
    "rnn": "recurrent",
    "scaled_dot_product": "product",
    "convolution": "convolution",
    "conv": "convolution",
}


@dataclass(frozen=True)
class Error:
    """Of one class: its rows, and |ln(predicted / published)| of half and of four in five."""

    rows: int
    median: float
    likely: float


@cache
def errors() -> Mapping[str, Error]:
    """By class: product, convolution, grouped convolution, recurrent, reduction, pooling."""
    with FILE.open(newline="") as file:
        return {
            line["class"]: Error(int(line["rows"]), float(line["median"]), float(line["likely"]))
            for line in csv.DictReader(file)
        }


def class_of(aten: str, groups: int = 1) -> str:
    """The class of an operator by its name (``aten.mm.default``); "other" if no row measures it."""
    operator = info(aten)
    if operator.convolution:
        return "grouped convolution" if groups > 1 else "convolution"
    for word, name in _WORDS.items():
        if word in aten:
            return name
    if operator.uses_memory_proportion:
        return "product"
    return "reduction" if operator.reduces_parts or operator.compares else UNMEASURED


@dataclass(frozen=True)
class Confidence:
    """How far a sum of cycles likely is from the truth.

    ``likely``: the share that each class's error has of it, added up, as if all erred the same way.
    ``unmeasured``: the share of operators that no published row measures.
    """

    likely: float
    unmeasured: float


def confidence(cycles: Iterable[tuple[str, int]]) -> Confidence:
    """Of (class, cycles) pairs."""
    known = errors()
    total = wrong = unmeasured = 0.0
    for name, count in cycles:
        total += count
        wrong += count * known[name if name in known else LIKE].likely
        unmeasured += count * (name not in known)
    return Confidence(wrong / total, unmeasured / total) if total else Confidence(0.0, 0.0)
