"""The compiler of the planner: it captures here, compiles in workers, and reads costs from disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipu_exec.compiler.options import CompileOptions
from ipu_exec.errors import Error
from ipu_exec.graph import Graph
from ipu_exec.lowering import registry
from ipu_exec.machine import Target, target
from ipu_exec.planning.captured import Captured
from ipu_exec.planning.compiling import (
    Compiled,
    basis,
    compiled,
    options_of,
    rings_of,
    settings_of,
    why_not,
)
from ipu_exec.planning.kept_costs import KeptCosts, name_of
from ipu_exec.planning.workers import Here, Workers
from planner import Key, Obtained
from planner import Mapping as Mapped
from planner.engine import Settled
from planner.priced import Priced
from profiler.rebalance.all_reduce import Rings


@dataclass(frozen=True)
class _Wanted:
    """A compile that is needed: of a graph, under options, for the costs of a key."""

    graph: Graph
    options: CompileOptions
    key: Key
    settings: Mapping[str, Any]
    name: str


class Compiles:
    """`planner.engine.Engine` over a captured model."""

    def __init__(
        self, captured: Captured, ipus: int, workers: Workers | None = None, keep: bool = True
    ) -> None:
        self._captured, self._ipus = captured, ipus
        # operators that the user lowered are known in this process only
        self._workers = Here() if workers is None or registry.by_users() else workers
        self._kept = KeptCosts() if keep else None
        self._settings = captured.call.options.flat()
        self.cached = 0
        self._rings: dict[tuple[int, int, int], Rings] = {}

    @property
    def target(self) -> Target:
        """The machine."""
        return target(self._captured.call.options.target_name)

    @property
    def peak(self) -> float:
        """The peak in float16, which no other type exceeds."""
        machine = self.target
        return 2.0 * machine.macs_fp16 * machine.tiles * machine.clock_hz

    def rings(self, shards: int, pipeline: int, replicas: int) -> Rings:
        """The cost of the all-reduce of gradients for each IPU of a replica."""
        where = (shards, pipeline, replicas)
        if where not in self._rings:
            self._rings[where] = rings_of(self.target, *where)
        return self._rings[where]

    def price(self, keys: Sequence[Key]) -> Iterator[Priced | str]:
        """The costs for each key in order, or the reason why there are none."""
        wanted = [self._basis(key) for key in keys]
        for result in self._compiled(wanted):
            yield result if isinstance(result, str) else result.priced

    def settle(self, mappings: Sequence[Mapped]) -> Iterator[Settled]:
        """Each mapping compiled in full, in order."""
        wanted = [self._wanted(one.key, one) for one in mappings]
        for mapping, result in zip(mappings, self._compiled(wanted), strict=True):
            if isinstance(result, str):
                yield Settled(mapping, Obtained(problem=result), None)
            else:
                yield Settled(mapping, result.obtained, result.priced)

    def _basis(self, key: Key) -> _Wanted | str:
        try:
            graph = self._captured.graph(key)
        except (Error, RuntimeError, TypeError, ValueError) as error:
            return f"the model does not run so: {str(error).splitlines()[0]}"
        names = tuple(block.name for block in graph.blocks)
        return self._wanted(key, basis(key, names, self._ipus, self._captured.call.training))

    def _wanted(self, key: Key, mapping: Mapped) -> _Wanted:
        graph = self._captured.graph(key)
        options = options_of(self._captured.options(key), mapping)
        settings = settings_of(self._settings, mapping)
        return _Wanted(graph, options, key, settings, name_of(graph, options, settings))

    def _compiled(self, wanted: Sequence[_Wanted | str]) -> Iterator[Compiled | str]:
        """The result of each compile, from disk where it is stored; a reason is passed through."""
        known: dict[str, Compiled] = {}
        for one in wanted:
            cached = self._kept.get(one.name) if self._kept and not isinstance(one, str) else None
            if cached is not None and not isinstance(one, str):
                known[one.name] = cached
        missing = [one for one in wanted if not isinstance(one, str) and one.name not in known]
        results = self._workers.run(
            [(try_compile, (one.graph, one.options, one.key, one.settings)) for one in missing]
        )
        for one in wanted:
            if isinstance(one, str):
                yield one
            elif one.name in known:
                self.cached += 1
                yield known[one.name]
            else:
                result = next(results)
                if self._kept and isinstance(result, Compiled):
                    self._kept.put(one.name, result)
                yield result


def try_compile(
    graph: Graph, options: CompileOptions, key: Key, settings: Mapping[str, Any]
) -> Compiled | str:
    """`compiled`, or the reason why it failed."""
    try:
        return compiled(graph, options, key, settings)
    except Error as error:
        return why_not(error)
