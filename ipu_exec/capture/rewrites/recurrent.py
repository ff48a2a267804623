"""Recurrent layers in capture: one operator for each layer and direction, as in popnn.

A CPU's PyTorch decomposes a GRU, a plain RNN and a float16 LSTM into some twenty operators a time
step. This runs on fake tensors only; the numbers are PyTorch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ipu_exec.base.context import replaced

NAMESPACE = "ipu_rnn"
# Gates of a layer, and the tensors of a state's size that a time step leaves for the backward
# ([PL, lib/popnn/Lstm.cpp], LSTM_FWD_INTERMEDIATE_*: four gates, tanh of the cell, the cell
# before; [PL, lib/popnn/Gru.cpp] with resetAfter: three gates and the candidate's recurrent
# part); for a plain layer, its outputs.
KINDS = {"lstm": (4, 6), "gru": (3, 4), "rnn_tanh": (1, 0), "rnn_relu": (1, 0)}
_SIGNATURE = (
    "(Tensor x, Tensor w_in, Tensor w_rec, Tensor? b_in, Tensor? b_rec, Tensor h, Tensor? c, bool"
    " keep)"
)
_BACKWARD = (
    "(Tensor x, Tensor w_in, Tensor w_rec, Tensor? b_in, Tensor? b_rec, Tensor h, Tensor? c, Tensor"
    " y, Tensor kept, Tensor grad_y, Tensor grad_h, Tensor? grad_c)"
)
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")


def _layer_shapes(kind: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Shapes of outputs [T, B, H], last state and cell [B, H], and the backward's [T, B, n H]."""

    def shapes(
        x: Any, w_in: Any, w_rec: Any, b_in: Any, b_rec: Any, h: Any, c: Any, keep: bool
    ) -> Any:
        hidden = w_rec.shape[-1]
        each = KINDS[kind][1] * hidden if keep else 0
        cell = x.new_empty(h.shape if c is not None else (0,))
        out, kept = (x.new_empty(*x.shape[:2], size) for size in (hidden, each))
        return out, x.new_empty(h.shape), cell, kept

    return shapes


def _gradient_shapes(
    x: Any, w_in: Any, w_rec: Any, b_in: Any, b_rec: Any, h: Any, c: Any, *rest: Any
) -> tuple[torch.Tensor, ...]:
    operands = (x, w_in, w_rec, b_in, b_rec, h, c)
    return tuple(torch.empty_like(t) if t is not None else x.new_empty(0) for t in operands)


for _kind in KINDS:
    _LIBRARY.define(f"{_kind}{_SIGNATURE} -> (Tensor, Tensor, Tensor, Tensor)")
    _LIBRARY.define(
        f"{_kind}_backward{_BACKWARD} -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
    )
    torch.library.register_fake(f"{NAMESPACE}::{_kind}", _layer_shapes(_kind))
    torch.library.register_fake(f"{NAMESPACE}::{_kind}_backward", _gradient_shapes)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kind: str,
        keep: bool,
        x: Any,
        w_in: Any,
        w_rec: Any,
        b_in: Any,
        b_rec: Any,
        h: Any,
        c: Any,
    ) -> Any:
        outputs = getattr(getattr(torch.ops, NAMESPACE), kind)(
            x, w_in, w_rec, b_in, b_rec, h, c, keep
        )
        ctx.kind = kind
        ctx.save_for_backward(x, w_in, w_rec, b_in, b_rec, h, c, outputs[0], outputs[3])
        return outputs[:3]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        saved = ctx.saved_tensors
        cell = gradients[2] if saved[6] is not None else None
        backward = getattr(getattr(torch.ops, NAMESPACE), f"{ctx.kind}_backward")
        gradients_of_inputs = backward(*saved, *gradients[:2], cell)
        return (
            None,
            None,
            *(
                g if t is not None else None
                for g, t in zip(gradients_of_inputs, saved[:7], strict=True)
            ),
        )


def _run(  # noqa: PLR0913 - the arguments of torch's recurrent layers
    kind: str,
    x: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor | None,
    weights: Sequence[torch.Tensor],
    bias: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """(outputs, last state[, last cell]) of all layers, as torch has them."""
    x = x.transpose(0, 1) if batch_first else x
    directions, each = 1 + bidirectional, 4 if bias else 2
    states, cells = [], []
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (x, h, *weights))
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            at = layer * directions + direction
            parameters = list(weights[at * each : (at + 1) * each]) + [None] * (4 - each)
            cell = c[at] if c is not None else None
            y, last, last_cell = _Layer.apply(kind, keep, x, *parameters, h[at], cell)
            outputs.append(y)
            states.append(last)
            cells.append(last_cell)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if training and dropout and layer + 1 < layers:
            x = torch.dropout(x, dropout, True)
    x = x.transpose(0, 1) if batch_first else x
    return (
        (x, torch.stack(states), torch.stack(cells)) if c is not None else (x, torch.stack(states))
    )


def _replacement(kind: str, apart: Callable[..., Any]) -> Callable[..., Any]:
    """The replacement of torch's function, which packed sequences etc. still call, in capture."""

    def function(*args: Any) -> Any:
        if (
            len(args) != 9
            or isinstance(args[2], torch.Tensor)
            or isinstance(args[3], Sequence)
            or args[0].dim() != 3
        ):
            return apart(*args)
        x, state, weights = args[:3]
        h, c = state if kind == "lstm" else (state, None)
        if weights[1].shape[0] != KINDS[kind][0] * weights[1].shape[1]:
            return apart(*args)
        return _run(kind, x, h, c, weights, *args[3:])

    return function


def whole_layers() -> contextlib.AbstractContextManager[None]:
    """Capture each recurrent layer as one operator, where nn.LSTM, nn.GRU and nn.RNN look it up."""
    return replaced(
        {kind: _replacement(kind, getattr(torch._VF, kind)) for kind in KINDS}, torch._VF
    )
