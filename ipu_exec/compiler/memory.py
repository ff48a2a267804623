"""Memory: every variable's tile bytes, category and lifetime, and whether all fit.

A lifetime is an interval of positions: the steps of an IPU in program order. Liveness is never
stored, only summed (profiler.liveness). What is a guess in here is called an estimate; the sizes
are from docs/memory-model.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np

from ipu_exec.compiler.bodies import Body, ProgramTree, StepDraft
from ipu_exec.compiler.placement import Placement, Transfer
from ipu_exec.graph import Graph, OpNode
from ipu_exec.lowering import info, vertex_info
from ipu_exec.lowering.plan import Compute, Exchange, Layout, Plan
from ipu_exec.lowering.vertices import FIELD_BYTES, STATE_BYTES
from ipu_exec.machine import Machine, Target
from profiler import records, schedules
from profiler.enums import Direction, Role
from profiler.memory import CODE, CODE_REGION, including_gaps, largest
from profiler.names import unique

_ALWAYS = (Role.WEIGHT, Role.BUFFER, Role.ACCUMULATOR, Role.OPTIMISER_STATE)
_PART = {
    schedules.STREAM_IN: Direction.FORWARD,
    schedules.FORWARD: Direction.FORWARD,
    schedules.REDUCE: Direction.UPDATE,
    schedules.UPDATE: Direction.UPDATE,
}

# Six workers' and the supervisor's (docs/memory-model.md#contents-of-a-tile).
STACK_BYTES = 6 * 0x200 + 0x80
# Code in instructions of 4 bytes (docs/memory-model.md#measured-sizes). Exchange: about 3 a
# received fragment (its sender, where it goes, how much) and 1-2 a send, here one that says where
# and one for each 64 words.
INSTRUCTION_BYTES = 4
RECEIVE_INSTRUCTIONS = 3
SEND_BYTES = 256
# Control: estimates. A tile has code for the steps that it takes part in and a sync for the others'
# exchanges.
RUN_INSTRUCTIONS = 2  # a vertex: where its state is, and run
COMPUTE_INSTRUCTIONS = 2  # a compute set: wait for the workers, return
EXCHANGE_INSTRUCTIONS = 3  # an exchange: sync, call of its code, return
SYNC_INSTRUCTIONS = 1  # a tile that takes no part in it
CALL_INSTRUCTIONS = 3  # an operator: its code is kept once and called from where it is used
# estimate: packet set-up of one copy to or from another IPU or the host
EXTERNAL_EXCHANGE_INSTRUCTIONS = 24
PACKET_BYTES = 1024  # to the host, at most (estimate)
HEADER_BYTES = 8  # of each: [TUT4]'s 12.1 KiB are 8 bytes a tile that sends a part of its result


@dataclass(frozen=True, slots=True)
class Overflow:
    """The tile that is fullest beyond what it has, at its worst step."""

    ipu: int
    tile: int
    position: int
    step: str
    what: str  # "tile memory", or the region that is too small
    limit: int
    bytes_over: int
    always_live: int  # bytes of what counts there
    largest: tuple[tuple[str, int], ...]  # (name, bytes) of the largest things live there


def positions(tree: ProgramTree, ipu: int) -> dict[int, int]:
    """First position of each body of an IPU, by its index in ``tree.bodies``."""
    at, found = 0, {}
    for index, body in enumerate(tree.bodies):
        if body.ipu == ipu:
            found[index] = at
            at += len(body.steps)
    return found


def _first_steps(tree: ProgramTree) -> list[int]:
    """Id of each body's first step: they count through all bodies."""
    return list(accumulate((len(body.steps) for body in tree.bodies), initial=0))


@dataclass(slots=True)
class Code:
    """Pieces of code by what they are (`_Digests`).

    The Blocks whose operators run one, and its variables on each IPU that has it; and the bytes of
    control code on every tile that an operator's calls of them take. An operator of no Block has
    the number -1 for it.
    """

    blocks: dict[tuple[int, ...], set[int]] = field(default_factory=dict)
    variables: dict[tuple[int, ...], list[list[int]]] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)  # step -> the first that runs its code

    def by_block(self, count: int, block_of: Callable[[int], int]) -> dict[str, list[Any]]:
        """The code of each Block, and the code that Blocks share.

        ``calls``: bytes on each tile of every Block's operators (``block_of`` gives an operator's
        Block). ``shared``: Blocks, ids of the variables with the code that exactly these have in
        common, and ids of the same on further IPUs. Code that operators outside all Blocks run too
        is left out.
        """
        found: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
        for key, users in self.blocks.items():
            if -1 in users or key not in self.variables:
                continue
            once, again = found.setdefault(tuple(sorted(users)), ([], []))
            first, *others = self.variables[key]
            once += first
            again += [id for ids in others for id in ids]
        shared = [(list(blocks), once, again) for blocks, (once, again) in sorted(found.items())]
        calls = [0] * (count + 1)  # the last: of no Block
        for op, nbytes in self.calls.items():
            calls[block_of(op)] += nbytes
        return {"calls": calls[:count], "shared": shared}


def variables(
    graph: Graph, placement: Placement, tree: ProgramTree, machines: list[Machine]
) -> tuple[list[records.Variable], list[records.Use], Code]:
    """The variables in one replica's tile memory, their uses, and the code of each Block.

    Variables have ids from 0, IPU by IPU. Second, which operators use them; third, the operators
    that share code.
    """
    found: list[records.Variable] = []
    uses: set[tuple[int, int]] = set()
    code = Code()
    for ipu in range(placement.num_ipus):
        begin = len(found)
        maker = _Maker(graph, placement, tree, ipu, machines[ipu], found)
        maker.storages()
        maker.in_place()
        uses.update(maker.uses())
        first = len(found)
        maker.temporaries()
        maker.buffers()
        maker.program(machines[ipu].target, code)
        here = {
            op.id
            for op, stage in zip(graph.ops, placement.op_stage, strict=True)
            if placement.ipus[stage] == ipu
        }
        uses.update((variable.op, variable.id) for variable in found[first:] if variable.op in here)
        mine = found[begin:]
        for variable, name in zip(mine, unique(one.name for one in mine), strict=True):
            variable.name = name  # programs that read profiles key bytes by it
    return found, [records.Use(op, variable) for op, variable in sorted(uses)], code


class _Maker:
    """Appends the variables of one IPU."""

    def __init__(
        self,
        graph: Graph,
        placement: Placement,
        tree: ProgramTree,
        ipu: int,
        machine: Machine,
        found: list[records.Variable],
    ) -> None:
        self.graph, self.placement, self.tree, self.ipu, self.found = (
            graph,
            placement,
            tree,
            ipu,
            found,
        )
        self.machine = machine
        self.start = positions(tree, ipu)
        self.bodies = [(tree.bodies[index], at) for index, at in self.start.items()]
        self.first_step = _first_steps(tree)
        self.steps = sum(len(body.steps) for body, _ in self.bodies)
        self.of_storage: dict[int, list[int]] = {}  # ids of its variables
        self.makers: dict[int, int] = {}
        self.first_uses: dict[int, int] = {}
        self.shapes: dict[int, tuple[int, ...]] = {}
        for value in graph.values.values():
            if value.producer >= 0:
                self.makers.setdefault(value.storage, value.producer)
            self.shapes.setdefault(value.storage, value.shape)
        for op in graph.ops:
            for used in op.inputs:
                self.first_uses.setdefault(graph.values[used].storage, op.id)

    def add(
        self,
        name: str,
        category: str,
        role: str,
        tile_bytes: np.ndarray,
        interval: tuple[int, int] | None = None,
        *,
        op: int = -1,
        stage: int = -1,
        dtype: str = "",
        shape: tuple[int, ...] | None = None,
        interleaved: bool = False,
        tensor: int = -1,
        step: int = -1,
    ) -> None:
        """``interval``: first and last position, inclusive; None for something always live."""
        total = int(tile_bytes.sum())
        if total == 0:
            return
        start, stop = (0, self.steps) if interval is None else (interval[0], interval[1] + 1)
        block = self.graph.ops[op].block if op >= 0 else -1
        parameter = self.graph.storages[tensor].parameter if tensor >= 0 else -1
        self.found.append(
            records.Variable(
                len(self.found),
                name,
                self.ipu,
                category,
                role,
                op,
                block,
                stage,
                dtype,
                json.dumps(list(shape)) if shape is not None else "",
                total,
                tile_bytes,
                int(interleaved),
                int(interval is None),
                start,
                stop,
                tensor,
                parameter,
                step,
            )
        )

    # -- tensors ---

    def storages(self) -> None:
        for (storage_id, stage), layout in self.tree.layouts.items():
            if self.placement.ipus[stage] != self.ipu:
                continue
            first = len(self.found)
            self._storage(storage_id, stage, layout)
            self.of_storage.setdefault(storage_id, []).extend(range(first, len(self.found)))

    def in_place(self) -> None:
        """An elementwise operator writes over an input that nobody reads after it.

        What lies there is its output.

        PopART's pattern ``Inplace``, on by default, for the operators that have such a variant; the
        update of an optimiser is one expression over its operands, whatever it is made of (popart's
        ``AdamUpdater``).
        """
        storage = {value.id: value.storage for value in self.graph.values.values()}
        for body, at in self.bodies:
            ends = {
                step.op: at + index
                for index, step in enumerate(body.steps)
                if step.plan is not None
            }
            for op_id, end in ends.items():
                op = self.graph.ops[op_id]
                operator = info(op.aten)
                updates = op.direction == Direction.UPDATE
                in_place = operator.fused_in_update if updates else operator.in_place
                if not in_place or op.outputs[0] is None or end == at:
                    continue
                made = [self.found[v] for v in self.of_storage.get(storage[op.outputs[0]], ())]
                output = next((v for v in made if v.start == end), None)
                if output is None:
                    continue
                for index in (
                    v for value in op.inputs for v in self.of_storage.get(storage[value], ())
                ):
                    dies = self.found[index]
                    overlaid = (
                        dies.role in (Role.ACTIVATION, Role.GRADIENT)
                        and dies.start < end
                        and dies.stop == end + 1
                    )
                    if overlaid and np.array_equal(dies.tile_bytes, output.tile_bytes):
                        self.found[index] = replace(dies, stop=end)
                        break

    def uses(self) -> Iterator[tuple[int, int]]:
        """(operator, variable) of the tensors that operators of this IPU read or write."""
        for op, stage in zip(self.graph.ops, self.placement.op_stage, strict=True):
            if self.placement.ipus[stage] == self.ipu:
                for value in (*op.inputs, *(output for output in op.outputs if output is not None)):
                    for variable in self.of_storage.get(self.graph.values[value].storage, ()):
                        yield op.id, variable

    def _storage(self, storage_id: int, stage: int, layout: Layout) -> None:
        storage, nbytes = self.graph.storages[storage_id], self.machine.whole(layout.bytes)
        about: dict[str, Any] = {
            "op": self.makers.get(storage_id, -1),
            "stage": stage,
            "dtype": storage.dtype,
            "shape": self.shapes.get(storage_id),
            "tensor": storage_id,
        }
        part = self.tree.parts.get((storage_id, stage))
        if part is not None:
            kept = self.machine.whole(part.bytes)
            self.add(
                storage.name,
                "variable",
                storage.role,
                kept,
                **{**about, "op": self._owner_op(storage_id)},
            )
            for first, last in self._lifetimes(storage_id, stage):
                self.add(
                    f"{storage.name}/gathered",
                    "variable",
                    Role.TEMPORARY,
                    nbytes,
                    (first, last),
                    **about,
                )
            return
        stays = storage.role in _ALWAYS and storage_id not in self.tree.moving
        if stays and self.placement.home.get(storage_id, stage) == stage:
            about["op"] = self._owner_op(storage_id)
            self.add(storage.name, "variable", storage.role, nbytes, **about)
            return
        for first, last in self._lifetimes(storage_id, stage):
            self.add(storage.name, "variable", storage.role, nbytes, (first, last), **about)
        if storage_id in self.tree.stashed.get(stage, ()):
            depth = schedules.stash_depth(len(self.placement.stages), stage)
            self.add(f"{storage.name}/stash", "variable", Role.STASH, nbytes * depth, **about)

    def _owner_op(self, storage_id: int) -> int:
        """The first op that uses a weight (or the weight of a state).

        Where its memory is looked for.
        """
        storage = self.graph.storages[storage_id]
        owner = storage.parameter if storage.parameter >= 0 else storage_id
        return self.first_uses.get(owner, -1)

    def _lifetimes(self, storage: int, stage: int) -> list[tuple[int, int]]:
        """Intervals of positions in which a tensor lies on this IPU for a stage.

        A stashed one lives in the forward until it was copied away, and again in the backward from
        where it was restored; one that is recomputed dies and is made again. One that comes from
        another IPU was received at the end of the cycle before: it is there from the first step on,
        and at the copy.
        """
        spans: dict[int, tuple[int, int]] = {}
        copied: tuple[int, int] | None = None
        if storage in self.tree.moving:
            return self._while_on_chip(storage, stage)
        arrives = not self.placement.phases and any(
            t.storage == storage and t.source != stage and stage in _reached(t)
            for t in self.placement.transfers
        )
        for body, at in self.bodies:
            if storage not in body.touched or body.stage not in (stage, -1):
                continue
            first, last = body.touched[storage]
            if body.task == schedules.COPY:
                copied = (at + first, at + last)
            else:
                spans[body.task] = _union(spans.get(body.task), (at + first, at + last))
        stashed = storage in self.tree.stashed.get(
            stage, ()
        ) or storage in self.tree.recomputed.get(stage, ())
        groups: list[tuple[int, int]] = []
        if stashed:
            early = [
                s for task, s in spans.items() if task in (schedules.STREAM_IN, schedules.FORWARD)
            ]
            late = [
                s
                for task, s in spans.items()
                if task not in (schedules.STREAM_IN, schedules.FORWARD)
            ]
            groups = [_span(part) for part in (early, late) if part]
        elif spans:
            groups = [_span(list(spans.values()))]
        if not groups:
            return [copied] if copied else []
        if arrives:
            groups[0] = (0, groups[0][1])
            return [*groups, copied] if copied and copied[0] > groups[-1][1] else groups
        if copied:
            sent_late = _direction(self.placement, storage, stage) == Direction.BACKWARD
            index = -1 if sent_late else 0
            groups[index] = (groups[index][0], max(groups[index][1], copied[1]))
        return groups

    def _while_on_chip(self, storage: int, stage: int) -> list[tuple[int, int]]:
        """From being loaded (or made) to being stored (or last read).

        In phased execution phase by phase, or until the end of the forward or backward; else in the
        forward, in recomputation with backward, and in the update.
        """
        spans: dict[int | str, tuple[int, int]] = {}
        for number, (body, at) in enumerate(self.bodies):
            if storage in body.touched and body.stage in (stage, -1):
                first, last = body.touched[storage]
                part = _PART.get(body.task, Direction.BACKWARD)
                turns = body.stage in self.tree.turning and body.task in (
                    schedules.FORWARD,
                    schedules.BACKWARD,
                )
                phased = self.placement.phases and self.tree.moving[storage]
                key = ("turn" if turns else number) if phased else part
                spans[key] = _union(spans.get(key), (at + first, at + last))
        return list(spans.values())

    def temporaries(self) -> None:
        for body, at in self.bodies:
            for use in body.temporaries:
                stage = self.placement.op_stage[use.op] if use.op >= 0 else body.stage
                self.add(
                    use.name,
                    "variable",
                    Role.TEMPORARY,
                    use.tile_bytes,
                    (at + use.first, at + use.last),
                    op=use.op,
                    stage=stage,
                    interleaved=use.interleaved,
                )

    def buffers(self) -> None:
        """Of host streams: always live (docs/memory-model.md#contents-of-a-tile)."""
        for use in self.tree.buffers:
            stage = use.first
            if self.placement.ipus[stage] == self.ipu:
                self.add(use.name, "variable", use.role, use.tile_bytes, op=use.op, stage=stage)

    # -- code ---

    def program(self, target: Target, code: Code) -> None:
        """Code, vertex state and stacks.

        Equal operators share their code and the state of their vertices, and so do the turns of a
        loop within one (time steps, serial splits): the compiler outlines what repeats, and a tile
        has one call for it.
        """
        control = np.zeros(target.tiles, np.int64)
        on_tile: dict[str, np.ndarray] = {}
        seen: set[tuple[int, ...]] = set()
        first_of: dict[tuple[int, ...], int] = {}
        digests = _Digests()
        for index, (body, _) in zip(self.start, self.bodies, strict=True):
            called: tuple[int, int] | None = None
            for step_id, step in enumerate(body.steps, self.first_step[index]):
                if step.plan is not None and (step.op, id(step.plan)) != called:
                    called = (step.op, id(step.plan))
                    control += CALL_INSTRUCTIONS * INSTRUCTION_BYTES
                    code.calls[step.op] = (
                        code.calls.get(step.op, 0) + CALL_INSTRUCTIONS * INSTRUCTION_BYTES
                    )
                op = self.graph.ops[step.op] if step.op >= 0 else None
                key = digests.of(step, op)
                code.first[step_id] = first_of.setdefault(key, step_id)
                if step.plan is not None:
                    code.blocks.setdefault(key, set()).add(op.block if op is not None else -1)
                if key in seen:
                    continue
                seen.add(key)
                first = len(self.found)
                for vertices in step.vertices:
                    on_tile[vertices.type] = on_tile.get(
                        vertices.type, np.zeros_like(control, bool)
                    ) | (vertices.count > 0)
                control += INSTRUCTION_BYTES * _control_instructions(step)
                if step.type != records.SYNC:
                    self._step_code(body, step, step_id)
                if step.plan is not None and len(self.found) > first:
                    code.variables.setdefault(key, []).append(list(range(first, len(self.found))))
            for plan, users in _plans(body):
                if plan.constants is None:
                    continue
                key = (id(plan), -1)
                code.blocks.setdefault(key, set()).update(self.graph.ops[op].block for op in users)
                if key in seen:
                    continue
                seen.add(key)
                name = f"{self.graph.ops[users[-1]].name}/worklists"
                self.add(
                    name, "constant", Role.PROGRAM, plan.constants, op=users[-1], stage=body.stage
                )
                code.variables.setdefault(key, []).append([len(self.found) - 1])
        for name, mask in sorted(on_tile.items()):
            self.add(name, "vertexCode", Role.PROGRAM, mask * np.int64(vertex_info(name)[0]))
        self.add("control code", "controlCode", Role.PROGRAM, control)
        self.add("stack", "stack", Role.PROGRAM, np.full(target.tiles, STACK_BYTES, np.int64))

    def _step_code(self, body: Body, step: StepDraft, step_id: int) -> None:
        about: dict[str, Any] = {"op": step.op, "stage": body.stage, "step": step_id}
        if step.vertices:
            count = sum((v.count for v in step.vertices), np.zeros_like(step.vertices[0].count))
            self.add(
                f"{step.name}/vertex state",
                "vertexInstanceState",
                Role.PROGRAM,
                count * STATE_BYTES,
                **about,
            )
            self.add(
                f"{step.name}/vertex fields",
                "vertexFieldData",
                Role.PROGRAM,
                count * FIELD_BYTES,
                **about,
            )
        if step.bytes_in is None or step.bytes_out is None:
            return
        if step.type == records.DO_EXCHANGE:
            received = (
                step.fragments
                if step.fragments is not None
                else (step.bytes_in > 0).astype(np.int64)
            )
            sends = np.where(step.bytes_out > 0, 1 + -(-step.bytes_out // SEND_BYTES), 0)
            code = INSTRUCTION_BYTES * (RECEIVE_INSTRUCTIONS * received + sends)
            self.add(
                f"{step.name}/exchange code", "internalExchangeCode", Role.PROGRAM, code, **about
            )
            return
        takes_part = ((step.bytes_in > 0) | (step.bytes_out > 0)).astype(np.int64)
        between = step.type == records.GLOBAL_EXCHANGE
        category = "globalExchangeCode" if between else "hostExchangeCode"
        code = takes_part * INSTRUCTION_BYTES * EXTERNAL_EXCHANGE_INSTRUCTIONS
        self.add(f"{step.name}/exchange code", category, Role.PROGRAM, code, **about)
        if not between:
            headers = -(-step.bytes_out // PACKET_BYTES) * HEADER_BYTES
            self.add(
                f"{step.name}/packet headers",
                "hostExchangePacketHeader",
                Role.PROGRAM,
                headers,
                **about,
            )


class _Digests:
    """What tells steps apart that are different code.

    Plans are cached and live on, so their ids tell them apart.
    """

    def __init__(self) -> None:
        self._plans: dict[int, int] = {}

    def of(self, step: StepDraft, op: OpNode | None) -> tuple[int, ...]:
        """Equal for steps that are the same code.

        Over tiles the same, in operators that are the same in all steps.

        Operators whose outline attributes differ are not (PopART's ``__outline``).
        """
        if step.plan is None:
            return (id(step),)
        if id(step.plan) not in self._plans:
            parts = tuple(_digest(part) for part in step.plan.steps)
            self._plans[id(step.plan)] = hash((op.aten if op is not None else "", parts))
        outline = hash(op.attributes.outline) if op is not None else 0
        return (
            self._plans[id(step.plan)],
            outline,
            hash(step.type),
            _digest(step.plan.steps[step.part]),
        )


def _digest(step: Compute | Exchange) -> int:
    if isinstance(step, Compute):
        return hash((step.cycles.tobytes(), *((v.type, v.count.tobytes()) for v in step.vertices)))
    return hash(
        (
            step.bytes_in.tobytes(),
            step.bytes_out.tobytes(),
            step.fragments.tobytes(),
            step.shared_bus,
        )
    )


def _control_instructions(step: StepDraft) -> np.ndarray | int:
    """Of one step, over tiles."""
    if step.vertices:
        count = sum((v.count for v in step.vertices), np.zeros_like(step.vertices[0].count))
        return np.where(count > 0, COMPUTE_INSTRUCTIONS + RUN_INSTRUCTIONS * count, 0)
    if step.bytes_in is None or step.bytes_out is None:
        return 0  # a sync belongs to the exchange after it
    takes_part = (step.bytes_in > 0) | (step.bytes_out > 0)
    return np.where(takes_part, EXCHANGE_INSTRUCTIONS, SYNC_INSTRUCTIONS)


def _plans(body: Body) -> list[tuple[Plan, list[int]]]:
    """The plans of a body, each with the operators that have it."""
    found: dict[int, tuple[Plan, list[int]]] = {}
    for step in body.steps:
        if step.plan is not None:
            found.setdefault(id(step.plan), (step.plan, []))[1].append(step.op)
    return list(found.values())


def _reached(transfer: Transfer) -> range:
    source, target = transfer.source, transfer.target
    return range(source, target + 1) if target > source else range(target, source + 1)


def _direction(placement: Placement, storage: int, stage: int) -> str:
    return next(
        (t.direction for t in placement.transfers if t.storage == storage and t.source == stage),
        Direction.FORWARD,
    )


def _union(a: tuple[int, int] | None, b: tuple[int, int]) -> tuple[int, int]:
    return b if a is None else (min(a[0], b[0]), max(a[1], b[1]))


def _span(parts: list[tuple[int, int]]) -> tuple[int, int]:
    return min(first for first, _ in parts), max(last for _, last in parts)


@dataclass(frozen=True, slots=True)
class TileBytes:
    """The most bytes at one step on each tile of an IPU, and the first such step.

    Both are arrays over tiles.
    """

    ipu: int
    variables: list[records.Variable]
    plain: np.ndarray
    plain_at: np.ndarray
    interleaved: np.ndarray
    interleaved_at: np.ndarray
    total: np.ndarray  # including gaps


def tile_bytes(found: list[records.Variable], target: Target) -> list[TileBytes]:
    """Of each IPU that has variables. Each region is packed at its own worst step."""
    made = []
    for ipu in sorted({variable.ipu for variable in found}):
        here = [variable for variable in found if variable.ipu == ipu]
        plain, plain_at = _peaks([v for v in here if not v.interleaved], target.tiles)
        interleaved, interleaved_at = _peaks([v for v in here if v.interleaved], target.tiles)
        total = including_gaps(plain, interleaved, target.region0_bytes)
        made.append(TileBytes(ipu, here, plain, plain_at, interleaved, interleaved_at, total))
    return made


def tile_rows(tiles: list[TileBytes], target: Target) -> Iterator[records.TileMemory]:
    """The profile's rows of it."""
    for one in tiles:
        always = np.zeros(target.tiles, dtype=np.int64)
        for variable in one.variables:
            if variable.always_live:
                always += variable.tile_bytes
        over = np.maximum(one.total - target.bytes_per_tile, 0)
        columns = (one.total, one.plain + one.interleaved, always, over)
        for tile, values in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            yield records.TileMemory(one.ipu, tile, *values)


def find_overflow(tiles: list[TileBytes], tree: ProgramTree, target: Target) -> Overflow | None:
    """The worst tile over a limit, or None.

    Two limits (docs/memory-model.md#gaps): the whole tile, gaps included as
    `profiler.memory.including_gaps` counts them, so that it stops exactly where ``Report.tiles``
    has an overflow; and region 0, the only place for code.
    """
    worst: Overflow | None = None
    for one in tiles:
        code, code_at = _peaks([v for v in one.variables if v.category in CODE], target.tiles)
        total = one.total
        gap = (one.interleaved > 0) & (
            one.plain <= target.region0_bytes
        )  # then region 1 alone decides
        whole = "tile memory with its gap" if gap[int(total.argmax())] else "tile memory"
        for what, taken, at, limit in (
            (whole, total, np.where(gap, one.interleaved_at, one.plain_at), target.bytes_per_tile),
            (CODE_REGION, code, code_at, target.region0_bytes),
        ):
            tile = int(taken.argmax())
            over = int(taken[tile]) - limit
            if over > 0 and (worst is None or over > worst.bytes_over):
                counted = (
                    [v for v in one.variables if v.category in CODE]
                    if taken is code
                    else one.variables
                )
                worst = _overflow(counted, tree, one.ipu, tile, int(at[tile]), what, limit, over)
    return worst


def _overflow(
    counted: list[records.Variable],
    tree: ProgramTree,
    ipu: int,
    tile: int,
    at: int,
    what: str,
    limit: int,
    over: int,
) -> Overflow:
    """With the largest things that are live there."""
    names = [step.name for body in tree.bodies if body.ipu == ipu for step in body.steps]
    live = [v for v in counted if v.start <= at < v.stop and v.tile_bytes[tile]]
    always = sum(int(v.tile_bytes[tile]) for v in live if v.always_live)
    named = largest((v.name, int(v.tile_bytes[tile])) for v in live)
    return Overflow(ipu, tile, at, names[at] if names else "", what, limit, over, always, named)


def _peaks(found: list[records.Variable], tiles: int) -> tuple[np.ndarray, np.ndarray]:
    """Per tile, the most bytes live at one step and the first step at which they are.

    One running sum.
    """
    changes: dict[int, np.ndarray] = {}
    for variable in found:
        for at, sign in ((variable.start, 1), (variable.stop, -1)):
            changes[at] = changes.get(at, 0) + sign * variable.tile_bytes
    level, peak = np.zeros(tiles, np.int64), np.zeros(tiles, np.int64)
    position = np.zeros(tiles, np.int64)
    for at in sorted(changes):
        level = level + changes[at]
        higher = level > peak
        peak[higher], position[higher] = level[higher], at
    return peak, position
