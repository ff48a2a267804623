"""One plan for the three passes of a layer, whose weights stay where they are.

poplin plans the passes of a fully connected layer each on its own, and all three on one division of
the weights, each of whose elements is on one tile: parts of the outputs by parts of the inputs. The
outputs are the field of the forward pass and of the weights' update and the input channels of the
pass back, the inputs the other way round. Nothing of the weights is then exchanged, and their
gradient lies where they do; the pass back transposes them on their tiles. What is quicker in all is
taken ([PL, lib/poplin/ConvPlan.cpp], createPlan; [PL, lib/poplin/ConvModel.cpp], addBwdEstimates
and addWuEstimates).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd

import numpy as np

from ipu_exec.lowering.layouts import ceil_div, digest, spread_of
from ipu_exec.lowering.plan import Operand
from ipu_exec.lowering.products import amp
from ipu_exec.lowering.products.product_costs import Candidates, estimate, ordering_cycles
from ipu_exec.lowering.products.product_problem import Problem, Splits, grains, unit_for
from ipu_exec.lowering.products.product_search import divisions
from ipu_exec.lowering.products.transposed_weights import Blocks
from ipu_exec.machine import Machine

Array = np.ndarray


@dataclass(frozen=True)
class Layer:
    """The extents of [G, B, K] x [G, K, N], forward."""

    groups: int
    batch: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Grid:
    """Each pass's problem and splits, and the estimated cycles of all three."""

    forward: tuple[Problem, Splits]
    backward: tuple[Problem, Splits]
    update: tuple[Problem, Splits]
    cycles: int


@dataclass(frozen=True)
class _Vertices:
    """The vertices of the passes."""

    method: str
    update_method: str
    grain: int  # channels of weights' inputs and outputs that stay together
    units: int = 0  # of the AMP unit
    together: int = 1  # of the batch


def key_of(
    layer: Layer, machine: Machine, dtype: str, grid: Grid, strides: tuple[int, int]
) -> tuple[str, int, str, int, int, int]:
    """The layout key of a weight and its gradient on the grid; ``strides``: of inputs, outputs."""
    tiles = machine.tiles, machine.first, machine.part
    parts = digest(layer, tiles, dtype, str(grid.forward[1]), strides)
    return "planned", 16, "input", grains_of(grid, machine, dtype), strides[0], parts


def grains_of(grid: Grid, machine: Machine, dtype: str) -> int:
    """Elements of a weight that stay together."""
    problem, splits = grid.forward
    return grains(problem, unit_for(problem, machine, dtype), splits.method, 1)[0]


def blocks_to_turn(
    layer: Layer, grid: Grid, machine: Machine, dtype: str, weights: Operand
) -> Blocks | None:
    """What the pass back transposes of the weights on each tile; None if elements are copied."""
    grain = grains_of(grid, machine, dtype)
    inputs, outputs = gcd(grain, layer.inputs), gcd(grain, layer.outputs)
    if min(inputs, outputs) == 1:
        return None
    elements = spread_of(weights, machine.tiles).elements
    return Blocks(outputs, inputs, ceil_div(elements, inputs * outputs))


def view_strides(operand: Operand, transposed: bool) -> tuple[int, int]:
    """Strides of a weight's inputs and outputs, from the operand [..., K, N] or [..., N, K]."""
    rows, columns = operand.strides[-2:]
    return (columns, rows) if transposed else (rows, columns)


@lru_cache(maxsize=1024)
def search_grid(layer: Layer, machine: Machine, dtype: str, allowed: float) -> Grid | None:
    """The quickest grid whose temporaries take ``allowed`` bytes at most; None if there is none."""
    grids = [
        grid
        for vertices in _vertices(layer, machine, dtype)
        if (grid := _best_grid(layer, machine, dtype, vertices, allowed)) is not None
    ]
    return min(grids, key=lambda grid: grid.cycles, default=None)


def _vertices(layer: Layer, machine: Machine, dtype: str) -> Iterator[_Vertices]:
    """The vertices that all three passes can use."""
    # Channels of the forward pass are output channels of the update, so that they are multiples of
    # the units. Dot products of one vector end in an outer product ([PL,
    # lib/poplin/ConvVertexType.cpp], isJointPlan).
    unit = amp.unit_for(machine, dtype)
    units = min(unit.out_group, unit.in_group)
    yield _Vertices("1x1", "1x1", unit.in_group, units, unit.in_group)
    if layer.batch > 1 or layer.groups > 1:
        return
    tried = 0
    for grain in range(unit.out_group, layer.inputs + 1, unit.out_group):
        parts = -(-layer.inputs // grain)
        if parts != tried:
            yield _Vertices("hmac", "outer", grain)
        tried = parts


def _problems(layer: Layer, vertices: _Vertices) -> tuple[Problem, Problem, Problem]:
    """The convolutions of the passes forward, back and of the update."""
    grain, together = vertices.grain, vertices.together
    dots = vertices.method == "hmac"
    product = Problem(
        layer.groups,
        layer.outputs,
        1,
        layer.inputs,
        layer.batch,
        out_chunk=together,
        in_chunk=grain if dots else 1,
        field_chunk=grain,
        units=vertices.units,
    )
    back = replace(product, segments=layer.inputs, in_channels=layer.outputs)
    update = replace(
        product,
        in_channels=layer.batch,
        out_channels=layer.inputs,
        out_chunk=grain,
        in_chunk=1,
        reorders=("input",),
        narrow=dots,  # outer products write elements of the operands' type
    )
    return (_line(product), _line(back), update) if dots else (product, back, update)


def _line(problem: Problem) -> Problem:
    """The same along one row, as dot products take it."""
    columns = problem.segments
    return replace(problem, segments=1, width=columns, in_cols=columns, flat_columns=True)


def _best_grid(
    layer: Layer, machine: Machine, dtype: str, vertices: _Vertices, allowed: float
) -> Grid | None:
    problems, grain = _problems(layer, vertices), vertices.grain
    g, o, i = _parts(layer, machine.product_tiles, grain)
    groups = ceil_div(layer.groups, g)
    outputs = ceil_div(ceil_div(layer.outputs, grain), o) * grain
    inputs = ceil_div(ceil_div(layer.inputs, grain), i) * grain
    ones = np.ones_like(g)
    batch = layer.batch * ones
    forward = _Pass(problems[0], vertices.method, (o, ones, i), (outputs, batch, inputs))
    backward = _Pass(problems[1], vertices.method, (i, ones, o), (inputs, batch, outputs))
    update = _Pass(problems[2], vertices.update_method, (o, i, ones), (outputs, inputs, batch))
    total, most = np.zeros(g.shape), np.zeros(g.shape)
    for each in (forward, backward, update):
        cycles, temporary = each.estimate(machine, dtype, g, groups)
        total, most = total + np.floor(cycles), np.maximum(most, temporary)
    total = np.where(most <= allowed, total, np.inf)
    at = int(np.argmin(total))
    if not np.isfinite(total[at]):
        return None
    return Grid(
        (forward.problem, forward.splits(g, at)),
        (backward.problem, replace(backward.splits(g, at), ins_first=True)),
        (update.problem, update.splits(g, at)),
        int(total[at]),
    )


def _parts(layer: Layer, tiles: int, grain: int) -> tuple[Array, Array, Array]:
    """Numbers of parts of groups, outputs and inputs worth trying, on so many tiles at most."""
    extents = layer.groups, ceil_div(layer.outputs, grain), ceil_div(layer.inputs, grain)
    axes = [divisions(int(extent), tiles) for extent in extents]
    g, o, i = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    fits = g * o * i <= tiles
    return g[fits], o[fits], i[fits]


@dataclass(frozen=True)
class _Pass:
    """A pass on every grid: parts, and sizes of the largest part, of field, results and depth."""

    problem: Problem
    method: str
    parts: tuple[Array, Array, Array]
    sizes: tuple[Array, Array, Array]

    def estimate(
        self, machine: Machine, dtype: str, group_parts: Array, groups: Array
    ) -> tuple[Array, Array]:
        """(cycles, bytes of temporaries on the fullest tile)."""
        unit = unit_for(self.problem, machine, dtype)
        grain_in, grain_out = grains(self.problem, unit, self.method, 1)
        ones = np.ones_like(groups)
        field, results, depth = self.sizes
        rows, width = (ones, field) if self.method == "hmac" else (field, ones)
        ins, outs = ceil_div(depth, grain_in) * grain_in, ceil_div(results, grain_out) * grain_out
        sizes = rows, width, ins, outs, groups
        candidates = Candidates(self.method, 1, 1, *self.parts, *sizes, group_parts, ones)
        before, after, temporary = estimate(self.problem, machine, unit, candidates)
        used = np.multiply.reduce((*self.parts, group_parts))
        ordering = ordering_cycles(self.problem, unit, self.method, 1, used)
        return before + ordering + after, temporary

    def splits(self, group_parts: Array, at: int) -> Splits:
        """The splits of one grid."""
        field, outs, ins = (int(part[at]) for part in self.parts)
        rows, cols = (1, field) if self.method == "hmac" else (field, 1)
        return Splits(self.method, int(group_parts[at]), rows, cols, outs, ins, serial=1)
