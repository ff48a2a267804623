"""Scripts import PopTorch's core, which is compiled for its own PopART and not included here."""

from __future__ import annotations

from enum import Enum
from typing import NoReturn

from ipu_exec.base.context import isRunningOnIpu as isCompilingWithDispatcher
from ipu_exec.errors import Error, RecoverableError, UnrecoverableError
from ipu_exec.logs import ipuHardwareIsAvailable, ipuHardwareVersion
from ipu_exec.option_log import validate as _validateOptions

__all__ = [
    "Error",
    "RecoverableError",
    "TestErrorType",
    "UnrecoverableError",
    "_validateOptions",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "isCompilingWithDispatcher",
]


class TestErrorType(Enum):
    """Errors that the core can be made to throw for tests of its C++ traces: none here."""


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"poptorch_core.{name} is part of PopTorch's compiled core, which IPUscope does not have"
    )
