"""Distances of all pairs of rows: torch.cdist, pdist and their gradients.

PopLibs has no such operator; Graphcore's knowledge-graph models bring a vertex that keeps both rows
on the tile and writes no differences. Ours is that: a subtraction, a power and an addition a vector
of elements, 3 cycles for the norms 1, 2 and infinity, and `costs` "pow" an element for any other
(estimates by likeness, docs/cycles.md#elementwise).
"""

from __future__ import annotations

import numpy as np

from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.costs import KINDS
from ipu_exec.lowering.layouts import Spread, ceil_div
from ipu_exec.lowering.operators.elementwise import base_name
from ipu_exec.lowering.plan import Operand, OpSpec, Plan
from ipu_exec.lowering.registry import lowering
from ipu_exec.lowering.vertices import poplar_type
from ipu_exec.machine import Machine
from ipuscope.profiler.vertices import WORKERS

PER_VECTOR = 3
PER_POWER = KINDS["pow"].fp32[0]  # an element


def pair_cycles(pairs: np.ndarray, width: int, item_bytes: int, power: float) -> np.ndarray:
    """20 + 6 (17 + pairs (10 + c ceil(width / v))) cycles a tile, for ``pairs`` of rows."""
    lanes = max(1, 8 // item_bytes)
    cheap = power in (0.0, 1.0, 2.0, float("inf"))
    inner = PER_VECTOR * -(-width // lanes) + (0 if cheap else PER_POWER * width)
    return np.where(pairs > 0, 20 + WORKERS * (17 + ceil_div(pairs, WORKERS) * (10 + inner)), 0)


def _rows(operand: Operand, pairs: np.ndarray, other: int) -> np.ndarray:
    """Elements of ``operand`` for ``pairs`` in order on a tile; a row is in ``other`` pairs."""
    most = operand.elements // max(operand.shape[-1], 1)
    rows = np.minimum(ceil_div(pairs, other) + (other > 1), np.minimum(pairs, most))
    return np.where(pairs > 0, rows, 0) * operand.shape[-1]


def _bring_rows(build: Builder, index: int, need: np.ndarray) -> None:
    build.fetch_and_hold(f"rows {index}", build.place(index), need, broadcast=True)


def _finish(build: Builder, spread: Spread, power: float, dtype: str) -> None:
    if power == 2.0:
        build.map("root", "sqrt", spread.elements, dtype)
    elif power not in (0.0, 1.0, float("inf")):
        build.map("root", "pow", spread.elements, dtype)


@lowering("aten._cdist_forward", "aten._pdist_forward")
def distances(spec: OpSpec, machine: Machine) -> Plan:
    """(a[..., P, M], b[..., R, M], p) -> [..., P, R], or (a[N, M], p) -> N (N - 1) / 2 pairs."""
    # distances lie linearly, so a tile has a few rows of a and those of b beside them
    build = Builder(spec, machine)
    out, first = spec.output, spec.operands[0]
    power = next((float(a) for a in spec.args if isinstance(a, int | float)), 2.0)
    spread = build.linear(out.elements, out.dtype)
    last = spec.operands[-1]
    _bring_rows(build, 0, _rows(first, spread.elements, last.shape[-2]))
    arriving = np.minimum(spread.elements, last.elements // max(last.shape[-1], 1)) * last.shape[-1]
    if len(spec.operands) > 1:
        _bring_rows(build, 1, arriving)
    else:
        build.fetch_and_hold("other rows", build.place(0), arriving, broadcast=True)
    cycles = pair_cycles(spread.elements, first.shape[-1], first.item_bytes, power)
    kind = f"ipuscope::Distance<{poplar_type(first.dtype)}>"
    build.compute(base_name(spec), kind, cycles, 3 * out.elements * first.shape[-1])
    _finish(build, spread, power, out.dtype)
    return build.plan((spread.layout(out.dtype),))


@lowering("aten._cdist_backward", "aten._pdist_backward")
def distances_backward(spec: OpSpec, machine: Machine) -> Plan:
    """(gradient, a[..., P, M], b[..., R, M], p, distances) -> a's gradient; for pdist without b."""
    # each row of the result looks once at all rows of b, and at its pairs' gradients and distances
    build = Builder(spec, machine)
    out = spec.output
    power = next((float(a) for a in spec.args if isinstance(a, int | float)), 2.0)
    facing = (
        2 if "cdist" in spec.name else 1
    )  # the operand whose rows all of the result's rows meet
    width, each = max(1, out.shape[-1]), max(1, spec.operands[facing].shape[-2] - (facing == 1))
    spread = build.linear(out.elements, out.dtype)
    rows = ceil_div(spread.elements, width)
    pairs = rows * each
    for index, source in enumerate(spec.operands):
        if index == facing:
            need = np.where(rows > 0, source.elements, 0)
        else:
            need = np.minimum(spread.elements if index == 1 else pairs, source.elements)
        _bring_rows(build, index, need)
    per_tile = np.minimum(width, np.maximum(spread.elements, 1))  # a row may be cut between tiles
    cycles = pair_cycles(pairs, int(per_tile.max()), out.item_bytes, power)
    kind = f"ipuscope::DistanceGrad<{poplar_type(out.dtype)}>"
    build.compute(base_name(spec), kind, cycles, 4 * each * out.elements)
    return build.plan((spread.layout(out.dtype),))
