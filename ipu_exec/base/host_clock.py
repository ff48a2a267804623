"""The host's clock, for times in a profile: it goes on evenly when somebody sets the computer's."""

from __future__ import annotations

import time

_EPOCH_NS = time.time_ns() - time.monotonic_ns()  # when this process began


def now_ns() -> int:
    """Nanoseconds since the epoch."""
    return _EPOCH_NS + time.monotonic_ns()
