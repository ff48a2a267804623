"""How far cycles and bytes are from published measurements, by kind of work, target and type.

`measured.csv` is written by ``python -m benchmarks.fidelity --page`` from the registered rows
(docs/fidelity.md#error-bars). A bar holds four in five measurements of what is like it, whoever
measured: factors of the predicted speed, or bytes. It reaches from ``low`` to ``high`` and always
has 1 in it. Work that nobody measured has the bar of the nearest kind, widened by how far the
vendor's own estimators are from the prediction.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ipu_exec.lowering.operator_info import info

FILE = Path(__file__).with_name("measured.csv")
COLUMNS = ("kind", "target", "dtype", "low", "high", "rows", "sources", "estimates")
ANY = "any"  # target or type that no row is about
UNMEASURED = "other"
STAGES = "stages of small operators"
TRAINING, INFERENCE, SMALL = "training", "inference", "small programs"
SMALL_CYCLES = 1_000_000  # of a micro-batch: all whole models that were measured take more
MEMORY, FULLEST = "bytes of programs", "fullest tile"
CONVOLUTION, GROUPED = "convolution", "grouped convolution"
FEW_CHANNELS = "convolution of few channels"
FEW = 4  # input channels of a group: the planner pads them to 4 or expands the kernel into them
PARENT = {GROUPED: CONVOLUTION, FEW_CHANNELS: CONVOLUTION, SMALL: STAGES}
_WORDS = {
    "pool": "pooling",
    "rnn": "recurrent",
    "ctc_loss": "CTC loss",
    "scaled_dot_product": "product",
}


@dataclass(frozen=True)
class Bar:
    """Where four in five measurements lie, as factors of the prediction."""

    low: float
    high: float
    rows: int = 0  # measurements of the kind on hardware, on any target
    estimates: int = 0  # the vendor's

    @property
    def likely(self) -> float:
        """The larger side, as a share: that by which time is off at most."""
        return max(1 / self.low, self.high) - 1


@cache
def bars() -> Mapping[tuple[str, str, str], Bar]:
    """By kind, target and type; ``any`` stands for those that no row is about."""
    with FILE.open(newline="") as file:
        return {
            (line["kind"], line["target"], line["dtype"]): Bar(
                float(line["low"]), float(line["high"]), int(line["rows"]), int(line["estimates"])
            )
            for line in csv.DictReader(file)
        }


def bar(kind: str, target: str = ANY, dtype: str = ANY) -> Bar:
    """The bar of a kind of work; of one that is not in the file, that of other operators."""
    by_work = bars()
    if (kind, ANY, ANY) not in by_work:
        kind = UNMEASURED
    return by_work.get((kind, target, dtype)) or by_work[kind, ANY, ANY]


def convolution_kind(channels: int, groups: int) -> str:
    """The kind of a convolution of so many input channels in a group."""
    if groups > 1:
        return GROUPED
    return FEW_CHANNELS if channels <= FEW else CONVOLUTION


@cache
def class_of(aten: str, channels: int = FEW + 1, groups: int = 1) -> str:
    """The kind of an operator by its name (``aten.mm.default``); "other" if no row is about it."""
    operator = info(aten)
    if operator.convolution:
        return convolution_kind(channels, groups)
    for word, name in _WORDS.items():
        if word in aten:
            return name
    if operator.uses_memory_proportion:
        return "product"
    return "reduction" if operator.reduces_parts or operator.compares else UNMEASURED


@dataclass(frozen=True)
class Share:
    """A kind of operators in a model: its share of the cycles, and its bar."""

    name: str
    share: float
    bar: Bar


def shares(cycles: Mapping[str, int], target: str, dtype: str) -> tuple[Share, ...]:
    """By kind of operator, the largest share of the cycles first."""
    total = sum(cycles.values())
    largest = sorted(cycles.items(), key=lambda one: (-one[1], one[0]))
    return tuple(Share(name, n / total, bar(name, target, dtype)) for name, n in largest if n)


def together(parts: Iterable[Share]) -> Bar:
    """The bar of a sum of cycles, as if all operators erred the same way."""
    parts = tuple(parts)
    longest = sum(one.share / one.bar.low for one in parts)
    shortest = sum(one.share / one.bar.high for one in parts)
    return Bar(1 / longest, 1 / shortest) if parts else Bar(1.0, 1.0)
