"""How far cycles of each class of operator were from published measurements.

`measured.csv` is written by ``python -m benchmarks.fidelity`` from its rows (docs/fidelity.md).
Operators that no published row measures are given the error of a pipeline's stages, which were
measured on hardware and are made of such operators (maps of few elements a tile, small exchanges):
an estimate by likeness.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ipu_exec.lowering.operator_info import info

FILE = Path(__file__).with_name("measured.csv")
UNMEASURED = "other"
STAGES = "stages of small operators"
LIKE = STAGES  # what unmeasured operators resemble
_WORDS = {
    "pool": "pooling",
    "rnn": "recurrent",
    "ctc_loss": "CTC loss",
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
    """By class, such as product, convolution, recurrent, reduction, and stages of a pipeline."""
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
class Share:
    """A class of operators in a model: its share of the cycles, and how far these likely are off.

    ``rows``: measured rows behind that; 0 where it is judged by likeness.
    """

    name: str
    share: float
    likely: float
    rows: int


@dataclass(frozen=True)
class Confidence:
    """How far a sum of cycles likely is from the truth.

    ``likely``: the share that each class's error has of it, added up, as if all erred the same way.
    ``unmeasured``: the share of operators that no published row measures.
    ``shares``: by class, the largest first.
    """

    likely: float
    unmeasured: float
    shares: tuple[Share, ...] = ()


def confidence(cycles: Iterable[tuple[str, int]]) -> Confidence:
    """Of (class, cycles) pairs."""
    counts: Counter[str] = Counter()
    for name, count in cycles:
        counts[name] += count
    total = counts.total()
    if not total:
        return Confidence(0.0, 0.0)
    known = errors()
    shares = []
    for name, count in counts.most_common():
        rows = known[name].rows if name in known else 0
        likely = known[name if rows else LIKE].likely
        shares.append(Share(name, count / total, likely, rows))
    return Confidence(
        sum(one.share * one.likely for one in shares),
        sum(one.share for one in shares if not one.rows),
        tuple(shares),
    )
