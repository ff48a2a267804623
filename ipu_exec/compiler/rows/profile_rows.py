"""The rows of an executable's profile, in order, without the header (`profile_header`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import repeat
from operator import attrgetter
from typing import Any

from ipu_exec.compiler.emission.bodies import Body, ProgramStep
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.memory import overflow
from ipu_exec.compiler.rows.block_rows import block_rows, is_weight_at_home, update_blocks
from ipu_exec.lowering import popart_name, vertex_info
from ipu_exec.lowering.vertices import STATE_BYTES
from ipuscope.profiler.enums import Direction, PipelinePhase, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import closed_forms, schedule_types
from ipuscope.profiler.unique_names import popart_names


def rows(executable: Executable) -> Iterator[list[Any]]:
    """All rows of the profile but its runs, in batches in the order in which they are written."""
    timeline = executable.timeline
    settings = sorted(executable.settings.items())
    yield [
        target_row(executable),
        *(records.Option(name, json.dumps(value)) for name, value in settings),
    ]
    yield [*stage_rows(executable), *block_rows(executable), *op_rows(executable)]
    yield _ProgramRows(executable).rows()
    yield [*executable.variables, records.Rows(records.Use, executable.memory.uses)]
    yield [overflow.tile_rows(executable.tile_bytes, executable.target)]
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
        if variable.role == Role.STASH or is_weight_at_home(placement, variable):
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


_SAME = [name for name in records.Step.__slots__ if name in ProgramStep.__slots__]


class _ProgramRows:
    """The program tree, its leaves' steps, and the compute sets with their vertices."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.nodes = _Nodes()
        self.steps: dict[str, list[Any]] = {name: [] for name in records.Step.__slots__}
        self.others: list[Any] = []
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
        return [nodes.rows(), records.Rows(records.Step, self.steps), *self.others, *types]

    def _body(self, index: int, body: Body, parent: int) -> None:
        ids, first = self.executable.tree.step_ids[index], self.executable.memory.code.first
        codes, count, position = list(map(first.get, ids, ids)), len(ids), self.positions[body.ipu]
        self.positions[body.ipu] += count
        columns = {name: map(attrgetter(name), body.steps) for name in _SAME} | {
            "id": ids,
            "ipu": repeat(body.ipu, count),
            "position": range(position, position + count),
            "program": self._leaves(body, parent),
            "body": repeat(index, count),
            "compute_set": map(self._compute_set, body.steps, codes, repeat(body.ipu)),
            "code": codes,
        }
        for name, cells in columns.items():
            self.steps[name] += cells
        for step_id, step in zip(ids, body.steps, strict=True):
            for move in step.moves:
                name = self.executable.graph.storages[move.storage].name
                of_step = (step_id, move.storage, name, move.source, move.target, move.bytes)
                self.others.append(records.MovedTensor(*of_step))

    def _leaves(self, body: Body, parent: int) -> Iterator[int]:
        """The nodes of the body's steps: in a sequence, in it one for each operator, with loops."""
        nodes, ops = self.nodes, self.executable.graph.ops
        node = group = nodes.add(parent, records.SEQUENCE, body.name)
        group_op = -1
        loops = {loop.first: loop for loop in body.loops}
        turn, end_of_turn = -1, -1
        for position, step in enumerate(body.steps):
            if step.op != group_op:
                group_op = step.op
                group = node
                if group_op >= 0:
                    group = nodes.add(node, records.SEQUENCE, ops[group_op].name)
            if position in loops:
                loop = loops[position]
                turn = nodes.add(group, records.REPEAT, "serial steps", loop.times)
                end_of_turn = loop.stop
            yield nodes.add(turn if position < end_of_turn else group, step.type, step.name)

    def _compute_set(self, step: ProgramStep, code: int, ipu: int) -> int:
        """The id of the step's compute set, -1 if none; one for steps of the same ``code``."""
        if step.type != records.ON_TILE_EXECUTE:
            return -1
        if code in self.compute_sets:
            return self.compute_sets[code]
        number = self.compute_sets[code] = len(self.compute_sets)
        self.others.append(records.ComputeSet(number, step.name, ipu, step.op, step.flops))
        for vertices in step.vertices:
            kind = self.vertex_types.setdefault(vertices.type, len(self.vertex_types))
            self.others.append(records.VertexUse(number, kind, vertices.count))
        return number


class _Nodes:
    """Program nodes in the making: ids in order of creation, positions among siblings."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.positions: list[int] = []
        self.types: list[str] = []
        self.names: list[str] = []
        self.repeats: list[int] = []
        self._children: dict[int, int] = {}

    def add(self, parent: int, kind: str, name: str, repeat: int = 1) -> int:
        position = self._children.get(parent, 0)
        self._children[parent] = position + 1
        self.parents.append(parent)
        self.positions.append(position)
        self.types.append(kind)
        self.names.append(name)
        self.repeats.append(repeat)
        return len(self.parents) - 1

    def rows(self) -> records.Rows:
        ids = range(len(self.parents))
        columns = ids, self.parents, self.positions, self.types, self.names, self.repeats
        names = records.Program.__slots__
        return records.Rows(records.Program, dict(zip(names, columns, strict=True)))
