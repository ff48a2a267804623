"""Phased execution: what each phase loads, stores and receives from other IPUs.

A phase's weights are loaded before its forward and again before its backward; gradients are
stored in streaming memory after the backward, for the weight update. Activations that a backward
reads stay on the chip or in streaming memory, as `Liveness` says. The last phase's forward and
backward are one phase unless the backward is separate, so that nothing moves between them (2P - 1
phases, docs/pipeline-schedules.md#phased-execution).

If each phase is a pipeline, its weights and accumulators are loaded and stored once for all
micro-batches. A stage's activations of each micro-batch wait in streaming memory; the backward
recomputes the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ipu_exec.compiler.options import CompileOptions
from ipu_exec.compiler.placement.place import Placement
from ipu_exec.compiler.placement.reads import read_values
from ipu_exec.compiler.placement.recompute import made_by
from ipu_exec.enums import Liveness
from ipu_exec.graph import Graph, OpNode
from ipuscope.profiler.enums import Direction, Role


@dataclass(frozen=True, slots=True)
class Traffic:
    """The storages that a body of phased execution loads and receives before, and stores after, it.

    ``enter`` and ``leave``: before and after all micro-batches of a pipelined phase.
    """

    load: tuple[int, ...] = ()
    receive: tuple[int, ...] = ()
    store: tuple[int, ...] = ()
    enter: tuple[int, ...] = ()
    leave: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Moves:
    """``traffic`` by (direction, stage); ``moving``: what leaves the chip, if after each phase."""

    traffic: Mapping[tuple[str, int], Traffic]
    moving: Mapping[int, bool]


@dataclass(slots=True)
class _Lists:
    """A `Traffic` under construction."""

    load: list[int] = field(default_factory=list)
    receive: list[int] = field(default_factory=list)
    store: list[int] = field(default_factory=list)
    enter: list[int] = field(default_factory=list)
    leave: list[int] = field(default_factory=list)

    def done(self) -> Traffic:
        columns = (self.load, self.receive, self.store, self.enter, self.leave)
        return Traffic(*map(tuple, columns))


def moves(
    graph: Graph,
    placement: Placement,
    ops: Mapping[tuple[str, int], list[OpNode]],
    again: Mapping[int, Sequence[OpNode]],
    options: CompileOptions,
) -> Moves:
    """The moves of one micro-batch. ``ops``: by (direction, stage), without views.

    ``again``: the forward operators that a stage runs again before its backward.
    """
    if placement.pipelined:
        return _PipelineFinder(again, graph, placement, ops, options).find()
    return _Finder(graph, placement, ops, options).find()


class _Finder:
    def __init__(
        self,
        graph: Graph,
        placement: Placement,
        ops: Mapping[tuple[str, int], list[OpNode]],
        options: CompileOptions,
    ) -> None:
        self.graph, self.placement, self.ops, self.options = graph, placement, ops, options
        # storage -> direction and stage of what makes it
        self.made: dict[int, tuple[str, int]] = {}
        for (direction, stage), stage_ops in ops.items():
            for op in stage_ops:
                for storage in graph.results(op):
                    self.made.setdefault(storage, (direction, stage))
        self.updated = {
            self._storage(v)
            for (d, _), stage_ops in ops.items()
            if d == Direction.UPDATE
            for op in stage_ops
            for v in op.inputs
        }
        self.traffic: dict[tuple[str, int], _Lists] = {}
        self.moving: dict[int, bool] = {}
        self.there: dict[int, set[int]] = {}  # IPU -> storages that came to it and stay
        self.stored: set[int] = set()

    def find(self) -> Moves:
        stages = range(len(self.placement.stages))
        order = [(Direction.FORWARD, stage) for stage in stages]
        if self.graph.training:
            order += [(Direction.BACKWARD, stage) for stage in reversed(stages)]
        for key in order:
            self.traffic[key] = _Lists()
        for direction, stage in order:
            self._body(direction, stage)
        return Moves({key: lists.done() for key, lists in self.traffic.items()}, self.moving)

    def _storage(self, value: int) -> int:
        return self.graph.values[value].storage

    def _reads(self, direction: str, stage: int) -> Iterable[int]:
        return dict.fromkeys(
            self._storage(v) for op in self.ops.get((direction, stage), []) for v in read_values(op)
        )

    def _body(self, direction: str, stage: int) -> None:
        traffic = self.traffic[direction, stage]
        for storage in self._reads(direction, stage):
            role = self.graph.storages[storage].role
            if role in (Role.WEIGHT, Role.BUFFER):
                self._weight(storage, direction, stage)
            elif role == Role.ACCUMULATOR and self._off_chip(storage):
                self._load(traffic, storage, True)
            elif role in (Role.ACTIVATION, Role.INPUT, Role.GRADIENT):
                self._activation(storage, direction, stage)
        if direction == Direction.BACKWARD:
            self._store_gradients(traffic, stage)

    def _weight(self, storage: int, direction: str, stage: int) -> None:
        """Receive a weight from the IPU that has it, or load it from streaming memory."""
        traffic = self.traffic[direction, stage]
        ipus, home = self.placement.ipus, self.placement.home.get(storage, stage)
        loaded = self.graph.storages[storage].role == Role.WEIGHT and self._off_chip(storage)
        if ipus[home] != ipus[stage]:
            traffic.receive.append(storage)
        elif loaded and not self._turns(direction, stage):
            self._load(traffic, storage, True)

    def _activation(self, storage: int, direction: str, stage: int) -> None:
        """Receive an activation once per IPU, or bring it back from where another phase left it."""
        traffic, ipu = self.traffic[direction, stage], self.placement.ipus[stage]
        there = self.there.setdefault(ipu, set())
        home = self.placement.home.get(storage, stage)
        maker, source = self.made.get(storage, (Direction.FORWARD, home))
        if self.placement.ipus[source] != ipu and storage not in there:
            traffic.receive.append(storage)
            there.add(storage)
        elif direction == Direction.BACKWARD and maker == Direction.FORWARD:
            self._wait_for_backward(traffic, storage, stage)
        elif source != stage and self._apart(source, stage) and self._leaves(storage):
            self._store(self.traffic[maker, source], storage)
            self._load(traffic, storage, True)

    def _off_chip(self, storage: int) -> bool:
        return self.options.locations.off_chip(self.graph.storages[storage])

    @property
    def _each_phase(self) -> bool:
        return self.options.strategy.liveness is Liveness.OffChipAfterEachPhase

    def _leaves(self, storage: int) -> bool:
        """Whether a storage leaves the chip after each phase; only activations have a location."""
        return self._each_phase and (
            self.graph.storages[storage].role != Role.ACTIVATION or self._off_chip(storage)
        )

    def _apart(self, one: int, other: int) -> bool:
        return self.placement.phases[one] != self.placement.phases[other]

    def _turns(self, direction: str, stage: int) -> bool:
        """Whether it is the backward that directly follows its own forward."""
        last = self.placement.phases[stage] == self.placement.phases[-1]
        return (
            direction == Direction.BACKWARD
            and last
            and not self.options.strategy.separate_backward_phase
        )

    def _wait_for_backward(self, traffic: _Lists, storage: int, stage: int) -> None:
        stays = self.graph.storages[storage].role == Role.ACTIVATION and not self._off_chip(storage)
        if (
            self.options.strategy.liveness is Liveness.AlwaysLive
            or self._turns(Direction.BACKWARD, stage)
            or stays
        ):
            return
        self._store(self.traffic[Direction.FORWARD, stage], storage)
        self._load(traffic, storage, self._each_phase)

    def _store_gradients(self, traffic: _Lists, stage: int) -> None:
        """Store the accumulators that were added to and the gradients that the update reads."""
        for op in self.ops.get((Direction.BACKWARD, stage), []):
            for storage in (*self.graph.results(op), *map(self._storage, op.writes)):
                role = self.graph.storages[storage].role
                remains = role == Role.ACCUMULATOR and self._off_chip(storage)
                if remains or (role == Role.GRADIENT and storage in self.updated):
                    self._store(traffic, storage)
                    self.moving.setdefault(storage, True)

    def _load(self, traffic: _Lists, storage: int, after_every_phase: bool) -> None:
        if storage not in traffic.load:
            traffic.load.append(storage)
        self.moving[storage] = self.moving.get(storage, False) or after_every_phase

    def _store(self, traffic: _Lists, storage: int) -> None:
        if storage not in self.stored or self.graph.storages[storage].role == Role.ACCUMULATOR:
            if storage not in traffic.store:
                traffic.store.append(storage)
            self.stored.add(storage)


class _PipelineFinder(_Finder):
    """The moves if each phase is a pipeline, which all micro-batches pass before the next."""

    def __init__(self, again: Mapping[int, Sequence[OpNode]], *of_any: Any) -> None:
        super().__init__(*of_any)
        self.again, forward = again, Direction.FORWARD
        self.seen = {  # by stage: what its forward has on the chip
            stage: {s for op in self.ops.get((forward, stage), ()) for s in self._touched(op)}
            for stage in range(len(self.placement.stages))
        }

    def _touched(self, op: OpNode) -> set[int]:
        return made_by(self.graph, op) | {self._storage(v) for v in read_values(op)}

    def _reads(self, direction: str, stage: int) -> Iterable[int]:
        """Storages read, for a backward including recomputation's reads but not its results."""
        again = self.again.get(stage, ()) if direction == Direction.BACKWARD else ()
        recomputed = {s for op in again for s in made_by(self.graph, op)}
        ops = [*again, *self.ops.get((direction, stage), [])]
        read = dict.fromkeys(self._storage(v) for op in ops for v in read_values(op))
        return [storage for storage in read if storage not in recomputed]

    def _activation(self, storage: int, direction: str, stage: int) -> None:
        """Receive an activation from the stage before, or load it as an earlier phase stored it."""
        traffic, ipus = self.traffic[direction, stage], self.placement.ipus
        home = self.placement.home.get(storage, stage)
        maker, source = self.made.get(storage, (Direction.FORWARD, home))
        if direction == Direction.BACKWARD and maker == Direction.FORWARD:
            keeper = stage if storage in self.seen[stage] else source
            self._wait(storage, (Direction.FORWARD, keeper), traffic)
            source = keeper
        elif source == stage:
            return
        elif self._apart(source, stage):
            self._wait(storage, (maker, source), traffic)
        if ipus[source] != ipus[stage] and storage not in traffic.receive:
            traffic.receive.append(storage)

    def _wait(self, storage: int, keeper: tuple[str, int], traffic: _Lists) -> None:
        stores = self.traffic[keeper].store
        if storage not in stores:
            stores.append(storage)
        super()._load(traffic, storage, True)

    def _load(self, traffic: _Lists, storage: int, after_every_phase: bool) -> None:
        """Load a weight or accumulator once for all micro-batches."""
        if storage not in traffic.enter:
            traffic.enter.append(storage)
        self.moving[storage] = True

    def _store(self, traffic: _Lists, storage: int) -> None:
        accumulates = self.graph.storages[storage].role == Role.ACCUMULATOR
        stores = traffic.leave if accumulates else traffic.store
        if storage not in stores:
            stores.append(storage)
