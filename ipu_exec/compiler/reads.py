"""The values whose content an operator reads.

Other arguments need neither be stashed nor sent to another IPU.
"""

from __future__ import annotations

from ipu_exec.graph import OpNode
from ipu_exec.lowering import info


def read_values(op: OpNode) -> tuple[int, ...]:
    """The values whose content ``op`` reads, in order."""
    unread = info(op.aten).unread_operands(op.args)
    if not unread:
        return tuple(op.inputs)
    return tuple(value for index, value in enumerate(op.inputs) if index not in unread)
