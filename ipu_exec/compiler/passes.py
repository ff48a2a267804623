"""The compiler: its passes in order, from the user's model to an Executable."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ipu_exec import machine
from ipu_exec.annotations import PhasedExecution
from ipu_exec.capture import overlap, patterns
from ipu_exec.capture.casts import casting
from ipu_exec.capture.loss import find_final_loss, frozen
from ipu_exec.capture.step import capture
from ipu_exec.compiler import emit as program
from ipu_exec.compiler import memory, placement, schedule
from ipu_exec.compiler.bodies import ProgramOptions, ProgramTree
from ipu_exec.compiler.locations import Location, Locations
from ipu_exec.compiler.phases import PhaseOptions
from ipu_exec.compiler.placement import StagePlace
from ipu_exec.compiler.recompute import Recomputation, asked_for, by_block
from ipu_exec.enums import OutputMode
from ipu_exec.errors import Error, OutOfMemoryError, warn_once
from ipu_exec.graph import Graph
from ipu_exec.lowering import info, registry, vertex_info
from ipu_exec.lowering.vertices import FIELD_BYTES, STATE_BYTES
from ipu_exec.machine import HOST_LATENCY_SECONDS, Machine, Target, target
from ipu_exec.options import (
    BUFFERING_DEPTHS,
    Options,
    TensorLocationOptions,
    TensorLocationSettings,
)
from ipu_exec.replica_groups import Groupings
from ipu_exec.session import executable_file as executables
from profiler import records, schedules
from profiler.enums import Direction, Role

Progress = Callable[[float, str], None]
logger = logging.getLogger("ipu_exec")
_ONCE = (OutputMode.Final, OutputMode.Sum)
# Options that say nothing of what is compiled.
_NOT_COMPILED = (
    "executableCache",
    "compilationProgressBar",
    "logDir",
    "logCycleCount",
    "modelName",
    "maxRepeatLogs",
    "profilingEnabled",
    "profilingDirectory",
    "anchoredTensors",
    "randomSeed",
)
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # buffers of a batch norm
_DIRECTION = {
    schedules.FORWARD: Direction.FORWARD,
    schedules.RECOMPUTE: Direction.BACKWARD,
    schedules.BACKWARD: Direction.BACKWARD,
}


def compile_step(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Options,
    optimizer: torch.optim.Optimizer | None,
    training: bool,
    progress: Progress = lambda done, what: None,
    contents: Sequence[bool | int | float] = (),
    groupings: Groupings = MappingProxyType({}),
) -> Executable:
    """Compile one micro-batch of ``model``: ``args`` and ``kwargs`` are a micro-batch's,
    ``contents`` what its forward reads off tensors (`ipu_exec.capture.control_flow`).
    ``groupings``: weights that differ between replicas.

    Raises Error for a placement that cannot be, LoweringError for an operator without lowering.
    Running out of memory is not raised here: `Executable.check_memory` does, once the profile was
    saved.
    """
    micro_batches = (
        int(options.Training.gradient_accumulation) if training else int(options.device_iterations)
    )
    progress(0.0, "capture")
    graph = capture(
        model,
        args,
        kwargs,
        optimizer=optimizer if training else None,
        accumulate=training and micro_batches > 1,
        find_loss=partial(find_final_loss, frozen=frozen(model)),
        contents=contents,
        casting=casting(
            options.Precision.half_float_casting,
            options.Precision.running_statistics_always_float,
            promotes=True,
        ),
    )
    patterns.rewrite(graph, getattr(options._Popart, "patterns", None) or {})
    leaves = [
        leaf
        for leaf in torch.utils._pytree.tree_leaves((args, kwargs))
        if isinstance(leaf, torch.Tensor)
    ]
    micro_batch = int(leaves[0].shape[0]) if leaves and leaves[0].dim() else 1
    compiling = _cached if options.executable_cache else _compile_graph
    made = compiling(graph, options, training, micro_batch, groupings, progress)
    return replace(made, contents=tuple(contents))


def _cached(
    graph: Graph,
    options: Options,
    training: bool,
    micro_batch: int,
    groupings: Groupings,
    progress: Progress,
) -> Executable:
    """The executable from the cache, or compiled and put there. A cache that does not work costs a
    warning.
    """
    settings = {name: value for name, value in options.flat().items() if name not in _NOT_COMPILED}
    settings["groupings"] = repr(sorted(groupings.items()))
    key = executables.key(graph, settings, training, micro_batch, registry.by_users())
    path = Path(options.executable_cache) / f"{key}{executables.SUFFIX}"
    if path.exists():
        progress(0.3, "from the cache")
        try:
            found: Executable = replace(executables.read(path).executable, options=options)
        except Error as error:
            logger.warning("the cached executable is not taken: %s", error)
        else:
            logger.info("taken from the cache: %s", path)
            return found
    made = _compile_graph(graph, options, training, micro_batch, groupings, progress)
    try:
        executables.write(path, executables.Stored({"training": training}, made, {}, {}, None))
    except Error as error:
        logger.warning("nothing is kept in the cache: %s", error)
    return made


def _compile_graph(
    graph: Graph,
    options: Options,
    training: bool,
    micro_batch: int,
    groupings: Groupings,
    progress: Progress,
) -> Executable:
    """Every pass after the capture."""
    micro_batches = (
        int(options.Training.gradient_accumulation) if training else int(options.device_iterations)
    )
    iterations = int(options.device_iterations) if training else 1
    replicas = int(options.replication_factor)
    strategy = options.execution_strategy
    mode = options.output_mode
    if mode is OutputMode.Default:
        mode = OutputMode.Final if training else OutputMode.All

    overlap.check(
        graph,
        pipelined=strategy.kind == "pipelined",
        explicit_ir=bool(options._Popart.settings.get("enableExplicitIR")),
        io_tiles=options.TensorLocations.num_io_tiles,
        mode=mode,
    )
    across = overlap.across(graph, iterations)

    progress(0.3, "placement")
    _check_buffers(graph, options)
    placement.check_blocks(graph, strategy)
    stages = placement.resolve_stages(strategy, graph.blocks, placement.begins_outside(graph))
    placed = placement.place(
        graph, stages, pipelined=strategy.kind == "pipelined" and len(stages) > 1
    )
    locations = options.TensorLocations
    places = _locations(locations, replicas, isinstance(strategy, PhasedExecution))
    phases = PhaseOptions()
    if isinstance(strategy, PhasedExecution):
        placed.phases = strategy.phase_of_stages()
        placement.check_phases(graph, placed)
        phases = PhaseOptions(strategy.liveness, strategy.separate_backward_phase, places)
    elif placed.pipelined and training and locations.location_activation.off_chip:
        warn_once(
            "TensorLocations.setActivationLocation: useOnChipStorage(False) is not honoured in a"
            " pipeline: its stash stays on the chip. ShardedExecution and phased execution"
            " honour it"
        )
    attached = placement.round_ipus(placed.num_ipus, bool(options.auto_round_num_ipus))
    if placed.pipelined:
        name = "Training.gradientAccumulation" if training else "deviceIterations"
        placement.check_depth(len(stages), micro_batches, training, name)

    _log_placement(graph, placed)

    progress(0.4, "lowering")
    device = target(options.target_name)
    machines = [_machine(device, options, ipu) for ipu in range(placed.num_ipus)]
    wanted = ProgramOptions(
        replicas,
        mode in _ONCE,
        places,
        recompute=asked_for(getattr(options._Popart, "autoRecomputation", None), placed.pipelined),
        estimate=bool(options.estimate_unknown_operators),
        phases=phases,
        host_io=not options.synthetic_data,
        host_latency=0 if _buffering(options) > 1 else HOST_LATENCY_SECONDS,
        across=across,
        groupings=groupings,
    )
    tree = program.build(graph, placed, machines, wanted)

    progress(0.8, "memory")
    variables, uses, code = memory.variables(graph, placed, tree, machines)

    progress(0.9, "schedule")
    step_ids = _number_steps(tree)
    timeline = schedule.timeline(
        placed,
        tree,
        step_ids,
        training=training,
        micro_batches=micro_batches,
        iterations=iterations,
        stream_out_once=mode in _ONCE,
        parallel_phases=isinstance(strategy, PhasedExecution) and strategy.parallel,
        across=across,
        pattern=options.sync_pattern,
    )
    progress(1.0, "done")
    return Executable(
        graph,
        placed,
        tree,
        variables,
        uses,
        timeline,
        device,
        options,
        training,
        micro_batch,
        attached,
        step_ids,
        code,
    )


def _log_placement(graph: Graph, placed: placement.Placement) -> None:
    """Say in the debug log where each operator runs, as PopTorch does: PopART's names, a number
    after the first.
    """
    if not logger.isEnabledFor(logging.DEBUG):
        return
    logger.debug("enablePipelining set to value %d", placed.pipelined)
    met: Counter[str] = Counter()
    for op, stage in zip(graph.ops, placed.op_stage, strict=True):
        if op.direction == Direction.FORWARD and op.outputs and op.outputs[0] is not None:
            short = op.aten.split(".")[1].strip("_")
            kind = info(op.aten).popart_name or "".join(
                part.capitalize() for part in short.split("_")
            )
            name = f"{op.module}/{kind}:0" if op.module else f"{kind}:0"
            again = f"/{met[name]}" if met[name] else ""
            met[name] += 1
            value = graph.values[op.outputs[0]]
            shape = ", ".join(map(str, value.shape))
            where = f"phase({placed.phases[stage]})" if placed.phases else f"stage({stage})"
            mode = "Phased" if placed.phases else "Pipelined"
            logger.debug(
                "%s%s [%s(%s), mode(%s), ipu(%d), %s]",
                f" {name}",
                again,
                value.dtype,
                shape,
                mode,
                placed.stages[stage].ipu,
                where,
            )


def _check_buffers(graph: Graph, options: Options) -> None:
    """Error where replicas would have to agree on a buffer that the model writes, as PopTorch has
    it.

    Running statistics of a batch norm are each replica's own there too.
    """
    if int(options.replication_factor) == 1 or not options.broadcast_buffers:
        return
    for op in graph.ops:
        for value in op.writes if op.direction == Direction.FORWARD else ():
            storage = graph.storages[graph.values[value].storage]
            if storage.role == Role.BUFFER and not storage.name.endswith(_STATISTICS):
                raise Error(
                    "PopTorch does not support broadcasting buffers. If your model is able to"
                    " tolerate buffers becoming out of sync between replicas, you can disable"
                    " buffer broadcasting using poptorch.Options.broadcastBuffers(False). The"
                    f" buffer is {storage.name!r}, and {op.name} writes it",
                    location=f"{op.file}:{op.line}" if op.file else "",
                )


def _machine(device: Target, options: Options, ipu: int) -> Machine:
    proportion = options.available_memory_proportion.get(ipu, 0.6)
    return Machine(
        device,
        device.tiles - options.TensorLocations.num_io_tiles,
        proportion,
        options.Precision.partials_type,
        dithering=bool(options.Training.convolution_dithering),
        stable_norm=bool(options.stable_norm),
    )


def _locations(options: TensorLocationOptions, replicas: int, phased: bool) -> Locations:
    """In phased execution tensors wait off the chip unless their location says otherwise."""

    def location(settings: TensorLocationSettings) -> Location:
        off_chip, usual = settings.on_chip_storage, Location()
        least = (
            settings.min_elements_for_off_chip,
            settings.min_elements_for_replicated_tensor_sharding,
        )
        return Location(
            phased if off_chip is None else not off_chip,
            settings.replicated_tensor_sharding is True,
            usual.least_off_chip if least[0] is None else least[0],
            usual.least_sharded if least[1] is None else least[1],
        )

    return Locations(
        location(options.location_weight),
        location(options.location_optimizer),
        location(options.location_accumulator),
        location(options.location_activation),
        replicas,
    )


def _buffering(options: Options) -> int:
    """How many micro-batches the host has ready for a stream, or room for: from two on nobody waits
    for the host to turn up, only for the bytes (PopTorch's guide, 'Prefetch and multibuffering':
    begin and end of a copy vanish there; that this is all of the latency is an estimate). The
    buffers are the host's.
    """
    settings = options._Popart.settings
    if not settings.get("enablePrefetchDatastreams", True):
        return 1
    return max(int(settings.get(name, 1)) for name in BUFFERING_DEPTHS)


def _number_steps(tree: ProgramTree) -> list[list[int]]:
    """Step ids body by body, counted over the whole program."""
    numbered, at = [], 0
    for body in tree.bodies:
        numbered.append(list(range(at, at + len(body.steps))))
        at += len(body.steps)
    return numbered


@dataclass
class Executable:
    """A compiled model: where everything runs, what it costs, and the rows of its profile."""

    graph: Graph
    placement: placement.Placement
    tree: ProgramTree
    variables: list[records.Variable]
    uses: list[records.Use]
    timeline: schedule.Timeline
    target: Target
    options: Options
    training: bool
    micro_batch: int
    attached_ipus: int  # of one replica, a power of two
    step_ids: list[list[int]]
    code: memory.Code
    contents: tuple[
        bool | int | float, ...
    ] = ()  # what the forward read off tensors (`ipu_exec.capture.control_flow`)

    @property
    def cycles_per_call(self) -> int:
        """Cycles of one call of the executor: all its device iterations, and what is waited for
        around them.
        """
        schedule, trace = self.timeline.schedule, self.timeline.trace
        return schedule.head + trace.iterations * trace.iteration_cycles + schedule.tail

    @cached_property
    def _tile_bytes(self) -> list[memory.TileBytes]:
        return memory.tile_bytes(self.variables, self.target)

    @cached_property
    def overflow(self) -> memory.Overflow | None:
        """The worst tile over its limit, if any."""
        return memory.find_overflow(self._tile_bytes, self.tree, self.target)

    def check_memory(self, profile_path: str = "") -> None:
        """Raise OutOfMemoryError where a tile holds more than it has. ``profile_path``: where the
        profile lies.
        """
        over = self.overflow
        if over is None:
            return
        largest = "; ".join(f"{name} {size:,} B" for name, size in over.largest)
        shared = int(self.options.replication_factor) > 1
        where = (
            f"the profile is {profile_path}"
            if profile_path
            else "no profile was asked for (autoreport=True)"
        )
        raise OutOfMemoryError(
            f"out of memory on IPU {over.ipu}, tile {over.tile}, at step {over.position}"
            f" ({over.step}): {over.bytes_over:,} bytes over the {over.limit:,} of {over.what}. The"
            f" five largest things there: {largest}. {where[0].upper()}{where[1:]}. Give the stage"
            " fewer Blocks, lower the micro-batch size or setAvailableMemoryProportion, or keep"
            f" optimiser state off the chip{' or in parts on replicas' * shared}",
            profile_path=profile_path,
        )

    def header(self) -> dict[str, Any]:
        """What the profile's header says of it: entries of its table ``meta``."""
        phased = "phased" if self.placement.phases else ""
        return {
            "kind": "training" if self.training else "inference",
            "micro_batch": self.micro_batch,
            "strategy": phased or ("pipelined" if self.placement.pipelined else "sharded"),
            **machine.header(self.target),
            "host_latency": (
                0
                if _buffering(self.options) > 1
                else round(HOST_LATENCY_SECONDS * self.target.clock_hz)
            ),
            "across": self.timeline.costs.across,
            **(
                {"recomputation": self._recomputation()}
                if self.training and self.graph.blocks
                else {}
            ),
            **(
                {"code": self.code.by_block(len(self.graph.blocks), self._update_block)}
                if self.graph.blocks
                else {}
            ),
        }

    def _recomputation(self) -> dict[str, list[Any]]:
        """What recomputation costs each Block: as it was compiled, or else as a pipeline of them
        would have it.
        """
        setting = getattr(self.options._Popart, "autoRecomputation", None)
        kind = asked_for(setting, self.placement.pipelined) or Recomputation.PIPELINE
        ops = [op for op in self.graph.ops if not self.graph.only_aliases(op)]
        forward, backward = (
            [op for op in ops if op.direction == way]
            for way in (Direction.FORWARD, Direction.BACKWARD)
        )
        return by_block(self.graph, forward, backward, kind, self.tree.op_cycles)

    # -- rows of the profile ---

    def rows(self) -> Iterator[list[Any]]:
        """The rows of the profile but for its runs, in a few batches to be written one after the
        other.
        """
        yield [self._target_row(), *self._option_rows()]
        yield [*self._stage_rows(), *self._block_rows(), *self._op_rows()]
        yield self._program_rows()
        yield [*self.variables, *self.uses]
        yield list(memory.tile_rows(self._tile_bytes, self.target))
        yield [*self.timeline.bodies, self.timeline.trace, *self.timeline.pipeline_cycles]

    def _target_row(self) -> records.Target:
        device, replicas = self.target, int(self.options.replication_factor)
        return records.Target(
            device.name,
            device.architecture,
            self.attached_ipus * replicas,
            replicas,
            self.attached_ipus,
            device.tiles,
            device.bytes_per_tile,
            device.region0_bytes,
            device.clock_hz,
            device.workers,
        )

    def _option_rows(self) -> list[records.Option]:
        return [
            records.Option(name, json.dumps(value))
            for name, value in sorted(self.options.flat().items())
        ]

    def _sum(self, stage: int, role: str) -> int:
        return sum(v.bytes for v in self.variables if v.stage == stage and v.role == role)

    def _stage_rows(self) -> list[records.Stage]:
        stages = len(self.placement.stages)
        updates: dict[int, int] = {}
        for op, stage in zip(self.graph.ops, self.placement.op_stage, strict=True):
            if op.direction == Direction.UPDATE:
                updates[stage] = updates.get(stage, 0) + self.tree.op_cycles.get(op.id, 0)
        stashes = self.placement.pipelined and self.training
        return [
            records.Stage(
                stage,
                place.ipu,
                self.tree.cycles(schedules.FORWARD, stage),
                self.tree.cycles(schedules.RECOMPUTE, stage)
                + self.tree.cycles(schedules.BACKWARD, stage),
                self.tree.cycles(schedules.RECOMPUTE, stage),
                updates.get(stage, 0),
                schedules.stash_depth(stages, stage) if stashes else 0,
                self._sum(stage, "stash"),
                self._sum(stage, "weight"),
                self.placement.cut_bytes(self.graph, stage, Direction.FORWARD),
            )
            for stage, place in enumerate(self.placement.stages)
        ]

    def _block_rows(self) -> list[records.Block]:
        stage_of = {
            name: k for k, stage in enumerate(self.placement.stages) for name in stage.blocks
        }
        spent: dict[tuple[int, str], int] = {}
        for body in self.tree.bodies:
            for step in body.steps:
                if step.op >= 0:
                    op = self.graph.ops[step.op]
                    direction = _DIRECTION.get(body.task, Direction.UPDATE)
                    block = op.block if direction != Direction.UPDATE else self._update_block(op.id)
                    if (
                        body.stage >= 0
                        and block >= 0
                        and stage_of[self.graph.blocks[block].name] != body.stage
                    ):
                        continue  # another stage stashes what the Block made
                    spent[block, direction] = spent.get((block, direction), 0) + step.cycles
        weights: dict[int, int] = {}
        for variable in self.variables:
            if variable.role == Role.WEIGHT:
                weights[variable.block] = weights.get(variable.block, 0) + variable.bytes
        # What would cross each cut: placed as if every Block were a stage.
        alone = placement.place(
            self.graph, [StagePlace(0, (block.name,)) for block in self.graph.blocks], False
        )
        inputs = self._input_bytes()
        return [
            records.Block(
                block.id,
                block.name,
                stage_of[block.name],
                self.placement.ipus[stage_of[block.name]],
                spent.get((block.id, "forward"), 0),
                spent.get((block.id, "backward"), 0),
                spent.get((block.id, "update"), 0),
                weights.get(block.id, 0),
                inputs.get(block.id, 0),
                alone.cut_bytes(self.graph, block.id, Direction.FORWARD),
                alone.cut_bytes(self.graph, block.id, Direction.BACKWARD),
            )
            for block in self.graph.blocks
        ]

    def _input_bytes(self) -> dict[int, int]:
        """Block -> bytes of the model's inputs that it is the first to read."""
        found: dict[int, int] = {}
        seen: set[int] = set()
        for op in self.graph.ops:
            for value in op.inputs:
                storage = self.graph.values[value].storage
                if self.graph.storages[storage].role == Role.INPUT and storage not in seen:
                    seen.add(storage)
                    found[op.block] = found.get(op.block, 0) + placement.storage_bytes(
                        self.graph, storage
                    )
        return found

    @cached_property
    def _weight_blocks(self) -> dict[int, int]:
        """Weight storage -> block of its first use."""
        found: dict[int, int] = {}
        for op in self.graph.ops:
            if op.direction == Direction.FORWARD:
                for value in op.inputs:
                    storage = self.graph.values[value].storage
                    if self.graph.storages[storage].role == Role.WEIGHT:
                        found.setdefault(storage, op.block)
        return found

    @cached_property
    def _update_blocks(self) -> dict[int, int]:
        """Update op -> block of the weight it belongs to."""
        found: dict[int, int] = {}
        made: dict[int, int] = {}
        for op in self.graph.ops:
            if op.direction != Direction.UPDATE:
                continue
            block = -1
            for value in op.inputs:
                storage = self.graph.storages[self.graph.values[value].storage]
                owner = storage.parameter if storage.parameter >= 0 else storage.id
                block = self._weight_blocks.get(owner, made.get(storage.id, -1))
                if block >= 0:
                    break
            found[op.id] = block
            for output in op.outputs:
                if output is not None:
                    made.setdefault(self.graph.values[output].storage, block)
        return found

    def _update_block(self, op: int) -> int:
        return self._update_blocks.get(op, self.graph.ops[op].block)

    def _op_rows(self) -> Iterator[records.Op]:
        for op, stage in zip(self.graph.ops, self.placement.op_stage, strict=True):
            plan = self.tree.op_plans.get(op.id)
            yield records.Op(
                op.id,
                op.name,
                op.aten,
                op.direction,
                self._update_block(op.id),
                stage,
                self.placement.ipus[stage],
                op.module,
                op.file,
                op.line,
                op.forward_op,
                plan.flops if plan else 0,
                self.tree.op_cycles.get(op.id, 0),
                int(plan.estimated) if plan else 0,
                "; ".join(words for words in (plan.note if plan else "", str(op.asked)) if words),
            )

    def _program_rows(self) -> list[Any]:
        """The program tree, its leaves' steps, and the compute sets with their vertices."""
        rows: list[Any] = []
        tree = _Tree()
        root = tree.add(-1, records.SEQUENCE, "main")
        iteration = tree.add(
            root, records.REPEAT, "device iterations", self.timeline.trace.iterations
        )
        cycles = sum(phase != "update" for phase in self.timeline.schedule.phases)
        name = "pipeline cycles" if self.placement.pipelined else "micro-batches"
        loop = tree.add(iteration, records.REPEAT, name, cycles)
        update = tree.add(iteration, records.SEQUENCE, "weight update") if self.training else -1
        types: dict[str, int] = {}
        compute_sets = 0
        position = dict.fromkeys(range(self.placement.num_ipus), 0)
        for index, body in enumerate(self.tree.bodies):
            once = body.task in (schedules.UPDATE, schedules.REDUCE)
            node = tree.add(update if once else loop, records.SEQUENCE, body.name)
            group, of = node, -1
            for step, step_id in zip(body.steps, self.step_ids[index], strict=True):
                if step.op != of:
                    of = step.op
                    group = (
                        tree.add(node, records.SEQUENCE, self.graph.ops[of].name)
                        if of >= 0
                        else node
                    )
                leaf = tree.add(group, step.type, step.name)
                compute_set = -1
                if step.type == records.ON_TILE_EXECUTE:
                    compute_set, compute_sets = compute_sets, compute_sets + 1
                    rows.append(
                        records.ComputeSet(compute_set, step.name, body.ipu, step.op, step.flops)
                    )
                    for vertices in step.vertices:
                        kind = types.setdefault(vertices.type, len(types))
                        rows.append(records.VertexUse(compute_set, kind, vertices.count))
                rows.append(
                    records.Step(
                        step_id,
                        body.ipu,
                        position[body.ipu],
                        leaf,
                        index,
                        step.op,
                        step.type,
                        step.name,
                        step.cycles,
                        compute_set,
                        step.tile_cycles,
                        step.bytes_in,
                        step.bytes_out,
                        step.purpose,
                        step.tensor,
                    )
                )
                position[body.ipu] += 1
        rows += [
            records.VertexType(kind, name, vertex_info(name)[0], STATE_BYTES + FIELD_BYTES)
            for name, kind in types.items()
        ]
        return [*tree.rows, *rows]


class _Tree:
    """Program nodes in the making: ids in order of creation, positions among siblings."""

    def __init__(self) -> None:
        self.rows: list[records.Program] = []
        self._children: dict[int, int] = {}

    def add(self, parent: int, kind: str, name: str, repeat: int = 1) -> int:
        position = self._children.get(parent, 0)
        self._children[parent] = position + 1
        self.rows.append(records.Program(len(self.rows), parent, position, kind, name, repeat))
        return len(self.rows) - 1
