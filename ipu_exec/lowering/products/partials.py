"""Operands of a planned product, and the reduction of its partial sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_exec.lowering.build import Builder, expanded, placed
from ipu_exec.lowering.layouts import Spread, apportion
from ipu_exec.lowering.plan import Operand
from ipu_exec.lowering.products import amp
from ipu_exec.lowering.products.product_problem import Problem, Splits
from ipu_exec.lowering.products.product_shares import Share, piece, planned_key

Array = np.ndarray
Wanted = tuple[Problem, str, Splits, str, int, Any]


def repeats(build: Builder, which: int | Operand) -> bool:
    """True for an expanded operand: it is written out first, in the order that is needed."""
    return isinstance(which, int) and any(expanded(build.spec.operands[which]))


def operand(
    build: Builder, which: int | Operand, plan: Wanted, want: Array
) -> tuple[Operand, bool]:
    """An operand with a layout, by default the planned one by ``want``; and whether it is that."""
    operand = which if isinstance(which, Operand) else build.spec.operands[which]
    if isinstance(which, int) and repeats(build, which):
        operand = build.lead(which)[0]
    problem, dtype, splits, what, stride, given = plan
    key = given or planned_key(problem, build.machine, dtype, splits, what, operand, stride)
    layout = operand.layout
    if layout is None:
        if not isinstance(which, int):
            raise ValueError("an operand that is not an argument of the operator must be placed")
        if which not in build.wishes:
            size = max(operand.storage_elements, operand.elements)
            build.wishes[which] = Spread(key, apportion(size, want)).layout(operand.dtype)
        layout = build.wishes[which]
    return placed(operand, layout), layout.key == key


def reduce_partials(
    build: Builder,
    name: str,
    padded: Array,
    outputs: Array,
    share: Share,
    splits: Splits,
    unit: amp.Unit,
    convolve: int,
) -> None:
    """Append exchange and addition of the partials, in the stages that the depth requires.

    ``padded`` and ``outputs``: elements of a tile's partials, and those of them that are real. The
    last stage writes results of the operands' type; if there is nothing to add, they are cast if
    that is narrower ([PL, lib/poplin/Convolution.cpp], reduceOrCastComputeSets).
    """
    partial, tile_bytes = unit.partial_bytes, build.machine.target.bytes_per_tile
    types = {2: "half", 4: "float"}
    if splits.depth == 1:
        if partial > unit.item_bytes:
            build.map(f"{name.replace('/reduce', '/cast')}", "cast", outputs, "float16", flops=0)
        build.hold(
            f"{name}/partials",
            padded * partial,
            convolve,
            build.next - 1,
            interleaved=True,
            becomes_result=partial == unit.item_bytes and splits.serial == 1,
        )
        return
    depth, elements, since = splits.depth, padded, convolve
    radices = amp.reduction_stages(splits.depth)
    for stage, radix in enumerate(radices):
        left = -(-depth // radix)
        out_bytes = unit.item_bytes if stage == len(radices) - 1 else partial
        summed = piece(padded * left, share.in_index, splits.depth, unit.out_group)
        arriving = summed * (radix - 1)  # one of the partials is there
        step = build.exchange(
            f"{name}/exchange",
            (arriving + summed) * partial,
            elements * partial,
            np.where(arriving > 0, radix - 1, 0),
        )
        build.compute(
            name,
            f"poplin::ReduceAdd<{types[out_bytes]},{types[partial]}>",
            amp.reduce_partials_cycles(summed, radix, partial, out_bytes, tile_bytes),
            int(arriving.sum()),
        )
        done = build.next - 1
        build.hold(f"{name}/partials", elements * partial, since, done, interleaved=True)
        build.hold(f"{name}/arriving partials", arriving * partial, step, done)
        elements, depth, since = summed, left, done
