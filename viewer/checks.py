"""Compiles splits at the user's request: the one shown and others near it.

Only the script given to ``ipu-report view --script`` is run, never one that a profile names.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.search.split_search import quickest
from ipuscope.planner.search.verified_splits import Verified, candidates, verify
from ipuscope.profiler.provenance import Provenance

COUNT = 4  # splits of a check
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Check:
    """``results``: of each split, the quickest that runs first; ``problem``: why there are none."""

    done: int = 0
    total: int = 0
    running: bool = False
    results: tuple[Verified, ...] = ()
    problem: str = ""


class Checks:
    """Runs one check at a time, in its own thread. ``script`` is empty if there is none."""

    def __init__(self, script: Sequence[str] = ()) -> None:
        self.script = tuple(script)
        self._lock = threading.Lock()
        self._now = Check()

    @property
    def now(self) -> Check:
        """The state of the latest check."""
        with self._lock:
            return self._now

    def begin(self, costs: Costs, shown: Assignment, made: Provenance) -> None:
        """Compile ``shown`` and the quickest splits near it, unless a check is already running.

        ``made``: how the profile of the costs was made; the compiles repeat its settings.
        """
        with self._lock:
            if self._now.running or not self.script:
                return
            self._now = Check(running=True)
        threading.Thread(target=self._run, args=(costs, shown, made), daemon=True).start()

    def _run(self, costs: Costs, shown: Assignment, made: Provenance) -> None:
        try:
            wanted = chosen(costs, shown)
            if wanted:
                verified = verify(costs, wanted, self.script, made, progress=self._progress)
                self._becomes(running=False, results=tuple(verified))
            else:
                self._becomes(running=False, problem="no split near this one fits: none to compile")
        except Exception as error:  # the page shows it: nobody waits for this thread
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
    """The splits of a check: the one shown, if it may fit, and the quickest near it.

    Also the one that the page proposes, which may use fewer IPUs, or return to one.
    """
    wanted = [] if what_if(costs, shown).problems else [shown]
    with suppress(ValueError):  # none can run
        wanted.append(quickest(costs).prediction.assignment)
    wanted += candidates(costs, shown, COUNT)
    return list(dict.fromkeys(wanted))[:COUNT]
