"""Memory of the one IPU of a compiled case, as the rows of the vendor's memory report name it.

Total: each tile's always-live bytes and its own peak of the rest, without gaps, over all tiles. The
peak of what is not always live is that of the whole chip at one step, as the liveness report draws
it. Stacks count in none: [TUT4]'s report has no room for them (1.9 kB in all on a tile without
work, where six stacks alone are 3.2 kB).

poplibs' benchmarks [PLB, tools/bench.py] add up what the liveness report lists, and the fullest
tile of byTile with gaps: on a tile that uses region 1 all of region 0 lies below it
(docs/memory-model.md#gaps). The vendor's model has vertices' code only where the tool that runs it
asks for that ([PLB, tools/*.cpp], compileIPUCode: products, convolutions and embeddings do; layers,
reductions, pooling, recurrent layers and CTC do not: bert_reduce_0's fullest tile has 888 bytes in
all). It lists no code of exchange, control or stacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipuscope.profiler.enums import Role
from ipuscope.profiler.timeline.tile_usage import including_gaps


@dataclass(frozen=True)
class Tool:
    """What the programs of poplibs' tools hold besides those of the operators that they run.

    ``programs``: where two, the first operator is in one and the others are in the second.
    Programs may be run in any order, and another one reads what these leave: a result of the
    second is live while the first runs. ``function``: the first operator is a function, which has
    operands and a result of its own beside those of the program, to and from which they are copied
    ([PLB, tools/single_conv_layer.cpp], fwdConv; [PLB, lib/poputil/GraphFunction.cpp]).
    """

    programs: int = 1
    function: bool = False

    def variables(self, variables: Sequence[Any]) -> list[Any]:
        """What it holds besides, as variables."""
        moving = [v for v in variables if not v.always_live]
        first = min((v.op for v in moving if v.role == Role.TEMPORARY), default=-1)
        end = max((v.stop for v in moving if v.op == first and v.role == Role.TEMPORARY), default=0)
        last = max((v.stop for v in moving), default=0)
        held: list[Any] = []
        if self.programs == 2:
            left = [v for v in moving if v.stop == last and v.role != Role.TEMPORARY]
            held += [replace(v, start=0, stop=end) for v in left if v.start >= end]
        if self.function:
            own = function_tensors(variables)
            held += [replace(v, always_live=0, start=0, stop=last) for v in own]
        return held


def function_tensors(variables: Sequence[Any]) -> list[Any]:
    """The input, the weights and the result of a tool's convolution.

    The operands are the first tensors that are held.
    """
    held = [v for v in variables if v.always_live and v.role == Role.WEIGHT]
    return [*held[:2], *(v for v in variables if v.name.endswith("convolution:0"))]


def read(part: str, executable: Any, tool: Tool | None = None) -> float:
    """Bytes of ``part``, in the program of the model or in those of the ``tool`` that ran it.

    "total", "without code", "with vertex code", "fullest tile", "always live" or "peak"; "tile
    without code" is that of the fullest tile, without gaps.
    """
    counted = [v for v in executable.variables if v.category != "stack"]
    counted += tool.variables(counted) if tool is not None else []
    of_tile, part = part.startswith("tile "), part.removeprefix("tile ")
    if part in ("without code", "with vertex code", "fullest tile", "always live"):
        kept = "vertexCode" if part == "with vertex code" else ""
        counted = [v for v in counted if not v.category.endswith("Code") or v.category == kept]
    tiles = executable.target.tiles
    if part == "live with code":
        return float(sum(v.bytes for v in counted if v.always_live))
    if part == "always live":
        # the liveness report leaves code out ([TUT4]'s list: tensors, vertex state, worklists,
        # descriptors)
        return float(sum(v.bytes for v in counted if v.always_live))
    if part == "peak":
        moving = [v for v in counted if not v.always_live]
        return float(_peaks(moving, [np.array([v.bytes]) for v in moving], 1).sum())
    always = sum((v.tile_bytes for v in counted if v.always_live), np.zeros(tiles, np.int64))
    if part in (
        "without code",
        "with vertex code",
    ):  # maxBytesByTile of the report: of both regions at once
        moving = [v for v in counted if not v.always_live]
        each = always + _peaks(moving, [v.tile_bytes for v in moving], tiles)
        return float(each.max() if of_tile else each.sum())
    moving = [v for v in counted if not v.always_live]
    used, region1 = (
        _peaks(chosen, [v.tile_bytes for v in chosen], tiles)
        for chosen in (moving, [v for v in moving if v.interleaved])
    )
    if part == "fullest tile":
        region0 = executable.target.region0_bytes
        return float(including_gaps(always + used, region1, region0).max())
    return float((always + used).max() if of_tile else (always + used).sum())


def _peaks(variables: Sequence[Any], sizes: Sequence[np.ndarray], tiles: int) -> np.ndarray:
    """The largest sum of ``sizes`` that live at once, on each tile: int64[tiles] bytes."""
    events = [(v.start, size) for v, size in zip(variables, sizes, strict=True)]
    events += [(v.stop, -size) for v, size in zip(variables, sizes, strict=True)]
    now, most = np.zeros(tiles, np.int64), np.zeros(tiles, np.int64)
    last = None
    for step, change in sorted(events, key=lambda event: event[0]):
        if step != last:
            most = np.maximum(most, now)
        now, last = now + change, step
    return np.maximum(most, now)
