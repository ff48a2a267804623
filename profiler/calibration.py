"""Factors by class of operator, from a measured profile beside a modelled one of the same model.

``ipu-report compare MEASURED MODELLED --calibrate FILE`` writes them; where the environment's
``IPUSCOPE_CALIBRATION`` names the file, predictions of other splits and error bars of profiles of
that architecture use them (docs/how-to/real-profiles.md#your-machine).
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import numpy as np

from ipuscope.profiler.answers import CALIBRATION
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.errors import ProfileError
from ipuscope.profiler.report import Report, number

if TYPE_CHECKING:
    import pandas as pd

LEAST = 5  # operators for a range of their own
_MOST_BYTES = 1 << 20
_FOUR_IN_FIVE = (0.1, 0.9)
_REMEDY = f"Make one: ipu-report compare MEASURED MODELLED --calibrate FILE; or unset {CALIBRATION}"

Ratio = Annotated[float, msgspec.Meta(ge=0.001, le=1000)]
Number = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class Factor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured cycles of a class over modelled ones.

    ``low``, ``high``: between them lie four in five of its ``operators``, measured over what the
    factor of all others of the class predicts; with fewer than `LEAST`, of all classes' operators.
    """

    factor: Ratio
    low: Ratio
    high: Ratio
    operators: Number

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The factors of a machine, by class: an ATen operator without its overload."""

    architecture: str
    measured: str
    modelled: str
    classes: dict[str, Factor]
    format: Literal[1] = 1

    def factors(self, kinds: pd.Series[str]) -> np.ndarray:
        """float64[operator]: of each operator's class; 1 of one that was not measured."""
        by_class = {name: one.factor for name, one in self.classes.items()}
        return kinds.map(by_class).fillna(1.0).to_numpy(dtype=np.float64)


def kinds_of(aten: pd.Series[str]) -> pd.Series[str]:
    """The classes of operators: their ATen names without overloads."""
    return aten.str.split(".").str[:2].str.join(".")


def made(measured: Report, modelled: Report, pairs: pd.DataFrame) -> Calibration:
    """From ``pairs`` of operators (`analysis.paired_ops`); ValueError if there are none."""
    if not len(pairs):
        raise ValueError("no operator of one has the name of one of the other")
    sums = pairs[["measured", "modelled"]].sum()
    by_class = pairs.groupby("kind")
    of_class = by_class[["measured", "modelled"]].transform("sum")
    alone = (by_class["kind"].transform("size") == 1).to_numpy()[:, None]
    others = np.where(alone, sums, of_class) - pairs[["measured", "modelled"]].to_numpy()
    others = np.where((others > 0).all(axis=1)[:, None], others, sums)
    ratio = pairs["measured"] / pairs["modelled"] / (others[:, 0] / others[:, 1])
    classes = {}
    for kind, rows in by_class:
        low, high = np.quantile(ratio[rows.index] if len(rows) >= LEAST else ratio, _FOUR_IN_FIVE)
        factor = rows["measured"].sum() / rows["modelled"].sum()
        classes[str(kind)] = Factor(float(factor), float(low), float(high), len(rows))
    names = str(measured.path), str(modelled.path)
    return Calibration(modelled.target.architecture, *names, classes)


def write(calibration: Calibration, path: str | os.PathLike[str]) -> None:
    """Write a file of it, in one rename. OSError if that is impossible."""
    partial = f"{os.fspath(path)}.partial"
    with open(partial, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")
    os.replace(partial, path)


def read(path: str | os.PathLike[str]) -> Calibration:
    """A file of it; ProfileError says what is wrong with it."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError("it is longer than a megabyte")
        return msgspec.json.decode(data, type=Calibration)
    except (OSError, ValueError) as error:  # msgspec's are ValueErrors
        raise ProfileError(path, f"it is not a calibration ({error})", _REMEDY) from error


def of(report: Report) -> Calibration | None:
    """The calibration for a modelled profile: None without one, or of another architecture."""
    path = os.environ.get(CALIBRATION, "")
    if not path or report.imported:
        return None
    one = _read(path)
    return one if one.architecture == report.target.architecture else None


_read = cache(read)  # of a process: it does not change under a page


def spent(report: Report) -> pd.DataFrame:
    """The cycles of each operator in a weight update: ``kind, cycles``; those without are out."""
    ops = report.ops[["aten", "direction", "cycles"]]
    ops = ops[ops["cycles"] > 0]
    batches = max(1, int(number(report.options, "Training.gradientAccumulation", 1)))
    times = np.where(ops["direction"] == Direction.UPDATE, 1, batches)
    return ops.assign(kind=kinds_of(ops["aten"]), cycles=ops["cycles"] * times)


def likely(report: Report, one: Calibration, low: float, high: float) -> tuple[float, float, float]:
    """The factor of all operators' cycles, and between which factors of that the truth likely is.

    ``low``, ``high``: those of operators whose class was not measured.
    """
    ops = spent(report)
    weights = ops["cycles"].to_numpy() * one.factors(ops["kind"])
    if not weights.sum():
        return 1.0, low, high
    ranges = {name: (each.low, each.high) for name, each in one.classes.items()}
    bounds = np.array([ranges.get(kind, (low, high)) for kind in ops["kind"]])
    least, most = np.average(bounds, axis=0, weights=weights).tolist()
    return float(weights.sum() / ops["cycles"].sum()), least, most
