"""Floating-point exceptions, as an IPU raises them: infinity or NaN from finite operands.

An IPU stops at an invalid operation (subtraction of infinities, zero times infinity, zero by
zero, a root of a negative number, a comparison with NaN), at a division by zero, and at an
overflow ([POPTORCH], its user guide on enableFloatingPointExceptions), not if NaN or infinity
only passes through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ipu_exec.errors import Error
from ipu_exec.graph import OpNode
from ipu_exec.lowering import info


@dataclass(frozen=True, slots=True)
class Operands:
    """Whether operands have NaN, infinity or 0, noted before an operator may overwrite them."""

    nan: bool
    infinite: bool
    zero: bool


def look_at(args: Any, kwargs: Any) -> Operands:
    """Inspect the operands of a call."""
    leaves = tree_leaves((args, kwargs))
    numbers = [torch.tensor(leaf) for leaf in leaves if isinstance(leaf, float)]
    tensors = [
        leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ] + numbers
    return Operands(
        any(bool(tensor.isnan().any()) for tensor in tensors),
        any(bool(tensor.isinf().any()) for tensor in tensors),
        any(bool((tensor == 0).any()) for tensor in tensors),
    )


def check(op: OpNode, before: Operands, made: Any) -> None:
    """Error if an operator's result is a floating-point exception."""
    operator = info(op.aten)
    results = [
        leaf
        for leaf in tree_leaves(made)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    nan = any(bool(result.isnan().any()) for result in results)
    infinite = any(bool(result.isinf().any()) for result in results)
    if operator.leaves_unwritten:
        return
    if (nan and not before.nan) or (before.nan and operator.compares):
        what = "an invalid operation"
    elif infinite and not before.infinite:
        what = "a division by zero" if operator.divides and before.zero else "an overflow"
    else:
        return
    raise Error(
        f"floating-point exception: {what} in {op.name} ({op.aten}, {op.direction}), in module "
        f"{op.module or 'the model'!r}. Look at its operands, or leave "
        "Precision.enableFloatingPointExceptions off",
        location=f"{op.file}:{op.line}" if op.file else "",
    )


def check_weights(weights: dict[str, torch.nn.Parameter]) -> None:
    """Error if a weight is infinite or NaN after an update."""
    for name, weight in weights.items():
        if not bool(weight.isfinite().all()):
            raise Error(
                f"floating-point exception: the weight update of {name!r} made infinite or"
                " undefined numbers. Lower the learning rate or the loss scaling, or leave"
                " Precision.enableFloatingPointExceptions off"
            )
