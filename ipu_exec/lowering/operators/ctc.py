"""The CTC loss and its gradient over tiles, planned as poplibs plans them.

A table of ``steps`` x extended labels is split over batch, time and labels ([PL,
lib/popnn/CTCLossPlan.cpp]). Prefixes (alpha) go through the first half of the time while suffixes
(beta) come from its end; then each goes on through the other half, where the gradient is made.
Every step of time is a compute set, a sync and a small exchange. Tiles that share a step's labels
have a gradient of all classes each; popops adds them in stages ([PL, lib/popnn/CTCLoss.cpp]).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.layouts import Spread, apportion, blocks, ceil_div, digest, split_evenly
from ipu_exec.lowering.operators.reduce import reduce_partials
from ipu_exec.lowering.operators.reduce_vertices import Kind
from ipu_exec.lowering.plan import Operand, OpSpec, Plan
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import SYNC_CYCLES, Machine, Target, exchange_tile_cycles
from ipuscope.profiler.vertices import WORKERS

# worker cycles of an addition and of a product of logarithms ([PL,
# lib/popnn/PerformanceEstimation.hpp], logAddCycles, logMulCycles)
LOG_ADD, LOG_MULTIPLY = 16, 1
EXCHANGE, SYNC = 100, 90  # of a step of time, by which popnn plans
PARTIAL_BYTES = 4  # popnn's partialsType is float


@dataclass(frozen=True)
class Table:
    """What is planned: sequences, steps of time, labels of a sequence, classes of a label."""

    batch: int
    steps: int
    labels: int
    classes: int


@dataclass(frozen=True)
class TimeStep:
    """A step of time: tile cycles of its compute set, and bytes that a tile receives before it."""

    cycles: int
    received: int

    @property
    def expected(self) -> int:
        """Cycles by which popnn plans: of exchange and sync it has rough ones."""
        return self.cycles + EXCHANGE + SYNC + self.received // 4

    def taken(self, target: Target) -> int:
        """Cycles that it takes on ``target``, with its sync and its exchange."""
        if not self.received:
            return self.cycles + SYNC_CYCLES
        received = np.array([self.received])
        exchanged = exchange_tile_cycles(target, received, received, np.array([1]))
        return self.cycles + SYNC_CYCLES + int(exchanged[0])


@dataclass(frozen=True)
class Partition:
    """A table in parts over tiles, and what a tile of it has to do."""

    batch: int
    time: int
    labels: int
    last_blank: int  # 1 if the last blank has tiles of its own
    steps: int  # of each half
    alpha: TimeStep  # what a step takes
    gradient: TimeStep  # what a step takes where the gradient is made
    scores: int  # log probabilities that a tile reads
    temporary: int  # bytes of a tile

    @property
    def parts_of_labels(self) -> int:
        """Tiles that share a step's labels, and each have a gradient of all classes."""
        return self.labels + self.last_blank

    @property
    def expected(self) -> int:
        """Cycles of both halves by which popnn plans."""
        return self.steps * (self.alpha.expected + self.gradient.expected)

    @property
    def tiles(self) -> int:
        """Tiles that the partition uses."""
        return self.batch * self.time * self.parts_of_labels


def alpha_cycles(labels: int, extra_blank: bool) -> int:
    """Worker cycles of one step for ``labels``, each with the blank before it (alphaCycles)."""
    reads_and_writes, repeats = 2 * (1 + 3), 2
    each = reads_and_writes + repeats + 2 * (LOG_ADD + LOG_MULTIPLY)
    return each * labels + (LOG_ADD + LOG_MULTIPLY) * extra_blank


def gradient_cycles(labels: int, extra_blank: bool) -> int:
    """The same where the gradient is made too (gradGivenAlphaCycles)."""
    each = 2 * (2 + 1) + 2 * (LOG_ADD + LOG_MULTIPLY)
    more = each * labels + (LOG_ADD + LOG_MULTIPLY) * extra_blank
    return alpha_cycles(labels, extra_blank) + more


def partition_of(table: Table, parts: tuple[int, int, int, int], item_bytes: int) -> Partition:
    """The table in ``parts`` of batch, time and labels, the last blank apart or not."""
    # costs as in estimateCycles and estimateMaxTileTempMemory
    batch, time, labels, apart = parts
    samples, window = -(-table.batch // batch), -(-table.steps // time)
    most = -(-table.labels // labels)
    whole = most * labels == table.labels  # the last part has one blank more
    steps = window * (time + time % 2) // 2 * -(-samples // WORKERS)  # of each half
    beside = 2 if labels > 1 else 0
    received = (most + beside if time > 2 else 0) + beside
    columns = 2 + 4 * most  # of the gradient: two steps of the extended labels
    extra = whole and not apart
    alpha = WORKERS * alpha_cycles(most, extra)
    gradient = WORKERS * gradient_cycles(most, extra)
    scores = samples * window * table.classes
    copies = 2 if labels + apart > 1 else 1  # they cannot be added where they lie
    temporary = scores * (item_bytes + copies * PARTIAL_BYTES) + samples * most * 2
    temporary += 4 * samples * (2 * most + whole) * PARTIAL_BYTES
    halves = TimeStep(alpha, received * PARTIAL_BYTES), TimeStep(gradient, columns * PARTIAL_BYTES)
    return Partition(*parts, steps, *halves, scores, temporary)


def _parts(extent: int) -> list[int]:
    """Part counts worth trying: the smallest for each size of a part."""
    counts = np.arange(1, max(extent, 1) + 1)
    return [int(n) for n in np.unique(ceil_div(extent, ceil_div(extent, counts)))]


@lru_cache(maxsize=256)
def best_partition(table: Table, machine: Machine, item_bytes: int) -> Partition:
    """The partition of the fewest cycles, then of the least memory, then of the fewest tiles."""
    # it keeps the proportion of memory if any does; popnn refuses a table that does not
    choices = product(_parts(table.batch), _parts(table.steps), _parts(table.labels), (0, 1))
    partitions = [
        partition_of(table, parts, item_bytes)
        for parts in choices
        if parts[0] * parts[1] * (parts[2] + parts[3]) <= machine.tiles
    ]
    bound = machine.proportion * machine.target.bytes_per_tile
    fitting = [one for one in partitions if one.temporary <= bound]
    if not fitting:
        return min(partitions, key=lambda one: one.temporary)
    return min(fitting, key=lambda one: (one.expected, one.temporary, one.tiles))


def _planned(spec: OpSpec, machine: Machine, table_at: tuple[int, ...]) -> Partition:
    batch, steps, states = table_at
    scores = next(o for o in spec.operands if len(o.shape) == 3 and o.shape[:2] == (steps, batch))
    table = Table(batch, steps, (states - 1) // 2, scores.shape[2])
    return best_partition(table, machine, scores.item_bytes)


def _bring(build: Builder, part: Partition, count: int) -> list[tuple[str, np.ndarray, int]]:
    """Append the exchanges of operands to the table's tiles; name, bytes and first step of each."""
    # of the labels a tile has its part and a neighbour on either side (createBroadcastTempLabels)
    brought = []
    for index in range(count):
        source = build.place(index)
        used = np.arange(build.tiles) < part.tiles
        each = part.scores if len(source.shape) == 3 else -(-source.elements // part.batch)
        if len(source.shape) == 2:
            samples, labels = -(-source.shape[0] // part.batch), -(-source.shape[1] // part.labels)
            each = samples * (labels + 2)
        need = np.where(used, min(each, source.elements), 0)
        step = build.fetch(f"operand {index}", source, need, broadcast=True)
        brought.append((f"operand {index}", need * source.item_bytes, step))
    return brought


@lowering("aten._ctc_loss")
def ctc_loss(spec: OpSpec, machine: Machine) -> Plan:
    """(log probabilities[T, N, C], targets, ...) -> (loss[N], table[N, T, 2 longest + 1])."""
    # the table: Graves et al., 2006
    build = Builder(spec, machine)
    scores, (out, table) = build.place(0), spec.outputs
    assert out is not None and table is not None
    part = _planned(spec, machine, table.shape)
    used = np.arange(build.tiles) < part.tiles
    brought = _bring(build, part, len(spec.operands))
    steps = part.steps * part.alpha.taken(machine.target)
    cycles = np.where(used, steps, 0)
    vertex = "popnn::CTCAlpha<float,unsigned int,float,true>"
    done = build.compute("alpha and beta", vertex, cycles, 3 * table.elements)
    for name, nbytes, since in brought:
        build.hold(name, nbytes, since, done)
    batch, key = table.shape[0], digest("ctc", table.shape, part.tiles)
    losses = Spread(("ctc", 0, key, scores.shape), split_evenly(batch, build.tiles))
    entries = Spread(("ctc", 0, key, table.shape), apportion(table.elements, used.astype(np.int64)))
    note = f"batch {part.batch}, time {part.time}, labels {part.parts_of_labels}"
    return build.plan((losses.layout(out.dtype), entries.layout(table.dtype)), note=note)


@lowering("aten._ctc_loss_backward")
def ctc_loss_backward(spec: OpSpec, machine: Machine) -> Plan:
    """(gradient, log probabilities[T, N, C], targets, ..., loss, table) -> their gradient."""
    # tiles that share a step's labels have a gradient of all classes each, and these are added
    build = Builder(spec, machine)
    out, table = spec.output, spec.operands[-1]
    part = _planned(spec, machine, table.shape)
    used = np.arange(build.tiles) < part.tiles
    brought = _bring(build, part, len(spec.operands) - 1)  # the table is where it was made
    build.place(len(spec.operands) - 1)
    vertex = "popnn::CTCGradGivenAlpha<float,unsigned int,float,true>"
    steps = part.steps * part.gradient.taken(machine.target)
    cycles = np.where(used, steps, 0)
    done = build.compute("gradient", vertex, cycles, 2 * table.elements)
    for name, nbytes, since in brought:
        build.hold(name, nbytes, since, done)
    copies = np.where(used, part.scores, 0)
    elements = _input_elements(part, out, build.tiles)
    lies = Spread(("ctc", 0, digest("ctc", table.shape, part.tiles), out.shape), elements)
    if part.parts_of_labels > 1:
        kind = Kind("LOG_ADD", PARTIAL_BYTES, PARTIAL_BYTES)
        partials = apportion(out.elements * part.parts_of_labels, copies)
        together = part.scores // -(-out.shape[1] // part.batch)
        reduce_partials(build, "add gradients", kind, partials, out.elements, together, lies)
    build.hold("gradients of parts", copies * PARTIAL_BYTES, done, build.next)
    build.map("exp", "exp", elements, out.dtype)
    return build.plan((lies.layout(out.dtype),))


def _input_elements(part: Partition, out: Operand, tiles: int) -> np.ndarray:
    """Elements of the input, and of its gradient, on each tile (mapDataInputAccordingToPlan)."""
    # time is split over all tiles of a part of the batch, and classes stay together
    steps, batch, classes = out.shape
    parts = min(part.time * part.parts_of_labels, steps)
    window = -(-steps // parts)
    while window * classes * out.item_bytes % 4:
        window += 1
    windows, samples = blocks(steps, parts, window), blocks(batch, part.batch)
    elements = np.outer(samples, windows).ravel() * classes
    return np.pad(elements, (0, tiles - len(elements)))
