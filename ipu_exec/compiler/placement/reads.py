"""The values whose content an operator reads; others are neither stashed nor sent to other IPUs."""

from __future__ import annotations

from ipu_exec.graph import OpNode
from ipu_exec.lowering import info


def read_values(op: OpNode) -> tuple[int, ...]:
    """The values whose content ``op`` reads, in order."""
    operator = info(op.aten)
    if not operator.unread:
        return op.inputs
    unread = operator.unread_operands(op.args)
    return tuple(value for at, value in enumerate(op.inputs) if at not in unread)


def read_operands(op: OpNode) -> tuple[int, ...]:
    """The indices of the operands whose content ``op`` reads."""
    unread = info(op.aten).unread_operands(op.args)
    return tuple(index for index in range(len(op.inputs)) if index not in unread)
