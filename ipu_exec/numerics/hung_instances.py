"""Names the instance that the others wait for, and its place, while they go on waiting.

Each instance has a thread that looks at their store. One that waits long writes the number of its
exchange there; one that has not come to it is asked for its Python stack.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 8.0  # seconds in one exchange; the report comes after about ten
LOOKS = 1.0  # seconds between looks at the store
ANSWERS = 5  # looks until an instance that was asked has had time to answer

logger = logging.getLogger("ipu_exec")


class Watch:
    """Of instance ``rank`` of ``size``, over their ``store`` (`torch.distributed.Store`)."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._number = 0  # of the exchange: all instances have the same ones, in the same order
        self._since: float | None = None
        self._told = self._answered = 0
        self._main = threading.main_thread().ident
        threading.Thread(target=self._look, name="ipuscope hung instances", daemon=True).start()

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """An exchange of all instances: until it ends, this one waits."""
        self._number += 1
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def _look(self) -> None:
        try:
            while True:
                time.sleep(LOOKS)
                self._answer()
                number, since = self._number, self._since
                if since is None or number == self._told:
                    continue
                waited = time.monotonic() - since
                if waited > PATIENCE:
                    self._store.set(f"waits {self._rank}", str(number))
                if waited > PATIENCE + 2 * LOOKS:  # the others that wait have said so, too
                    self._told = number
                    self._tell(number)
        except Exception:  # the store ended with the instance that has it: the exchange says so
            logger.debug("instances are no longer watched", exc_info=True)

    def _tell(self, number: int) -> None:
        waiting = {one for one in range(self._size) if self._says(f"waits {one}") == str(number)}
        if not waiting or self._rank != min(waiting):
            return  # one says it for all
        for other in sorted(set(range(self._size)) - waiting):
            self._store.set(f"asked {other}", str(number))
            key = f"stack {other} {number}"
            for _ in range(ANSWERS):
                time.sleep(LOOKS)
                if self._number != number or self._since is None:
                    return  # the exchange went on
                if self._store.check([key]):
                    break
            stack = self._says(key) or "it does not answer: stopped, or busy outside of Python"
            logger.warning(
                "instance %s has waited %.0f s for instance %s, and goes on waiting. There: %s",
                ", ".join(map(str, sorted(waiting))),
                time.monotonic() - (self._since or 0),
                other,
                stack,
            )

    def _answer(self) -> None:
        asked = int(self._says(f"asked {self._rank}") or 0)
        if asked == self._answered:
            return
        self._answered = asked
        frame = sys._current_frames().get(self._main or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "it has ended"
        where = f"process {os.getpid()} on {socket.gethostname()}\n{stack}"
        self._store.set(f"stack {self._rank} {asked}", where)

    def _says(self, key: str) -> str:
        """What the store has under a key; empty where it has nothing."""
        if not self._store.check([key]):
            return ""
        return str(self._store.get(key).decode())
