"""The profile's rows for Blocks: the cycles, memory and traffic of each, by direction."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.placement import place
from ipu_exec.graph import Graph, OpNode
from ipuscope.profiler.enums import Direction, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import schedule_types

_DIRECTION = {
    schedule_types.FORWARD: Direction.FORWARD,
    schedule_types.RECOMPUTE: Direction.BACKWARD,
    schedule_types.BACKWARD: Direction.BACKWARD,
}


def is_weight_at_home(place: place.Placement, variable: records.Variable) -> bool:
    """Whether it is a weight, and not another stage's copy of a tied one: each counts once."""
    if variable.role != Role.WEIGHT:
        return False
    return place.home.get(variable.tensor, variable.stage) == variable.stage


def block_rows(executable: Executable) -> list[records.Block]:
    """One row per Block, in the order in which the model opens them."""
    graph, stages = executable.graph, executable.placement.stages
    stage_of = {name: k for k, stage in enumerate(stages) for name in stage.blocks}
    cycles = _cycles(executable, stage_of)
    weights: Counter[int] = Counter()
    for variable in executable.variables:
        if is_weight_at_home(executable.placement, variable):
            weights[variable.block] += variable.bytes
    inputs, alone = _input_bytes(graph), executable.apart
    forward = alone.cut_bytes(graph, Direction.FORWARD)
    backward = alone.cut_bytes(graph, Direction.BACKWARD)
    return [
        records.Block(
            block.id,
            block.name,
            stage_of[block.name],
            stages[stage_of[block.name]].ipu,
            cycles[block.id, Direction.FORWARD],
            cycles[block.id, Direction.BACKWARD],
            cycles[block.id, Direction.UPDATE],
            weights[block.id],
            inputs[block.id],
            forward[block.id],
            backward[block.id],
        )
        for block in graph.blocks
    ]


def cut_tiles(executable: Executable) -> list[list[float]]:
    """Cycles of the tile with most to send over the cut behind each Block, forward and back."""
    layouts = {storage: one.bytes for (storage, _), one in executable.tree.layouts.items()}
    alone, rate = executable.apart, executable.target.exchange_bytes_per_cycle
    return [
        [float(np.max(one)) / rate for one in alone.over_cuts(way, lambda s: layouts.get(s, 0))]
        for way in (Direction.FORWARD, Direction.BACKWARD)
    ]


def _cycles(executable: Executable, stage_of: dict[str, int]) -> Counter[tuple[int, str]]:
    """Cycles by Block and direction. Stashing another stage's Block does not count towards it."""
    graph, updated = executable.graph, update_blocks(executable.graph)
    cycles: Counter[tuple[int, str]] = Counter()
    for body in executable.tree.bodies:
        direction = _DIRECTION.get(body.task, Direction.UPDATE)
        of_ops: Counter[int] = Counter()
        for step, times in zip(body.steps, body.times.tolist(), strict=True):
            of_ops[step.op] += step.cycles * times
        of_ops.pop(-1, 0)
        for op, spent in of_ops.items():
            block = graph.ops[op].block
            if direction == Direction.UPDATE:
                block = updated.get(op, block)
            stranger = body.stage >= 0 <= block and stage_of[graph.blocks[block].name] != body.stage
            if not stranger:
                cycles[block, direction] += spent
    return cycles


def _input_bytes(graph: Graph) -> Counter[int]:
    """Bytes of the model's inputs that each Block is the first to read, by Block."""
    nbytes: Counter[int] = Counter()
    seen: set[int] = set()
    for op in graph.ops:
        for value in op.inputs:
            storage = graph.values[value].storage
            if graph.storages[storage].role == Role.INPUT and storage not in seen:
                seen.add(storage)
                nbytes[op.block] += place.storage_bytes(graph, storage)
    return nbytes


def update_blocks(graph: Graph) -> dict[int, int]:
    """The Block of the weight that each operator of the weight update belongs to; -1 for none."""
    weight_blocks = _weight_blocks(graph)
    blocks: dict[int, int] = {}
    makers: dict[int, int] = {}  # storage -> Block of the update that makes it
    for op in graph.ops:
        if op.direction != Direction.UPDATE:
            continue
        block = _owner_block(graph, op, weight_blocks, makers)
        blocks[op.id] = block
        for storage in graph.results(op):
            makers.setdefault(storage, block)
    return blocks


def _owner_block(
    graph: Graph, op: OpNode, weight_blocks: dict[int, int], makers: dict[int, int]
) -> int:
    """The Block of the first operand that has one."""
    for value in op.inputs:
        storage = graph.storage_of(value)
        block = weight_blocks.get(storage.owner, makers.get(storage.id, -1))
        if block >= 0:
            return block
    return -1


def _weight_blocks(graph: Graph) -> dict[int, int]:
    """The Block that uses each weight storage first."""
    blocks: dict[int, int] = {}
    for op in graph.ops:
        for value in op.inputs if op.direction == Direction.FORWARD else ():
            storage = graph.values[value].storage
            if graph.storages[storage].role == Role.WEIGHT:
                blocks.setdefault(storage, op.block)
    return blocks
