"""Code, vertex state and stacks on the tiles, and which Blocks share code.

Equal operators, and the turns of a loop in one (time steps, serial splits), share code and vertex
state: the compiler outlines what repeats, and a tile has one call for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from ipu_exec.base.once import Once, added
from ipu_exec.compiler.emission.bodies import Body, ProgramStep
from ipu_exec.graph import Graph, OpNode
from ipu_exec.lowering import vertex_info
from ipu_exec.lowering.plan import Collective, Compute, Plan, Step
from ipu_exec.lowering.vertices import FIELD_BYTES, STATE_BYTES
from ipuscope.profiler.enums import Purpose, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import schedule_types

# Six workers' and the supervisor's (docs/memory-model.md#contents-of-a-tile).
STACK_BYTES = 6 * 0x200 + 0x80
# Code in instructions of 4 bytes (docs/memory-model.md#measured-sizes). Exchange: about 3 per
# received fragment (sender, destination, size) and 1-2 per send, here one and one per 64 words.
INSTRUCTION_BYTES = 4
RECEIVE_INSTRUCTIONS = 3
SEND_BYTES = 256
# Control: estimates. A tile has code for its own steps and a sync for each of the others'
# exchanges.
RUN_INSTRUCTIONS = 2  # a vertex: where its state is, and run
COMPUTE_INSTRUCTIONS = 2  # a compute set: wait for the workers, return
EXCHANGE_INSTRUCTIONS = 3  # an exchange: sync, call of its code, return
SYNC_INSTRUCTIONS = 1  # a tile that takes no part in it
CALL_INSTRUCTIONS = 3  # an operator: its code is stored once and called from where it is used
# estimate: packet set-up of one copy to or from another IPU or the host
EXTERNAL_EXCHANGE_INSTRUCTIONS = 24
PACKET_BYTES = 1024  # to the host, at most (estimate)
HEADER_BYTES = 8  # of each: [TUT4]'s 12.1 KiB are 8 bytes a tile that sends a part of its result
# Transfers of phases that are the same code where they move the same from tile to tile.
_OUTLINED = (
    Purpose.EXTERNAL_SYNC,
    Purpose.REMOTE_LOAD,
    Purpose.REMOTE_STORE,
    Purpose.COPY,
    Purpose.ALL_GATHER,
    Purpose.ALL_REDUCE,
    Purpose.REDUCE_SCATTER,
    Purpose.GATHER_SHARDS,
    Purpose.SHARD,
)


_CONTROL = -2  # begins the key of the control code of some Blocks


@dataclass(frozen=True, slots=True)
class Code:
    """Pieces of code by their digests (`_Digests`).

    ``blocks``: the Blocks whose operators run a piece (-1: outside all). ``variables``: a
    piece's, by IPU. ``calls``: bytes on every tile of the code of an operator's calls.
    """

    blocks: Mapping[tuple[int, ...], set[int]] = field(default_factory=dict)
    variables: Mapping[tuple[int, ...], list[list[int]]] = field(default_factory=dict)
    calls: Mapping[int, int] = field(default_factory=dict)
    first: Mapping[int, int] = field(default_factory=dict)  # step -> the first that runs its code

    def by_block(self, count: int, block_of: Callable[[int], int]) -> dict[str, list[Any]]:
        """The code of each Block, and the code that Blocks share.

        ``calls``: bytes on each tile per Block (``block_of`` gives an operator's). ``shared``:
        Blocks, ids of the variables with the code that exactly these share, and ids of the same
        on further IPUs, without code that operators outside all Blocks run too.
        """
        code_of: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
        for key, users in self.blocks.items():
            if -1 in users or key not in self.variables:
                continue
            once, again = code_of.setdefault(tuple(sorted(users)), ([], []))
            first, *others = self.variables[key]
            once += first
            again += [id for ids in others for id in ids]
        shared = [(list(blocks), once, again) for blocks, (once, again) in sorted(code_of.items())]
        calls = [0] * (count + 1)  # the last: of no Block
        for op, nbytes in self.calls.items():
            calls[block_of(op)] += nbytes
        return {"calls": calls[:count], "shared": shared}


class Add(Protocol):
    """Adds an always-live variable of an IPU's program; returns its id, or None if it is empty."""

    def __call__(  # noqa: D102  (the class says it)
        self,
        name: str,
        tile_bytes: np.ndarray,
        *,
        category: str,
        op: int = -1,
        stage: int = -1,
        step: int = -1,
    ) -> int | None: ...


class SharedCode:
    """A `Code` under construction, over all IPUs."""

    def __init__(self, graph: Graph, outlined: bool) -> None:
        """``outlined``: equal phases share code, their transfers too (RemoteLoad at an offset)."""
        self.graph, self.outlined = graph, outlined
        self._digests = _Digests(outlined)
        self._keys: dict[int, list[tuple[int, ...]]] = {}  # by id: the program has the bodies
        self.blocks: dict[tuple[int, ...], set[int]] = {}
        self.variables: dict[tuple[int, ...], list[list[int]]] = {}
        self.calls: dict[int, int] = {}
        self.first: dict[int, int] = {}
        self.weights: dict[int, int] = {}  # operator of an update -> weight
        self.once = Once()

    def read(self, bodies: Iterable[Body]) -> None:
        """Find which Blocks run each piece of the code of ``bodies``, those of all IPUs."""
        ops = self.graph.ops
        for body in bodies:
            keys = self._keys[id(body)] = self.keys(body)
            for step, key in zip(body.steps, keys, strict=True):
                if step.plan is not None:
                    block = ops[step.op].block if step.op >= 0 else -1
                    self.blocks.setdefault(key, set()).add(block)

    def keys(self, body: Body) -> list[tuple[int, ...]]:
        """The key of each step's code."""
        if id(body) in self._keys:
            return self._keys[id(body)]
        ops = self.graph.ops
        return [
            self._digests.of(step, ops[step.op] if step.op >= 0 else None) for step in body.steps
        ]

    def code(self) -> Code:
        """The code gathered so far."""
        return Code(self.blocks, self.variables, self.calls, self.first)


@dataclass(slots=True)
class _Piece:
    """Steps that are one call when phases are outlined: a body, or one weight's update."""

    weight: int = -1
    keys: list[tuple[int, ...]] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)  # operators


class CodeOfIpu:
    """Adds the code variables of one IPU, body by body."""

    def __init__(self, shared: SharedCode, tiles: int, add: Add) -> None:
        self.shared, self.graph, self.add = shared, shared.graph, add
        self.control = np.zeros(tiles, np.int64)
        self.on_tile: dict[str, np.ndarray] = {}  # vertex type -> tiles that have its code
        self.seen: set[tuple[int, ...]] = set()
        self.pieces: set[tuple[tuple[int, ...], ...]] = set()
        self.first_of: dict[tuple[int, ...], int] = {}  # code -> the first step that runs it
        self.calls = 0  # bytes on every tile
        self.control_of: dict[tuple[int, ...], np.ndarray | int] = {}  # a plan's code -> bytes

    def body(self, body: Body, first_step: int) -> None:
        """Add the code of a body's steps (ids from ``first_step`` on) and its plans' constants."""
        called: tuple[int, int] | None = None
        piece = _Piece()
        steps = zip(body.steps, self.shared.keys(body), strict=True)
        for step_id, (step, key) in enumerate(steps, first_step):
            if self._begins_piece(step, body, piece):
                self._end(piece)
                piece = _Piece(self._weight(step.op))
            if step.plan is not None and (step.op, id(step.plan)) != called:
                called = (step.op, id(step.plan))
                piece.calls.append(step.op)
            piece.keys.append(key)
            self._step(body, step, step_id, key)
        self._end(piece)
        for plan, users in _plans(body):
            if plan.constants is not None:
                self._constants(plan, plan.constants, users, body.stage)

    def _begins_piece(self, step: ProgramStep, body: Body, piece: _Piece) -> bool:
        """Whether another weight's update begins; each weight's update is a piece of code."""
        updates = self.shared.outlined and body.task == schedule_types.UPDATE
        return updates and step.op >= 0 and self._weight(step.op) not in (-1, piece.weight)

    def _weight(self, op: int) -> int:
        """The weight that an update's operator reads, or whose state it reads; -1 for none."""
        if op not in self.shared.weights:
            graph = self.graph
            read = map(graph.storage_of, graph.ops[op].inputs)
            owners = (s.id if s.role == Role.WEIGHT else s.parameter for s in read)
            self.shared.weights[op] = next((owner for owner in owners if owner >= 0), -1)
        return self.shared.weights[op]

    def _end(self, piece: _Piece) -> None:
        """Count the calls of a piece of code: a single one if the same code exists already."""
        repeated = self.shared.outlined and tuple(piece.keys) in self.pieces
        self.pieces.add(tuple(piece.keys))
        for op in piece.calls[:1] if repeated else piece.calls:
            self._call(op)

    def rest(self) -> None:
        """Add what all bodies share: vertex code, control code and stacks."""
        for name, mask in sorted(self.on_tile.items()):
            self.add(name, mask * np.int64(vertex_info(name)[0]), category="vertexCode")
        self._control()
        self.add("stack", np.full(len(self.control), STACK_BYTES, np.int64), category="stack")

    def _control(self) -> None:
        """Add the control code: one variable for all that the same Blocks run, one for the rest."""
        of_blocks: dict[tuple[int, ...], np.ndarray] = {}
        nothing = np.zeros_like(self.control)
        for key, nbytes in self.control_of.items():
            users = tuple(sorted(self.shared.blocks[key]))
            if -1 in users:  # an operator outside all Blocks runs it, too
                self.control += nbytes
            else:
                of_blocks[users] = of_blocks.get(users, nothing) + nbytes
        self.add("control code", self.control + self.calls, category="controlCode")
        for users, nbytes in sorted(of_blocks.items()):
            name = self.graph.blocks[users[0]].name if len(users) == 1 else f"{len(users)} Blocks"
            number = self.add(f"control code of {name}", nbytes, category="controlCode")
            if number is not None:
                key = (_CONTROL, *users)
                self.shared.blocks[key] = set(users)
                self.shared.variables.setdefault(key, []).append([number])

    def _call(self, op: int) -> None:
        nbytes = CALL_INSTRUCTIONS * INSTRUCTION_BYTES
        self.calls += nbytes
        self.shared.calls[op] = self.shared.calls.get(op, 0) + nbytes

    def _step(self, body: Body, step: ProgramStep, step_id: int, key: tuple[int, ...]) -> None:
        first = self.shared.first[step_id] = self.first_of.setdefault(key, step_id)
        if first != step_id:
            return
        for vertices in step.vertices:
            here, before = vertices.count > 0, self.on_tile.get(vertices.type)
            self.on_tile[vertices.type] = here if before is None else before | here
        control = control_bytes(step, self.shared.once)
        if step.plan is not None:
            self.control_of[key] = control
        else:
            self.control += control
        ids = self._step_code(body, step, step_id)
        if step.plan is not None and ids:
            self.shared.variables.setdefault(key, []).append(ids)

    def _constants(self, plan: Plan, constants: np.ndarray, users: list[int], stage: int) -> None:
        key = (id(plan), -1)
        blocks = (self.graph.ops[op].block for op in users)
        self.shared.blocks.setdefault(key, set()).update(blocks)
        if key in self.seen:
            return
        self.seen.add(key)
        name = f"{self.graph.ops[users[-1]].name}/worklists"
        number = self.add(name, constants, category="constant", op=users[-1], stage=stage)
        if number is not None:
            self.shared.variables.setdefault(key, []).append([number])

    def _step_code(self, body: Body, step: ProgramStep, step_id: int) -> list[int]:
        """Add a step's vertex state, fields and exchange code; returns their variables' ids."""
        add = partial(self.add, op=step.op, stage=body.stage, step=step_id)
        added = [
            add(f"{step.name}/{what}", nbytes, category=category)
            for what, category, nbytes in code_bytes(step, self.shared.once)
        ]
        return [number for number in added if number is not None]


def _vertex_count(step: ProgramStep, once: Once) -> np.ndarray:
    first, *others = (vertices.count for vertices in step.vertices)
    return once(added, first, *others) if others else first


def code_bytes(step: ProgramStep, once: Once) -> Iterator[tuple[str, str, np.ndarray]]:
    """The name, category and bytes on each tile of each piece of a step's code."""
    if step.vertices:
        count = _vertex_count(step, once)
        yield "vertex state", "vertexInstanceState", once(np.multiply, count, STATE_BYTES)
        yield "vertex fields", "vertexFieldData", once(np.multiply, count, FIELD_BYTES)
    if step.type == records.SYNC or step.bytes_in is None or step.bytes_out is None:
        return
    if step.type == records.DO_EXCHANGE:
        fragments = once(_takes_part, step.bytes_in) if step.fragments is None else step.fragments
        yield "exchange code", "internalExchangeCode", once(_exchange, fragments, step.bytes_out)
        return
    moving = once(_takes_part, step.bytes_in, step.bytes_out)
    between = step.type == records.GLOBAL_EXCHANGE
    category = "globalExchangeCode" if between else "hostExchangeCode"
    nbytes = INSTRUCTION_BYTES * EXTERNAL_EXCHANGE_INSTRUCTIONS
    yield "exchange code", category, once(np.multiply, moving, nbytes)
    if not between:
        yield "packet headers", "hostExchangePacketHeader", once(_headers, step.bytes_out)


def _takes_part(*moved: np.ndarray) -> np.ndarray:
    return np.any(np.array(moved) > 0, axis=0).astype(np.int64)


def _exchange(fragments: np.ndarray, bytes_out: np.ndarray) -> np.ndarray:
    sends = np.where(bytes_out > 0, 1 + -(-bytes_out // SEND_BYTES), 0)
    return INSTRUCTION_BYTES * (RECEIVE_INSTRUCTIONS * fragments + sends)


def _headers(bytes_out: np.ndarray) -> np.ndarray:
    return -(-bytes_out // PACKET_BYTES) * HEADER_BYTES


class _Digests:
    """Keys of steps with different code: ids of plans, which are cached and never freed."""

    def __init__(self, outlined: bool) -> None:
        self.outlined = outlined
        self._plans: dict[int, int] = {}
        self._parts: dict[int, int] = {}
        # by plan, part, type and outline; of transfers by type, purpose, cycles and vectors
        self._keys: dict[tuple[Any, ...], tuple[int, ...]] = {}

    def of(self, step: ProgramStep, op: OpNode | None) -> tuple[int, ...]:
        """A key that is equal for steps with the same code.

        Such steps do the same on every tile, in operators of equal steps and ``__outline``.
        """
        if step.plan is None:
            outlined = self.outlined and step.purpose in _OUTLINED
            return self._transfer(step) if outlined else (id(step),)
        outline = op.attributes.outline if op is not None else None
        place = id(step.plan), step.part, step.type, outline
        key = self._keys.get(place)
        if key is not None:
            return key
        if id(step.plan) not in self._plans:
            parts = tuple(self._digest(part) for part in step.plan.steps)
            self._plans[id(step.plan)] = hash((op.aten if op is not None else "", parts))
        key = self._keys[place] = (
            self._plans[id(step.plan)],
            0 if op is None else hash(outline),
            hash(step.type),
            self._digest(step.plan.steps[step.part]),
        )
        return key

    def _transfer(self, step: ProgramStep) -> tuple[int, ...]:
        """A key of a transfer: the bytes that each tile sends and receives, or its cycles."""
        vectors = (step.bytes_in, step.bytes_out, step.tile_cycles)
        place = step.type, step.purpose, step.cycles, *map(id, vectors)
        if place not in self._keys:
            contents = (b"" if one is None else one.tobytes() for one in vectors)
            self._keys[place] = (hash((*place[:3], *contents)),)
        return self._keys[place]

    def _digest(self, part: Step) -> int:
        if id(part) not in self._parts:
            self._parts[id(part)] = _digest(part)
        return self._parts[id(part)]


def _digest(step: Step) -> int:
    if isinstance(step, Collective):
        return hash((step.bytes_in.tobytes(), step.bytes_out.tobytes(), step.cycles))
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


def control_bytes(step: ProgramStep, once: Once) -> np.ndarray | int:
    """Bytes of one step's control code on each tile."""
    if step.vertices:
        return once(_runs, _vertex_count(step, once))
    if step.bytes_in is None or step.bytes_out is None:
        return 0  # a sync belongs to the exchange after it
    return once(_enters, step.bytes_in, step.bytes_out)


def _runs(count: np.ndarray) -> np.ndarray:
    runs = np.where(count > 0, COMPUTE_INSTRUCTIONS + RUN_INSTRUCTIONS * count, 0)
    return INSTRUCTION_BYTES * runs


def _enters(bytes_in: np.ndarray, bytes_out: np.ndarray) -> np.ndarray:
    takes_part = (bytes_in > 0) | (bytes_out > 0)
    return INSTRUCTION_BYTES * np.where(takes_part, EXCHANGE_INSTRUCTIONS, SYNC_INSTRUCTIONS)


def _plans(body: Body) -> list[tuple[Plan, list[int]]]:
    """The plans of a body, each with the operators that use it."""
    by_plan: dict[int, tuple[Plan, list[int]]] = {}
    for step in body.steps:
        if step.plan is not None:
            by_plan.setdefault(id(step.plan), (step.plan, []))[1].append(step.op)
    return list(by_plan.values())
