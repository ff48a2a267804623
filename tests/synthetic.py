"""A consistent profile of pipelined training, written without compiling a model, for tests and
benchmarks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ipuscope.profiler import ProfileWriter, Report, open_report
from ipuscope.profiler.enums import BodyTask, Purpose, Role
from ipuscope.profiler.file.records import (
    DO_EXCHANGE,
    GLOBAL_EXCHANGE,
    ON_TILE_EXECUTE,
    REPEAT,
    SEQUENCE,
    STREAM_COPY_BEGIN,
    STREAM_COPY_END,
    STREAM_COPY_MID,
    SYNC,
    Block,
    Body,
    ComputeSet,
    Op,
    Option,
    PipelineCycle,
    Program,
    Run,
    Stage,
    Step,
    Target,
    TileMemory,
    Trace,
    Use,
    Variable,
    VertexType,
    VertexUse,
)
from ipuscope.profiler.timeline import closed_forms, schedule_types, schedules

MK2_BYTES, MK2_REGION0, MK2_CLOCK = 638_976, 212_992, 1.33e9
STREAM_CYCLES, SYNC_CYCLES, EXTERNAL_SYNC_CYCLES = 257, 100, 600

Computes = list[tuple[int, int]]  # (position, op) of compute steps


@dataclass
class _Profile:
    """Rows as they gather; ids count from 0 in each table."""

    tiles: int
    steps_per_body: int
    random: np.random.Generator
    programs: list[Program] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    compute_sets: list[ComputeSet] = field(default_factory=list)
    uses: list[VertexUse] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    tensors: dict[str, int] = field(default_factory=dict)
    children: Counter[int] = field(default_factory=Counter)  # of each program
    positions: Counter[int] = field(default_factory=Counter)  # steps of each IPU

    def program(self, parent: int, type: str, name: str, repeat: int = 1) -> int:
        self.programs.append(
            Program(len(self.programs), parent, self.children[parent], type, name, repeat)
        )
        self.children[parent] += 1
        return len(self.programs) - 1

    def step(
        self,
        ipu: int,
        parent: int,
        op: int,
        type: str,
        name: str,
        cycles: int,
        purpose: Purpose = Purpose.OPERATOR,
        **vectors: np.ndarray,
    ) -> int:
        compute_set = -1
        if type == ON_TILE_EXECUTE:
            compute_set = len(self.compute_sets)
            self.compute_sets.append(
                ComputeSet(compute_set, name, ipu, op, 2 * int(vectors["tile_cycles"].sum()))
            )
            for kind in range(2):
                count = (vectors["tile_cycles"] > 0) * (1 + kind * 5)
                self.uses.append(VertexUse(compute_set, kind, count))
        program = self.program(parent, type, name)
        columns = (vectors.get(key) for key in ("tile_cycles", "bytes_in", "bytes_out"))
        row = Step(
            len(self.steps),
            ipu,
            self.positions[ipu],
            program,
            len(self.bodies),
            op,
            type,
            name,
            cycles,
            compute_set,
            *columns,
            purpose,
        )
        self.steps.append(row)
        self.positions[ipu] += 1
        return row.id

    def body(
        self,
        name: str,
        ipu: int,
        stage: int,
        kind: str,
        direction: str,
        first: int,
        task: str = "",
    ) -> int:
        """A body of the steps made since ``first``; its task is its direction if it has one."""
        body_steps = self.steps[first:]
        cycles = np.array([step.cycles for step in body_steps], dtype=np.int64)
        self.bodies.append(
            Body(
                len(self.bodies),
                name,
                ipu,
                stage,
                kind,
                direction,
                int(cycles.sum()),
                np.array([step.id for step in body_steps], dtype=np.int64),
                np.cumsum(cycles) - cycles,
                task or direction,
            )
        )
        return len(self.bodies) - 1

    def tensor(self, name: str) -> int:
        """The number of the tensor of that name."""
        return self.tensors.setdefault(name, len(self.tensors))

    def tile_bytes(self, mean: int, share: float = 1.0) -> np.ndarray:
        used = np.arange(self.tiles) < max(1, round(share * self.tiles))
        return np.where(
            used, self.random.integers(mean // 2, mean * 3 // 2 + 1, self.tiles) // 4 * 4, 0
        )

    def variable(
        self,
        name: str,
        ipu: int,
        category: str,
        role: str,
        mean: int,
        *,
        op: int = -1,
        share: float = 1.0,
        life: tuple[int, int] | None = None,
        interleaved: bool = False,
    ) -> int:
        """``life`` None: always live (the stop is set at the end, when the number of steps is
        known).
        """
        vector = self.tile_bytes(mean, share)
        start, stop = life or (0, -1)
        total = int(vector.sum())
        self.variables.append(
            Variable(
                len(self.variables),
                name,
                ipu,
                category,
                role,
                op,
                ipu,
                ipu,
                "float32",
                json.dumps([total // 4]) if category == "variable" else "",
                total,
                vector,
                int(interleaved),
                int(life is None),
                start,
                stop,
                self.tensor(name) if category == "variable" else -1,
                self.tensor(name.rpartition("/")[0]) if role == Role.OPTIMISER_STATE else -1,
            )
        )
        return total


def _computing(
    profile: _Profile, ipu: int, parent: int, direction: str, mean_cycles: int
) -> tuple[int, Computes]:
    """A body of sync, exchange and compute steps by turns, and its compute steps."""
    first, computes = len(profile.steps), list[tuple[int, int]]()
    node = profile.program(parent, SEQUENCE, f"stage {ipu} {direction}")
    forward_ops = [op.id for op in profile.ops if op.ipu == ipu and op.direction == "forward"]
    for at in range(profile.steps_per_body):
        op = len(profile.ops) - 1 if at % 3 else len(profile.ops)
        if at % 3 == 0:
            layer = f"layer.{at // 3}"
            made_by = (
                forward_ops[at // 3]
                if direction == "backward" and at // 3 < len(forward_ops)
                else -1
            )
            met = sum(known.module == layer for known in profile.ops)
            profile.ops.append(
                Op(
                    op,
                    f"{layer}/{direction}",
                    "aten.addmm.default",
                    direction,
                    ipu,
                    ipu,
                    ipu,
                    layer,
                    "model.py",
                    10 + at,
                    made_by,
                    1000,
                    0,
                    0,
                    "split over all tiles",
                    f"{layer}/Addmm" + (f"/{met}" if met else ""),
                )
            )
        if at % 3 == 0:
            profile.step(ipu, node, op, SYNC, "Internal sync", SYNC_CYCLES)
            cycles = SYNC_CYCLES
        elif at % 3 == 1:
            received = profile.tile_bytes(1 + mean_cycles)
            cycles = int(received.max()) // 4 + 192
            profile.step(
                ipu,
                node,
                op,
                DO_EXCHANGE,
                f"{profile.ops[op].name}/exchange",
                cycles,
                bytes_in=received,
                bytes_out=received[::-1].copy(),
            )
        else:
            tile_cycles = profile.tile_bytes(mean_cycles, 0.9)
            cycles = int(tile_cycles.max())
            computes.append((profile.positions[ipu], op))
            profile.step(
                ipu,
                node,
                op,
                ON_TILE_EXECUTE,
                f"{profile.ops[op].name}/compute",
                cycles,
                tile_cycles=tile_cycles,
            )
        profile.ops[op].cycles += cycles
    return profile.body(f"stage {ipu} {direction}", ipu, ipu, "task", direction, first), computes


def _transfers(profile: _Profile, ipu: int, parent: int, last: int) -> dict[int, int]:
    """Bodies of the streams, syncs, copies and waits of an IPU, by kind of task."""
    transfers = {}
    streams = (
        [(schedule_types.STREAM_IN, f"stage {ipu} inputs from host")] if ipu in (0, last) else []
    )
    outputs = [(schedule_types.STREAM_OUT, f"stage {ipu} outputs to host")] if ipu == last else []
    for task, name in [*streams, *outputs]:
        first = len(profile.steps)
        moved = profile.tile_bytes(64, 0.25)
        for type in (STREAM_COPY_BEGIN, STREAM_COPY_MID, STREAM_COPY_END):
            cycles = 2000 if type == STREAM_COPY_MID else STREAM_CYCLES
            vectors = {"bytes_in" if task == schedule_types.STREAM_IN else "bytes_out": moved}
            profile.step(
                ipu,
                parent,
                -1,
                type,
                f"{name}/{type}",
                cycles,
                Purpose.STREAM_IN if task == schedule_types.STREAM_IN else Purpose.STREAM_OUT,
                **(vectors if type == STREAM_COPY_MID else {}),
            )
        transfers[task] = profile.body(
            name, ipu, ipu, "host I/O", "", first, schedule_types.TASKS[task]
        )
    first = len(profile.steps)
    profile.step(
        ipu, parent, -1, SYNC, "External sync", EXTERNAL_SYNC_CYCLES, Purpose.EXTERNAL_SYNC
    )
    transfers[schedule_types.SYNC] = profile.body(
        "external sync", ipu, -1, "external sync", "", first, BodyTask.SYNC
    )
    first = len(profile.steps)
    profile.step(
        ipu,
        parent,
        -1,
        GLOBAL_EXCHANGE,
        f"copies of IPU {ipu}",
        1500 + 10 * ipu,
        Purpose.COPY,
        bytes_in=profile.tile_bytes(128),
        bytes_out=profile.tile_bytes(128),
    )
    transfers[schedule_types.COPY] = profile.body(
        "copies between IPUs", ipu, -1, "global exchange", "", first, BodyTask.COPY
    )
    transfers[schedule_types.IDLE] = profile.body(
        "idle", ipu, -1, "idle", "", len(profile.steps), BodyTask.IDLE
    )
    return transfers


def _program_memory(profile: _Profile, ipu: int) -> None:
    for category, mean in (
        ("vertexCode", 12_000),
        ("vertexInstanceState", 3_000),
        ("vertexFieldData", 2_500),
        ("internalExchangeCode", 6_000),
        ("globalExchangeCode", 800),
        ("hostExchangeCode", 600),
        ("controlCode", 9_000),
        ("copyDescriptor", 200),
        ("stack", 3_200),
        ("message", 64),
        ("constant", 400),
    ):
        profile.variable(category, ipu, category, "program", mean)


def _model_memory(
    profile: _Profile, ipu: int, depth: int, forward: Computes, backward: Computes
) -> tuple[int, int]:
    """Weights and what belongs to them, stash, activations, gradients.

    (bytes of weights, bytes of the stash).
    """
    always = [
        ("weight", "weight", 20_000),
        ("weight/gradient", "accumulator", 20_000),
        ("weight/exp_avg", "optimiser state", 20_000),
        ("weight/exp_avg_sq", "optimiser state", 20_000),
        ("running_mean", "buffer", 64),
    ]
    if depth:
        always.append((f"stash of {depth}", "stash", 4_000 * depth))
    sizes = {
        role: profile.variable(f"layer.{ipu}.{name}", ipu, "variable", role, mean)
        for name, role, mean in always
    }
    if ipu == 0:
        sizes["input"] = profile.variable("input", ipu, "variable", "input", 512, share=0.5)
        profile.variable("stream buffer", ipu, "variable", "stream buffer", 1_024, share=0.25)
    for i, (at, op) in enumerate(forward):
        until = backward[-1 - i][0] + 1 if i < len(backward) else at + 1
        profile.variable(
            f"layer.{i}:0", ipu, "variable", "activation", 8_000, op=op, life=(at, until)
        )
    for i, (at, op) in enumerate(backward):
        profile.variable(
            f"layer.{i}:0/gradient", ipu, "variable", "gradient", 8_000, op=op, life=(at, at + 1)
        )
    for i, (at, op) in enumerate([*forward, *backward]):
        profile.variable(
            f"{profile.ops[op].name}/partials",
            ipu,
            "variable",
            "temporary",
            24_000 + 1_000 * (i % 7),
            op=op,
            share=0.8,
            life=(at, at + 1),
            interleaved=i % 2 == 0,
        )
    return sizes["weight"], sizes.get("stash", 0)


def tile_memory(report: Report) -> Iterator[TileMemory]:
    """Bytes of a report's variables on each tile, as the engine's writer records them."""
    for ipu in range(report.target.num_ipus):
        frame = report.tiles(ipu)
        names = ("total", "total_excluding_gaps", "always_live", "overflow")
        for tile, values in enumerate(zip(*(frame[name].tolist() for name in names), strict=True)):
            yield TileMemory(ipu, tile, *values)


def synthetic_profile(
    path: Path | str,
    ipus: int = 4,
    tiles: int = 64,
    micro_batches: int = 10,
    iterations: int = 2,
    runs: int = 2,
    steps_per_body: int = 6,
    seed: int = 0,
) -> Path:
    """Write a profile of ``ipus`` stages, one an IPU, Blocks B1, B2 ..., and give its path.

    An execution has about ``runs * iterations * micro_batches * ipus * (2 * steps_per_body + 5)``
    slices: ``micro_batches=1000, iterations=10, steps_per_body=12, runs=1`` makes a million.
    """
    profile = _Profile(tiles, steps_per_body, np.random.default_rng(seed))
    root = profile.program(-1, SEQUENCE, "device iteration")
    loop = profile.program(root, REPEAT, "micro-batches", micro_batches)
    inner = profile.program(loop, SEQUENCE, "pipeline cycle")
    update_node = profile.program(root, SEQUENCE, "weight update")

    bodies: dict[tuple[int, int], int] = {}  # (kind of task, ipu) -> body
    stages, blocks = [], []
    for ipu in range(ipus):
        slow = 2 if ipu == ipus // 2 else 1  # one stage the others wait for
        forward, forward_steps = _computing(profile, ipu, inner, "forward", 1_000 * slow)
        backward, backward_steps = _computing(profile, ipu, inner, "backward", 2_000 * slow)
        update, _ = _computing(profile, ipu, update_node, "update", 500)
        bodies |= {
            (schedule_types.FORWARD, ipu): forward,
            (schedule_types.BACKWARD, ipu): backward,
            (schedule_types.UPDATE, ipu): update,
        }
        bodies |= {
            (task, ipu): body for task, body in _transfers(profile, ipu, inner, ipus - 1).items()
        }
        depth = closed_forms.stash_depth(ipus, ipu)
        weight, stash = _model_memory(profile, ipu, depth, forward_steps, backward_steps)
        _program_memory(profile, ipu)
        f, b, u = (profile.bodies[body].cycles for body in (forward, backward, update))
        copied = 4_096 if ipu < ipus - 1 else 0
        stages.append(Stage(ipu, ipu, f, b, 0, u, depth, stash, weight, copied))
        back = 4_096 if copied else 0
        blocks.append(
            Block(ipu, f"B{ipu + 1}", ipu, ipu, f, b, u, weight, 0 if ipu else 4_096, copied, back)
        )
    for variable in profile.variables:
        if variable.always_live:
            variable.stop = profile.positions[variable.ipu]

    schedule = schedules.pipelined(_costs(profile, bodies, ipus), micro_batches)
    body_of = np.array(
        [bodies[key] for key in zip(schedule.kind.tolist(), schedule.ipu.tolist(), strict=True)]
    )
    trace = Trace(
        0,
        iterations,
        schedule.total,
        schedule.start,
        schedule.end,
        body_of,
        schedule.ipu,
        schedule.micro_batch,
        schedule.cycle,
    )
    cycles_of = [
        PipelineCycle(0, i, phase, int(start), int(end), int(slowest))
        for i, (phase, start, end, slowest) in enumerate(
            zip(
                schedule.phases,
                schedule.cycle_start,
                schedule.cycle_end,
                schedule.slowest_ipu,
                strict=True,
            )
        )
    ]
    length = iterations * schedule.total
    microseconds = round(length / MK2_CLOCK * 1e6)
    called = [
        Run(
            i,
            f"run {i}",
            0,
            i * (length + 10_000),
            1_700_000_000_000_000 + i * (microseconds + 50),
            1_700_000_000_000_000 + i * (microseconds + 50) + microseconds,
        )
        for i in range(runs)
    ]

    target = Target("mk2", "ipu2", ipus, 1, ipus, tiles, MK2_BYTES, MK2_REGION0, MK2_CLOCK, 6)
    options = [
        Option("Training.gradientAccumulation", json.dumps(micro_batches)),
        Option("deviceIterations", json.dumps(iterations)),
        Option("executionStrategy", json.dumps("pipelined")),
    ]
    kinds = [
        VertexType(0, "poplin::ConvPartial1x1Out<float,float>", 500, 16),
        VertexType(1, "popops::Fill<float>", 120, 8),
    ]
    with ProfileWriter(path, writer="tests.synthetic") as writer:
        writer.meta(kind="training", model="Synthetic", micro_batch=40)
        writer.add(
            [target, *options, *stages, *blocks, *profile.ops, *profile.programs, *profile.steps]
        )
        uses = [Use(variable.op, variable.id) for variable in profile.variables if variable.op >= 0]
        writer.add(
            [
                *profile.compute_sets,
                *kinds,
                *profile.uses,
                *profile.variables,
                *uses,
                *profile.bodies,
            ]
        )
        with open_report(writer.publish()) as report:
            writer.add(tile_memory(report))
        writer.add([trace, *cycles_of])
        for run in called:
            writer.meta(state="executed")
            writer.add([run])
        return writer.publish()


def _costs(
    profile: _Profile, bodies: dict[tuple[int, int], int], ipus: int
) -> schedule_types.Costs:
    def cost(task: int, ipu: int) -> int:
        return profile.bodies[bodies[task, ipu]].cycles

    every = range(ipus)
    return schedule_types.Costs(
        tuple(every),
        tuple(cost(schedule_types.FORWARD, i) for i in every),
        tuple(cost(schedule_types.BACKWARD, i) for i in every),
        update=tuple(cost(schedule_types.UPDATE, i) for i in every),
        stream_in=tuple((i, cost(schedule_types.STREAM_IN, i)) for i in sorted({0, ipus - 1})),
        stream_out=((ipus - 1, cost(schedule_types.STREAM_OUT, ipus - 1)),),
        copies=tuple(cost(schedule_types.COPY, i) for i in every),
        sync=EXTERNAL_SYNC_CYCLES,
    )
