"""Error bars from the rows: conformal quantiles of ln(measured / predicted) speed, by kind.

Operators take theirs from operators on hardware, totals from whole models on hardware. The vendor's
own estimators are no measurements: they only widen a kind that no hardware row is about.

A bar mixes pools of residuals, from the nearest to the farthest: of the kind on this target in this
type, of the kind, of the kind that it is a special case of, of everything. A pool with n sources
that no nearer one has gets n / (n + 1) of the weight that those left, since the next source is as
likely to be the odd one as any of the n; sources of a pool weigh the same. The bar is the middle
80 % of the mixture, and a margin: by as much as bars that are made without a source must be widened
to hold 80 % of its rows, on the average of sources (operators, totals and sorts of bytes apart).
Coverage is counted with the row's own source left out of all pools, and out of the margin.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean, median
from typing import TYPE_CHECKING

from benchmarks.fidelity.cases import MACHINES
from ipu_exec.lowering.measured import (
    ANY,
    COLUMNS,
    CONVOLUTION,
    FEW_CHANNELS,
    FILE,
    FULLEST,
    GROUPED,
    INFERENCE,
    MEMORY,
    PARENT,
    SMALL,
    SMALL_CYCLES,
    STAGES,
    TRAINING,
    UNMEASURED,
    convolution_kind,
)
from ipu_exec.machine import TARGETS

if TYPE_CHECKING:
    from benchmarks.fidelity.cases import Row
    from benchmarks.fidelity.store import Result

CLASSES = {
    "products": "product",
    "layers": "product",
    "LSTM": "recurrent",
    "GRU": "recurrent",
    "LSTM, all passes": "recurrent",
    "GRU, all passes": "recurrent",
    "reductions": "reduction",
    "CTC loss": "CTC loss",
    "pooling": "pooling",
}
INSIDE = 0.8  # of the measurements shall lie in a bar
TYPES = ("fp16", "fp32")
OPERATORS = "bytes of operators"
TOTALS, BYTES = (TRAINING, INFERENCE), (MEMORY, OPERATORS, FULLEST)
KINDS = (
    *dict.fromkeys(CLASSES.values()),
    CONVOLUTION,
    FEW_CHANNELS,
    GROUPED,
    STAGES,
    SMALL,
    UNMEASURED,
    *TOTALS,
    *BYTES,
)


Cell = tuple[str, str, str]  # kind, target, type


@dataclass(frozen=True)
class Residual:
    """ln(measured / predicted) of a row: of speed, or of bytes. Below 0 is slower, or smaller."""

    kind: str
    target: str
    dtype: str
    source: str
    log: float
    measured: bool = True  # False: by an estimator of the vendor's

    @property
    def cell(self) -> Cell:
        """The class whose bar it is to lie in."""
        return self.kind, self.target, self.dtype


@dataclass(frozen=True)
class Bar:
    """Where four in five measurements lie, as factors of the prediction, and what that is from."""

    low: float
    high: float
    rows: int  # measured rows of the kind, on any target
    sources: int
    estimates: int  # rows of the vendor's estimators


def source_of(row: Row) -> str:
    """Who measured: the key of the bibliography, whatever release or page of theirs."""
    return row.source.split()[0]


def kind_of(row: Row) -> str | None:
    """The kind of work that a row measures; None if it counts for none."""
    if row.mark or row.unit in ("tiles", "bytes"):
        return _kind_of_bytes(row) if row.unit == "bytes" and not row.mark else None
    if row.quantity.startswith(("forward of stage", "backward of stage", "copies of IPU")):
        return STAGES
    if row.group.startswith("whole models") or row.quantity == "cycles of an update":
        training = SMALL if row.unit == "cycles" and row.value < SMALL_CYCLES else TRAINING
        return INFERENCE if "inference" in row.case else training
    if "->" in row.case and "octave" not in row.case:
        return convolution_kind(*row.channels)
    return CLASSES.get(row.operator)


def _kind_of_bytes(row: Row) -> str | None:
    total = OPERATORS if row.kind == "poplibs" else MEMORY
    words = row.quantity.partition(" with")[0]
    return {"fullest tile": FULLEST, "total memory": total}.get(words)


def residuals(results: Iterable[Result]) -> list[Residual]:
    """Of all rows that count for a kind."""
    found = []
    for result in results:
        row, kind = result.row, kind_of(result.row)
        if kind is None or result.ratio is None or result.ratio <= 0:
            continue
        if kind == FULLEST and not _fills(result):
            continue
        inverse = row.unit in ("cycles", "s")  # less is faster
        log = math.log(result.ratio) * (1 if inverse else -1)
        # bytes are Poplar's own with the vendor's model, too: it compiles the same program
        measured = row.kind == "hardware" or kind in BYTES
        target = MACHINES[row.machine.lower()]
        found.append(Residual(kind, target, row.dtype, source_of(row), log, measured))
    return found


def _fills(result: Result) -> bool:
    """Whether a tile holds enough for its bytes to be about what it holds.

    One that needs any of region 1 counts all of region 0, gaps included, and is right by that
    alone; those that count have a tenth of a tile more.
    """
    target = TARGETS[MACHINES[result.row.machine.lower()]]
    assert result.predicted is not None
    return result.predicted > target.region0_bytes + target.bytes_per_tile / 10


def bar(known: Sequence[Residual], kind: str, target: str, dtype: str) -> Bar:
    """The error bar of a kind from these residuals."""
    family = [one for one in known if _comparable(one.kind, kind)]
    return _widened(family, (kind, target, dtype), margin(family))


def _widened(family: Sequence[Residual], cell: Cell, by: float) -> Bar:
    kind = cell[0]
    low, high = _narrow(family, cell)
    own = [one for one in family if one.measured and one.kind == kind]
    estimates = [one for one in family if not one.measured and one.kind == kind]
    low, high = low - by, high + by
    if doubt := [one.log for one in estimates or family if not own and not one.measured]:
        # nobody measured it: the estimators' doubt comes on top of that of what is nearest
        low, high = low + min(0.0, _quantile(doubt, 0.1)), high + max(0.0, _quantile(doubt, 0.9))
    sources = len({one.source for one in own})
    return Bar(math.exp(low), math.exp(high), len(own), sources, len(estimates))


def _narrow(family: Sequence[Residual], cell: Cell) -> tuple[float, float]:
    kind, target, dtype = cell
    measured = [one for one in family if one.measured]
    own = [one for one in measured if one.kind == kind]
    exact = [one for one in own if (one.target, one.dtype) == (target, dtype)]
    parent = [one for one in measured if one.kind == PARENT.get(kind)]
    return _middle(_mixture([exact, own, parent, measured]))


def margin(family: Sequence[Residual]) -> float:
    """By how much (of a logarithm) bars are widened to hold four in five of what was left out.

    For each source, bars are made without it, and its rows say how far outside they are.
    """
    outside: list[tuple[float, float]] = []
    measured = [one for one in family if one.measured]
    for source in {one.source for one in measured}:
        others = [one for one in family if one.source != source]
        mine = [one for one in measured if one.source == source]
        if any(one.measured for one in others):
            bars = {cell: _narrow(others, cell) for cell in {one.cell for one in mine}}
            for one in mine:
                low, high = bars[one.cell]
                outside.append((max(low - one.log, one.log - high), 1 / len(mine)))
    return max(0.0, _weighted_quantile(outside, INSIDE))


def _comparable(one: str, kind: str) -> bool:
    """Operators are compared with operators, and totals with totals; bytes are of one sort each."""
    if one in BYTES or kind in BYTES:
        return one == kind
    return (one in TOTALS) == (kind in TOTALS)


def _mixture(pools: Sequence[Sequence[Residual]]) -> list[tuple[float, float]]:
    """(residual, weight) of the pools, the nearest first."""
    weighted: list[tuple[float, float]] = []
    left, seen = 1.0, set[str]()
    for at, pool in enumerate(pools):
        counts = Counter(one.source for one in pool)
        new = len(counts.keys() - seen)
        seen |= counts.keys()
        share = left if at == len(pools) - 1 else left * new / (new + 1)
        left -= share
        weighted += [(one.log, share / len(counts) / counts[one.source]) for one in pool]
    return weighted


def _middle(weighted: list[tuple[float, float]]) -> tuple[float, float]:
    """The middle `INSIDE` of the mixture, which always has the prediction itself in it."""
    tail = (1 - INSIDE) / 2
    low, high = _weighted_quantile(weighted, tail), _weighted_quantile(weighted, 1 - tail)
    return min(low, 0.0), max(high, 0.0)


def _weighted_quantile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    total, below = sum(weight for _, weight in weighted), 0.0
    for value, weight in sorted(weighted):
        below += weight
        if below >= share * total:
            return value
    return 0.0


def _quantile(values: Sequence[float], share: float) -> float:
    return _weighted_quantile([(value, 1.0) for value in values], share)


def factors_of_others(known: Sequence[Residual]) -> dict[str, float]:
    """By source: the mean of the other sources' median residuals. Empty if there is one source."""
    logs: dict[str, list[float]] = {}
    for one in known:
        logs.setdefault(one.source, []).append(one.log)
    medians = {source: median(values) for source, values in logs.items()}
    return {
        source: mean(of for other, of in medians.items() if other != source)
        for source in medians
        if len(medians) > 1
    }


def coverage(known: Sequence[Residual]) -> dict[Cell, list[bool]]:
    """By kind, target and type: whether each row lies in the bar of all sources but its own.

    Empty where no other source has measured anything like it.
    """
    inside: dict[Cell, list[bool]] = {}
    bars: dict[tuple[str, Cell], Bar] = {}
    for one in known:
        if not one.measured:
            continue
        within_cell = inside.setdefault(one.cell, [])
        key = one.source, one.cell
        if key not in bars:
            others = [r for r in known if r.source != one.source and _comparable(r.kind, one.kind)]
            if not any(r.measured for r in others):
                continue
            bars[key] = bar(others, *one.cell)
        within = math.log(bars[key].low) <= one.log <= math.log(bars[key].high)
        within_cell.append(within)
    return inside


def write(results: Iterable[Result]) -> None:
    """Write measured.csv: the bars of all kinds, on each target in each type."""
    known = residuals(results)
    with FILE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for kind in KINDS:
            for target, dtype in ((ANY, ANY), *product(sorted(set(MACHINES.values())), TYPES)):
                one = bar(known, kind, target, dtype)
                counts = one.rows, one.sources, one.estimates
                writer.writerow((kind, target, dtype, f"{one.low:.3f}", f"{one.high:.3f}", *counts))
