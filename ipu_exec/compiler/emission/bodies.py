"""The parts of a program: bodies of bulk-synchronous steps, and the tree of all bodies.

Plans' steps become program steps: a sync precedes each exchange, a stream begins and ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ipu_exec.base.once import Once
from ipu_exec.compiler.emission import loops
from ipu_exec.compiler.emission.loops import Loop
from ipu_exec.lowering.plan import (
    ITEM_BYTES,
    Collective,
    Compute,
    Exchange,
    Layout,
    Plan,
    Step,
    Vertices,
)
from ipu_exec.machine import (
    EXTERNAL_SYNC_CYCLES,
    SLICE_CYCLES,
    STREAM_STEP_CYCLES,
    SYNC_CYCLES,
    TARGETS,
    Machine,
    exchange_tile_cycles,
)
from ipuscope.profiler.enums import Purpose
from ipuscope.profiler.file import records

OFF_CHIP = -1  # the host, or streaming memory: where a `Move` comes from or goes to


@dataclass(frozen=True, slots=True)
class Move:
    """``bytes`` of a storage that move between IPUs of a replica; on one IPU, between replicas."""

    storage: int
    bytes: int
    source: int
    target: int


@dataclass(slots=True)  # not frozen: a hundred thousand of them take a third of the time
class ProgramStep:
    """One step of a body, which nobody changes. Vectors over tiles are shared with its plan."""

    type: str  # of records.PROGRAM_TYPES
    name: str
    cycles: int
    op: int = -1
    tile_cycles: np.ndarray | None = None
    bytes_in: np.ndarray | None = None
    bytes_out: np.ndarray | None = None
    fragments: np.ndarray | None = None
    vertices: tuple[Vertices, ...] = ()
    flops: int = 0
    plan: Plan | None = None
    part: int = -1  # which step of the plan; equal parts of equal plans share their code
    purpose: Purpose = Purpose.OPERATOR
    tensor: int = -1  # storage that it moves; -1: none, or several
    moves: tuple[Move, ...] = ()  # over the edge of the chip

    def in_operator(self, op: int, name: str, plan: Plan | None, part: int) -> ProgramStep:
        """This step as step ``part`` of an operator's plan (``replace`` is ten times slower)."""
        return ProgramStep(
            self.type,
            name,
            self.cycles,
            op,
            self.tile_cycles,
            self.bytes_in,
            self.bytes_out,
            self.fragments,
            self.vertices,
            self.flops,
            plan,
            part,
            self.purpose,
            self.tensor,
            self.moves,
        )


@dataclass(slots=True)  # as are tens of thousands of these
class Use:
    """Something in tile memory from step ``first`` to step ``last`` of a body, inclusive."""

    name: str
    role: str
    tile_bytes: np.ndarray
    first: int
    last: int
    op: int = -1
    interleaved: bool = False
    becomes_result: bool = False  # of the operator, from the last step on


@dataclass(frozen=True)
class Body:
    """A piece of program that one IPU runs as a whole; steps in ``loops`` run several times.

    ``task`` is one of `ipuscope.profiler.timeline.schedule_types.TASKS`.
    """

    name: str
    ipu: int
    stage: int  # -1: none
    task: int
    steps: tuple[ProgramStep, ...]
    temporaries: tuple[Use, ...]
    touched: Mapping[int, tuple[int, int]]  # storage -> first, last step
    loops: tuple[Loop, ...] = ()

    @cached_property
    def cycles(self) -> int:
        """Total cycles of its steps, run in sequence, each as often as it does."""
        return spent(self.steps, self.loops)

    @cached_property
    def order(self) -> np.ndarray:
        """Its steps in the order in which they run, those of loops several times: int64."""
        return loops.order(len(self.steps), self.loops)

    @cached_property
    def times(self) -> np.ndarray:
        """How often each step runs, int64[steps]."""
        return loops.times(len(self.steps), self.loops)


@dataclass(frozen=True)
class ProgramTree:
    """All bodies in program order on each IPU, and what later passes read of earlier ones."""

    bodies: tuple[Body, ...]
    layouts: Mapping[tuple[int, int], Layout]  # (storage, stage)
    stashed: Mapping[int, Sequence[int]]  # stage -> storages
    recomputed: Mapping[int, set[int]]  # stage -> storages made again before its backward
    op_plans: Mapping[int, Plan]
    op_cycles: Mapping[int, int]
    moving: Mapping[int, bool]  # what leaves the chip, and if after every phase
    parts: Mapping[tuple[int, int], Layout]  # (weight, stage): a replica's, always there
    turning: frozenset[int]  # phased: stages whose backward follows their forward at once
    loads: Mapping[tuple[int, int], int]  # (task, stage) -> cycles at its body's beginning
    stores: Mapping[tuple[int, int], int]  # ... and at its end
    buffers: tuple[Use, ...]  # of streams, always there; ``first`` is the stage
    beside: frozenset[int]  # storages that come or leave over I/O tiles
    across: bool  # what is overlapped is so from one device iteration into the next

    @cached_property
    def step_ids(self) -> list[range]:
        """Ids of the steps body by body, counted over the whole program."""
        ends = [0, *accumulate(len(body.steps) for body in self.bodies)]
        return [range(first, end) for first, end in pairwise(ends)]

    def step_names(self, ipu: int) -> list[str]:
        """Names of the steps of an IPU, in program order."""
        return [step.name for body in self.bodies if body.ipu == ipu for step in body.steps]

    def all_of(self, stage: int, *tasks: int) -> list[Body]:
        """A stage's bodies for these tasks, in execution order."""
        return [body for body in self._of_stages.get(stage, ()) if body.task in tasks]

    @cached_property
    def _of_stages(self) -> dict[int, list[Body]]:
        stages: dict[int, list[Body]] = {}
        for body in self.bodies:
            stages.setdefault(body.stage, []).append(body)
        return stages

    def of(self, task: int, stage: int) -> Body | None:
        """The first body that `all_of` gives."""
        return next(iter(self.all_of(stage, task)), None)

    def cycles(self, task: int, stage: int) -> int:
        """Cycles of a stage's bodies of that task (one of `profiler.timeline.schedules.TASKS`)."""
        return sum(body.cycles for body in self.all_of(stage, task))


def spent(steps: Sequence[ProgramStep], of_loops: Sequence[Loop]) -> int:
    """Cycles of steps that run one after the other, those in loops several times."""
    once = sum(step.cycles for step in steps)
    again = ((loop.times - 1) * spent(steps[loop.first : loop.stop], ()) for loop in of_loops)
    return once + sum(again)


def program_steps(step: Step, target: str, once: Once) -> list[ProgramStep]:
    """The program steps of one step of a plan: an exchange is preceded by a sync of the tiles."""
    if isinstance(step, Compute):
        cycles = int(step.cycles.max(initial=0))
        return [
            ProgramStep(
                records.ON_TILE_EXECUTE,
                step.name,
                cycles,
                -1,
                step.cycles,
                vertices=step.vertices,
                flops=step.flops,
            )
        ]
    if isinstance(step, Collective):
        return _between_shards(step)
    vectors = step.bytes_in, step.bytes_out, step.fragments
    tile_cycles = once(exchange_tile_cycles, TARGETS[target], *vectors, step.shared_bus)
    return [
        ProgramStep(records.SYNC, f"{step.name}/Internal", SYNC_CYCLES),
        ProgramStep(
            records.DO_EXCHANGE,
            step.name,
            int(tile_cycles.max(initial=0)),
            -1,
            tile_cycles,
            *vectors,
        ),
    ]


def _between_shards(step: Collective) -> list[ProgramStep]:
    """A sync with the stage's other IPUs, followed by the exchange."""
    if not step.cycles:
        return []
    return [
        external_sync(f"{step.name}/"),
        ProgramStep(
            records.GLOBAL_EXCHANGE,
            step.name,
            step.cycles,
            bytes_in=step.bytes_in,
            bytes_out=step.bytes_out,
        ),
    ]


def external_sync(name: str) -> ProgramStep:
    """A sync with other IPUs, before what is called ``name``."""
    purpose = Purpose.EXTERNAL_SYNC
    return ProgramStep(records.SYNC, f"{name}External", EXTERNAL_SYNC_CYCLES, purpose=purpose)


def stream_steps(
    once: Once, name: str, cycles: int, nbytes: np.ndarray, purpose: Purpose, moves: Sequence[Move]
) -> list[ProgramStep]:
    """Begin, mid and end of a stream copy of ``nbytes`` a tile: docs/cycles.md#stream-copies."""
    none = once(np.zeros, len(nbytes), np.int64)
    to_host = purpose in (Purpose.STREAM_OUT, Purpose.REMOTE_STORE)
    bytes_in, bytes_out = (none, nbytes) if to_host else (nbytes, none)
    tensor = the_one([move.storage for move in moves])
    about: dict[str, Any] = {"purpose": purpose, "tensor": tensor}
    return [
        ProgramStep(records.STREAM_COPY_BEGIN, f"{name}/begin", STREAM_STEP_CYCLES, **about),
        ProgramStep(
            records.STREAM_COPY_MID,
            f"{name}/mid",
            cycles,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            moves=tuple(moves),
            **about,
        ),
        ProgramStep(records.STREAM_COPY_END, f"{name}/end", STREAM_STEP_CYCLES, **about),
    ]


def the_one(tensors: Sequence[int]) -> int:
    """The tensor that a step moves if it moves only one, else -1."""
    return tensors[0] if len(tensors) == 1 else -1


def slice_step(
    once: Once,
    name: str,
    elements: np.ndarray,
    dtype: str,
    purpose: Purpose,
    tensor: int,
    op: int = -1,
) -> ProgramStep:
    """Copy ``elements`` of every tile out of one slot of something larger, or into it."""
    update = purpose is Purpose.STASH
    item = ITEM_BYTES[dtype]
    cycles = once(dynamic_slice_cycles, elements, item)
    poplar = {4: "float", 2: "half", 1: "char"}[item]
    vertices = Vertices(
        f"popops::Dynamic{'Update' if update else ''}Slice1D<{poplar}>",
        once(np.minimum, elements, 1),
    )
    return ProgramStep(
        records.ON_TILE_EXECUTE,
        name,
        int(cycles.max()),
        op,
        cycles,
        vertices=(vertices,),
        purpose=purpose,
        tensor=tensor,
    )


def dynamic_slice_cycles(elements: np.ndarray, item_bytes: int) -> np.ndarray:
    """Cycles a tile to copy ``elements`` into or out of one slot: docs/cycles.md#gather.

    25 + 6 (39 + 24 + 2 n / 6 / v) cycles for n elements, v of them to 8 bytes.
    """
    lanes = max(1, 8 // item_bytes)
    per_worker = -(-elements // 6)
    cycles = SLICE_CYCLES + 6 * -(-2 * per_worker // lanes)
    return np.where(elements > 0, cycles, 0).astype(np.int64)


def widened(plan: Plan, machine: Machine) -> Plan:
    """Widen the step's vectors to all tiles; layouts stay as lowerings have them."""
    steps: list[Step] = []
    for step in plan.steps:
        if isinstance(step, Collective):
            received, sent = machine.whole(step.bytes_in), machine.whole(step.bytes_out)
            steps.append(Collective(step.name, received, sent, step.cycles))
        elif isinstance(step, Compute):
            vertices = tuple(Vertices(v.type, machine.whole(v.count)) for v in step.vertices)
            steps.append(replace(step, cycles=machine.whole(step.cycles), vertices=vertices))
        else:
            into, out, fragments = map(
                machine.whole, (step.bytes_in, step.bytes_out, step.fragments)
            )
            steps.append(Exchange(step.name, into, out, fragments, step.shared_bus))
    temporaries = tuple(replace(use, bytes=machine.whole(use.bytes)) for use in plan.temporaries)
    constants = None if plan.constants is None else machine.whole(plan.constants)
    return replace(plan, steps=tuple(steps), temporaries=temporaries, constants=constants)


@lru_cache(maxsize=1 << 14)
def behind(short: str, step: str) -> str:
    """What follows an operator's name in a step's: ``layer/addmm``, ``addmm/reduce``: ``/reduce``.

    ``short``: the end of the operator's.
    """
    head, _, rest = step.partition("/")
    if short == head or short.startswith(head + "_"):
        return f"/{rest}" if rest else ""
    return f"/{step}"
