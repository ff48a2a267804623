"""`Executable`: a compiled model, made by `ipu_exec.compiler.passes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, log2
from typing import Any

from ipu_exec.compiler.emission.bodies import ProgramTree
from ipu_exec.compiler.memory import overflow
from ipu_exec.compiler.memory.tile_memory import TileMemory
from ipu_exec.compiler.options import CompileOptions
from ipu_exec.compiler.placement import place
from ipu_exec.compiler.placement.place import Placement
from ipu_exec.compiler.schedule import Timeline
from ipu_exec.errors import OutOfMemoryError
from ipu_exec.graph import Graph
from ipu_exec.machine import Target
from ipuscope.profiler import units
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline.tile_usage import Overflow, what_it_needs

_MOST_ROWS = 6  # of a table in the error of what does not fit


@dataclass(frozen=True)
class Executable:
    """All passes' results for a model; `ipu_exec.compiler.rows.profile_rows` makes its profile."""

    graph: Graph
    placement: Placement
    tree: ProgramTree
    memory: TileMemory
    timeline: Timeline
    target: Target
    options: CompileOptions
    settings: Mapping[str, Any] = field(default_factory=dict)  # the user's options, dotted names
    # what the forward read off tensors (`ipu_exec.capture.control_flow`)
    contents: tuple[bool | int | float, ...] = ()

    @property
    def variables(self) -> list[records.Variable]:
        """The variables in one replica's tile memory; a variable's id is its index."""
        return self.memory.variables

    @property
    def attached_ipus(self) -> int:
        """The number of IPUs to attach per replica, a power of two."""
        return self.placement.attached_ipus

    @cached_property
    def cycles_per_call(self) -> int:
        """Cycles of one call: all its device iterations and the waits around them."""
        schedule, trace = self.timeline.schedule, self.timeline.trace
        return schedule.head + trace.iterations * trace.iteration_cycles + schedule.tail

    @cached_property
    def apart(self) -> Placement:
        """The model as if every Block were a stage on its own IPU: what would cross each cut."""
        each = [place.StagePlace(block.id, (block.name,)) for block in self.graph.blocks]
        work = [op for op in self.graph.ops if op.direction != Direction.UPDATE]
        graph = replace(self.graph, ops=work)
        place.accumulate_where_made(graph, each, False)
        return place.place(graph, each, False)

    @cached_property
    def tile_bytes(self) -> list[overflow.TileBytes]:
        """Peak bytes of each tile, IPU by IPU."""
        return overflow.tile_bytes(self.variables, self.target)

    @cached_property
    def overflow(self) -> Overflow | None:
        """The tile furthest over its limit, if any."""
        return overflow.find_overflow(self.tile_bytes, self.target)

    def _more_ipus(self, over: Overflow, blocks: Sequence[tuple[str, int]]) -> str:
        """How more IPUs would help: with the model spread over them, or a Block's tensors cut."""
        ipu_bytes = self.target.tiles * self.target.bytes_per_tile
        name, needs = blocks[0] if blocks else ("", 0)
        if needs > ipu_bytes:
            return (
                f"More IPUs alone do not help: Block {name} needs {units.size(needs)},"
                f" and an IPU has {units.size(ipu_bytes)}. Cut its tensors over several IPUs"
                " (Options.tensorSharding), or make it more Blocks"
            )
        # as many as would have room if each took its share: a power of two, and more than now
        times = ceil(log2((over.limit + over.bytes_over) / over.limit))
        more = 2 ** max(1, times) * self.placement.attached_ipus
        return f"Or spread the model over {more} IPUs: ipu-run --num-ipus {more} SCRIPT"

    def check_memory(self, profile_path: str = "") -> None:
        """Raise OutOfMemoryError, with ``profile_path``, if a tile's contents exceed its memory."""
        over = self.overflow
        if over is None:
            return
        on_tile, shared = over.contents, self.options.replicas > 1
        names = [block.name for block in self.graph.blocks]
        blocks = overflow.block_bytes(self.variables, names, over.ipu)
        an_ipu = units.size(self.target.tiles * self.target.bytes_per_tile)
        tables = (
            ("by kind, on that tile then:", on_tile.kinds),
            ("the largest things there:", on_tile.largest),
            (f"the Blocks of IPU {over.ipu}, each by itself (an IPU has {an_ipu}):", blocks),
        )
        where = (
            f"The profile is {profile_path}"
            if profile_path
            else 'No profile was asked for (Options(profile_dir="out"))'
        )
        step = self.tree.step_names(over.ipu)[over.position]
        ways = (
            "Give the stage fewer Blocks, lower the micro-batch size or"
            " setAvailableMemoryProportion, or keep optimiser state off the chip"
            f"{' or in parts on replicas' * shared}"
        )
        if over.of_code:
            ways = "Give the stage fewer Blocks, or fewer kinds of operators: equal ones share code"
        # of a model without Blocks its profile says more: `compilation.with_relief`
        more = self._more_ipus(over, blocks) if names or not profile_path else ""
        lines = [
            f"out of memory on IPU {over.ipu}, tile {over.tile}, at step {over.position} ({step}):"
            f" it {what_it_needs(over.bytes_over, over.limit, over.what)};"
            f" {on_tile.always_live / 1024:,.1f} KiB are always live",
            *(line for title, rows in tables if rows for line in _table(title, rows)),
            f"{where}. {ways}. {more}",
        ]
        raise OutOfMemoryError("\n".join(lines), profile_path=profile_path)


def _table(title: str, rows: Sequence[tuple[str, int]]) -> list[str]:
    """Lines of (name, bytes), the largest first, under a title; the last ones are summed up."""
    shown, rest = list(rows), list(rows[_MOST_ROWS:])
    if len(rest) > 1:
        shown[_MOST_ROWS:] = [(f"{len(rest)} others", sum(nbytes for _, nbytes in rest))]
    sizes = [units.size(nbytes) for _, nbytes in shown]
    width = max(map(len, sizes))
    return [
        f"  {title}",
        *(f"    {size:>{width}}  {name}" for size, (name, _) in zip(sizes, shown, strict=True)),
    ]
