"""The first module that a server of multiprocessing imports, before those that take seconds.

From then on Ctrl-C, which reaches the server too, ends it without a traceback. Once it serves, it
ignores Ctrl-C; processes that it forks have `end` unless what it imports last takes that back.
"""

from __future__ import annotations

import os
import signal


def end(*_: object) -> None:
    """End this process at once, with the status that shells give an interrupted one."""
    os._exit(128 + signal.SIGINT)


signal.signal(signal.SIGINT, end)
