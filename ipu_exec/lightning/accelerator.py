"""``accelerator="ipu"``: the number of IPUs that a Trainer uses."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ipu_exec.lightning.library import Library

AUTO_DEVICES = 4  # the IPUs of one IPU-M2000, and what Lightning's own took for "auto"


class AcceleratorOnIpu:
    """The implementation of ``IPUAccelerator``.

    `ipu_exec.lightning.names` combines it with Lightning's ``Accelerator``.
    """

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
