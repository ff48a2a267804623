"""Matrix products: mm, addmm, bmm, baddbmm, linear, mv, dot, by the planner in `product`.

[G,M,K] x [G,K,N] is a convolution with a 1 x 1 kernel. The left operand is the AMP unit's weights,
with its rows as output channels, and the right one's columns are the field, whichever of the two is
the parameter ([PL, lib/poplin/MatMul.cpp], getConvParams: "width = outputSize, output channels =
batchSize"; [TUT4]: 800x500 @ 500x400 has 50 parts of 16 output channels). Operands are not swapped
for free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ipu_exec.lowering import amp
from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.elementwise import base_name
from ipu_exec.lowering.operators import Promotion, aten, describe
from ipu_exec.lowering.plan import Operand, OpSpec, Plan
from ipu_exec.lowering.product import Problem, Product, add_bias, add_product, search
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import Machine


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


def multiply(build: Builder, name: str, sides: Sides, dtype: str) -> Product:
    """Append the product. A placed operand that is not contiguous along K is transposed first."""
    turned = sides.k > 1 and sides.right_k_stride != 1, sides.k > 1 and sides.left_k_stride != 1
    straight = Problem(sides.groups, sides.n, 1, sides.k, sides.m)
    problem = cheapest(build.machine, dtype, straight)
    done = add_product(build, name, problem, ("1x1",), sides.right, sides.left, dtype, True, turned)
    # a bias runs along the columns of the right operand, which are the field
    return replace(
        done, channels=np.minimum(done.share.field * done.share.groups, done.outputs.elements)
    )


def cheapest(machine: Machine, dtype: str, problem: Problem) -> Problem:
    """The problem with outputs in groups of as many channels as makes it quickest.

    Where fp16 operands have float partials the AMP unit has half the outputs; twice as many may
    stay together, in two passes ([PL, lib/poplin/ConvVertexType.cpp], partialChansPerGroup).
    """
    unit = amp.unit_for(machine, dtype)
    if problem.is_empty or unit.out_group >= unit.in_group:
        return problem
    together = replace(problem, out_chunk=unit.in_group)
    return min((problem, together), key=lambda one: search(one, machine, dtype, ("1x1",)).cycles)


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


@lowering("aten.mm", "aten.bmm", "aten.mv", "aten.dot", "aten.vdot", "aten.matmul")
def product(spec: OpSpec, machine: Machine) -> Plan:
    """A product of two tensors."""
    build = Builder(spec, machine.loading("matmul"))
    out = spec.outputs[0]
    assert out is not None
    done = multiply(build, base_name(spec), sides_of(spec, 0, 1), spec.operands[0].dtype)
    return build.plan(
        (done.outputs.layout(out.dtype),), constants=done.worklists, note=str(done.splits)
    )


@lowering(
    "aten.addmm",
    "aten.baddbmm",
    "aten.addmv",
    "aten.addbmm",
    "aten._addmm_activation",
    "aten.addmm_",
    "aten.baddbmm_",
)
def product_and_sum(spec: OpSpec, machine: Machine) -> Plan:
    """A product added to a bias (broadcast along the field) or to a whole tensor."""
    build = Builder(spec, machine.loading("matmul"))
    out = spec.outputs[0]
    assert out is not None
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
    return build.plan(
        (done.outputs.layout(out.dtype),), constants=done.worklists, note=str(done.splits)
    )


@lowering("aten.linear")
def linear_layer(spec: OpSpec, machine: Machine) -> Plan:
    """X W^T + b with any number of leading dimensions of x."""
    build = Builder(spec, machine.loading("matmul"))
    out = spec.outputs[0]
    assert out is not None
    x, weight = spec.operands[0], spec.operands[1]
    rows = x.elements // max(x.shape[-1], 1)
    sides = Sides(0, 1, 1, rows, x.shape[-1], weight.shape[0], x.strides[-1], weight.strides[-1])
    done = multiply(build, "linear", sides, x.dtype)
    if len(spec.operands) > 2:
        add_bias(build, "linear", done, 2, out.dtype)
    return build.plan(
        (done.outputs.layout(out.dtype),), constants=done.worklists, note=str(done.splits)
    )


describe(*aten("mm addmm bmm baddbmm mv addmv dot linear matmul"), uses_memory_proportion=True)
# Also those that PyTorch makes of these, as a model calls them.
describe(
    *aten(
        """bilinear matmul rmatmul mm bmm mv dot addmm baddbmm addbmm addmv einsum
        tensordot"""
    ),
    promotion=Promotion.OPERANDS,
)
describe("aten.linear", promotion=Promotion.INPUT)
describe(*aten("mm bmm mv matmul"), popart_name="MatMul")
describe(*aten("addmm addmm_"), popart_name="Gemm")
