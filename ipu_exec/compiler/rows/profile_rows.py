"""The rows of an executable's profile, in order, without the header (`profile_header`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ipu_exec.compiler.emission.bodies import Body, ProgramStep
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.memory import overflow
from ipu_exec.compiler.rows.block_rows import block_rows, is_copy_of_weight, update_blocks
from ipu_exec.lowering import popart_name, vertex_info
from ipu_exec.lowering.vertices import STATE_BYTES
from ipuscope.profiler.enums import Direction, PipelinePhase, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import closed_forms, schedule_types
from ipuscope.profiler.unique_names import popart_names


def rows(executable: Executable) -> Iterator[list[Any]]:
    """All rows of the profile but its runs, in batches in the order in which they are written."""
    timeline = executable.timeline
    yield [target_row(executable), *option_rows(executable)]
    yield [*stage_rows(executable), *block_rows(executable), *op_rows(executable)]
    yield program_rows(executable)
    yield [*executable.variables, *executable.memory.uses]
    yield list(overflow.tile_rows(executable.tile_bytes, executable.target))
    yield [*timeline.bodies, timeline.trace, *timeline.pipeline_cycles]


def target_row(executable: Executable) -> records.Target:
    """The machine, with all replicas; of the IPUs that share a stage's tensors one."""
    device, replicas = executable.target, executable.options.replicas
    ipus = executable.attached_ipus // executable.options.shards
    return records.Target(
        name=device.name,
        architecture=device.architecture,
        num_ipus=ipus * replicas,
        num_replicas=replicas,
        ipus_per_replica=ipus,
        tiles_per_ipu=device.tiles,
        bytes_per_tile=device.bytes_per_tile,
        region0_bytes=device.region0_bytes,
        clock_hz=device.clock_hz,
        workers_per_tile=device.workers,
    )


def option_rows(executable: Executable) -> list[records.Option]:
    """The user's options, sorted by name."""
    settings = sorted(executable.settings.items())
    return [records.Option(name, json.dumps(value)) for name, value in settings]


def stage_rows(executable: Executable) -> list[records.Stage]:
    """Cycles and bytes of each forward stage."""
    graph, placement, tree = executable.graph, executable.placement, executable.tree
    stages = len(placement.stages)
    stashes = placement.pipelined and not placement.phases and executable.options.training
    updates: dict[int, int] = {}
    for op, stage in zip(graph.ops, placement.op_stage, strict=True):
        if op.direction == Direction.UPDATE:
            updates[stage] = updates.get(stage, 0) + tree.op_cycles.get(op.id, 0)

    cuts = placement.cut_bytes(graph, Direction.FORWARD)
    total: Counter[tuple[int, str]] = Counter()
    for variable in executable.variables:
        if not is_copy_of_weight(placement, variable):
            total[variable.stage, variable.role] += variable.bytes

    def row(stage: int, ipu: int) -> records.Stage:
        again = tree.cycles(schedule_types.RECOMPUTE, stage)
        return records.Stage(
            id=stage,
            ipu=ipu,
            forward_cycles=tree.cycles(schedule_types.FORWARD, stage),
            backward_cycles=again + tree.cycles(schedule_types.BACKWARD, stage),
            recompute_cycles=again,
            update_cycles=updates.get(stage, 0),
            stash_depth=closed_forms.stash_depth(stages, stage) if stashes else 0,
            stash_bytes=total[stage, Role.STASH],
            weight_bytes=total[stage, Role.WEIGHT],
            copy_bytes=cuts[stage],
        )

    return [row(stage, place.ipu) for stage, place in enumerate(placement.stages)]


def op_rows(executable: Executable) -> Iterator[records.Op]:
    """One a captured operator, views among them."""
    placement, tree = executable.placement, executable.tree
    blocks = update_blocks(executable.graph)
    ops = executable.graph.ops
    kinds = {aten: popart_name(aten) for aten in {op.aten for op in ops}}
    names = popart_names([op.name for op in ops], [kinds[op.aten] for op in ops])
    attributes = {id(op.attributes): op.attributes for op in ops}  # of most operators the same
    asked = {key: str(one) for key, one in attributes.items()}
    for op, stage, name in zip(ops, placement.op_stage, names, strict=True):
        plan = tree.op_plans.get(op.id)
        notes = (plan.note if plan else "", asked[id(op.attributes)])
        yield records.Op(
            op.id,
            op.name,
            op.aten,
            op.direction,
            blocks.get(op.id, op.block),
            stage,
            placement.ipus[stage],
            op.module,
            op.file,
            op.line,
            op.forward_op,
            plan.flops if plan else 0,
            tree.op_cycles.get(op.id, 0),
            int(plan.estimated) if plan else 0,
            "; ".join(words for words in notes if words),
            name,
        )


# -- program rows ---
# The profile's rows of the program: its tree, the steps at the leaves, compute sets, vertices.


def program_rows(executable: Executable) -> list[Any]:
    """The program tree, its leaves' steps, and the compute sets with their vertices."""
    return _Rows(executable).rows()


class _Rows:
    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.nodes = _Nodes()
        self.steps: list[Any] = []
        self.vertex_types: dict[str, int] = {}
        self.compute_sets: dict[int, int] = {}  # by the first step that runs their code
        self.positions = dict.fromkeys(range(executable.placement.num_ipus), 0)

    def rows(self) -> list[Any]:
        executable, nodes = self.executable, self.nodes
        timeline = executable.timeline
        root = nodes.add(-1, records.SEQUENCE, "main")
        iteration = nodes.add(root, records.REPEAT, "device iterations", timeline.trace.iterations)
        cycles = sum(phase != PipelinePhase.UPDATE for phase in timeline.schedule.phases)
        name = "pipeline cycles" if executable.placement.pipelined else "micro-batches"
        loop = nodes.add(iteration, records.REPEAT, name, cycles)
        update = -1
        if executable.options.training:
            update = nodes.add(iteration, records.SEQUENCE, "weight update")
        for index, body in enumerate(executable.tree.bodies):
            once = body.task in (schedule_types.UPDATE, schedule_types.REDUCE)
            self._body(index, body, update if once else loop)
        types = [
            records.VertexType(kind, name, vertex_info(name)[0], STATE_BYTES)
            for name, kind in self.vertex_types.items()
        ]
        return [*nodes.rows, *self.steps, *types]

    def _body(self, index: int, body: Body, parent: int) -> None:
        """A sequence for the body, in it one for each operator, with Repeats for their loops."""
        node = self.nodes.add(parent, records.SEQUENCE, body.name)
        group, group_op = node, -1
        loops = {loop.first: loop for loop in body.loops}
        turn, end_of_turn = -1, -1
        ids, ops = self.executable.tree.step_ids[index], self.executable.graph.ops
        storages, first = self.executable.graph.storages, self.executable.memory.code.first
        for position, (step, step_id) in enumerate(zip(body.steps, ids, strict=True)):
            if step.op != group_op:
                group_op = step.op
                group = node
                if group_op >= 0:
                    group = self.nodes.add(node, records.SEQUENCE, ops[group_op].name)
            if position in loops:
                loop = loops[position]
                turn = self.nodes.add(group, records.REPEAT, "serial steps", loop.times)
                end_of_turn = loop.stop
            leaf = self.nodes.add(turn if position < end_of_turn else group, step.type, step.name)
            code = first.get(step_id, step_id)
            compute_set = self._compute_set(step, code, body.ipu)
            self.steps.append(
                records.Step(
                    step_id,
                    body.ipu,
                    self.positions[body.ipu],
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
                    code,
                )
            )
            self.positions[body.ipu] += 1
            for move in step.moves:
                name = storages[move.storage].name
                self.steps.append(
                    records.MovedTensor(
                        step_id, move.storage, name, move.source, move.target, move.bytes
                    )
                )

    def _compute_set(self, step: ProgramStep, code: int, ipu: int) -> int:
        """The id of the step's compute set, -1 if none; one for steps of the same ``code``."""
        if step.type != records.ON_TILE_EXECUTE:
            return -1
        if code in self.compute_sets:
            return self.compute_sets[code]
        number = self.compute_sets[code] = len(self.compute_sets)
        self.steps.append(records.ComputeSet(number, step.name, ipu, step.op, step.flops))
        for vertices in step.vertices:
            kind = self.vertex_types.setdefault(vertices.type, len(self.vertex_types))
            self.steps.append(records.VertexUse(number, kind, vertices.count))
        return number


class _Nodes:
    """Program nodes in the making: ids in order of creation, positions among siblings."""

    def __init__(self) -> None:
        self.rows: list[records.Program] = []
        self._children: dict[int, int] = {}

    def add(self, parent: int, kind: str, name: str, repeat: int = 1) -> int:
        position = self._children.get(parent, 0)
        self._children[parent] = position + 1
        self.rows.append(records.Program(len(self.rows), parent, position, kind, name, repeat))
        return len(self.rows) - 1
