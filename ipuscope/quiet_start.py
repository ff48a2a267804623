"""The first module that a server of multiprocessing imports, before those that take seconds.

From then on Ctrl-C ends the server without a traceback. While it serves it ignores Ctrl-C;
processes that it forks have `end` unless its last import takes that back.
"""

from __future__ import annotations

import os
import signal


def end(*_: object) -> None:
    """End this process at once, with the status that shells give an interrupted one."""
    os._exit(128 + signal.SIGINT)


signal.signal(signal.SIGINT, end)
