"""Matrix products: mm, addmm, bmm, baddbmm, linear, mv, dot, by the planner (`product_search`).

[G,M,K] x [G,K,N] is a convolution with a 1 x 1 kernel. The left operand is the AMP unit's weights,
with its rows as output channels, and the right one's columns are the field, whichever of the two is
the parameter ([PL, lib/poplin/MatMul.cpp], getConvParams: "width = outputSize, output channels =
batchSize"; [TUT4]: 800x500 @ 500x400 has 50 parts of 16 output channels). They may change places,
which the planner counts as putting everything in order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np

from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.costs import transform_cycles
from ipu_exec.lowering.layouts import spread_of
from ipu_exec.lowering.operator_info import Promotion, aten, describe, describe_aten
from ipu_exec.lowering.operators.elementwise import base_name
from ipu_exec.lowering.plan import Operand, OpSpec, Plan
from ipu_exec.lowering.products import amp, joint_plan, transposed_weights
from ipu_exec.lowering.products.product import Given, Product, add_bias, add_product
from ipu_exec.lowering.products.product_costs import REGROUPED
from ipu_exec.lowering.products.product_problem import Problem, grains, unit_for
from ipu_exec.lowering.products.product_search import search
from ipu_exec.lowering.products.product_shares import grouped_stride, is_grouped
from ipu_exec.lowering.registry import lowering
from ipu_exec.lowering.vertices import poplar_type
from ipu_exec.machine import INFERENCE, TRAINING, Machine
from ipuscope.profiler.enums import Role

FEWER_UNITS = 8  # of the AMP unit, where it has more
FEW_CHANNELS = 32  # of the results; with more, dot products are never as quick as the AMP unit


@dataclass(frozen=True)
class Sides:
    """The product's two sides (operand indices, or placed operands) and its extents."""

    left: int | Operand
    right: int | Operand
    groups: int
    m: int
    k: int
    n: int
    left_k_stride: int
    right_k_stride: int
    by_rows: bool = True  # whether the result is stored row by row

    def transposed(self) -> Sides:
        """The sides of the transposed product."""
        return Sides(
            self.right,
            self.left,
            self.groups,
            self.n,
            self.k,
            self.m,
            self.right_k_stride,
            self.left_k_stride,
            not self.by_rows,
        )


class Pass(StrEnum):
    """What a product is for, poplin's fullyConnectedPass: operands lie otherwise in some."""

    NONE = "none"  # not a layer's
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "weight update"


@dataclass(frozen=True)
class Way:
    """A product as a convolution; ``swapped``: input on the left, AMP's weights on the right."""

    problem: Problem
    method: str
    swapped: bool


def multiply(
    build: Builder, name: str, sides: Sides, dtype: str, purpose: Pass = Pass.FORWARD
) -> Product:
    """Append the product. A placed operand whose groups are not along K is transposed first."""
    shape = sides.groups, sides.m, sides.k, sides.n
    way = cheapest(build.machine, dtype, shape, purpose)
    grid = layer_grid(build.machine, dtype, shape, purpose)
    given = Given()
    if grid is not None:
        way, given = _on_grid(build, name, sides, dtype, purpose, grid)
    elif way.swapped:
        sides = sides.transposed()
    else:
        sides = _with_turned_weights(build, name, sides, dtype, purpose, way)
    strides = sides.right_k_stride, sides.left_k_stride
    order = [
        sides.k > 1 and stride != grouped_stride(_operand(build, side))
        for side, stride in zip((sides.right, sides.left), strides, strict=True)
    ]
    done = add_product(
        build,
        name,
        way.problem,
        (way.method,),
        sides.right,
        sides.left,
        dtype,
        sides.by_rows,
        (order[0], order[1]),
        replace(given, channel_strides=strides, matrices=True),
    )
    if not sides.by_rows:
        return done
    # a bias runs along the columns of the right operand, which are the field
    return replace(
        done, channels=np.minimum(done.share.field * done.share.groups, done.outputs.elements)
    )


def layer_of(shape: tuple[int, int, int, int], purpose: Pass) -> joint_plan.Layer:
    """The layer of which a product of [G, M, K] x [G, K, N] is a pass."""
    groups, m, k, n = shape
    if purpose is Pass.BACKWARD:
        return joint_plan.Layer(groups, m, n, k)
    if purpose is Pass.UPDATE:
        return joint_plan.Layer(groups, k, m, n)
    return joint_plan.Layer(groups, m, k, n)


@lru_cache(maxsize=4096)
def layer_grid(
    machine: Machine, dtype: str, shape: tuple[int, int, int, int], purpose: Pass
) -> joint_plan.Grid | None:
    """One plan for the three passes of a layer in training, where that is quicker than one each."""
    if machine.fully_connected != TRAINING or purpose is Pass.NONE or 0 in shape:
        return None
    layer = layer_of(shape, purpose)
    allowed = machine.proportion * machine.target.bytes_per_tile
    grid = joint_plan.search_grid(layer, machine, dtype, allowed)
    if grid is None:
        return None
    groups, batch, inputs, outputs = layer.groups, layer.batch, layer.inputs, layer.outputs
    passes = (
        (Pass.FORWARD, (groups, batch, inputs, outputs)),
        (Pass.BACKWARD, (groups, batch, outputs, inputs)),
        (Pass.UPDATE, (groups, inputs, batch, outputs)),
    )
    each = 0
    for which, extents in passes:
        way = cheapest(machine, dtype, extents, which)
        each += search(way.problem, machine, dtype, (way.method,)).cycles
    return grid if grid.cycles <= each else None


def _on_grid(
    build: Builder, name: str, sides: Sides, dtype: str, purpose: Pass, grid: joint_plan.Grid
) -> tuple[Way, Given]:
    """A pass on the grid that all three share, where its weights or their gradient lie."""
    shape = sides.groups, sides.m, sides.k, sides.n
    layer, machine = layer_of(shape, purpose), build.machine
    if purpose is Pass.UPDATE:
        (problem, splits), what = grid.update, "output"
        strides = joint_plan.view_strides(build.spec.output, transposed=not sides.by_rows)
    else:
        problem, splits = grid.backward if purpose is Pass.BACKWARD else grid.forward
        what = "input"
        right = _operand(build, sides.right)
        strides = joint_plan.view_strides(right, transposed=purpose is Pass.BACKWARD)
    key = joint_plan.key_of(layer, machine, dtype, grid, strides)
    if purpose is Pass.BACKWARD and right.layout is not None:
        turn_on_grid(
            build, name, right, joint_plan.blocks_to_turn(layer, grid, machine, dtype, right)
        )
    return Way(problem, splits.method, False), Given(splits=splits, keys={what: key})


def turn_on_grid(
    build: Builder, name: str, weights: Operand, blocks: transposed_weights.Blocks | None
) -> None:
    """Append the transposition of weights that stay on their tiles."""
    nbytes = spread_of(weights, build.tiles).elements * weights.item_bytes
    if blocks is None:
        vertex, cycles = "poplar_rt::Memcpy64BitSupervisor", transform_cycles(nbytes, 2)
    else:
        vertex = f"popops::Transpose2D<{poplar_type(weights.dtype)}>"
        cycles = blocks.cycles(weights.item_bytes)
    step = build.compute(f"{name}/transpose weights", vertex, cycles)
    build.hold(f"{name}/transposed weights", nbytes, step)


def _with_turned_weights(
    build: Builder, name: str, sides: Sides, dtype: str, purpose: Pass, way: Way
) -> Sides:
    """The sides of a layer's pass back, with weights transposed where they lie."""
    # elsewhere as they are: they are put in order on their way
    if purpose is not Pass.BACKWARD or not isinstance(sides.right, int):
        return sides
    weights = _operand(build, sides.right)
    if not is_grouped(weights) or sides.right_k_stride == grouped_stride(weights) or sides.k == 1:
        return sides
    layer = layer_of((sides.groups, sides.m, sides.k, sides.n), purpose)
    shape = layer.groups, layer.batch, layer.inputs, layer.outputs
    forward = cheapest(build.machine, dtype, shape, Pass.FORWARD)
    if forward.swapped or way.method == "outer":
        return sides
    plans = [
        (one.problem, search(one.problem, build.machine, dtype, (one.method,)))
        for one in (forward, way)
    ]
    blocks = transposed_weights.find(build.machine, dtype, *plans)
    if blocks is None:
        return sides
    # its channels are together now, whichever way it was stored
    right = transposed_weights.transpose(build, name, weights, blocks)
    return replace(sides, right=right, right_k_stride=1)


def _operand(build: Builder, side: int | Operand) -> Operand:
    return build.spec.operands[side] if isinstance(side, int) else side


def cheapest(machine: Machine, dtype: str, shape: tuple[int, int, int, int], purpose: Pass) -> Way:
    """The quickest way, of those poplin tries, to multiply [G, M, K] x [G, K, N] (``shape``)."""
    # `shape`: (G, M, K, N); on a tie the way that is named first, whose right operand is the input
    if 0 in shape:
        return Way(straight(shape, False, purpose), "1x1", False)
    ways = [
        way
        for swapped in (False, True)
        for way in _ways(machine, dtype, straight(shape, swapped, purpose), swapped, purpose)
    ]
    return min(ways, key=lambda way: search(way.problem, machine, dtype, (way.method,)).cycles)


def straight(shape: tuple[int, int, int, int], swapped: bool, purpose: Pass) -> Problem:
    """The product as a convolution, with what has to be put in order for it."""
    # In a layer's pass back the right operand lies as in the one forward, in its weights' update
    # everything does. Operands that are `swapped` are not created for that ([PL,
    # lib/poplin/ConvModel.cpp], addTransformCycleEstimate).
    groups, m, k, n = shape
    if swapped:
        m, n = n, m
    moved = ["input"] if swapped or purpose in (Pass.BACKWARD, Pass.UPDATE) else []
    moved += ["weight"] if swapped else []
    moved += ["output"] if swapped or purpose is Pass.UPDATE else []
    return Problem(groups, n, 1, k, m, reorders=tuple(moved))


def _ways(
    machine: Machine, dtype: str, problem: Problem, swapped: bool, purpose: Pass
) -> list[Way]:
    """A problem by each vertex, with each number of output channels together that it allows."""
    in_group = amp.unit_for(machine, dtype).in_group
    ways = _ways_of_few_channels(problem, swapped)
    for one in by_amp(machine, dtype, problem):
        together = grains(one, unit_for(one, machine, dtype), "1x1", 1)[1]
        if purpose is Pass.NONE and together != in_group:  # as the next product would take them
            one = replace(one, output_copy=REGROUPED)
        ways.append(Way(one, "1x1", swapped))
    return ways


def _ways_of_few_channels(problem: Problem, swapped: bool) -> list[Way]:
    """Where AMP would be mostly idle: dot products, which pad no outputs, and an outer product."""
    if problem.out_channels >= FEW_CHANNELS:
        return []
    line = replace(problem, segments=1, width=problem.segments, in_cols=problem.segments)
    ways = [Way(replace(line, flat_columns=True), "hmac", swapped)]
    if problem.in_channels == 1 and problem.groups == 1:
        # it writes elements of the operands' type
        ways.append(Way(replace(problem, narrow=True), "outer", swapped))
    return ways


def by_amp(machine: Machine, dtype: str, problem: Problem) -> list[Problem]:
    """The problem by the AMP unit, with any number of output channels that it can have together."""
    # Where fp16 operands have float partials the AMP unit has half the outputs. Twice as many may
    # stay together, in two passes. Where it has 16, it may use 8 of them. What is added up at once
    # needs no wider partials than the result ([PL, lib/poplin/ConvVertexType.cpp],
    # getConvVertexAMPCandidates).
    unit = amp.unit_for(machine, dtype)
    layer = machine.fully_connected == INFERENCE  # nobody takes its results in such groups
    ways = _groupings(problem, unit, layer)
    if unit.partial_bytes > unit.item_bytes and problem.in_channels <= unit.in_group:
        ways += _groupings(replace(problem, narrow=True), amp.unit_for(machine, dtype, True), layer)
    return ways


def _groupings(problem: Problem, unit: amp.Unit, layer: bool) -> list[Problem]:
    ways = [problem]
    if unit.out_group < unit.in_group and not layer:
        ways.append(replace(problem, out_chunk=unit.in_group))
    if unit.out_group > FEWER_UNITS:
        ways.append(replace(problem, units=FEWER_UNITS))
    return ways


def sides_of(spec: OpSpec, left: int | Operand, right: int | Operand) -> Sides:
    """[..., M, K] x [..., K, N]; vectors are treated as matrices of one row or column."""
    a, b = (spec.operands[s] if isinstance(s, int) else s for s in (left, right))
    a_shape, b_shape = a.shape, b.shape
    if len(a_shape) == 1:
        a_shape, a_strides = (1, *a_shape), (0, *a.strides)
    else:
        a_strides = a.strides
    if len(b_shape) == 1:
        b_shape, b_strides = (*b_shape, 1), (*b.strides, 0)
    else:
        b_strides = b.strides
    groups = 1
    for extent in a_shape[:-2]:
        groups *= extent
    m, k, n = a_shape[-2], a_shape[-1], b_shape[-1]
    return Sides(left, right, groups, m, k, n, a_strides[-1], b_strides[-2])


def as_weight_gradient(spec: OpSpec, sides: Sides) -> Sides:
    """The sides of a weight's gradient as PopART has them: the layer's input is on the left."""
    # Its transposed input times the incoming gradient ([POPART,
    # willow/src/patterns/matmulgradpattern.cpp], MatMulRhsGradPattern). torch multiplies the
    # transposed gradient by the input where the weight is stored output by input features.
    if not (isinstance(sides.left, int) and isinstance(sides.right, int)):
        return sides
    gradient, data = spec.operands[sides.left], spec.operands[sides.right]
    transposed = gradient.strides[-1] != 1 and data.strides[-1] == 1
    if gradient.role != Role.GRADIENT or data.role == Role.GRADIENT or not transposed:
        return sides
    return sides.transposed()


def purpose_of(spec: OpSpec, sides: Sides, machine: Machine) -> Pass:
    """What a product is for, as PopART tells poplin by its phase."""
    # [POPART, willow/src/popx/op/matmulx.cpp], appendPoplarOptionsForOp. A weight's gradient, or
    # another right operand's, adds up what lies along the columns of both operands. Products that
    # are written out are told by operands that lie as a product before wanted them.
    if not machine.fully_connected:
        return Pass.NONE
    out, operands = spec.outputs[0], spec.operands
    left, right = (operands[s] if isinstance(s, int) else s for s in (sides.left, sides.right))
    again = [
        is_grouped(one) and stride != grouped_stride(one)
        for one, stride in ((left, sides.left_k_stride), (right, sides.right_k_stride))
    ]
    if all(again):
        return Pass.UPDATE
    if out is not None and out.role == Role.GRADIENT:
        by_rows = sides.m > 1 and sides.left_k_stride != 1
        return Pass.UPDATE if by_rows else Pass.BACKWARD
    return Pass.BACKWARD if again[1] else Pass.FORWARD


@lowering("aten.mm", "aten.bmm", "aten.mv", "aten.dot", "aten.vdot", "aten.matmul")
def product(spec: OpSpec, machine: Machine) -> Plan:
    """A product of two tensors."""
    build = Builder(spec, machine.loading("matmul"))
    sides = as_weight_gradient(spec, sides_of(spec, 0, 1))
    purpose = purpose_of(spec, sides, build.machine)
    return multiply(build, base_name(spec), sides, spec.operands[0].dtype, purpose).plan(build)


@lowering(*aten("addmm baddbmm addmv addbmm _addmm_activation addmm_ baddbmm_"))
def product_and_sum(spec: OpSpec, machine: Machine) -> Plan:
    """A product added to a bias (broadcast along the field) or to a whole tensor."""
    build = Builder(spec, machine.loading("matmul"))
    out = spec.output
    name = base_name(spec)
    sides = sides_of(spec, 1, 2)
    # the sum over the batch is one product of all its columns with all its rows
    if name == "addbmm":
        sides = replace(sides, groups=1, k=sides.groups * sides.k)
    done = multiply(build, name, sides, spec.operands[1].dtype)
    addend = spec.operands[0]
    if addend.elements < out.elements:
        add_bias(build, name, done, 0, out.dtype)
    else:
        source = build.place(0, done.outputs)
        if source.layout is None or source.layout.key != done.outputs.key:
            step = build.fetch(f"{name}/addend", source, done.outputs.elements)
            build.hold(
                f"{name}/addend", done.outputs.elements * source.item_bytes, step, build.next
            )
        build.map(f"{name}/add", "scaled_add", done.outputs.elements, out.dtype)
    return done.plan(build)


@lowering("aten.linear")
def linear_layer(spec: OpSpec, machine: Machine) -> Plan:
    """X W^T + b with any number of leading dimensions of x."""
    build = Builder(spec, machine.loading("matmul"))
    x, weight = spec.operands[0], spec.operands[1]
    rows = x.elements // max(x.shape[-1], 1)
    sides = Sides(0, 1, 1, rows, x.shape[-1], weight.shape[0], x.strides[-1], weight.strides[-1])
    done = multiply(build, "linear", sides, x.dtype)
    if len(spec.operands) > 2:
        add_bias(build, "linear", done, 2, spec.output.dtype)
    return done.plan(build)


describe_aten("mm addmm bmm baddbmm mv addmv dot linear matmul", uses_memory_proportion=True)
# Also those that PyTorch makes of these, as a model calls them.
describe_aten(
    """bilinear matmul rmatmul mm bmm mv dot addmm baddbmm addbmm addmv einsum
    tensordot""",
    promotion=Promotion.OPERANDS,
)
describe("aten.linear", promotion=Promotion.INPUT)
describe_aten("mm bmm mv matmul", popart_name="MatMul")
describe_aten("addmm addmm_", popart_name="Gemm")
