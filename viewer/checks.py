"""Splits that are compiled because the viewer's user asks for it: the one that is shown and others.

With the script that ``ipu-report view --script`` was given: never one that a profile names.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from profiler.rebalance import Assignment, Costs, what_if
from profiler.rebalance.verified import Verified, candidates, verify

COUNT = 4  # splits of a check
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Check:
    """How far a check is.

    ``found`` is what came of each split, the quickest that runs first; ``problem`` why there is
    nothing.
    """

    done: int = 0
    total: int = 0
    running: bool = False
    found: tuple[Verified, ...] = ()
    problem: str = ""


class Checks:
    """One check at a time, in a thread of its own. ``script``: empty where there is none to run."""

    def __init__(self, script: Sequence[str] = ()) -> None:
        self.script = tuple(script)
        self._lock = threading.Lock()
        self._now = Check()

    @property
    def now(self) -> Check:
        """The last check, as far as it is."""
        with self._lock:
            return self._now

    def begin(self, costs: Costs, shown: Assignment, kind: str) -> None:
        """Compile ``shown`` and the quickest splits near it; nothing while a check is running.

        ``kind``: "training" or "inference".
        """
        with self._lock:
            if self._now.running or not self.script:
                return
            self._now = Check(running=True)
        threading.Thread(target=self._run, args=(costs, shown, kind), daemon=True).start()

    def _run(self, costs: Costs, shown: Assignment, kind: str) -> None:
        try:
            wanted = chosen(costs, shown)
            if wanted:
                verified = verify(costs, wanted, self.script, kind, progress=self._progress)
                self._becomes(running=False, found=tuple(verified))
            else:
                self._becomes(running=False, problem="no split near this one fits: none to compile")
        except Exception as error:  # the page says it: nobody waits for this thread
            _log.debug("a check failed", exc_info=True)
            self._becomes(running=False, problem=str(error) or type(error).__name__)

    def _progress(self, came: Iterable[Verified], count: int) -> Iterator[Verified]:
        self._becomes(total=count)
        for number, one in enumerate(came, 1):
            self._becomes(done=number)
            yield one

    def _becomes(self, **changes: object) -> None:
        with self._lock:
            self._now = replace(self._now, **changes)  # type: ignore[arg-type]


def chosen(costs: Costs, shown: Assignment) -> list[Assignment]:
    """What a check compiles: the split that is shown, if it may fit, and the quickest near it."""
    near = [one for one in candidates(costs, shown, COUNT) if one != shown]
    own = [] if what_if(costs, shown).problems else [shown]
    return [*own, *near][:COUNT]
