"""Which IPUs the models of this process hold.

There are as many as anyone asks for, but of a device that was asked for by its id
(``Options.useIpuId``) there is one: a second model gets it when the first has detached.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

from ipu_exec.errors import UnrecoverableError

logger = logging.getLogger("ipu_exec")

_HOLDERS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def acquire(holder: object, ipu_id: int | None, ipus: int) -> None:
    """Take a device of so many IPUs. Error where another model has it."""
    if ipu_id is not None:
        if any(held == ipu_id for other, held in _HOLDERS.items() if other is not holder):
            raise UnrecoverableError(
                f"Failed to acquire {ipus} IPU(s): device {ipu_id} is in use by another model of"
                " this process. Call detachFromDevice() on that model first, or leave useIpuId out"
            )
        _HOLDERS[holder] = ipu_id
        logger.debug("Acquired IPU device with id %d, running on device.", ipu_id)
    else:
        logger.debug("Acquired %d IPU(s): running on device Id %d.", ipus, 0)


def give_back(holder: object) -> None:
    """The device is free again."""
    _HOLDERS.pop(holder, None)
