"""What the first call of a model would compile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch

from ipu_exec.base.replica_groups import Groupings
from ipu_exec.options import Options


@dataclass(frozen=True)
class FirstCall:
    """A model and one micro-batch of its inputs, args and kwargs.

    ``samples``: of a weight update (a device iteration in inference), over all replicas.
    ``prepared()``: inside, the model is as a capture wants it.
    """

    model: torch.nn.Module
    options: Options
    optimizer: torch.optim.Optimizer | None
    training: bool
    samples: int
    micro_batch: tuple[tuple[Any, ...], dict[str, Any]]
    groupings: Groupings
    prepared: Callable[[], AbstractContextManager[None]]


class Taker(Protocol):
    """Whoever has the first call instead of a compile."""

    def take(self, call: FirstCall) -> NoReturn:
        """Do with it what is to be done, and end the script."""
