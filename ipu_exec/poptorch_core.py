"""PopTorch's core is compiled for its own PopART and is not here; scripts import its name all the same."""

from __future__ import annotations

from typing import NoReturn

from ipu_exec.logs import ipuHardwareIsAvailable, ipuHardwareVersion

__all__ = ["ipuHardwareIsAvailable", "ipuHardwareVersion"]


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"poptorch_core.{name} is part of PopTorch's compiled core, which IPUscope does not have")
