"""Builds a plan: a lowering by `Builder` reads as the list of its compute sets and exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ipu_exec.lowering import costs
from ipu_exec.lowering.layouts import (
    Spread,
    apportion,
    ceil_div,
    linear,
    linear_layout,
    run_of,
    spread_of,
)
from ipu_exec.lowering.plan import (
    ITEM_BYTES,
    Compute,
    Exchange,
    Layout,
    Operand,
    OpSpec,
    Plan,
    Step,
    Temporary,
    Vertices,
)
from ipu_exec.machine import Machine

END = 1 << 30  # a plan's last step: `Builder.plan` cuts it


def messages(
    bytes_in: np.ndarray, bytes_out: np.ndarray, dims: int = 1, least: int = 4
) -> np.ndarray:
    """How many tiles each receiver takes data from.

    The parts of both sides are blocks of ``dims`` dimensions. A part of w bytes that lies anywhere
    over parts of S bytes meets (ceil((w / S)^(1 / dims)) + 1)^dims of them: a stretch of a line one
    more than it covers, a rectangle a row and a column more. What one tile sends arrives in one
    piece at sequential addresses (popops regroups on the tile before and after,
    docs/cycles.md#copies): one fragment. ``least``: bytes that always lie on one tile and are
    wanted as a whole.
    """
    senders = int(np.count_nonzero(bytes_out))
    share = bytes_out.sum() / max(senders, 1)
    covered = (bytes_in / max(share, 1.0)) ** (1 / dims)
    met = (np.ceil(covered).astype(np.int64) + 1) ** dims
    return np.where(
        bytes_in > 0, np.minimum(met, np.minimum(senders, ceil_div(bytes_in, max(4, least)))), 0
    )


@dataclass
class Builder:
    """Steps and temporaries of the operator ``spec``; vectors are int64[machine.tiles]."""

    spec: OpSpec
    machine: Machine
    steps: list[Step] = field(default_factory=list)
    temporaries: list[Temporary] = field(default_factory=list)
    wishes: dict[int, Layout] = field(default_factory=dict)
    written: dict[int, Operand] = field(default_factory=dict)
    last_reads: dict[int, int] = field(default_factory=dict)

    @property
    def tiles(self) -> int:
        """Tiles that compute."""
        return self.machine.tiles

    @property
    def next(self) -> int:
        """Index of the step that comes next."""
        return len(self.steps)

    def compute(
        self,
        name: str,
        vertex: str,
        cycles: np.ndarray,
        flops: int = 0,
        count: np.ndarray | None = None,
    ) -> int:
        """Append a compute set of one vertex on each tile with cycles, or ``count[tile]``."""
        cycles = np.asarray(cycles, np.int64)
        if count is None:
            count = (cycles > 0).astype(np.int64)
        self.steps.append(Compute(name, cycles, (Vertices(vertex, count),), int(flops)))
        return len(self.steps) - 1

    def exchange(
        self,
        name: str,
        bytes_in: np.ndarray,
        bytes_out: np.ndarray,
        fragments: np.ndarray | None = None,
        shared_bus: bool = False,
    ) -> int:
        """Append an exchange, unless nothing moves; returns its step's index or the next one's.

        Bytes without a receiver are not sent: ``bytes_out`` is scaled down to sum to ``bytes_in``
        at most. ``fragments`` are `messages` of a line unless given.
        """
        bytes_in, bytes_out = np.asarray(bytes_in, np.int64), np.asarray(bytes_out, np.int64)
        if not bytes_in.any():
            return len(self.steps)
        if int(bytes_out.sum()) > int(bytes_in.sum()):
            bytes_out = apportion(int(bytes_in.sum()), bytes_out)
        if fragments is None:
            fragments = messages(bytes_in, bytes_out)
        self.steps.append(
            Exchange(name, bytes_in, bytes_out, np.asarray(fragments, np.int64), shared_bus)
        )
        return len(self.steps) - 1

    def hold(
        self,
        name: str,
        nbytes: np.ndarray,
        first: int,
        last: int = END,
        interleaved: bool = False,
        becomes_result: bool = False,
    ) -> None:
        """Keep bytes on tiles from step ``first`` to step ``last``."""
        nbytes = np.asarray(nbytes, np.int64)
        if nbytes.any():
            self.temporaries.append(
                Temporary(name, nbytes, first, last, interleaved, becomes_result)
            )

    def read_until(self, index: int, step: int) -> None:
        """Say that operand ``index`` is read until ``step``; the latest of several calls counts.

        One that is rearranged or gathered is free as soon as the copy is there, in the midst of an
        operator. A lowering says so of an operand only if it says so of all that reads it.
        """
        self.last_reads[index] = max(step, self.last_reads.get(index, 0))

    # -- elementwise pieces, shared by every compound operator

    def map(
        self, name: str, kind: str, elements: np.ndarray, dtype: str, flops: int | None = None
    ) -> int:
        """Append an elementwise compute set of a kind of `costs.KINDS` over ``elements`` a tile."""
        cost = costs.KINDS[kind]
        cycles = cost.cycles(elements, dtype)
        vertex = cost.vertex_type(dtype)
        return self.compute(
            name, vertex, cycles, int(elements.sum()) * cost.flops if flops is None else flops
        )

    def place(self, index: int, like: Spread | None = None) -> Operand:
        """Operand ``index`` with a layout; if it has none, request ``like`` (default: linear)."""
        operand = self.spec.operands[index]
        if operand.layout is not None:
            return operand
        whole = like is not None and int(like.elements.sum()) == max(
            operand.storage_elements, operand.elements
        )
        layout = (
            like.layout(operand.dtype)
            if like is not None and whole
            else linear_layout(operand, self.tiles)
        )
        self.wishes.setdefault(index, layout)
        return placed(operand, self.wishes[index])

    def spread(self, index: int) -> Spread:
        """The spread of operand ``index``, which is placed if necessary."""
        return spread_of(self.place(index), self.tiles)

    def lead(self, index: int) -> tuple[Operand, Spread]:
        """Operand ``index``, and how it lies, for a lowering that works where it lies."""
        # An expanded tensor (the gradient of a sum), whose elements may lie on one tile, is first
        # written out over all tiles: each copies what it gets, as poplar::program::Copy does.
        operand = self.place(index)
        if not any(expanded(operand)):
            return operand, spread_of(operand, self.tiles)
        spread = self.linear(operand.elements, operand.dtype)
        if index not in self.written:
            step = self.fetch(f"operand {index}", operand, spread.elements)
            self.map(f"write out operand {index}", "copy", spread.elements, operand.dtype, flops=0)
            self.hold(f"operand {index} written out", spread.elements * operand.item_bytes, step)
            self.written[index] = row_major(
                operand.shape, operand.dtype, spread.layout(operand.dtype), operand.role
            )
        return self.written[index], spread

    def fetch(
        self,
        name: str,
        source: Operand,
        need: np.ndarray,
        broadcast: bool = False,
        scattered: bool = False,
    ) -> int:
        """Exchange ``need[tile]`` elements of ``source`` to the tiles; returns the step of it.

        ``scattered``: no two elements that a tile needs lie together, so each is a fragment. Of an
        expanded tensor only the elements that are there are sent, each to all who need it.
        """
        item = source.item_bytes
        if any(expanded(source)) and not broadcast:
            need = np.where(
                need > 0,
                np.maximum(1, ceil_div(need * distinct(source), max(source.elements, 1))),
                0,
            )
            source, broadcast, scattered = folded(source), True, False
        spread = spread_of(source, self.tiles)
        elements, key = spread.elements, spread.key
        sent = elements if broadcast else apportion(int(need.sum()), elements)
        # a layout with runs is cut in blocks
        met = messages(need * item, sent * item, 1 + (run_of(key) > 0))
        return self.exchange(
            name, need * item, sent * item, np.asarray(need, np.int64) if scattered else met
        )

    def fetch_and_hold(self, name: str, source: Operand, need: np.ndarray, **how: bool) -> int:
        """`fetch`, and keep what arrives until the plan's last step."""
        step = self.fetch(name, source, need, **how)
        self.hold(name, need * source.item_bytes, step)
        return step

    def linear(self, elements: int, dtype: str) -> Spread:
        """The spread of that many elements in poplibs' linear mapping."""
        return linear(elements, ITEM_BYTES[dtype], self.tiles)

    def linear_layouts(self, outputs: Sequence[Operand | None]) -> list[Layout | None]:
        """A linear layout of each of these outputs that somebody uses."""
        return [
            None if out is None else self.linear(out.elements, out.dtype).layout(out.dtype)
            for out in outputs
        ]

    def plan(
        self,
        outputs: tuple[Layout | None, ...],
        *,
        constants: np.ndarray | None = None,
        note: str = "",
    ) -> Plan:
        """The finished plan; an output's layout is None where it shares an input's storage."""
        layouts = tuple(
            None if out is None or out.layout is not None else layout
            for out, layout in zip(self.spec.outputs, outputs, strict=True)
        )
        last = len(self.steps) - 1
        temporaries = tuple(
            (t if t.last <= last else replace(t, first=min(t.first, last), last=last))
            for t in self.temporaries
            if last >= 0
        )
        return Plan(
            tuple(self.steps),
            temporaries,
            layouts,
            tuple(sorted(self.wishes.items())),
            constants,
            tuple((index, step) for index, step in self.last_reads.items() if step < last),
            note,
        )


def expanded(operand: Operand) -> tuple[bool, ...]:
    """The dimensions of a tensor that only repeat their first element."""
    return tuple(
        stride == 0 and n > 1 for n, stride in zip(operand.shape, operand.strides, strict=True)
    )


def folded(operand: Operand) -> Operand:
    """An expanded tensor without its repeats."""
    return replace(
        operand,
        shape=tuple(
            1 if wide else n for n, wide in zip(operand.shape, expanded(operand), strict=True)
        ),
    )


def distinct(operand: Operand) -> int:
    """The number of distinct elements, without those that an expanded view repeats."""
    return folded(operand).elements


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense tensor of this shape."""
    return tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))


def row_major(
    shape: tuple[int, ...], dtype: str, layout: Layout, role: str = "activation"
) -> Operand:
    """A dense tensor in row-major order on a layout."""
    return Operand(shape, dtype, row_major_strides(shape), 0, prod(shape), layout, role)


def placed(operand: Operand, layout: Layout) -> Operand:
    """The same operand on a layout."""
    return Operand(
        operand.shape,
        operand.dtype,
        operand.strides,
        operand.offset,
        operand.storage_elements,
        layout,
        operand.role,
    )
