"""torchmetrics metrics in a step that is being compiled: on the chip, or left to the host.

A metric whose shapes depend on data (an exact curve) cannot be part of a program. The host computes
it from the step's values, which leave the chip with each micro-batch.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ipu_exec.errors import ContentError, Error


@contextlib.contextmanager
def on_host_where_needed(module: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Inside, ``module`` runs to be captured; gives what its metrics are sent on the host.

    Whoever calls this puts the metrics' attributes back (`ipu_exec.capture.recording.unchanged`).
    """
    sent: list[torch.Tensor] = []
    torchmetrics = sys.modules.get("torchmetrics")
    if torchmetrics is not None:
        for part in module.modules():
            if isinstance(part, torchmetrics.Metric):
                _try_on_chip(part, sent)
    yield sent


def _try_on_chip(metric: Any, sent: list[torch.Tensor]) -> None:
    forward, update = metric.forward, metric.update
    running = False  # forward, which updates too

    def attempt(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except ContentError:
            raise
        except Error:
            tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            sent.extend(tensors)
            metric._forward_cache = torch.zeros(())  # a number: nobody computes with it here
            return metric._forward_cache

    def run_forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal running
        running = True
        try:
            return attempt(forward, args, kwargs)
        finally:
            running = False

    def run_update(*args: Any, **kwargs: Any) -> Any:
        return update(*args, **kwargs) if running else attempt(update, args, kwargs)

    vars(metric).update(forward=run_forward, update=run_update)
