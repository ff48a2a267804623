"""Looking up and updating rows: embedding, index_select, gather, scatter, index, index_put.

The table keeps its layout, the indices are sent to every tile that holds a part of it, and the rows
that are read are exchanged to the tiles of the result (docs/cycles.md#gather).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ipu_exec.lowering.build import Builder, distinct
from ipu_exec.lowering.layouts import (
    Spread,
    apportion,
    ceil_div,
    result_spread,
    split_evenly,
    spread_of,
)
from ipu_exec.lowering.operator_info import aten, describe_aten, words
from ipu_exec.lowering.operators.elementwise import base_name, elementwise
from ipu_exec.lowering.operators.reduce import reduce_cycles
from ipu_exec.lowering.plan import Layout, Operand, OpSpec, Plan
from ipu_exec.lowering.registry import lowering
from ipu_exec.lowering.vertices import poplar_type
from ipu_exec.machine import EXCHANGE_BASE_LATENCY, SYNC_CYCLES, Machine
from ipuscope.profiler.vertices import WORKERS

PHASE = SYNC_CYCLES + EXCHANGE_BASE_LATENCY  # of an exchange, for choosing between plans
# cycles of an element that is read or written where an index says (docs/cycles.md#copies, measured)
_INDEXED = 10


def slice_cycles(hits: np.ndarray, lookups: np.ndarray, row_bytes: np.ndarray) -> np.ndarray:
    """``popops::MultiSlice``: 6 [30 + hits (19 + 2 row / 8 B) + misses 8]."""
    # workers share the lookups
    hit, miss = ceil_div(hits, WORKERS), ceil_div(np.maximum(lookups - hits, 0), WORKERS)
    return np.where(
        lookups > 0, WORKERS * (30 + hit * (19 + 2 * ceil_div(row_bytes, 8)) + 8 * miss), 0
    )


def update_cycles(
    hits: np.ndarray, lookups: np.ndarray, row_elements: np.ndarray, item_bytes: int
) -> np.ndarray:
    """``popops::MultiUpdateAdd``: 6 [36 + hits (12 + 3 (row - 1) an atom) + misses 5]."""
    # an atom is 8 bytes
    hit, miss = ceil_div(hits, WORKERS), ceil_div(np.maximum(lookups - hits, 0), WORKERS)
    atoms = ceil_div(row_elements * item_bytes, 8)
    return np.where(
        lookups > 0, WORKERS * (36 + hit * (12 + 3 * np.maximum(atoms - 1, 0)) + 5 * miss), 0
    )


def _row(table: Operand, dim: int) -> int:
    """Elements of a row, which one index selects."""
    return max(1, table.elements // max(1, table.shape[dim] if table.shape else 1))


def repeated_row(index: Operand) -> int:
    """How often an expanded index repeats itself innermost: it picks rows of so many elements."""
    row = 1
    for extent, stride in zip(reversed(index.shape), reversed(index.strides), strict=True):
        if stride and extent > 1:
            break
        row *= extent
    return row


def _send_indices(build: Builder, indices: list[int], part: np.ndarray, copies: int = 1) -> None:
    """Send the indices to every tile with a part of the table; its copies take a part each."""
    for index in indices:
        source = build.place(index)
        need = np.where(part > 0, ceil_div(distinct(source), copies), 0)
        build.fetch_and_hold("indices", source, need, broadcast=True)


def _copies(
    part: np.ndarray, lookups: int, item_bytes: int, machine: Machine, cost: Callable[[int], int]
) -> int:
    """How many copies of a table share its lookups: those of least ``cost`` that fit in memory."""
    # popops::embedding::plan calls it the lookup split: 12 for 18,000 lookups in 1,000 rows of 200
    # halves, 1 for as many rows as lookups and for large tables [PL,
    # tests/popops/DynamicSlicePlanningTest.cpp]. By our formulas those two would gain a factor of
    # 1.6 and 1.9, the first one 17: copies that share tiles have to gain 2 (estimate).
    idle = max(1, len(part) // max(1, int(np.count_nonzero(part))))
    room = machine.proportion * machine.target.bytes_per_tile
    most = max(1, min(len(part), lookups))
    tried = sorted(
        {min(limit, 2**power) for limit in (idle, most) for power in range(limit.bit_length() + 1)}
    )
    tried = [
        n for n in tried if n <= idle or (_copied(part, n).max() * item_bytes <= room and n <= most)
    ]
    best, beside = min(tried, key=cost), min((n for n in tried if n <= idle), key=cost)
    return best if 2 * cost(best) <= cost(beside) else beside


def _copied(part: np.ndarray, copies: int) -> np.ndarray:
    """``part`` and its copies on the tiles that follow, or spread evenly if these are too few."""
    if copies == 1:
        return part
    several = np.zeros_like(part)
    used = np.flatnonzero(part)
    if len(used) * copies <= len(part):
        several[(used[0] + np.arange(len(used) * copies)) % len(part)] = np.tile(part[used], copies)
    else:
        share = split_evenly(int(part.sum()), len(part) // copies)
        several[: len(share) * copies] = np.tile(share, copies)
    return several


def look_up(
    spec: OpSpec, machine: Machine, table: int, indices: list[int], row: int, lookups: int
) -> Plan:
    """Each tile copies the requested rows that it holds; these are exchanged to a linear result."""
    # a table on a few tiles is copied to more tiles, which share the lookups, if that is faster
    build = Builder(spec, machine)
    source, lying = build.lead(table)
    out = spec.output

    def sliced(elements: np.ndarray, copies: int) -> tuple[np.ndarray, np.ndarray]:
        """(elements read, cycles) of each tile."""
        piece = np.minimum(elements, row)  # a linear layout keeps a row in one piece where it can
        gathered = apportion(out.elements, elements)
        hits = np.where(piece > 0, ceil_div(gathered, np.maximum(piece, 1)), 0)
        per_tile = np.where(elements > 0, ceil_div(lookups, copies), 0)
        return gathered, slice_cycles(hits, per_tile, piece * source.item_bytes)

    def cost(copies: int) -> int:
        elements = _copied(lying.elements, copies)
        sending = ceil_div(elements.max() * source.item_bytes, 4) + PHASE if copies > 1 else 0
        return int(sliced(elements, copies)[1].max() + sending + ceil_div(lookups, copies))

    copies = _copies(lying.elements, lookups, source.item_bytes, machine, cost)
    elements = _copied(lying.elements, copies)
    if copies > 1:
        need = np.maximum(elements - lying.elements, 0)
        build.fetch_and_hold("copies of the table", source, need, broadcast=True)
    _send_indices(build, indices, elements, copies)
    read, cycles = sliced(elements, copies)
    kind = f"popops::MultiSlice<{poplar_type(source.dtype)}>"
    step = build.compute(f"{base_name(spec)}/slice", kind, cycles)
    build.hold("found rows", read * source.item_bytes, step, step + 1)
    spread = build.linear(out.elements, out.dtype)
    build.exchange(
        f"{base_name(spec)}/collect", spread.elements * source.item_bytes, read * source.item_bytes
    )
    layouts: list[Layout | None] = build.linear_layouts(spec.outputs)
    return build.plan(tuple(layouts), note=f"{copies} copies" if copies > 1 else "")


_ADDING = words(
    """embedding_dense_backward _embedding_bag_dense_backward index_add index_add_ scatter_add
    scatter_add_"""
)


@dataclass(frozen=True)
class _Updates:
    """Rows that are sent to a result and added to it, or written."""

    result: np.ndarray  # elements of the result that each tile holds
    row: int  # elements
    lookups: int
    moved: int  # elements of all rows
    item_bytes: int

    def arriving(self, elements: np.ndarray) -> np.ndarray:
        """Elements that arrive at each tile."""
        return apportion(self.moved, elements)

    def cycles(self, elements: np.ndarray, copies: int) -> np.ndarray:
        """Of each tile, where ``copies`` of the result share the lookups."""
        piece = np.minimum(elements, self.row)
        hits = np.where(piece > 0, ceil_div(self.arriving(elements), np.maximum(piece, 1)), 0)
        lookups = np.where(elements > 0, ceil_div(self.lookups, copies), 0)
        return update_cycles(hits, lookups, piece, self.item_bytes)

    def adding_up(self, copies: int) -> np.ndarray:
        """Cycles to add up what the copies have gathered, where the result lies."""
        return reduce_cycles(self.result * copies, self.result, self.item_bytes, True)

    def total(self, copies: int) -> int:
        """Cycles with that many copies of the result: reading, adding, and adding up."""
        elements = _copied(self.result, copies)
        reading = ceil_div(self.arriving(elements).max() * self.item_bytes, 4)
        reading = reading + ceil_div(self.lookups, copies)
        adding_up = 0
        if copies > 1:
            partials = self.result.max() * copies * self.item_bytes
            adding_up = self.adding_up(copies).max() + ceil_div(partials, 4) + PHASE
        return int(self.cycles(elements, copies).max() + reading + adding_up)


def update(
    spec: OpSpec,
    machine: Machine,
    values: int | None,
    indices: list[int],
    row: int,
    lookups: int,
    base: int | None,
    rows: int | None = None,
) -> Plan:
    """Send rows of values to the tiles that hold their place in the result and add them.

    ``base``: the operand that the result starts from (copied unless in place); None: zeros.
    ``rows``: that arrive, if not one a row of values (a bag's gradient goes to all indices).
    """
    build = Builder(spec, machine)
    out, name = spec.output, base_name(spec)
    spread = _initial_result(build, base, out)
    moved = (lookups if rows is None else rows) * row
    if values is not None and rows is None:
        moved = spec.operands[values].elements
    updates = _Updates(spread.elements, row, lookups, moved, out.item_bytes)
    # what is written, not added, has one place, unless its copies say what they wrote
    adds = name in _ADDING or (name.startswith("index_put") and spec.args[3:4] == (True,))
    copies = 1
    if adds or name in ("scatter", "scatter_"):
        copies = _copies(spread.elements, lookups, out.item_bytes, machine, updates.total)
    elements = _copied(spread.elements, copies)
    if copies > 1:
        step = build.map(f"{name}/zero copies", "fill", elements, out.dtype, flops=0)
        build.hold("copies of the result", elements * out.item_bytes, step)
    _send_indices(build, indices, elements, copies)
    if values is not None:
        source, arriving = build.place(values), updates.arriving(elements)
        build.fetch_and_hold("values", source, arriving, broadcast=rows is not None)
    kind = f"popops::MultiUpdateAdd<{poplar_type(out.dtype)},int>"
    build.compute(f"{name}/update", kind, updates.cycles(elements, copies), moved)
    if copies > 1:
        _add_up_copies(build, updates, elements, copies, out, adds)
    note = f"{copies} copies" if copies > 1 else ""
    return build.plan((spread.layout(out.dtype), *(None,) * (len(spec.outputs) - 1)), note=note)


def _initial_result(build: Builder, base: int | None, out: Operand) -> Spread:
    """The initial result of `update` and its layout: the operand ``base``, or zeros."""
    name = base_name(build.spec)
    if base is None:
        spread = build.linear(out.elements, out.dtype)
        build.map(f"{name}/zero", "fill", spread.elements, out.dtype, flops=0)
        return spread
    if build.spec.operands[base].elements < out.elements:
        # broadcast to the mask (masked_scatter)
        source, spread = build.place(base), build.linear(out.elements, out.dtype)
        need = np.minimum(spread.elements, source.elements)
        step = build.fetch("input", source, need, broadcast=True)
        build.hold("input", need * source.item_bytes, step, build.next)
        build.map(f"{name}/copy", "copy", spread.elements, out.dtype, flops=0)
        return spread
    spread = build.lead(base)[1]
    if out.layout is None:
        build.map(f"{name}/copy", "copy", spread.elements, out.dtype, flops=0)
    return spread


def _add_up_copies(
    build: Builder, updates: _Updates, on_tiles: np.ndarray, copies: int, out: Operand, adds: bool
) -> None:
    """Bring a result's copies to where it lies; where elements are written, marks say which."""
    name, elements = base_name(build.spec), updates.result
    partials = elements * copies * out.item_bytes
    step = build.exchange(f"{name}/partials", partials, on_tiles * out.item_bytes)
    build.hold("partials", partials, step, step + 1)
    kind = f"popops::Reduce<popops::ReduceAdd,{poplar_type(out.dtype)},float>"
    cycles, flops = updates.adding_up(copies), int(elements.sum()) * copies
    build.compute(f"{name}/add up", kind, cycles, flops)
    if not adds:
        build.exchange(f"{name}/marks", elements * copies, on_tiles)
        build.compute(f"{name}/marked", kind, cycles, flops)
        build.map(f"{name}/take marked", "select", elements, out.dtype)


@lowering("aten.embedding")
def embedding(spec: OpSpec, machine: Machine) -> Plan:
    """(table, indices): rows of the table."""
    table = spec.operands[0]
    return look_up(spec, machine, 0, [1], table.shape[-1], spec.operands[1].elements)


@lowering("aten._embedding_bag", "aten._embedding_bag_forward_only")
def embedding_bag(spec: OpSpec, machine: Machine) -> Plan:
    """(table, indices, offsets, ...): a multi-slice, and each bag's rows reduced where it lies."""
    # Rows arrive at the tile of their bag, so nothing is exchanged twice. The mean divides, and
    # weights of samples (an operand after the offsets) multiply, before the sum.
    build = Builder(spec, machine)
    table, indices, out = build.place(0), spec.operands[1], spec.output
    row = table.shape[-1]
    elements = spread_of(table, machine.tiles).elements
    _send_indices(build, [1], elements)
    piece = np.minimum(elements, row)
    updates = apportion(indices.elements * row, elements)
    hits = np.where(piece > 0, ceil_div(updates, np.maximum(piece, 1)), 0)
    lookups = np.where(elements > 0, indices.elements, 0)
    cycles = slice_cycles(hits, lookups, piece * table.item_bytes)
    step = build.compute("slice", f"popops::MultiSlice<{poplar_type(table.dtype)}>", cycles)
    build.hold("found rows", updates * table.item_bytes, step, step + 1)
    spread = build.linear(out.elements, out.dtype)
    arriving = apportion(indices.elements * row, spread.elements)
    step = build.exchange("collect", arriving * table.item_bytes, updates * table.item_bytes)
    build.hold("rows of bags", arriving * table.item_bytes, step)
    mode = next((a for a in spec.args[4:5] if isinstance(a, int)), 0)
    if len(spec.operands) > 3:
        build.map("weigh", "mul", arriving, out.dtype)
    operation = "Max" if mode == 2 else "Add"
    kind = f"popops::Reduce<popops::Reduce{operation},{poplar_type(table.dtype)},float>"
    build.compute(
        "reduce",
        kind,
        reduce_cycles(arriving, spread.elements, table.item_bytes, True),
        indices.elements * row,
    )
    if mode == 1:
        build.map("mean", "mul_vector", spread.elements, out.dtype)
    return build.plan((spread.layout(out.dtype), *build.linear_layouts(spec.outputs[1:])))


@lowering("aten._embedding_bag_dense_backward")
def embedding_bag_backward(spec: OpSpec, machine: Machine) -> Plan:
    """(gradient, indices, bag of each index, ...): adds a bag's gradient to its indices' rows."""
    gradient, indices = spec.operands[0], spec.operands[1]
    return update(
        spec, machine, 0, [1, 2], gradient.shape[-1], indices.elements, None, indices.elements
    )


@lowering("aten._embedding_bag_per_sample_weights_backward")
def embedding_bag_weights_backward(spec: OpSpec, machine: Machine) -> Plan:
    """(gradient, table, indices, offsets, bags, ...): dot products of bags' gradients and rows."""
    build = Builder(spec, machine)
    gradient, table = build.place(0), build.place(1)
    indices, out = spec.operands[2], spec.output
    row, elements = table.shape[-1], spread_of(table, machine.tiles).elements
    _send_indices(build, [2], elements)
    spread = build.linear(out.elements, out.dtype)
    need = apportion(indices.elements * row, spread.elements)
    gathered = apportion(indices.elements * row, elements)
    lookups = np.where(elements > 0, indices.elements, 0)
    hits = ceil_div(gathered, row)
    build.compute(
        "slice",
        "popops::MultiSlice<float>",
        slice_cycles(hits, lookups, elements * 0 + row * table.item_bytes),
    )
    for name, source, sent in (
        ("rows", table, gathered),
        ("gradients", gradient, spread_of(gradient, machine.tiles).elements),
    ):
        step = build.exchange(name, need * source.item_bytes, sent * source.item_bytes)
        build.hold(name, need * source.item_bytes, step)
    build.map("multiply", "mul", need, out.dtype)
    kind = f"popops::Reduce<popops::ReduceAdd,{poplar_type(out.dtype)},float>"
    build.compute(
        "reduce", kind, reduce_cycles(need, spread.elements, out.item_bytes, False), int(need.sum())
    )
    return build.plan((spread.layout(out.dtype),))


@lowering("aten.embedding_dense_backward")
def embedding_backward(spec: OpSpec, machine: Machine) -> Plan:
    """(gradient, indices, rows, ...): gradients added up into a zero table."""
    gradient = spec.operands[0]
    return update(spec, machine, 0, [1], gradient.shape[-1], spec.operands[1].elements, None)


@lowering("aten.index_select", "aten.gather", "aten.take_along_dim")
def select_rows(spec: OpSpec, machine: Machine) -> Plan:
    """(input, dim, index): rows for index_select and gather by an expanded index, else elements."""
    table, index = spec.operands[0], spec.operands[1]
    dim = int(spec.args[1]) if isinstance(spec.args[1], int) else 0
    contiguous = prod(table.shape[dim % max(1, len(table.shape)) + 1 :])
    row = contiguous if base_name(spec) == "index_select" else min(contiguous, repeated_row(index))
    lookups = index.elements if base_name(spec) == "index_select" else index.elements // max(1, row)
    return look_up(spec, machine, 0, [1], max(1, row), lookups)


@lowering("aten.index", "aten._unsafe_index", "aten.masked_select", "aten.take")
def index(spec: OpSpec, machine: Machine) -> Plan:
    """Advanced indexing: the elements of a row are those that no index addresses."""
    picks = list(range(1, len(spec.operands)))
    out = spec.output
    lookups = max((spec.operands[i].elements for i in picks), default=1)
    return look_up(spec, machine, 0, picks, max(1, out.elements // max(lookups, 1)), lookups)


def _put_under_mask(spec: OpSpec, machine: Machine, first: int) -> Plan:
    """``x[mask] = value``, a mask of dimensions from ``first``: a select for a single value."""
    whole, mask, value = spec.operands
    behind = len(whole.shape) - first - len(mask.shape)
    if len(value.shape) > behind:  # a value for each element under the mask: each goes to its place
        row = prod(whole.shape[len(whole.shape) - behind :])
        return update(spec, machine, 2, [1], row, mask.elements, 0)
    wide = replace(
        mask, shape=(*mask.shape, *(1,) * behind), strides=(*mask.strides, *(1,) * behind)
    )
    return elementwise(replace(spec, args=(whole, wide, value)), machine, ("select",))


@lowering("aten.index_put", "aten.index_put_", "aten._unsafe_index_put", "aten._index_put_impl_")
def index_put(spec: OpSpec, machine: Machine) -> Plan:
    """(input, indices, values): the last operand is written or added where the indices say."""
    last = len(spec.operands) - 1
    picks = list(range(1, last))
    masks = [
        i
        for i, index in enumerate(spec.args[1])
        if isinstance(index, Operand) and index.dtype == "bool"
    ]
    if len(masks) == len(picks) == 1:
        return _put_under_mask(spec, machine, masks[0])
    lookups = max((spec.operands[i].elements for i in picks), default=1)
    row = max(1, spec.operands[last].elements // max(lookups, 1))
    return update(spec, machine, last, picks, row, lookups, 0)


@lowering(
    *aten(
        "scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_add "
        "index_add_ index_copy index_copy_ index_fill index_fill_ index_reduce index_reduce_ "
        "masked_scatter masked_scatter_"
    )
)
def scatter(spec: OpSpec, machine: Machine) -> Plan:
    """(input, dim, index, values): elements, or rows (index_add, index_copy, expanded index)."""
    table, place = spec.operands[0], spec.operands[1]
    dim = spec.args[1] if isinstance(spec.args[1], int) else 0
    if base_name(spec).startswith("index_"):
        row, lookups = _row(table, dim), place.elements
    else:
        inner = prod(table.shape[dim % max(1, len(table.shape)) + 1 :])
        row = max(1, min(inner, repeated_row(place)))
        lookups = place.elements // row
    values = 2 if len(spec.operands) > 2 and spec.operands[2].elements > 1 else None
    return update(spec, machine, values, [1], row, lookups, 0)


@lowering("aten.put", "aten.put_")
def put(spec: OpSpec, machine: Machine) -> Plan:
    """(input, index, values): single elements, the input taken as a vector."""
    return update(spec, machine, 2, [1], 1, spec.operands[1].elements, 0)


@lowering("aten.masked_scatter_backward")
def masked_scatter_backward(spec: OpSpec, machine: Machine) -> Plan:
    """(gradient, mask, sizes): the gradients under the mask, packed: each position is looked up."""
    return look_up(spec, machine, 0, [1], 1, spec.operands[1].elements)


@lowering("aten.bucketize", "aten.searchsorted")
def search(spec: OpSpec, machine: Machine) -> Plan:
    """A binary search by (values, edges), or by (edges, values) for searchsorted."""
    # log2(edges) generic steps an element; a row's edges go to every tile that has values of it
    build = Builder(spec, machine)
    data, bins = (1, 0) if base_name(spec) == "searchsorted" else (0, 1)
    values, out = (spec.operands[data] if data < len(spec.operands) else None), spec.output
    edges = build.place(bins)
    if values is not None and values.elements == out.elements:
        source, lead = build.lead(data)
        spread = result_spread(lead, source, out)
    else:
        spread = build.linear(out.elements, out.dtype)
    row = edges.shape[-1] if edges.shape else 1
    need = np.where(spread.elements > 0, np.minimum(edges.elements, row), 0)
    build.fetch_and_hold("edges", edges, need, broadcast=True)
    for turn in range(max(1, int(np.ceil(np.log2(row + 1))))):
        build.map(f"halve {turn}", "generic", spread.elements, edges.dtype)
    return build.plan((spread.layout(out.dtype),))


def gather_in_rows(spec: OpSpec, machine: Machine) -> Plan:
    """PopTorch's ``FastGatherLastDim``, (data, index), or its gradient, (data, index, gradient)."""
    # A row of each is on one tile, so that an index is read there only [POPTORCH,
    # popart_compiler/source/custom_operations/FastGatherLastDim.cpp]. One step an element; for the
    # gradient, which adds to what is there, half as much again (an estimate).
    build = Builder(spec, machine)
    out = spec.output
    backward = len(spec.operands) > 2
    spread = build.linear(out.elements, out.dtype)
    rows = ceil_div(spread.elements, out.shape[-1])
    index = spec.operands[1]
    for name, position in (
        (("index", 1), ("gradient", 2)) if backward else (("data", 0), ("index", 1))
    ):
        source = build.place(position)
        need = np.minimum(rows * source.shape[-1], source.elements)
        build.fetch_and_hold(name, source, need, broadcast=int(need.sum()) > source.elements)
    if backward:
        build.map("zero", "fill", spread.elements, out.dtype, flops=0)
    picked = ceil_div(rows * index.shape[-1], WORKERS)
    each = _INDEXED + _INDEXED // 2 if backward else _INDEXED
    kind = f"poptorch::FastGather{'Grad' if backward else ''}Vertex<{poplar_type(out.dtype)},int>"
    cycles = np.where(rows > 0, WORKERS * (30 + each * picked), 0)
    build.compute(
        "gather gradient" if backward else "gather", kind, cycles, index.elements if backward else 0
    )
    return build.plan((spread.layout(out.dtype), *build.linear_layouts(spec.outputs[1:])))


describe_aten(
    """embedding embedding_bag index_select gather index index_put scatter scatter_add
    scatter_reduce""",
    uses_memory_proportion=True,
)
describe_aten("index index_select gather embedding_dense_backward", moves=True)
describe_aten("embedding index_select gather", popart_name="Gather")
describe_aten("embedding_dense_backward", popart_name="GatherGrad")
describe_aten("scatter scatter_", popart_name="Scatter")
describe_aten(
    "scatter_add scatter_add_ scatter_reduce scatter_reduce_", popart_name="ScatterReduce"
)
