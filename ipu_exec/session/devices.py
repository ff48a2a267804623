"""The IPUs that the models of this process hold.

Any number exists, but one with an id (``Options.useIpuId``) is one model's until it detaches.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

from ipu_exec.errors import UnrecoverableError

logger = logging.getLogger("ipu_exec")

_HOLDERS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def acquire(holder: object, ipu_id: int | None, ipus: int) -> None:
    """Attach to a device of that many IPUs. Error if another model holds it."""
    if ipu_id is not None:
        if any(used == ipu_id for other, used in _HOLDERS.items() if other is not holder):
            raise UnrecoverableError(
                f"Failed to acquire {ipus} IPU(s): device {ipu_id} is in use by another model of"
                " this process. Call detachFromDevice() on that model first, or leave useIpuId out"
            )
        _HOLDERS[holder] = ipu_id
        logger.debug("Acquired IPU device with id %d, running on device.", ipu_id)
    else:
        logger.debug("Acquired %d IPU(s): running on device Id %d.", ipus, 0)


def give_back(holder: object) -> None:
    """Release the device."""
    _HOLDERS.pop(holder, None)
