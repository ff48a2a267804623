"""Plans that were made already, by the call that they lower."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from weakref import WeakValueDictionary

from ipu_exec.lowering.plan import Plan


class PlanCache:
    """A plan for each key: the same object as long as anything uses it.

    Passes compare plans by identity (equal calls share their code on the tiles), so a plan in use
    is always found. Of the others, those used last stay, up to ``limit`` bytes of vectors.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._plans: WeakValueDictionary[Hashable, Plan] = WeakValueDictionary()
        self._recent: OrderedDict[int, tuple[Plan, int]] = OrderedDict()  # id -> plan, its bytes
        self._bytes = 0
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], Plan]) -> Plan:
        """The plan of ``key``, from ``make`` if there is none."""
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans.setdefault(key, make())
        with self._lock:
            _, size = self._recent.pop(id(plan), (None, 0))
            self._bytes -= size
            size = size or plan.nbytes
            self._recent[id(plan)] = plan, size
            self._bytes += size
            while self._bytes > self._limit:
                _, (_, freed) = self._recent.popitem(last=False)
                self._bytes -= freed
        return plan
