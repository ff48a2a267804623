"""``precision="32-true"``, ``"16-true"`` and ``"16-mixed"`` as IPUs have them.

16-true: weights and inputs in float16. 16-mixed: inputs in float16 and weights in float32, of which
products take float16 copies (``halfFloatCasting``), as PopTorch trains mixed. Loss scaling is the
optimiser's (``poptorch.optim.AdamW(..., loss_scaling=1024)``) or automatic, by ``training_opts``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.utils._pytree import tree_map

from ipu_exec.enums import ReductionType
from ipu_exec.lightning.library import Library

PRECISIONS = ("32-true", "16-mixed", "16-true")


class PrecisionOnIpu:
    """The implementation of ``IPUPrecision``; combined with Lightning's by `ipu_exec.lightning`."""

    lib: ClassVar[Library]
    precision: Any

    def __init__(self, precision: str = "32-true") -> None:
        """ValueError for a precision that IPUs do not have."""
        if precision not in PRECISIONS:
            raise ValueError(
                f"`Trainer(accelerator='ipu', precision={precision!r})` is not supported."
                f" `precision` must be one of: {PRECISIONS}."
            )
        self.precision = precision

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module with weights in float16, where requested."""
        return module.half() if self.precision == "16-true" else module

    def to_device(self, batch: Any) -> Any:
        """The batch with the types in which it arrives on an IPU."""
        if self.precision == "32-true":
            return batch
        return tree_map(_half, batch)

    def pre_backward(self, tensor: torch.Tensor, module: Any) -> torch.Tensor:
        """The loss as it is differentiated: scaled, and a sum where the options ask for one."""
        loss: torch.Tensor = super().pre_backward(tensor, module)  # type: ignore[misc]
        strategy = module.trainer.strategy
        factor = strategy.loss_scale()
        options = strategy.training_opts
        if options.Training.accumulation_and_replication_reduction_type is ReductionType.Sum:
            factor *= module.trainer.accumulate_grad_batches * strategy.replicas
        return loss if factor == 1 else loss * factor

    def optimizer_step(
        self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """Forward, backward, then the weight update as an IPU computes it."""
        outcome = closure()
        with model.trainer.strategy.updating(optimizer):
            self._after_closure(model, optimizer)  # type: ignore[attr-defined]
            optimizer.step(**kwargs)
        return outcome


def _half(leaf: Any) -> Any:
    floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    return leaf.half() if floating else leaf
