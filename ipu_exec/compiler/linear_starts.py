"""Where weights begin that no operator lays out: biases, and the parameters of norms.

Poplibs maps a tensor linearly from tile 0 on; PopART then turns each so that it begins where the
last one on its IPU ended ([POPART, willow/src/popx/linearmapper.cpp], LinearMapper). Without that
the small parameters of every layer would pile up on the same tiles. Here they go on from one IPU to
the next: where one begins does not depend on the split, and the profile of a split tells the memory
of another. It only tells where they are: what an operator takes to read one does not depend on it,
and equal layers keep equal plans. What waits off the chip comes to where equal tensors come to, so
that their transfers share code.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import numpy as np

from ipu_exec.graph import Graph
from ipu_exec.lowering.plan import Layout
from ipuscope.profiler.enums import Role

LINEAR = "linear"
Layouts = Mapping[tuple[int, int], Layout]


def one_after_another(graph: Graph, away: Container[int], layouts: Layouts) -> Layouts:
    """``layouts``, by (storage, stage), with each linear weight behind the last.

    Accumulators and optimiser states stay with their weight. ``away``: storages that wait off the
    chip, which stay as they are.
    """
    at_home = {key: layout for key, layout in layouts.items() if key[0] not in away}
    starts = _starts(graph, at_home)
    moved = dict(layouts)
    for (storage, stage), layout in at_home.items():
        parameter = graph.storages[storage].parameter
        start = starts.get(parameter if parameter >= 0 else storage)
        if start is not None and _is_linear(layout):
            moved[storage, stage] = _from(layout, start)
    return moved


def _starts(graph: Graph, layouts: Layouts) -> dict[int, int]:
    """The first tile of each linear weight."""
    starts: dict[int, int] = {}
    following = 0
    for storage, stage in sorted(layouts):
        layout = layouts[storage, stage]
        weight = graph.storages[storage].role in (Role.WEIGHT, Role.BUFFER)
        if weight and _is_linear(layout) and storage not in starts:
            starts[storage] = following
            used = int(np.count_nonzero(layout.bytes))
            following = (following + used) % len(layout.bytes)
    return starts


def _is_linear(layout: Layout) -> bool:
    return isinstance(layout.key, tuple) and layout.key[0] == LINEAR


def _from(layout: Layout, start: int) -> Layout:
    """A linear layout from another first tile on; the last part of its key is the first tile."""
    assert isinstance(layout.key, tuple)
    *rest, before = layout.key
    nbytes = np.roll(layout.bytes, start - before)
    nbytes.setflags(write=False)
    return Layout((*rest, start), nbytes)
