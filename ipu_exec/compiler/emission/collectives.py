"""Exchanges between replicas: of gradients and of tensors sharded over replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ipu_exec.base.once import added, total
from ipu_exec.compiler.batch_norms import over_samples
from ipu_exec.compiler.emission.bodies import Move, ProgramStep, the_one
from ipu_exec.compiler.emission.body_builder import BodyBuilder
from ipu_exec.compiler.options import CompileOptions
from ipu_exec.compiler.placement.locations import grouping_of
from ipu_exec.compiler.tile_mapping import TileMapping
from ipu_exec.graph import OpNode
from ipu_exec.lowering.layouts import ceil_div
from ipuscope.profiler.enums import Direction, Purpose, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import schedule_types
from ipuscope.profiler.timeline.links import ring_cycles


@dataclass(frozen=True, slots=True)
class Ring:
    """``members`` replicas, ``stride`` apart, that exchange 1/``part`` of a tensor.

    ``among``: the suffix of the step's name that names the group.
    """

    purpose: Purpose
    members: int
    stride: int
    part: int
    among: str


def rings_of_levels(purpose: Purpose, replicas: int, instances: int, hosts: int) -> list[Ring]:
    """The rings in which the replicas of several instances exchange a tensor, in order.

    Replicas of an instance are adjacent, and so are the instances of a host. An all-reduce
    scatters within the instance, scatters each part across the host's instances, reduces across
    hosts, and gathers in reverse order (GCL's hierarchical collectives), so that slow links carry
    only a part. A reduce-scatter is the first half, an all-gather the second.
    """
    sizes = [
        (replicas // instances, " in an instance"),
        (instances // hosts, " across instances"),
        (hosts, " across hosts"),
    ]
    there: list[Ring] = []
    stride = 1
    for members, among in sizes:
        if members > 1:
            there.append(Ring(Purpose.REDUCE_SCATTER, members, stride, stride, among))
        stride *= members
    back = [replace(ring, purpose=Purpose.ALL_GATHER) for ring in reversed(there)]
    if purpose is Purpose.REDUCE_SCATTER:
        return there
    if purpose is Purpose.ALL_GATHER:
        return back
    return [*there[:-1], replace(there[-1], purpose=Purpose.ALL_REDUCE), *back[1:]]


class Collectives:
    """Makes the steps of GCL's collectives between the same IPU of all (consecutive) replicas."""

    def __init__(self, mapping: TileMapping, options: CompileOptions) -> None:
        self.mapping, self.options = mapping, options
        self.graph, self.placement = mapping.graph, mapping.placement
        self.machines, self.once = mapping.machines, mapping.once

    def reduce(self, ipu: int) -> BodyBuilder | None:
        """All-reduce, or reduce-scatter for updates in parts, all gradients before the update."""
        if self.options.replicas == 1 or not self.graph.training:
            return None
        summed, scattered = self._reduced_together(ipu)
        kinds = [Purpose.ALL_REDUCE] * bool(summed) + [Purpose.REDUCE_SCATTER] * bool(scattered)
        name = f"IPU {ipu} {' and '.join(kinds)} of gradients"
        body = BodyBuilder(name, ipu, -1, schedule_types.REDUCE)
        self.exchange(Purpose.ALL_REDUCE, summed, body)
        self.exchange(Purpose.REDUCE_SCATTER, scattered, body)
        for storage, stage in scattered.items():  # parts that wait for the update
            shard = self.mapping.shard(self.graph.storages[storage].parameter, stage)
            body.hold(self.mapping.use_of_part(shard, storage, body.last, body.last))
        return body

    def _reduced_together(self, ipu: int) -> tuple[dict[int, int], dict[int, int]]:
        """An IPU's all-reduced gradients and its reduce-scattered ones, each with its stage."""
        places = self.mapping.residency.places
        summed: dict[int, dict[int, int]] = {}
        scattered: dict[int, dict[int, int]] = {}
        for storage in self._gradients():
            stage = self._home(storage)
            late = storage in places.split or self.mapping.reduced_late(storage)
            if self.placement.ipus[stage] != ipu or late:
                continue
            parts = self.graph.storages[storage].parameter in places.updated_in_parts
            by_stage = scattered if parts else summed
            by_stage.setdefault(stage, {})[storage] = stage
        return _joined(summed), _joined(scattered)

    def exchange(
        self, purpose: Purpose, where: Mapping[int, int], body: BodyBuilder, name: str = ""
    ) -> None:
        """One step in which replicas exchange storages (``where`` gives their stages).

        ``purpose``: an all-reduce, a reduce-scatter or an all-gather. All replicas of several
        instances take a step for each level of `rings_of_levels`.
        """
        for (members, stride), mine in self._rings(where).items():
            each = {s: self.mapping.bytes([s], where[s]) for s in mine}
            nbytes = self.once(added, *each.values())
            if members == 1 or not nbytes.any():
                continue
            if members < self.options.replicas or self.options.instances == 1:
                rings = [Ring(purpose, members, stride, 1, "")]
            else:
                shared = self.options
                rings = rings_of_levels(purpose, members, shared.instances, shared.hosts)
            for ring in rings:
                body.steps.append(self._step(ring, each, nbytes, body.ipu, name))
                body.touch(mine)

    def share_statistics(self, op: OpNode, stage: int, body: BodyBuilder) -> None:
        """All-reduce the two sums per channel of a batch norm over a group of replicas.

        They are for mean and variance in the forward, for the gradients of shift and scale in the
        backward: results 1 and 2 of the operator. A norm without shift and scale has these sums
        too, laid out like its statistics.
        """
        group = self.options.norm_group
        if group == 1 or not over_samples(op, self.graph):
            return
        statistics = [v for v in op.outputs[1:3] if v is not None]
        if not statistics and op.forward_op >= 0:
            statistics = [v for v in self.graph.ops[op.forward_op].outputs[1:3] if v is not None]
        each = {s: self.mapping.bytes([s], stage) for s in map(self.mapping.storage, statistics)}
        nbytes = self.once(added, *each.values())
        if not nbytes.any():
            return
        ring = Ring(Purpose.ALL_REDUCE, group, 1, 1, f" of statistics in groups of {group}")
        body.steps.append(self._step(ring, each, nbytes, body.ipu, f"{op.name}/"))
        body.touch(each)

    def _step(
        self, ring: Ring, each: Mapping[int, np.ndarray], nbytes: np.ndarray, ipu: int, name: str
    ) -> ProgramStep:
        """One exchange over one ring of R replicas; ``nbytes``: of the whole tensors on each tile.

        Each sends and receives (R - 1) / R of the bytes, twice in an all-reduce.
        """
        rounds = 2 if ring.purpose is Purpose.ALL_REDUCE else 1
        shards = self.options.shards
        apart = shards << (self.placement.num_ipus - 1).bit_length()
        once = self.once
        round_it = once(ceil_div, nbytes, ring.part)
        cycles = ring_cycles(
            self.machines[ipu].target.links,
            ipu * shards,
            apart * ring.stride,
            ring.members,
            once(total, round_it),
            rounds,
        )
        moved = once(np.multiply, round_it, rounds * (ring.members - 1))
        moved = once(np.floor_divide, moved, ring.members)
        step = ring.purpose.title().replace("-", "") + ring.among
        if not ring.among and ring.members < self.options.replicas:
            step += f" in groups of {ring.members}"
        return ProgramStep(
            records.GLOBAL_EXCHANGE,
            name + step,
            cycles,
            bytes_in=moved,
            bytes_out=moved,
            purpose=ring.purpose,
            tensor=the_one(list(each)),
            moves=tuple(
                Move(s, once(total, once(ceil_div, part, ring.part)), ipu, ipu)
                for s, part in each.items()
            ),
        )

    def _rings(self, where: Mapping[int, int]) -> dict[tuple[int, int], list[int]]:
        """Storages by the (members, stride) of the ring of replicas that exchange them."""
        rings: dict[tuple[int, int], list[int]] = {}
        for storage_id in where:
            grouping = grouping_of(self.graph, storage_id, self.options.groupings)
            ring = (
                (self.options.replicas, 1)
                if grouping is None
                else (grouping.members, grouping.stride)
            )
            rings.setdefault(ring, []).append(storage_id)
        return rings

    def _gradients(self) -> list[int]:
        """The storages from which the optimiser reads gradients: accumulators or gradients."""
        storages = self.graph.storages.values()
        accumulators = [s.id for s in storages if s.role == Role.ACCUMULATOR]
        if accumulators:
            return accumulators
        read = {
            self.mapping.storage(v)
            for op in self.graph.ops
            if op.direction == Direction.UPDATE
            for v in op.inputs
        }
        return [s.id for s in storages if s.role == Role.GRADIENT and s.id in read]

    def _home(self, gradient: int) -> int:
        """The stage of the gradient's weight, or of the operator that computes it."""
        home, maker = self.placement.home.get(gradient), self.mapping.makers.get(gradient)
        if home is not None:
            return home
        return self.placement.op_stage[maker] if maker is not None else 0


def _joined(by_stage: Mapping[int, Mapping[int, int]]) -> dict[int, int]:
    """The storages of all stages in one mapping, in the order of the stages."""
    return {storage: stage for storages in by_stage.values() for storage, stage in storages.items()}
