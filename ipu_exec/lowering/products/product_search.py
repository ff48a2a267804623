"""The search of a product's splits: all that fit in memory, and of them the quickest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from ipu_exec.lowering.layouts import ceil_div
from ipu_exec.lowering.products import amp
from ipu_exec.lowering.products.product_costs import Candidates, estimate, ordering_cycles
from ipu_exec.lowering.products.product_problem import (
    Problem,
    Splits,
    grains,
    group_grain,
    unit_for,
)
from ipu_exec.machine import Machine

Array = np.ndarray
# more multiply-accumulates than this always gain by using all tiles
SMALL_MACS = 1 << 24
# methods whose kernel may be divided among tiles by rows: its columns never are ([PL,
# lib/poplin/ConvModel.cpp], kernelSplit)
BY_KERNEL_ROWS = ("nx1", "slic", "hmac", "vmac")
SERIAL_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)


@lru_cache(maxsize=8192)
def search(problem: Problem, machine: Machine, dtype: str, methods: tuple[str, ...]) -> Splits:
    """The splits with the least cycles whose temporaries fit ``machine.proportion`` of a tile."""
    for allowed in memory_bounds(machine):
        for serial in SERIAL_SPLITS:
            candidates = [
                s for m in methods for s in _best(problem, machine, dtype, m, serial, allowed)
            ]
            if candidates:
                return min(candidates, key=lambda s: s.cycles)
    raise AssertionError("a split without a memory bound always exists")


def memory_bounds(machine: Machine) -> Iterator[float]:
    """Bytes of temporaries that are allowed, one after another until a split fits."""
    # The proportion of a tile, doubled until that is twice a tile, then any number ([PL,
    # lib/poplin/ConvPlan.cpp], minimizeMemory; before June 2020 the planner took the split with the
    # least memory instead, however slow).
    bound = machine.proportion * machine.target.bytes_per_tile
    yield bound
    while bound < 2 * machine.target.bytes_per_tile:
        bound *= 2
        yield bound
    yield np.inf


def _best(
    problem: Problem, machine: Machine, dtype: str, method: str, serial: int, allowed: float
) -> list[Splits]:
    """A method's best splits in ``serial`` steps that fit in ``allowed`` bytes; may be none."""
    unit = unit_for(problem, machine, dtype)
    heights = (4, 2, 1) if method == "nx1" and problem.kernel[0] > 1 else (1,)
    if method == "nx1" and problem.in_channels % unit.in_group == 0:
        heights = (1,)  # nothing is padded that kernel rows could take the place of
    candidates: list[Splits] = []
    for height in heights:
        bound = min((splits.cycles for splits in candidates), default=np.inf)
        candidates += _best_of(problem, machine, unit, (method, height, serial), (allowed, bound))
    return candidates


def _best_of(
    problem: Problem,
    machine: Machine,
    unit: amp.Unit,
    way: tuple[str, int, int],
    bounds: tuple[float, float],
) -> list[Splits]:
    """The best splits of a method, kernel rows at a time and serial steps.

    ``bounds``: bytes allowed, and cycles beyond which a split is of no use. Empty: none in both.
    """
    method, height, serial = way
    allowed, most_cycles = bounds
    if method in ("1x1", "nx1"):
        grain_in, grain_out = grains(problem, unit, method, height)
        padded = -(-problem.in_channels // grain_in) * -(-problem.out_channels // grain_out)
        padded *= problem.groups * grain_in * grain_out
        least = problem.segments * problem.width * problem.taps / prod(problem.field_stride)
        if least * padded > most_cycles * unit.macs_per_cycle * machine.product_tiles:
            return []
    # passes of a layer differ in what has to be put in order
    alike = replace(problem, reorders=(), output_copy=0.0)
    fitting = _fitting(alike, machine, unit, way, allowed)
    if fitting is None:
        return []
    parts, before, after, temporary = fitting
    ordering = ordering_cycles(problem, unit, method, height, np.multiply.reduce(parts))
    cycles = np.floor(before + ordering + after)
    least_cycles = np.flatnonzero(cycles == cycles.min())
    at = int(least_cycles[np.argmin(temporary[least_cycles])])
    g, f, c, o, i, k = parts[:, at].tolist()
    return [Splits(method, g, f, c, o, i, serial, height, int(cycles[at]), k)]


@lru_cache(maxsize=64)
def _fitting(
    problem: Problem, machine: Machine, unit: amp.Unit, way: tuple[str, int, int], allowed: float
) -> tuple[Array, ...] | None:
    """The splits whose temporaries fit in ``allowed`` bytes; None if none does.

    Part counts (groups, rows and columns of the field, output and input channels, kernel rows),
    and what `estimate` says of them.
    """
    method, height, serial = way
    grain_in, grain_out = grains(problem, unit, method, height)
    out_groups, in_groups = (
        -(-problem.out_channels // grain_out),
        -(-problem.in_channels // grain_in),
    )
    if serial > out_groups:
        return None
    flat = method in ("1x1", "outer")
    counts = out_groups // serial, in_groups
    g, c, o, i, k = _parallel_splits(problem, machine.product_tiles, method, height, counts)
    field = problem.segments * problem.width if flat else problem.segments
    width = 1 if flat else ceil_div(problem.width, c)
    rows = ceil_div(field, np.minimum(machine.product_tiles // (g * c * o * i * k), field))
    if problem.macs <= SMALL_MACS:  # so small that not to cut the field may be quicker
        g, c, o, i, k = (np.tile(parts, 2) for parts in (g, c, o, i, k))
        width = np.tile(np.broadcast_to(width, rows.shape), 2)
        rows = np.append(rows, np.full(rows.shape, field))
    f = ceil_div(field, rows)
    group = group_grain(problem, method)
    groups = ceil_div(ceil_div(problem.groups, group), g) * group
    ins = ceil_div(in_groups, i) * grain_in
    outs = ceil_div(ceil_div(out_groups, o), serial) * grain_out
    candidates = Candidates(
        method, height, serial, f * c, o, i, rows, width, ins, outs, groups, g, k
    )
    costs = estimate(problem, machine, unit, candidates, allowed)
    possible = costs[2] <= allowed
    if method == "slic":  # a vertex has one group of input and of output channels
        possible &= (ins == grain_in) & (outs == grain_out)
    if not possible.any():
        return None
    parts = np.array([g, f, c, o, i, k])
    return parts[:, possible], *(one[possible] for one in costs)


def _parallel_splits(
    problem: Problem, tiles: int, method: str, height: int, counts: tuple[int, int]
) -> list[Array]:
    """Part counts of groups, columns, output and input channels and kernel rows worth trying."""
    # `counts`: groups of output and input channels; the field's rows share what tiles are left
    outs, ins = counts
    in_columns = problem.flat_columns or problem.image_rows == 1  # a row an image cannot be cut
    most = tiles if in_columns else 16
    kernels = divisions(problem.kernel[0], tiles) if method in BY_KERNEL_ROWS else np.array([1])
    axes = (
        divisions(int(ceil_div(problem.groups, group_grain(problem, method))), tiles),
        divisions(problem.width, most) if method in BY_KERNEL_ROWS else np.array([1]),
        divisions(max(1, outs), tiles),
        divisions(ins, tiles),
        kernels[(kernels == 1) | (ceil_div(problem.kernel[0], kernels) >= height)],
    )
    parts = [axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")]
    fits = np.multiply.reduce(parts) <= tiles
    return [part[fits] for part in parts]


@lru_cache(maxsize=4096)
def divisions(extent: int, limit: int) -> Array:
    """Part counts worth trying: the smallest for each block size."""
    parts = np.arange(1, min(extent, limit) + 1, dtype=np.int64)
    parts = ceil_div(extent, ceil_div(extent, parts))
    return parts[np.diff(parts, prepend=0) > 0]  # they ascend
