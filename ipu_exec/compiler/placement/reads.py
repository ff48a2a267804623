"""The values whose content an operator reads; others are neither stashed nor sent to other IPUs."""

from __future__ import annotations

from collections.abc import Sequence

from ipu_exec.graph import OpNode
from ipu_exec.lowering import info


def read_values(op: OpNode) -> tuple[int, ...]:
    """The values whose content ``op`` reads, in order."""
    unread = info(op.aten).unread_operands(op.args)
    if not unread:
        return op.inputs
    return tuple(value for at, value in enumerate(op.inputs) if at not in unread)


def read_operands(op: OpNode) -> Sequence[int]:
    """The indices of the operands whose content ``op`` reads."""
    unread, operands = info(op.aten).unread_operands(op.args), range(len(op.inputs))
    return [index for index in operands if index not in unread] if unread else operands
