"""Memory: every variable with its tile bytes, category and lifetime (docs/memory-model.md).

Liveness is never stored, only summed (ipuscope.profiler.timeline.liveness).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat

import numpy as np

from ipu_exec.compiler.emission.bodies import ProgramTree, Use
from ipu_exec.compiler.memory.code_on_tiles import Code, CodeOfIpu, SharedCode
from ipu_exec.compiler.memory.lifetimes import Lifetimes
from ipu_exec.compiler.placement.place import Placement
from ipu_exec.graph import Graph
from ipu_exec.lowering import info
from ipu_exec.lowering.plan import Layout
from ipu_exec.machine import Machine
from ipuscope.profiler.enums import OF_WEIGHTS, Direction, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import closed_forms
from ipuscope.profiler.unique_names import unique


@dataclass(frozen=True, slots=True)
class TileMemory:
    """One replica's variables, IPU by IPU with ids from 0, their uses by operators, shared code."""

    variables: list[records.Variable]
    uses: Mapping[str, Sequence[int]]  # the columns of `records.Use`
    code: Code


def tile_memory(
    graph: Graph, placement: Placement, tree: ProgramTree, machines: Sequence[Machine]
) -> TileMemory:
    """Run the pass. ``machines`` has one machine per IPU."""
    variables: list[records.Variable] = []
    uses: dict[int, set[int]] = {}
    shared, tensors = SharedCode(graph, bool(placement.phases)), _Tensors.of(graph)
    shared.read(tree.bodies)
    ops: dict[int, set[int]] = {ipu: set() for ipu in range(placement.num_ipus)}
    for op, stage in zip(graph.ops, placement.op_stage, strict=True):
        ops[placement.ipus[stage]].add(op.id)
    for ipu in range(placement.num_ipus):
        begin = len(variables)
        maker = _Maker(graph, placement, tree, ipu, machines[ipu], variables, tensors)
        maker.storages()
        maker.in_place()
        uses.update(maker.uses(ops[ipu]))
        first = len(variables)
        maker.temporaries()
        maker.buffers()
        maker.program(shared)
        for variable in variables[first:]:
            if variable.op in ops[ipu]:
                uses[variable.op].add(variable.id)
        of_ipu = variables[begin:]
        for variable, name in zip(of_ipu, unique(one.name for one in of_ipu), strict=True):
            variable.name = name  # programs that read profiles key bytes by it
    columns: dict[str, list[int]] = {"op": [], "variable": []}
    for op_id, of_op in sorted(uses.items()):
        columns["op"] += repeat(op_id, len(of_op))
        columns["variable"] += sorted(of_op)
    return TileMemory(variables, columns, shared.code())


def _first_positions(tree: ProgramTree, ipu: int) -> dict[int, int]:
    """First position of each body of an IPU, by its index in ``tree.bodies``."""
    at, positions = 0, {}
    for index, body in enumerate(tree.bodies):
        if body.ipu == ipu:
            positions[index] = at
            at += len(body.steps)
    return positions


@dataclass(frozen=True, slots=True)
class _Tensors:
    """The facts about each storage that the graph holds."""

    makers: dict[int, int]  # the operator that makes it first
    first_uses: dict[int, int]  # the operator that reads it first
    shapes: dict[int, str]  # of its first value, as JSON
    weights: frozenset[int]

    @classmethod
    def of(cls, graph: Graph) -> _Tensors:
        makers: dict[int, int] = {}
        first_uses: dict[int, int] = {}
        shapes: dict[int, str] = {}
        for value in graph.values.values():
            if value.producer >= 0:
                makers.setdefault(value.storage, value.producer)
            if value.storage not in shapes:
                shapes[value.storage] = str([*value.shape])
        for op in graph.ops:
            for used in op.inputs:
                first_uses.setdefault(graph.values[used].storage, op.id)
        weights = (s.id for s in graph.storages.values() if s.role == Role.WEIGHT)
        return cls(makers, first_uses, shapes, frozenset(weights))


class _Maker:
    """Appends the variables of one IPU."""

    def __init__(
        self,
        graph: Graph,
        placement: Placement,
        tree: ProgramTree,
        ipu: int,
        machine: Machine,
        variables: list[records.Variable],
        tensors: _Tensors,
    ) -> None:
        self.graph, self.placement, self.tree, self.ipu = graph, placement, tree, ipu
        self.variables = variables
        self.machine = machine
        self.start = _first_positions(tree, ipu)
        self.bodies = [(tree.bodies[index], at) for index, at in self.start.items()]
        self.lifetimes = Lifetimes(placement, tree, self.bodies, tensors.weights)
        self.steps = sum(len(body.steps) for body, _ in self.bodies)
        self.of_storage: dict[int, list[int]] = {}  # ids of its variables
        self.totals: dict[int, tuple[np.ndarray, int]] = {}  # by id: bytes on tiles, and their sum
        self.makers, self.first_uses = tensors.makers, tensors.first_uses
        self.shapes = tensors.shapes

    def add(
        self,
        name: str,
        tile_bytes: np.ndarray,
        interval: tuple[int, int] | None = None,
        *,
        role: str,
        category: str = "variable",
        op: int = -1,
        stage: int = -1,
        interleaved: bool = False,
        tensor: int = -1,
        step: int = -1,
    ) -> int | None:
        """Add a variable and return its id, or None if it would be empty.

        ``interval`` is its first and last position, inclusive; None means always live.
        """
        if id(tile_bytes) not in self.totals:
            self.totals[id(tile_bytes)] = tile_bytes, int(tile_bytes.sum())
        total = self.totals[id(tile_bytes)][1]
        if total == 0:
            return None
        start, stop = (0, self.steps) if interval is None else (interval[0], interval[1] + 1)
        block = self.graph.ops[op].block if op >= 0 else -1
        parameter, dtype, shape = -1, "", ""
        if tensor >= 0:
            storage, shape = self.graph.storages[tensor], self.shapes.get(tensor, "")
            parameter, dtype = storage.parameter, storage.dtype
        self.variables.append(
            records.Variable(
                id=len(self.variables),
                name=name,
                ipu=self.ipu,
                category=category,
                role=role,
                op=op,
                block=block,
                stage=stage,
                dtype=dtype,
                shape=shape,
                bytes=total,
                tile_bytes=tile_bytes,
                interleaved=int(interleaved),
                always_live=int(interval is None),
                start=start,
                stop=stop,
                tensor=tensor,
                parameter=parameter,
                step=step,
            )
        )
        return len(self.variables) - 1

    # -- tensors ---

    def storages(self) -> None:
        for (storage_id, stage), layout in self.tree.layouts.items():
            if self.placement.ipus[stage] != self.ipu:
                continue
            if self._lies_at_home(storage_id, stage, layout):
                continue
            first = len(self.variables)
            self._storage(storage_id, stage, layout)
            self.of_storage.setdefault(storage_id, []).extend(range(first, len(self.variables)))

    def in_place(self) -> None:
        """Overwrite inputs that nothing reads afterwards by the results of elementwise operators.

        This is PopART's ``Inplace`` pattern, on by default, for operators that have an in-place
        variant. An optimiser's update counts as one expression over its operands, however many
        operators it has (popart's ``AdamUpdater``).
        """
        for body, at in self.bodies:
            ends = {step.op: n for n, step in enumerate(body.steps, at) if step.plan is not None}
            for op_id, end in ends.items():
                op = self.graph.ops[op_id]
                operator = info(op.aten)
                updates = op.direction == Direction.UPDATE
                in_place = operator.fused_in_update if updates else operator.in_place
                if not in_place or op.outputs[0] is None or end == at:
                    continue
                outputs = map(self.variables.__getitem__, self._of_value(op.outputs[0]))
                output = next((v for v in outputs if v.start == end), None)
                if output is None:
                    continue
                for index in chain.from_iterable(map(self._of_value, op.inputs)):
                    dies = self.variables[index]
                    overlaid = (
                        dies.role in (Role.ACTIVATION, Role.GRADIENT)
                        and dies.start < end
                        and dies.stop == end + 1
                    )
                    if overlaid and np.array_equal(dies.tile_bytes, output.tile_bytes):
                        dies.stop = end
                        break

    def uses(self, ops: Iterable[int]) -> Iterator[tuple[int, set[int]]]:
        """Operators of this IPU, each with the variables of the tensors that it reads or writes."""
        for op in map(self.graph.ops.__getitem__, ops):
            values = [value for value in (*op.inputs, *op.outputs) if value is not None]
            yield op.id, set(chain.from_iterable(map(self._of_value, values)))

    def _of_value(self, value: int) -> Sequence[int]:
        """The ids of a value's variables."""
        return self.of_storage.get(self.graph.values[value].storage, ())

    def _storage(self, storage_id: int, stage: int, layout: Layout) -> None:
        storage, nbytes = self.graph.storages[storage_id], self.machine.whole(layout.bytes)
        maker = self.makers.get(storage_id, -1)
        add = partial(self.add, stage=stage, tensor=storage_id)
        part = self.tree.parts.get((storage_id, stage))
        if part is not None:
            owner, own_bytes = self._owner_op(storage_id), self.machine.whole(part.bytes)
            add(storage.name, own_bytes, role=storage.role, op=owner)
            for interval in self.lifetimes.of(storage_id, stage):
                add(f"{storage.name}/gathered", nbytes, interval, role=Role.TEMPORARY, op=maker)
            return
        stays = storage.role in OF_WEIGHTS and storage_id not in self.tree.moving
        if stays and self.placement.home.get(storage_id, stage) == stage:
            add(storage.name, nbytes, role=storage.role, op=self._owner_op(storage_id))
            return
        for interval in self.lifetimes.of(storage_id, stage):
            add(storage.name, nbytes, interval, role=storage.role, op=maker)
        if storage_id in self.tree.stashed.get(stage, ()):
            depth = closed_forms.stash_depth(len(self.placement.stages), stage)
            add(f"{storage.name}/stash", nbytes * depth, role=Role.STASH, op=maker)

    def _lies_at_home(self, storage_id: int, stage: int, layout: Layout) -> bool:
        """Whether another stage of the IPU always has the tensor, as a head's tied embedding."""
        home = self.placement.home.get(storage_id, stage)
        if home == stage or self.placement.ipus[home] != self.ipu:
            return False
        stays = self.graph.storages[storage_id].role in OF_WEIGHTS
        there = self.tree.layouts.get((storage_id, home))
        same = there is not None and there.key == layout.key
        return stays and same and storage_id not in self.tree.moving

    def _owner_op(self, storage_id: int) -> int:
        """The first operator that uses a weight (or a state's): users look for its memory there."""
        return self.first_uses.get(self.graph.storages[storage_id].owner, -1)

    def temporaries(self) -> None:
        for body, at in self.bodies:
            for use in body.temporaries:
                stage = self.placement.op_stage[use.op] if use.op >= 0 else body.stage
                self.add(
                    use.name,
                    use.tile_bytes,
                    (at + use.first, at + use.last),
                    role=use.role,
                    op=use.op,
                    stage=stage,
                    interleaved=use.interleaved,
                )
                if use.becomes_result:
                    self._result_of(use, at + use.last)

    def _result_of(self, use: Use, end: int) -> None:
        """Begin a result, if it is a temporary's memory (a product's partials), when that ends."""
        for output in self.graph.ops[use.op].outputs:
            if output is None:
                continue
            for index in self._of_value(output):
                result = self.variables[index]
                begins_here = result.start == end and result.stop > end + 1
                if begins_here and np.all(result.tile_bytes <= use.tile_bytes):
                    result.start = end + 1

    def buffers(self) -> None:
        """Add host streams' buffers, always live (docs/memory-model.md#contents-of-a-tile)."""
        for use in self.tree.buffers:
            stage = use.first
            if self.placement.ipus[stage] == self.ipu:
                self.add(use.name, use.tile_bytes, role=use.role, op=use.op, stage=stage)

    def program(self, shared: SharedCode) -> None:
        """Add code, vertex state and stacks."""
        add = partial(self.add, role=Role.PROGRAM)
        code = CodeOfIpu(shared, self.machine.target.tiles, add)
        for index, (body, _) in zip(self.start, self.bodies, strict=True):
            code.body(body, self.tree.step_ids[index].start)
        code.rest()
