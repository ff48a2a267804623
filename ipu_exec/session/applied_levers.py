"""A model and its inputs with levers pulled (`script_levers`), for a compile and nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from ipu_exec.capture.loss import find_loss
from ipu_exec.enums import OverlapMode
from ipu_exec.ops import set_overlap_for_input, set_overlap_for_output
from ipu_exec.script_levers import changed_options
from ipu_exec.session.call_plan import FirstCall, samples_of
from ipuscope.planner.levers.settings import Levers

_DTYPES = {True: torch.float16, False: torch.float32}
_FLOATS = (torch.float16, torch.float32)


def pull_on_model(model: torch.nn.Module, levers: Levers, training: bool) -> None:
    """Change the module in place: its precision, and whether it returns the loss only."""
    if levers.half is not None:
        model.to(_DTYPES[levers.half])
    if levers.outputs == "loss" and training:
        model.forward = _only_loss(model, model.forward)
    if levers.overlap:
        model.forward = _overlapped(model.forward)


def with_levers(call: FirstCall, levers: Levers) -> FirstCall:
    """A first call with the levers pulled; the model is changed in place, for good."""
    if not levers:
        return call
    pull_on_model(call.model, levers, call.training)
    options = changed_options(call.options, levers, call.training)
    samples = samples_of(call.micro_batch)
    micro_batch = pull_on_inputs(call.micro_batch, levers, samples)
    return replace(call, options=options, micro_batch=micro_batch)


def _only_loss(model: torch.nn.Module, forward: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    @functools.wraps(forward)  # the arguments are still bound by the user's own signature
    def loss_of(*args: Any, **kwargs: Any) -> torch.Tensor:
        return find_loss(forward(*args, **kwargs))

    return loss_of


def _overlapped(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward with inputs and outputs beside the compute of other device iterations."""
    mode = OverlapMode.OverlapDeviceIterationLoop
    into = functools.partial(set_overlap_for_input, mode=mode)
    out = functools.partial(set_overlap_for_output, mode=mode)

    @functools.wraps(forward)
    def marked(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, into, (args, kwargs))
        return tree_map_only(torch.Tensor, out, forward(*args, **kwargs))

    return marked


def pull_on_inputs(inputs: Any, levers: Levers, samples: int) -> Any:
    """A micro-batch of ``samples`` in the levers' precision and size.

    Samples are repeated if need be: shapes count. Other first dimensions stay.
    """
    wanted = levers.micro_batch or samples

    def like(tensor: torch.Tensor) -> torch.Tensor:
        if levers.half is not None and tensor.dtype in _FLOATS:
            tensor = tensor.to(_DTYPES[levers.half])
        if wanted != samples and tensor.dim() and tensor.shape[0] == samples:
            tensor = tensor[torch.arange(wanted) % samples]
        return tensor

    return tree_map_only(torch.Tensor, like, inputs)
