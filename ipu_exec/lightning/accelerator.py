"""``accelerator="ipu"``: how many IPUs a Trainer is given."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ipu_exec.lightning.library import Library

AUTO_DEVICES = 4  # the IPUs of one IPU-M2000, and what Lightning's own took for "auto"


class AcceleratorOnIpu:
    """What ``IPUAccelerator`` does.

    `ipu_exec.lightning.names` joins it with Lightning's ``Accelerator``.
    """

    lib: ClassVar[Library]

    def setup_device(self, device: torch.device) -> None:
        """Nothing: the host's PyTorch computes the numbers."""

    def teardown(self) -> None:
        """Nothing to give back."""

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """None: a profile has what a modelled IPU does."""
        return {}

    @classmethod
    def parse_devices(cls, devices: Any) -> int:
        """The number of IPUs. Error where it is no power of two, as IPUs are handed out."""
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
        """One entry an IPU. The tensors of all lie in the host's memory."""
        return [torch.device("cpu")] * devices

    @staticmethod
    def auto_device_count() -> int:
        """What ``devices="auto"`` stands for."""
        return AUTO_DEVICES

    @staticmethod
    def is_available() -> bool:
        """Always: the IPUs are modelled."""
        return True

    @staticmethod
    def name() -> str:
        """What scripts call it."""
        return "ipu"

    @classmethod
    def register_accelerators(cls, accelerator_registry: Any) -> None:
        """Make it known to ``Trainer(accelerator="ipu")``."""
        accelerator_registry.register("ipu", cls, description=cls.__name__, override=True)
