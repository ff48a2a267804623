"""Transfers of an IPU to and from the host, streaming memory and its replica's other IPUs.

Exchanges between replicas are in `ipu_exec.compiler.emission.collectives`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from ipu_exec.base.once import added, total
from ipu_exec.compiler.emission.bodies import (
    OFF_CHIP,
    Move,
    ProgramStep,
    Use,
    external_sync,
    program_steps,
    slice_step,
    stream_steps,
    the_one,
)
from ipu_exec.compiler.emission.body_builder import BodyBuilder
from ipu_exec.compiler.emission.host_streams import inputs_by_stage, outputs_by_stage
from ipu_exec.compiler.emission.over_io_tiles import OverIoTiles
from ipu_exec.compiler.options import CompileOptions
from ipu_exec.compiler.placement.place import storage_bytes
from ipu_exec.compiler.tile_mapping import TileMapping
from ipu_exec.graph import Graph, OpNode
from ipu_exec.lowering.build import messages
from ipu_exec.lowering.layouts import ceil_div
from ipu_exec.lowering.operator_info import info
from ipu_exec.lowering.plan import ITEM_BYTES, Collective, Exchange, Layout
from ipu_exec.machine import Machine
from ipuscope.profiler.enums import OF_WEIGHTS, Purpose, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import schedule_types
from ipuscope.profiler.timeline.links import latency_cycles, link_rate, ring_cycles

# Copies of an overlapped stream on the I/O tiles: it is filled while the compute tiles work on
# their copy ([POPART, docs/popart/overlap_io.rst]: I/O tiles are to hold all overlapped inputs
# and outputs).
BUFFERS = 1
# PopART has one more between device iterations (estimate: its guide says 'more memory')
BUFFERS_ACROSS = 2


class Transfers:
    """Makes the bodies and steps of transfers."""

    def __init__(self, mapping: TileMapping, options: CompileOptions) -> None:
        self.mapping, self.options, self.across = mapping, options, mapping.residency.across
        self.graph, self.placement = mapping.graph, mapping.placement
        self.machines, self.once = mapping.machines, mapping.once
        self.over_io_tiles = OverIoTiles(mapping, options)
        self.in_parts = stored_in_parts(mapping.graph, options)  # of the IPUs that share tensors
        self.buffers: list[Use] = []  # of streams
        self.beside: set[int] = set()  # storages that come or leave over I/O tiles

    def streams(self, forwards: list[BodyBuilder]) -> tuple[list[BodyBuilder], list[BodyBuilder]]:
        """Transfers from and to the host.

        Overlapped tensors go through the I/O tiles; an exchange in their stage's forward moves
        them between I/O tiles and compute tiles.
        """
        inputs = inputs_by_stage(self.graph, self.placement, self.options)
        outputs = outputs_by_stage(self.graph, self.placement, self.options)
        bodies = []
        for by_stage, to_host in ((inputs, False), (outputs, True)):
            for (stage, beside), storages in by_stage.items():
                if beside:
                    self.beside.update(storages)
                    self._between_tiles(forwards[stage], storages, to_host)
            in_order = sorted(by_stage.items())
            bodies.append(
                [self._stream(stage, moved, to_host, beside) for (stage, beside), moved in in_order]
            )
        return bodies[0], bodies[1]

    def _stream(self, stage: int, storages: list[int], to_host: bool, beside: bool) -> BodyBuilder:
        """Begin, mid and end of a stream copy: docs/machine.md#host-and-streaming-memory.

        Cycles: the latency, then the bytes at the host's rate.
        """
        task = schedule_types.STREAM_OUT if to_host else schedule_types.STREAM_IN
        purpose = Purpose.STREAM_OUT if to_host else Purpose.STREAM_IN
        name = f"stage {stage} {'outputs to' if to_host else 'inputs from'} host"
        if beside:
            task = schedule_types.UNLOAD if to_host else schedule_types.LOAD
            name = f"{name} over I/O tiles"
        body = BodyBuilder(name, self.placement.ipus[stage], stage, task)
        machine = self.machines[body.ipu]
        target = machine.target
        ends = (body.ipu, OFF_CHIP) if to_host else (OFF_CHIP, body.ipu)
        moves = [Move(s, storage_bytes(self.graph, s), *ends) for s in storages]
        total = sum(move.bytes for move in moves)
        cycles = ceil(
            (self.options.host_latency + total / target.host_bytes_per_second) * target.clock_hz
        )
        copied = ", ".join(self.graph.storages[s].name for s in storages)
        names = f"{'copyToHost' if to_host else 'copyFromHost'}/{copied}"  # as Poplar has them
        tile_bytes = self.mapping.bytes(storages, stage)
        lands = machine.on_io_tiles(int(tile_bytes.sum())) if beside else tile_bytes
        body.steps += stream_steps(self.once, names, cycles, lands, purpose, moves)
        # over all tiles a tensor is its own buffer: it comes as it lies, and the operator that
        # reads it rearranges it
        if not beside:
            body.touch(storages, 0)
        return body

    def _between_tiles(self, body: BodyBuilder, storages: list[int], to_host: bool) -> None:
        """The exchange between I/O tiles and compute tiles, and the buffers on the I/O tiles.

        It belongs to the operator that first reads an input or last writes an output.
        """
        machine, stage = self.machines[body.ipu], body.stage
        tile_bytes = self.mapping.bytes(storages, stage)
        lands = machine.on_io_tiles(int(tile_bytes.sum()))
        names = ", ".join(self.graph.storages[s].name for s in storages)
        if to_host:
            steps = self._exchanged(f"{names}/to I/O tiles", lands, tile_bytes, machine)
            op, first = max(self.mapping.makers[storage] for storage in storages), len(body.steps)
        else:
            steps = self._exchanged(f"{names}/from I/O tiles", tile_bytes, lands, machine)
            readers = (
                op.id
                for op in self.graph.ops
                if {self.mapping.storage(v) for v in op.inputs} & set(storages)
                and not self.graph.only_aliases(op)
            )
            op, first = min(readers, default=-1), 0
        purpose = Purpose.TO_IO_TILES if to_host else Purpose.FROM_IO_TILES
        tensor = the_one(storages)
        steps = [replace(step, op=op, tensor=tensor, purpose=purpose) for step in steps]
        if to_host:
            body.steps += steps
        else:
            body.begin_with(steps)
        copies = BUFFERS_ACROSS if self.across else BUFFERS
        self.buffers.append(
            Use(f"{names}/stream buffer", Role.STREAM_BUFFER, copies * lands, stage, stage, op)
        )
        body.touch(storages, first, first + len(steps) - 1)

    def _exchanged(
        self, name: str, into: np.ndarray, out: np.ndarray, machine: Machine
    ) -> list[ProgramStep]:
        step = Exchange(name, into, out, messages(into, out))
        return program_steps(step, machine.target.name, self.once)

    def copies(self, ipu: int) -> BodyBuilder | None:
        """An IPU's sends and receives at the end of a pipeline cycle: all cuts, both directions.

        Cycles: the latency to the farthest IPU, then each neighbour's bytes in turn at its link's
        rate; a tile takes 4 bytes per cycle. Every replica begins at a whole board, or lies on
        one.
        """
        # a phase receives at its beginning
        if self.placement.num_ipus == 1 or self.placement.phases:
            return None
        target = self.machines[ipu].target
        sent, received = np.zeros(target.tiles, np.int64), np.zeros(target.tiles, np.int64)
        crossing: list[Move] = []
        latency = 0.0
        leaving: Counter[float] = Counter()  # rate of a link -> bytes
        arriving: Counter[float] = Counter()
        for storage, layout, a, b in self._crossings(ipu):
            ends = a * self.options.shards, b * self.options.shards  # each shard to its own
            latency = max(latency, latency_cycles(target.links, *ends))
            rate, total = link_rate(target.links, *ends), int(layout.bytes.sum())
            crossing.append(Move(storage, total, a, b))
            nbytes = self.machines[ipu].whole(layout.bytes)
            if a == ipu:
                sent += nbytes
                leaving[rate] += total
            else:
                received += nbytes
                arriving[rate] += total
        if not crossing:
            return None
        slowest_tile = max(int(sent.max()), int(received.max())) / target.exchange_bytes_per_cycle
        on_links = max(
            sum(nbytes / rate for rate, nbytes in way.items()) for way in (leaving, arriving)
        )
        cycles = ceil(latency + max(on_links, slowest_tile))
        storages = list(dict.fromkeys(move.storage for move in crossing))
        step = ProgramStep(
            records.GLOBAL_EXCHANGE,
            f"copies of IPU {ipu} with IPU {_peers(ipu, crossing)}",
            cycles,
            bytes_in=received,
            bytes_out=sent,
            purpose=Purpose.COPY,
            tensor=the_one(storages),
            moves=tuple(crossing),
        )
        body = BodyBuilder(f"IPU {ipu} copies between IPUs", ipu, -1, schedule_types.COPY, [step])
        body.touch(storages, 0, 0)
        return body

    def _crossings(self, ipu: int) -> Iterator[tuple[int, Layout, int, int]]:
        """An IPU's sends or receives: the storage, its layout, the source and the target IPU."""
        for transfer in self.placement.transfers:
            layout = self.mapping.layout(transfer.storage, transfer.source)
            ipus = self.placement.ipus
            if layout is None:
                continue
            # not on to a stage that is back on the IPU that has it (BERT's tied embedding)
            step = 1 if transfer.away > transfer.source else -1
            for stage in range(transfer.source, transfer.away, step):
                a, b = ipus[stage], ipus[stage + step]
                if a != b and ipu in (a, b):
                    yield transfer.storage, layout, a, b

    def receive(self, storages: Sequence[int], stage: int, body: BodyBuilder) -> None:
        """Receive other IPUs' results for this phase, after a sync ([JIA], as `copies`)."""
        if not storages:
            return
        target = self.machines[body.ipu].target
        received = self.mapping.bytes(storages, stage)
        moves = tuple(self._received(storages, body.ipu))
        latency, on_links = 0.0, 0.0
        for move in moves:
            ends = move.source * self.options.shards, move.target * self.options.shards
            latency = max(latency, latency_cycles(target.links, *ends))
            nbytes = self.once(total, self.mapping.bytes([move.storage], stage))
            on_links += nbytes / link_rate(target.links, *ends)
        slowest_tile = int(received.max()) / target.exchange_bytes_per_cycle
        cycles = ceil(latency + max(on_links, slowest_tile))
        none = self.once(np.zeros, len(received), np.int64)
        body.steps += _over_links(f"{body.name}/receive", cycles, received, none, moves, body.name)
        body.touch(storages)

    def _received(self, storages: Sequence[int], ipu: int) -> Iterator[Move]:
        """The storages received from the IPUs that compute them."""
        for storage in storages:
            maker = self.mapping.makers.get(storage)
            source = ipu
            if maker is not None:
                source = self.placement.ipus[self.placement.op_stage[maker]]
            yield Move(storage, storage_bytes(self.graph, storage), source, ipu)

    def between_updates(
        self, moves: tuple[Move, ...], op: OpNode, stage: int, body: BodyBuilder
    ) -> None:
        """Exchange numbers that an update's operator sends to other IPUs, or waits for.

        After a sync with them: the farthest's latency, then the bytes over the slowest link.
        """
        if not moves:
            return
        target, shards = self.machines[body.ipu].target, self.options.shards
        ends = [(move.source * shards, move.target * shards) for move in moves]
        latency = max(latency_cycles(target.links, *pair) for pair in ends)
        on_links = sum(
            move.bytes / link_rate(target.links, *pair)
            for move, pair in zip(moves, ends, strict=True)
        )
        storages = list(dict.fromkeys(move.storage for move in moves))
        on_tiles = self.mapping.bytes(storages, stage)
        none = self.once(np.zeros, len(on_tiles), np.int64)
        to_others = moves[0].source == body.ipu
        received, sent = (none, on_tiles) if to_others else (on_tiles, none)
        name = f"{op.name}/{'to' if to_others else 'from'} other IPUs"
        steps = _over_links(name, ceil(latency + on_links), received, sent, moves, name)
        body.steps += [replace(step, op=op.id) for step in steps]
        body.touch(storages)

    def between_shards(self, storage: int, op: int, name: str) -> list[ProgramStep]:
        """The all-reduce of a small tensor among the IPUs that share a stage's tensors."""
        machine, nbytes = self.mapping.machine, storage_bytes(self.graph, storage)
        shards = machine.shards
        moved = np.zeros(machine.target.tiles, np.int64)
        moved[0] = 2 * nbytes * (shards - 1) // shards
        cycles = ring_cycles(machine.target.links, 0, 1, shards, nbytes, 2)
        step = Collective("all_reduce", moved, moved, cycles)
        return [
            replace(one, op=op, name=f"{name}/{one.name}")
            for one in program_steps(step, machine.target.name, self.once)
        ]

    def remote(
        self, storages: Sequence[int], name: str, stage: int, body: BodyBuilder, purpose: Purpose
    ) -> None:
        """Load storages from streaming memory or store them, in a copy and one over I/O tiles."""
        beside = self.over_io_tiles.chosen(storages, body, purpose)
        rest = [storage for storage in storages if storage not in beside]
        self._remote(beside, name, stage, body, purpose, over_io_tiles=True)
        self._remote(rest, name, stage, body, purpose, over_io_tiles=False)

    def _remote(
        self,
        storages: Sequence[int],
        name: str,
        stage: int,
        body: BodyBuilder,
        purpose: Purpose,
        over_io_tiles: bool,
    ) -> None:
        if not storages:
            return
        target = self.machines[body.ipu].target
        stored = {s: self._stored(s, stage) for s in storages}
        nbytes = self.once(added, *stored.values())
        to_host = purpose is Purpose.REMOTE_STORE
        shared = [storage for storage in storages if storage in self.in_parts]
        if to_host:
            self._take_parts(shared, stage, body)
        ends = (body.ipu, OFF_CHIP) if to_host else (OFF_CHIP, body.ipu)
        moves = [Move(s, self.once(total, part), *ends) for s, part in stored.items()]
        seconds = self.once(total, nbytes) / target.streaming_bytes_per_second
        cycles = ceil(seconds * target.clock_hz)
        if over_io_tiles:
            self.over_io_tiles.move(name, moves, nbytes, cycles, body, purpose)
        else:
            first = len(body.steps)
            body.steps += stream_steps(self.once, name, cycles, nbytes, purpose, moves)
            body.touch(storages, first)
        if not to_host:
            self._gather_over_shards(shared, f"{name}/gather", stage, body)

    def _stored(self, storage: int, stage: int) -> np.ndarray:
        """Bytes on each tile of what this IPU stores of a storage off the chip."""
        whole = self.mapping.stored(storage, stage)
        if storage not in self.in_parts:
            return whole
        item = ITEM_BYTES[self.graph.storages[storage].dtype]
        elements = self.once(np.floor_divide, whole, item)
        part = self.once(ceil_div, elements, self.options.shards)
        return self.once(np.multiply, part, item)

    def _take_parts(self, storages: Sequence[int], stage: int, body: BodyBuilder) -> None:
        """Slice this IPU's parts out of tensors: its number says where each begins."""
        for storage in storages:
            item = self.graph.storages[storage]
            nbytes, purpose = self._stored(storage, stage), Purpose.SHARD
            count = self.once(np.floor_divide, nbytes, ITEM_BYTES[item.dtype])
            name = f"{item.name}/part"
            body.steps.append(slice_step(self.once, name, count, item.dtype, purpose, storage))
            body.touch([storage])

    def _gather_over_shards(
        self, storages: Sequence[int], name: str, stage: int, body: BodyBuilder
    ) -> None:
        """Gather tensors of which each of the IPUs that share the stage's has loaded its part."""
        if not storages:
            return
        machine, shards = self.machines[body.ipu], self.options.shards
        part = self.once(added, *(self._stored(storage, stage) for storage in storages))
        moved = self.once(np.multiply, part, shards - 1)
        nbytes = self.once(total, part) * shards
        cycles = ring_cycles(machine.target.links, body.ipu * shards, 1, shards, nbytes, 1)
        gathered = Collective("all_gather", moved, moved, cycles)
        body.steps += [
            replace(
                step,
                name=f"{name}{step.name.removeprefix(gathered.name)}",
                tensor=the_one(storages),
                purpose=(
                    Purpose.GATHER_SHARDS if step.type == records.GLOBAL_EXCHANGE else step.purpose
                ),
            )
            for step in program_steps(gathered, machine.target.name, self.once)
        ]
        body.touch(storages)


def _peers(ipu: int, moves: Sequence[Move]) -> str:
    """The numbers of the other IPUs that it sends to or receives from: "2 and 4"."""
    ends = {move.source for move in moves} | {move.target for move in moves}
    return " and ".join(str(other) for other in sorted(ends - {ipu}))


def _over_links(
    name: str,
    cycles: int,
    received: np.ndarray,
    sent: np.ndarray,
    moves: tuple[Move, ...],
    sync: str,
) -> list[ProgramStep]:
    """A sync with other IPUs, named after ``sync``, and an exchange of bytes of each tile."""
    return [
        external_sync(f"{sync}/"),
        ProgramStep(
            records.GLOBAL_EXCHANGE,
            name,
            cycles,
            bytes_in=received,
            bytes_out=sent,
            purpose=Purpose.COPY,
            tensor=the_one([move.storage for move in moves]),
            moves=moves,
        ),
    ]


# -- Activations that are alike on the IPUs that share a stage's tensors, and stored in parts ---
# Off the chip each of t IPUs stores a t-th of such a tensor; they gather it when it comes back
# (Graphcore's GPT-3 does: [EX, nlp/gpt3_175B/popxl/pretraining_config.py], RTS_ACT). A tensor is
# alike on all of them if it is made of tensors that are: inputs, weights that no style cuts, and
# results of an all-reduce or all-gather. What a collective cuts, and a slice of a tensor (a
# rank's part of a sequence), counts as different.
#


def stored_in_parts(graph: Graph, options: CompileOptions) -> frozenset[int]:
    """The storages of which each IPU stores a part off the chip.

    That is where phases are pipelines and activations have replicated tensor sharding.
    """
    location = options.locations.activation
    wanted = location.sharded and options.shards > 1 and options.strategy.pipelined_phases
    if not wanted:
        return frozenset()
    alike = alike_on_shards(graph)
    return frozenset(s for s in alike if graph.storages[s].elements >= location.least_sharded)


def alike_on_shards(graph: Graph) -> frozenset[int]:
    """The storages, without those of weights, that all IPUs of a stage have alike."""
    cut = graph.shares  # storages of weights
    alike = set(graph.inputs)
    alike |= {
        value.id
        for value in graph.values.values()
        if graph.storages[value.storage].role in OF_WEIGHTS and value.storage not in cut
    }
    storages: dict[int, bool] = {}
    for op in graph.ops:
        same = _is_alike(op, alike)
        for value in (*op.outputs, *op.writes):
            if value is None:
                continue
            (alike.add if same else alike.discard)(value)
            storage = graph.values[value].storage
            storages[storage] = storages.get(storage, True) and same
    return frozenset(
        storage
        for storage, same in storages.items()
        if same and graph.storages[storage].role not in OF_WEIGHTS
    )


def _is_alike(op: OpNode, alike: set[int]) -> bool:
    facts = info(op.aten)
    if facts.makes_alike:
        return True
    return not facts.makes_different and set(op.inputs) <= alike
