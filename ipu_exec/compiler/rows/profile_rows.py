"""The rows of an executable's profile.

Target, options, stages, operators, and all others in the order in which they are written.

`ipu_exec.compiler.rows.block_rows` has the Blocks, `ipu_exec.compiler.rows.program_rows` the
program's tree, `ipu_exec.compiler.rows.profile_header` the header; variables and the trace are rows
already.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.memory import overflow
from ipu_exec.compiler.rows.block_rows import block_rows, is_copy_of_weight, update_blocks
from ipu_exec.compiler.rows.program_rows import program_rows
from ipu_exec.lowering import popart_name
from ipuscope.profiler.enums import Direction, Role
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
        device.name,
        device.architecture,
        ipus * replicas,
        replicas,
        ipus,
        device.tiles,
        device.bytes_per_tile,
        device.region0_bytes,
        device.clock_hz,
        device.workers,
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

    total: Counter[tuple[int, str]] = Counter()
    for variable in executable.variables:
        if not is_copy_of_weight(placement, variable):
            total[variable.stage, variable.role] += variable.bytes

    def row(stage: int, ipu: int) -> records.Stage:
        again = tree.cycles(schedule_types.RECOMPUTE, stage)
        return records.Stage(
            stage,
            ipu,
            tree.cycles(schedule_types.FORWARD, stage),
            again + tree.cycles(schedule_types.BACKWARD, stage),
            again,
            updates.get(stage, 0),
            closed_forms.stash_depth(stages, stage) if stashes else 0,
            total[stage, Role.STASH],
            total[stage, Role.WEIGHT],
            placement.cut_bytes(graph, stage, Direction.FORWARD),
        )

    return [row(stage, place.ipu) for stage, place in enumerate(placement.stages)]


def op_rows(executable: Executable) -> Iterator[records.Op]:
    """One a captured operator, views among them."""
    placement, tree = executable.placement, executable.tree
    blocks = update_blocks(executable.graph)
    ops = executable.graph.ops
    names = popart_names([op.name for op in ops], [popart_name(op.aten) for op in ops])
    for op, stage, name in zip(ops, placement.op_stage, names, strict=True):
        plan = tree.op_plans.get(op.id)
        notes = (plan.note if plan else "", str(op.attributes))
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
