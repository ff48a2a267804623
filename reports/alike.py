"""Merges rows of IPUs and stages that are alike, for people: JSON and CSV have every row."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

FEW = 16  # rows that are always printed one by one
_NEAR = 0.05  # of a tile's memory


def spans(numbers: Sequence[int], most: int = 1) -> str:
    """Rising numbers as ranges: ``1-15``; beyond ``most`` ranges, ``1-15, 45 more``."""
    sorted_numbers = np.asarray(numbers)
    breaks = np.flatnonzero(np.diff(sorted_numbers) > 1) + 1
    ranges = np.split(sorted_numbers, breaks)
    named, rest = ranges[:most], ranges[most:]
    parts = [str(one[0]) if len(one) == 1 else f"{one[0]}-{one[-1]}" for one in named]
    more = sum(map(len, rest))
    return ", ".join([*parts, *([f"{more} more"] if more else [])])


def groups(keys: Sequence[Hashable]) -> list[list[int]]:
    """Positions with the same key, in the order in which keys first occur."""
    positions: dict[Hashable, list[int]] = {}
    for at, key in enumerate(keys):
        positions.setdefault(key, []).append(at)
    return list(positions.values())


def neighbours(values: np.ndarray, limit: float) -> list[list[int]]:
    """Positions in a row whose values are within a twentieth of ``limit`` of each other."""
    runs: list[list[int]] = []
    for at in range(len(values)):
        both = values[[*runs[-1], at]] if runs else values[:0]
        if len(both) and both.max() - both.min() <= _NEAR * limit:
            runs[-1].append(at)
        else:
            runs.append([at])
    return runs


def at_most(order: np.ndarray, most: int = FEW) -> np.ndarray:
    """The first and the last of positions sorted by importance, rising; int64[<=most]."""
    if len(order) <= most:
        return np.sort(order)
    half = most // 2
    return np.sort(np.concatenate([order[:half], order[len(order) - (most - half) :]]))


def stages_alike(stages: pd.DataFrame) -> pd.DataFrame:
    """One row per group of stages with the same work; ``stash_bytes`` is the group's largest.

    ``stage`` is a range; ``ipu`` and ``blocks`` are those of the first stage.
    """
    work = ["forward_cycles", "backward_cycles", "update_cycles", "weight_bytes"]
    rows = []
    for members in groups(list(stages[work].itertuples(index=False, name=None))):
        alike = stages.iloc[members]
        rows.append(
            {
                **alike.iloc[0],
                "stage": spans(alike["stage"].tolist()),
                "ipu": f"{alike['ipu'].iloc[0]}{', …' if alike['ipu'].nunique() > 1 else ''}",
                "stash_bytes": int(alike["stash_bytes"].max()),
            }
        )
    return stages.__class__(rows, columns=stages.columns)


def memory_alike(ipus: pd.DataFrame, limit: int) -> pd.DataFrame:
    """One row per group of neighbours with similar use: its fullest IPU, ``ipu`` as a range.

    ``limit``: bytes of a tile. If there are many rows, only the fullest.
    """
    shown = []
    for members in neighbours(ipus["peak"].to_numpy(), limit):
        alike = ipus.iloc[members]
        fullest = alike.iloc[int(alike["peak"].to_numpy().argmax())]
        shown.append({**fullest, "ipu": spans(alike["ipu"].tolist())})
    frame = ipus.__class__(shown, columns=ipus.columns)
    order = np.argsort(-frame["peak"].to_numpy(), kind="stable")[:FEW]
    return frame.iloc[np.sort(order)]
