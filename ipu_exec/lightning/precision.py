"""``precision="32-true"``, ``"16-true"`` and ``"16-mixed"`` as IPUs have them.

16-true: weights and inputs in float16. 16-mixed: inputs in float16 and weights in float32, of
which products take float16 copies (``halfFloatCasting``), as in PopTorch. Loss scaling is the
optimiser's (``poptorch.optim.AdamW(..., loss_scaling=1024)``) or automatic (``training_opts``).
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


# -- ``accelerator="ipu"``: the number of IPUs that a Trainer uses ---


AUTO_DEVICES = 4  # the IPUs of one IPU-M2000, and what Lightning's own took for "auto"


class AcceleratorOnIpu:
    """``IPUAccelerator``, before `ipu_exec.lightning.names` joins Lightning's ``Accelerator``."""

    lib: ClassVar[Library]

    def setup_device(self, device: torch.device) -> None:
        """Does nothing: the host's PyTorch computes the numbers."""

    def teardown(self) -> None:
        """Does nothing: there is nothing to release."""

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """No statistics: the profile shows the activity of a modelled IPU."""
        return {}

    @classmethod
    def parse_devices(cls, devices: Any) -> int:
        """The number of IPUs. Error unless it is a power of two, as IPUs are only allocated so."""
        if isinstance(devices, (list, tuple)):
            devices = len(devices)
        count = int(devices) if str(devices).isdecimal() else 0
        if count < 1 or count & (count - 1):
            lower = 1 << max(count.bit_length() - 1, 0)
            raise cls.lib.MisconfigurationException(
                f"Trainer(accelerator='ipu', devices={devices!r}): IPUs are handed out in powers of"
                f" two. Say 1, 2, 4, 8, ... or 'auto', which is {AUTO_DEVICES}"
                + (f"; next to {count} are {lower} and {2 * lower}" if count else "")
            )
        return count

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        """One entry an IPU. All tensors are in the host's memory."""
        return [torch.device("cpu")] * devices

    @staticmethod
    def auto_device_count() -> int:
        """The number of IPUs for ``devices="auto"``."""
        return AUTO_DEVICES

    @staticmethod
    def is_available() -> bool:
        """Always: the IPUs are modelled."""
        return True

    @staticmethod
    def name() -> str:
        """The accelerator's name in scripts."""
        return "ipu"

    @classmethod
    def register_accelerators(cls, accelerator_registry: Any) -> None:
        """Register it for ``Trainer(accelerator="ipu")``."""
        accelerator_registry.register("ipu", cls, description=cls.__name__, override=True)
