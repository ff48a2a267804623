"""Tensors an operator is given but does not read: autograd hands over whole tensors where a shape
would do.

They need neither be stashed nor sent to another IPU.
"""

from __future__ import annotations

from typing import Any

from ipu_exec.graph import OpNode, ValueRef

# Positions of arguments that only tell a shape, or where something lies.
_SHAPE_ONLY = {
    "aten.max_pool2d_with_indices_backward": (1,),
    "aten.avg_pool2d_backward": (1,),
    "aten._adaptive_avg_pool2d_backward": (1,),
    "aten.adaptive_max_pool2d_backward": (1,),
    "aten.nll_loss_backward": (1,),
    "aten.nll_loss2d_backward": (1,),
    "aten.native_dropout_backward": (1,),  # drawn again from the seed
    "aten.ones_like": (0,),
    "aten.zeros_like": (0,),
    "aten.full_like": (0,),
    "aten.empty_like": (0,),
    "aten.rand_like": (0,),
    "aten.randn_like": (0,),
    "aten.new_zeros": (0,),
    "aten.new_ones": (0,),
    "aten.new_full": (0,),
    "aten.new_empty": (0,),
}


def read_values(op: OpNode) -> tuple[int, ...]:
    """The values whose content ``op`` reads, in order."""
    if op.aten.startswith("poplin.multi_conv_backward"):
        each = len(op.inputs) // len(op.args)  # gradient, input and weight of each convolution
        parts = (op.inputs[k * each : (k + 1) * each] for k in range(len(op.args)))
        return tuple(
            value
            for arguments, values in zip(op.args, parts, strict=True)
            for position, value in enumerate(values)
            if position not in _unread_by_gradients(arguments)
        )
    unread = {
        op.args[i].id for i in _unread(op) if i < len(op.args) and isinstance(op.args[i], ValueRef)
    }
    if not unread:
        return op.inputs
    return tuple(value for value in op.inputs if value not in unread)


def _unread(op: OpNode) -> tuple[int, ...]:
    packet = ".".join(op.aten.split(".")[:2])
    if packet == "aten.convolution_backward":
        return _unread_by_gradients(op.args)
    return _SHAPE_ONLY.get(packet, ())


def _unread_by_gradients(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """Of (grad, input, weight): the weight's gradient reads the input, the input's the weight."""
    input_wanted, weight_wanted, _ = arguments[-1]
    return (*(() if weight_wanted else (1,)), *(() if input_wanted else (2,)))
