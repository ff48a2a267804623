"""Convolution and its gradients, by the planner (`product_search`, docs/cycles.md#planner).

Each is planned in every way that applies (AMP 1 x 1, n x 1 and on inputs expanded to 1 x 1, SLIC,
vector MAC, outer product) and the cheapest is taken. The gradient of the input is the convolution
of the flipped weights; that of the weights is a convolution whose input channels are the batch (or
batch and field, expanded); that of the bias a sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.layouts import Spread, apportion, digest
from ipu_exec.lowering.operator_info import Arguments, Promotion, aten, describe_aten
from ipu_exec.lowering.operators.reduce import reduce_over
from ipu_exec.lowering.plan import Layout, OpSpec, Plan
from ipu_exec.lowering.products import amp
from ipu_exec.lowering.products.product import Product, add_bias, add_product, no_product
from ipu_exec.lowering.products.product_costs import REGROUPED
from ipu_exec.lowering.products.product_problem import Problem
from ipu_exec.lowering.products.product_search import search
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import Machine

BOTH = ("input", "weight")


@dataclass(frozen=True)
class Geometry:
    """A convolution folded to (rows, columns), depth counted as rows; channels are a group's."""

    batch: int
    groups: int
    in_channels: int
    out_channels: int
    in_field: tuple[int, int]
    out_field: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]


def _fold(values: tuple[int, ...]) -> tuple[int, int]:
    """Spatial extents as (rows, columns): the last dimension is columns, all before it rows."""
    return prod(values[:-1]), values[-1]


def _pair(values: Any, rank: int) -> tuple[int, int]:
    """Strides or dilations as (rows, columns)."""
    many = tuple(values) if isinstance(values, tuple) else (values,)
    many = many * rank if len(many) == 1 else many
    return (1, many[-1]) if rank == 1 else (many[-2], many[-1])


def geometry(
    data: tuple[int, ...],
    weight: tuple[int, ...],
    out: tuple[int, ...],
    stride: Any,
    dilation: Any,
    groups: int,
) -> Geometry:
    """The geometry of an ordinary convolution, from its input's, weight's and output's shapes."""
    rank = len(weight) - 2
    return Geometry(
        data[0] if len(data) == rank + 2 else 1,
        groups,
        weight[1],
        weight[0] // groups,
        _fold(data[-rank:]),
        _fold(out[-rank:]),
        _fold(weight[2:]),
        _pair(stride, rank),
        _pair(dilation, rank),
    )


def forward_problem(g: Geometry) -> Problem:
    """The convolution itself."""
    return Problem(
        g.groups,
        g.batch * g.out_field[0],
        g.out_field[1],
        g.in_channels,
        g.out_channels,
        g.kernel,
        g.stride,
        g.dilation,
        (1, 1),
        g.out_field[0],
        *g.in_field,
    )


def input_gradient_problem(g: Geometry) -> Problem:
    """Outgoing gradients convolved with flipped weights."""
    # A stride leaves each kernel element only some outputs. Where a kernel covers the whole field,
    # each element of the result meets one kernel element alone: that dimension is further output
    # channels ([PL, lib/poplin/ConvPlan.hpp], ConvTransform::outChanFlattenDims).
    covered = [
        out == 1 and size == reach and step == 1
        for out, size, reach, step in zip(
            g.out_field, g.in_field, g.kernel, g.dilation, strict=True
        )
    ]
    field = [1 if one else size for one, size in zip(covered, g.in_field, strict=True)]
    kernel = (1 if covered[0] else g.kernel[0], 1 if covered[1] else g.kernel[1])
    stride = (1 if covered[0] else g.stride[0], 1 if covered[1] else g.stride[1])
    return Problem(
        g.groups,
        g.batch * field[0],
        field[1],
        g.out_channels,
        g.in_channels * prod(g.kernel) // prod(kernel),
        kernel,
        (1, 1),
        g.dilation,
        stride,
        field[0],
        *g.out_field,
        flipped=True,
    )


def weight_gradient_problem(g: Geometry) -> Problem:
    """The batch as input channels, the outgoing gradient as kernel, the weights' field as field."""
    return Problem(
        g.groups,
        g.in_channels * g.kernel[0],
        g.kernel[1],
        g.batch,
        g.out_channels,
        g.out_field,
        g.dilation,
        g.stride,
        (1, 1),
        g.kernel[0],
        *g.in_field,
        reorders=BOTH,
    )


def swapped_weight_gradient_problem(g: Geometry) -> Problem | None:
    """The same with the operands' roles exchanged, where that costs nothing else."""
    # The outgoing gradient is the input, the convolution's input the kernel ([PL,
    # lib/poplin/ConvPlan.hpp], ConvTransform::swapOperands). With a stride, a kernel of more than
    # one element would meet zeros.
    plain = g.kernel == (1, 1)
    if not plain and (g.stride != (1, 1) or g.dilation != (1, 1)):
        return None
    return Problem(
        g.groups,
        g.out_channels * g.kernel[0],
        g.kernel[1],
        g.batch,
        g.in_channels,
        g.out_field if plain else g.in_field,
        (1, 1),
        (1, 1),
        (1, 1),
        g.kernel[0],
        *g.out_field,
        flipped=True,
        reorders=BOTH,
    )


def by_output_groups(problem: Problem, unit: amp.Unit) -> list[Problem]:
    """The problem with results in groups of channels as the next layer takes them, or ungrouped."""
    # Those of the AMP unit are fewer where fp16 operands have float partials. The planner then
    # counts a copy ([PL, lib/poplin/ConvVertexType.cpp], partialChansPerGroup).
    if unit.out_group >= unit.in_group:
        return [problem]
    regrouped = replace(problem, output_copy=max(problem.output_copy, REGROUPED))
    return [replace(problem, out_chunk=unit.in_group), regrouped]


def expanded(problem: Problem, inputs: int) -> Problem:
    """The same convolution as a 1 x 1 product: kernel elements become further input channels.

    ``inputs``: elements of the whole input; a tile expands its slice's part of them. A strided
    gradient meets only every stride-th kernel element at an output.
    """
    channels = problem.in_channels * -(-problem.taps // prod(problem.field_stride))
    # where a kernel covers the field only the view changes
    covered = prod(
        taps
        for taps, out in zip(problem.kernel, (problem.image_rows, problem.width), strict=True)
        if out == 1
    )
    field = problem.segments * problem.width
    return replace(
        problem,
        segments=field,
        width=1,
        in_channels=channels,
        kernel=(1, 1),
        stride=(1, 1),
        dilation=(1, 1),
        field_stride=(1, 1),
        image_rows=1,
        in_rows=1,
        in_cols=1,
        expansion=min(1.0, inputs / max(1, field * channels * problem.groups)),
        input_transform=True,
        together=problem.in_channels * covered,
        useful=problem.macs,
    )


def expanded_columns(problem: Problem) -> Problem:
    """The same with kernel elements along columns alone as further input channels."""
    # the planner tries every set ([PL, lib/poplin/ConvPlan.cpp], getExpandDimsCandidates)
    wider = replace(
        problem,
        in_channels=problem.in_channels * problem.kernel[1],
        kernel=(problem.kernel[0], 1),
        stride=(problem.stride[0], 1),
        dilation=(problem.dilation[0], 1),
        in_cols=problem.width,
        input_transform=True,
        together=problem.in_channels * (problem.kernel[1] if problem.width == 1 else 1),
        useful=problem.macs,
    )
    return flattened(wider)


def flattened(problem: Problem) -> Problem:
    """The same with all images side by side, for a kernel of one column."""
    # vertices of kernels with rows then go along one long row ([PL, lib/poplin/ConvModel.cpp],
    # calculateFlattenedParams)
    images = problem.segments // problem.image_rows
    return replace(
        problem,
        segments=problem.image_rows,
        width=problem.width * images,
        in_cols=problem.in_cols * images,
        flat_columns=True,
    )


def undilated(problem: Problem) -> Problem:
    """A strided gradient with a kernel of one element, at those outputs that it reaches."""
    return replace(
        problem,
        segments=problem.segments // problem.image_rows * problem.in_rows,
        width=problem.in_cols,
        field_stride=(1, 1),
        image_rows=problem.in_rows,
    )


def combined(problem: Problem, dtype: str) -> list[Problem]:
    """The same with as many groups put together as fill the AMP unit, and zeros between them."""
    # [PL, lib/poplin/ConvPlan.hpp], ConvTransform::combineConvGroupsFactor
    most = (16 if dtype in ("float16", "bfloat16") else 8) // max(problem.in_channels, 1)
    flat = problem.taps == 1 and problem.field_stride == (1, 1)
    base = replace(problem, segments=problem.segments * problem.width, width=1) if flat else problem
    return [
        replace(
            base,
            groups=problem.groups // factor,
            in_channels=problem.in_channels * factor,
            out_channels=problem.out_channels * factor,
            together=problem.in_channels,
            useful=problem.macs,
            reorders=(*BOTH, "output"),
        )
        for factor in (2, 4, 8, 16)
        if factor <= most and problem.groups % factor == 0
    ]


def convolve(
    build: Builder,
    name: str,
    problem: Problem,
    inputs: int,
    weights: int,
    turned: tuple[bool, bool],
    swapped: Problem | None = None,
) -> Product:
    """Append the cheapest way; ``turned`` as for `add_product`; ``swapped``: operands exchanged."""
    if problem.taps > 1 or problem.field_stride == (1, 1):
        return _cheapest(build, name, problem, inputs, weights, turned, swapped)
    # without its zeros, which come between the outputs afterwards (ConvTransform::dilatePostConv)
    done = _cheapest(build, name, undilated(problem), inputs, weights, turned)
    size = problem.segments * problem.width * problem.out_channels * problem.groups
    elements = apportion(size, done.outputs.elements)
    build.map(f"{name}/dilate", "fill", elements, build.spec.operands[inputs].dtype)
    spread: Any = done.outputs.key
    return replace(
        done, outputs=Spread((*spread[:-1], digest(spread[-1], problem.field_stride)), elements)
    )


@dataclass(frozen=True)
class Way:
    """A way to compute a convolution; ``along_field``: results lie along it, not along channels."""

    problem: Problem
    methods: tuple[str, ...]
    inputs: int
    weights: int
    along_field: bool = True


def _cheapest(
    build: Builder,
    name: str,
    problem: Problem,
    inputs: int,
    weights: int,
    turned: tuple[bool, bool],
    swapped: Problem | None = None,
) -> Product:
    """Append the way with the fewest estimated cycles; arguments as in `convolve`."""
    dtype = build.spec.operands[inputs].dtype
    if problem.is_empty:
        return no_product(build, name, problem, inputs, weights, dtype)
    # ties go to the one named first: AMP, SLIC, vector MAC, outer product
    ways = _ways(build, problem, inputs, weights)
    if swapped is not None:
        plain = problem.segments == swapped.out_channels
        ways += [
            replace(way, along_field=not plain) for way in _ways(build, swapped, weights, inputs)
        ]

    def cycles(way: Way) -> int:
        return search(way.problem, build.machine, dtype, way.methods).cycles

    best = min(ways, key=cycles)
    return add_product(
        build,
        name,
        best.problem,
        best.methods,
        best.inputs,
        best.weights,
        dtype,
        best.along_field,
        turned,
    )


def _ways(build: Builder, problem: Problem, inputs: int, weights: int) -> list[Way]:
    """All ways that apply, with each grouping of output channels where the AMP unit is used."""
    machine, operand = build.machine, build.spec.operands[inputs]
    half = operand.dtype in ("float16", "bfloat16")
    plain = problem.taps == 1 and problem.field_stride == (1, 1)
    by_amp: list[tuple[Problem, tuple[str, ...]]] = []
    others: list[tuple[Problem, tuple[str, ...]]] = []
    if plain:
        flat = replace(problem, segments=problem.segments * problem.width, width=1)
        by_amp.append((flat, ("1x1",)))
        if problem.in_channels == 1 and problem.groups == 1:
            others.append((replace(flat, narrow=True), ("outer",)))
    else:
        by_amp.append((problem, ("nx1",)))
        by_amp.append((expanded(problem, operand.elements), ("1x1",)))
        if problem.kernel[0] > 1 and problem.field_stride == (1, 1):
            one_column = problem.kernel[1] == 1 and problem.stride[1] == 1
            by_rows = flattened(problem) if one_column else expanded_columns(problem)
            by_amp.append((by_rows, ("nx1",)))
    if problem.groups > 1 or problem.in_channels <= 4:
        vertical = "vmac" if half and problem.groups > 1 else "hmac"
        # it slides over its input by one or two columns; weights lie without gaps
        slic = half and problem.in_channels <= 4 and problem.stride[1] <= 2
        slic = slic and problem.dilation == (1, 1)
        others.append((problem, (vertical, *(("slic",) if slic else ()))))
    together = [(one, ("1x1",) if plain else ("nx1",)) for one in combined(problem, operand.dtype)]
    unit = amp.unit_for(machine, operand.dtype)
    return [
        Way(grouped, methods, inputs, weights)
        for candidates, groups in ((by_amp, True), (others, False), (together, True))
        for one, methods in candidates
        for grouped in (by_output_groups(one, unit) if groups else [one])
    ]


@lowering(*aten("convolution _convolution conv1d conv2d conv3d"), convolution=True)
def convolution(spec: OpSpec, machine: Machine) -> Plan:
    """A convolution of rank one to three with bias: strided, dilated, grouped or transposed."""
    build = Builder(spec, machine.loading("convolution"))
    data, weight = spec.operands[0], spec.operands[1]
    out = spec.output
    arguments = dict(zip(("bias", "stride", "padding", "dilation"), spec.args[2:6], strict=False))
    if "conv" in spec.name and "convolution" in spec.name:
        transposed, groups = bool(spec.args[6]), int(spec.args[8])
    else:
        transposed, groups = False, int(spec.args[6]) if len(spec.args) > 6 else 1
    stride, dilation = arguments.get("stride", 1), arguments.get("dilation", 1)
    # transposed: the gradient of the convolution from the output's shape to the input's
    begin, end = (out, data) if transposed else (data, out)
    g = geometry(begin.shape, weight.shape, end.shape, stride, dilation, groups)
    problem = input_gradient_problem(g) if transposed else forward_problem(g)
    done = convolve(build, "conv", problem, 0, 1, (False, True))
    if len(spec.operands) > 2:
        add_bias(build, "conv", done, 2, out.dtype)
    return done.plan(build)


def unread_by_gradients(arguments: Arguments) -> tuple[int, ...]:
    """Of (gradient, input, weight): a gradient of the weight reads the input and vice versa."""
    input_wanted, weight_wanted, _ = arguments[-1]
    unread = () if weight_wanted else (1,)
    return unread if input_wanted else (*unread, 2)


@lowering("aten.convolution_backward", convolution=True, unread=unread_by_gradients)
def convolution_backward(spec: OpSpec, machine: Machine) -> Plan:
    """Gradients of input, weight and bias, those that the output mask asks for."""
    build = Builder(spec, machine.loading("convolution"))
    grad, data, weight = spec.operands[:3]
    stride, _, dilation, transposed, _, groups, mask = spec.args[4:11]
    begin, end = (grad, data) if transposed else (data, grad)
    g = geometry(begin.shape, weight.shape, end.shape, stride, dilation, groups)
    back = forward_problem(g) if transposed else input_gradient_problem(g)
    layouts: list[Layout | None] = [None, None, None]
    notes, constants = [], None
    if mask[0] and spec.outputs[0] is not None:
        done = convolve(build, "grad input", back, 0, 2, (False, True))
        done.end_reads(build)
        layouts[0] = done.outputs.layout(spec.outputs[0].dtype)
        notes.append(f"input {done.splits}")
        constants = done.worklists
    if mask[1] and spec.outputs[1] is not None:
        inputs, weights = (0, 1) if transposed else (1, 0)
        # the planner wants the input's channels together in the result, which the swapped one has
        straight = replace(weight_gradient_problem(g), reorders=(*BOTH, "output"))
        swapped = swapped_weight_gradient_problem(g)
        done = convolve(build, "grad weight", straight, inputs, weights, (True, True), swapped)
        done.end_reads(build)
        layouts[1] = done.outputs.layout(spec.outputs[1].dtype)
        notes.append(f"weight {done.splits}")
        constants = done.worklists if constants is None else constants + done.worklists
    if mask[2] and spec.outputs[2] is not None:
        channels = 1 if len(grad.shape) == len(weight.shape) else 0
        dims = tuple(d for d in range(len(grad.shape)) if d != channels)
        reduced = reduce_over(build, *build.lead(0), dims, "ADD", "grad bias")
        build.read_until(0, build.next - 1)
        layouts[2] = reduced.spread.layout(spec.outputs[2].dtype)
    return build.plan(tuple(layouts), constants=constants, note="; ".join(notes))


describe_aten("convolution _convolution", uses_memory_proportion=True)
describe_aten(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    promotion=Promotion.INPUT,
)
describe_aten("convolution _convolution conv1d conv2d conv3d", popart_name="Conv")
describe_aten("convolution_backward", popart_name="ConvGrad")
