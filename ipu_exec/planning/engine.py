"""The compiler of the planner: it captures here, compiles in workers, and reads costs from disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    own_mapping,
    settings_of,
)
from ipu_exec.planning.costs_cache import StoredCosts, name_of
from ipu_exec.planning.workers import Done, Here, Task, Workers
from ipuscope.planner.mappings import Key, Obtained
from ipuscope.planner.mappings import Mapping as Mapped
from ipuscope.planner.mappings.engine import Settled
from ipuscope.planner.mappings.priced import Priced


@dataclass(frozen=True)
class _Wanted:
    """A compile that is needed: of a graph, under options, for the costs of a key."""

    graph: Graph
    options: CompileOptions
    key: Key
    settings: Mapping[str, Any]
    name: str


@dataclass(frozen=True)
class Made:
    """The result of a task: costs, or why there are none, and the name to store them by."""

    name: str
    compiled: Compiled | str


class Compiles:
    """`ipuscope.planner.mappings.engine.Engine` over a captured model."""

    def __init__(
        self, captured: Captured, ipus: int, workers: Workers | None = None, keep: bool = True
    ) -> None:
        self._captured, self._ipus = captured, ipus
        # operators that the user lowered are known in this process only
        self._workers = Here() if workers is None or registry.by_users() else workers
        self._stored = StoredCosts() if keep else None
        self._settings = captured.call.options.flat()
        self.cached = 0

    @property
    def target(self) -> Target:
        """The machine."""
        return target(self._captured.call.options.target_name)

    @property
    def peak(self) -> float:
        """The peak in float16, which no other type exceeds."""
        machine = self.target
        return 2.0 * machine.macs_fp16 * machine.tiles * machine.clock_hz

    def own(self) -> Mapped | None:
        """The script's own mapping; None where it is none that a plan could have."""
        call, samples = self._captured.call, self._captured.samples
        turns = call.options.Training.gradient_accumulation
        several = int(turns if call.training else call.options.device_iterations) > 1
        key = Key(call.options.tensor_sharding.shards, samples, accumulates=several)
        graph = self._graph_or_reason(key)
        return None if isinstance(graph, str) else own_mapping(graph, self._captured.options(key))

    def price(self, keys: Sequence[Key]) -> Iterator[Priced | str]:
        """The costs for each key in order, or the reason why there are none."""
        results = self._compiled(self._basis(key) for key in keys)
        return (one if isinstance(one, str) else _costs(one) for one in results)

    def names(self, key: Key) -> tuple[str, ...]:
        """The model's Blocks for a key, in order. ValueError, in words, where it does not run."""
        graph = self._graph_or_reason(key)
        if isinstance(graph, str):
            raise ValueError(graph)
        return tuple(block.name for block in graph.blocks)

    def settle(self, mappings: Sequence[Mapped]) -> Iterator[Settled]:
        """Each mapping compiled in full, in order."""
        results = self._compiled(self._wanted(one.key, one) for one in mappings)
        return map(_settled, mappings, results)

    def each(self, function: Callable[..., Any], every: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """A function of the planner on each of these arguments, in order."""
        return self._workers.run(Task(function, arguments) for arguments in every)

    def ahead(self, keys: Sequence[Key], mappings: Sequence[Mapped]) -> None:
        """What is likely asked for next: idle workers begin it, the mappings first."""
        self._workers.ahead(self._likely(keys, mappings))

    def _likely(self, keys: Sequence[Key], mappings: Sequence[Mapped]) -> Iterator[Task]:
        """Tasks for these, made when a worker is idle; what the disk has needs none."""
        for mapping in mappings:
            yield from self._new(self._wanted(mapping.key, mapping))
        for key in keys:
            yield from self._new(self._basis(key))

    def _new(self, wanted: _Wanted | str) -> Iterator[Task]:
        if isinstance(wanted, str) or (self._stored and self._stored.get(wanted.name)):
            return
        yield self._compile(wanted)

    def _graph_or_reason(self, key: Key) -> Graph | str:
        try:
            return self._captured.graph(key)
        except (Error, RuntimeError, TypeError, ValueError) as error:
            return f"the model does not run this way: {str(error).splitlines()[0]}"

    def _basis(self, key: Key) -> _Wanted | str:
        graph = self._graph_or_reason(key)
        if isinstance(graph, str):
            return graph
        names = tuple(block.name for block in graph.blocks)
        return self._wanted(key, basis(key, names, self._ipus, self._captured.call.training))

    def _wanted(self, key: Key, mapping: Mapped) -> _Wanted:
        graph = self._captured.graph(key)
        options = options_of(self._captured.options(key), mapping)
        settings = settings_of(self._settings, mapping)
        return _Wanted(graph, options, key, settings, name_of(graph, options, settings))

    def _compiled(self, wanted: Iterable[_Wanted | str]) -> Iterator[Compiled | str]:
        """The result of each compile, from disk where it is stored; a reason is passed through."""
        # where there are workers all compiles have begun, or wait for one, when this returns
        return map(self._stored_if_new, self._workers.run(map(self._task, wanted)))

    def _task(self, wanted: _Wanted | str) -> Task | Done:
        """A task, or the result, where it is known."""
        if isinstance(wanted, str):
            return Done(wanted)
        stored = self._stored.get(wanted.name) if self._stored else None
        if stored is not None:
            self.cached += 1
            return Done(stored)
        return self._compile(wanted)

    def _compile(self, wanted: _Wanted) -> Task:
        arguments = (wanted.graph, wanted.options, wanted.key, wanted.settings, wanted.name)
        return Task(try_compile, arguments, wanted.name)

    def _stored_if_new(self, result: Made | Compiled | str) -> Compiled | str:
        if not isinstance(result, Made):
            return result
        if self._stored and isinstance(result.compiled, Compiled):
            self._stored.put(result.name, result.compiled)
        return result.compiled


def _costs(result: Compiled) -> Priced:
    assert result.priced is not None, "a basis has no phases"
    return result.priced


def _settled(mapping: Mapped, result: Compiled | str) -> Settled:
    if isinstance(result, str):
        return Settled(mapping, Obtained(problem=result), None)
    return Settled(mapping, result.obtained, result.priced, result.phased)


def try_compile(
    graph: Graph, options: CompileOptions, key: Key, settings: Mapping[str, Any], name: str
) -> Made:
    """`compiled`, or the reason why it failed."""
    try:
        return Made(name, compiled(graph, options, key, settings))
    except Error as error:
        return Made(name, str(error).splitlines()[0])
