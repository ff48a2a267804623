"""Plans that were made already, by the call that they lower."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from weakref import WeakValueDictionary, finalize

import numpy as np

from ipu_exec.lowering.plan import Plan, with_vectors


class PlanCache:
    """A plan for each key: the same object as long as anything uses it.

    Passes compare plans by identity (equal calls share their code on the tiles), so a plan in use
    is always found. Of the others, those used last stay, up to ``limit`` bytes of vectors.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._plans: WeakValueDictionary[Hashable, Plan] = WeakValueDictionary()
        self._vectors: WeakValueDictionary[int, np.ndarray] = WeakValueDictionary()
        self._sizes: dict[int, int] = {}  # id of each of them -> its bytes
        self._recent: OrderedDict[int, Plan] = OrderedDict()  # by id
        self._bytes = 0
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], Plan]) -> Plan:
        """The plan of ``key``, from ``make`` if there is none."""
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans.setdefault(key, with_vectors(make(), self._shared))
        number = id(plan)
        with self._lock:
            if number not in self._sizes:
                self._sizes[number] = plan.nbytes
                finalize(plan, self._sizes.pop, number).atexit = False
            if self._recent.pop(number, None) is None:
                self._bytes += self._sizes[number]
            self._recent[number] = plan
            while self._bytes > self._limit:
                oldest, _ = self._recent.popitem(last=False)
                self._bytes -= self._sizes[oldest]
        return plan

    def _shared(self, vector: np.ndarray) -> np.ndarray:
        """The vector of these contents that plans share, read-only: most vectors come again."""
        key = hash((vector.dtype.str, vector.shape, vector.tobytes()))
        shared = self._vectors.get(key)
        if shared is None or not np.array_equal(shared, vector):
            shared = self._vectors[key] = vector
            vector.setflags(write=False)
        return shared
