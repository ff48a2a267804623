"""Merges IPUs, stages and operators that are alike, for people: JSON and CSV have every row."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
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


def stages_alike(stages: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One row per group of stages with the same work; ``stash_bytes`` is the group's largest.

    ``stage`` is a range; ``ipu`` and ``blocks`` are those of the first stage.
    """
    work = ("forward_cycles", "backward_cycles", "update_cycles", "weight_bytes")
    members = groups([*zip(*(stages[name].tolist() for name in work), strict=True)])
    several = [len({*stages["ipu"][one].tolist()}) > 1 for one in members]
    rows = {name: values[[one[0] for one in members]] for name, values in stages.items()}
    ipus = [f"{ipu}{', …' * more}" for ipu, more in zip(rows["ipu"], several, strict=True)]
    return {
        **rows,
        "stage": np.array([spans(stages["stage"][one].tolist()) for one in members], dtype=object),
        "ipu": np.array(ipus, dtype=object),
        "stash_bytes": np.array([stages["stash_bytes"][one].max() for one in members]),
    }


def memory_alike(ipus: Mapping[str, np.ndarray], limit: int) -> dict[str, np.ndarray]:
    """One row per group of neighbours with similar use: its fullest IPU, ``ipu`` as a range.

    ``limit``: bytes of a tile. If there are many rows, only the fullest.
    """
    alike = neighbours(ipus["peak"], limit)
    fullest = np.array([one[ipus["peak"][one].argmax()] for one in alike], dtype=np.int64)
    shown = np.sort(np.argsort(-ipus["peak"][fullest], kind="stable")[:FEW])
    names = np.array([spans(ipus["ipu"][one].tolist()) for one in alike], dtype=object)
    rows = {name: values[fullest[shown]] for name, values in ipus.items()}
    return {**rows, "ipu": names[shown]}


# of operators that are one row: equal
_ADDED = ("total_cycles", "share", "recompute_cycles")
_EQUAL = ("direction", "aten", "cycles", "executions", "flops", "low", "high", "of_roof", "why")


def operators_alike(ops: pd.DataFrame) -> pd.DataFrame:
    """One row per group of operators of numbered layers that cost the same, those of most first.

    ``name`` has ``*`` for the number, ``stage`` is a range (``1…9``: with gaps), ``alike`` says how
    many they are; totals and shares are sums.
    """
    from ipuscope.profiler.analysis.hierarchy import NUMBER

    like = ops["name"].map(lambda name: NUMBER.sub("*", name))
    # an operator of no layer is alone, whatever it costs
    keys = [like, ops["id"].where(like == ops["name"], -1), *(ops[name] for name in _EQUAL)]
    number = ops.groupby(keys, sort=False, dropna=False).ngroup()
    first, group = ~number.duplicated(), ops.groupby(number, sort=False)
    count = group.size().to_numpy()
    sums = {name: group[name].sum().to_numpy() for name in _ADDED}
    return ops[first].assign(
        name=np.where(count > 1, like[first], ops["name"][first]),
        stage=[_from_to(sorted({*stages})) for _, stages in group["stage"]],
        alike=count,
        **sums,
    )


def _from_to(stages: Sequence[int]) -> str:
    whole = stages[-1] - stages[0] == len(stages) - 1
    return spans(stages) if whole else f"{stages[0]}…{stages[-1]}"
