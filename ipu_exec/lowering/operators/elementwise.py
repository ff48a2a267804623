"""Elementwise operators: unary, binary, ternary, casts, fills and optimiser updates.

The leading operand stays on its tiles and the others are sent to it: nothing moves if they have the
same layout, the whole tensor is exchanged if they have another, and a broadcast operand is sent to
every tile that needs a part of it. An operator that the IPU runs as several vertices becomes
several compute sets. Cycles: `costs.KINDS`.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ipu_exec.lowering.build import Builder, expanded, folded, messages, placed
from ipu_exec.lowering.costs import transform_cycles
from ipu_exec.lowering.layouts import Spread, is_dense, result_spread, spread_of, touched
from ipu_exec.lowering.operator_info import Promotion, describe, describe_aten, words
from ipu_exec.lowering.plan import Layout, Operand, OpSpec, Plan
from ipu_exec.lowering.registry import lowering
from ipu_exec.lowering.vertices import poplar_type
from ipu_exec.machine import Machine
from ipuscope.profiler.enums import Role

# operator (without a trailing underscore) -> the kinds of vertex it is, one compute set each
UNARY: dict[str, tuple[str, ...]] = {
    "relu": ("relu",),
    "gelu": ("gelu",),
    "silu": ("sigmoid", "mul_"),
    "mish": ("exp", "log", "tanh", "mul_"),
    "softplus": ("exp", "log"),
    **dict.fromkeys(words("elu celu"), ("exp", "select")),
    "selu": ("exp", "select", "mul_scalar"),
    **dict.fromkeys(words("hardtanh relu6 clamp_min clamp_max"), ("clamp",)),
    "hardsigmoid": ("add_scalar", "clamp", "mul_scalar"),
    "hardswish": ("add_scalar", "clamp", "mul_scalar", "mul_"),
    "leaky_relu": ("mul_scalar", "select"),
    "threshold": ("compare_scalar", "select"),
    "tanh": ("tanh",),
    "sigmoid": ("sigmoid",),
    "log_sigmoid_forward": ("sigmoid", "log"),
    "exp": ("exp",),
    "exp2": ("exp",),
    "expm1": ("expm1",),
    "log": ("log",),
    **dict.fromkeys(words("log2 log10"), ("log", "mul_scalar")),
    "log1p": ("log1p",),
    "sqrt": ("sqrt",),
    "rsqrt": ("rsqrt",),
    "reciprocal": ("inverse",),
    "square": ("square",),
    "neg": ("negate",),
    "abs": ("absolute",),
    **dict.fromkeys(words("sign sgn"), ("sign",)),
    **dict.fromkeys(words("floor ceil round"), ("round",)),
    "trunc": ("trunc",),
    "frac": ("round", "sub_"),
    "erf": ("erf",),
    "erfc": ("erf", "add_scalar"),
    **dict.fromkeys(words("sin cos"), ("sin",)),
    "tan": ("tan",),
    "asin": ("asin",),
    "acos": ("asin", "add_scalar"),
    "atan": ("square", "add_scalar", "rsqrt", "mul_", "asin"),  # asin(x / sqrt(1 + x^2))
    "sinh": ("exp", "inverse", "sub_", "mul_scalar"),
    "cosh": ("exp", "inverse", "add_", "mul_scalar"),
    **dict.fromkeys(words("asinh acosh"), ("square", "add_scalar", "sqrt", "add_", "log")),
    "atanh": ("add_scalar", "add_scalar", "inverse", "mul_", "log", "mul_scalar"),
    **dict.fromkeys(
        words("erfinv lgamma digamma i0 special_i1 special_erfcx polygamma"), ("series",)
    ),
    **dict.fromkeys(words("signbit isinf isfinite"), ("compare_scalar",)),
    "angle": ("compare_scalar", "select"),  # of real numbers: 0 or pi
    "frexp": ("log", "round", "exp", "mul_"),  # x / 2^e with e = floor(log2 x) + 1
    "hardshrink": ("absolute", "compare_scalar", "select"),
    "softshrink": ("clamp", "sub_"),  # x less x held to [-lambda, lambda]
    **dict.fromkeys(words("logical_not bitwise_not"), ("logical",)),
    "isnan": ("compare",),
    "nan_to_num": ("compare", "select"),
    "logit": ("add_scalar", "div", "log"),
}
# what has no vertex in popops: a scalar function of about as many terms as `erfinv`
SERIES = words(
    """
        special_i0e special_i1e special_ndtri special_airy_ai special_bessel_j0 special_bessel_j1
        special_bessel_y0 special_bessel_y1 special_modified_bessel_i0 special_modified_bessel_i1
        special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0
        special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_zeta
        special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
        special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he
        special_laguerre_polynomial_l special_legendre_polynomial_p
        special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
        special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w igamma igammac
    """
)
BINARY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(SERIES, ("series",)),
    "nextafter": ("compare", "select", "add_"),
    "add": ("add",),
    **dict.fromkeys(words("sub rsub"), ("sub",)),
    **dict.fromkeys(words("mul rrelu_with_noise_backward"), ("mul",)),
    **dict.fromkeys(words("div true_divide"), ("div",)),
    "floor_divide": ("div", "round"),
    **dict.fromkeys(words("maximum fmax"), ("max",)),
    **dict.fromkeys(words("fmin minimum"), ("min",)),
    **dict.fromkeys(
        words("copysign hardshrink_backward softshrink_backward"),
        ("absolute", "compare_scalar", "select"),
    ),
    "ldexp": ("exp", "mul_"),
    **dict.fromkeys(words("fmod remainder"), ("remainder",)),
    "atan2": ("atan2",),
    "pow": ("pow",),
    **dict.fromkeys(words("eq ne lt le gt ge"), ("compare",)),
    **dict.fromkeys(
        words(
            "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor"
            " bitwise_left_shift bitwise_right_shift __lshift__ __rshift__"
        ),
        ("logical",),
    ),
    **dict.fromkeys(
        words("threshold_backward tanh_backward sigmoid_backward"), ("nonlinearity_grad",)
    ),
    "gelu_backward": ("gelu_grad",),
    "silu_backward": ("sigmoid", "mul", "sub_", "mul_", "mul_"),
    "hardtanh_backward": ("compare", "select"),
    "hardswish_backward": ("mul_scalar", "add_scalar", "select", "mul_"),
    "hardsigmoid_backward": ("compare", "select", "mul_scalar"),
    "leaky_relu_backward": ("mul_scalar", "select"),
    "elu_backward": ("exp", "mul_", "select"),
    **dict.fromkeys(words("softplus_backward log_sigmoid_backward"), ("sigmoid", "mul_")),
    "mish_backward": ("exp", "log", "tanh", "sigmoid", "mul_", "mul_", "add_"),
    **dict.fromkeys(words("prelu _prelu_kernel"), ("mul", "select")),
    "_prelu_kernel_backward": ("mul", "select", "mul", "select"),
    "xlogy": ("log", "mul_"),
    "masked_fill": ("select",),
    "isclose": ("sub", "absolute", "compare"),
    "rrelu_with_noise": ("random", "compare_scalar", "select", "mul_"),
}
TERNARY: dict[str, tuple[str, ...]] = {
    "where": ("select",),
    "clamp": ("clamp",),
    "addcmul": ("mul", "scaled_add"),
    "addcdiv": ("div", "scaled_add"),
    "lerp": ("sub", "scaled_add"),
}
FILL = words(
    """
        zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones new_full
        new_empty new_empty_strided empty_strided zero_ fill_ zero fill scalar_tensor arange
        linspace eye tril_indices triu_indices empty_permuted
    """
)
COPY = words(
    "clone copy copy_ contiguous _to_copy to lift_fresh_copy alias_copy detach_copy view_copy"
)

_SCALAR_FORMS = {
    "add": "add_scalar",
    "sub": "add_scalar",
    "mul": "mul_scalar",
    "div": "div_scalar",
    "compare": "compare_scalar",
    "max": "clamp",
    "min": "clamp",
}
_VECTOR_FORMS = {"add": "add_vector", "sub": "sub_vector", "mul": "mul_vector"}
_IN_PLACE_FORMS = {"add": "add_", "sub": "sub_", "mul": "mul_"}


def base_name(spec: OpSpec) -> str:
    """``"aten.mul_.Tensor"`` -> ``"mul_"``."""
    return spec.name.split(".")[1] if "." in spec.name else spec.name


def is_in_place(spec: OpSpec) -> bool:
    """True where the first result shares an input's storage."""
    return bool(spec.outputs) and spec.outputs[0] is not None and spec.outputs[0].layout is not None


def leading(spec: OpSpec, shape: tuple[int, ...]) -> int:
    """Index of the operand that stays on its tiles, or -1: of the result's shape, on most tiles."""
    # One that only repeats elements (the gradient of a mean) may be on one tile, and does not
    # determine the result's layout. In place it is always the operand that is written.
    if is_in_place(spec):
        out = spec.outputs[0]
        for index, operand in enumerate(spec.operands):
            if out is not None and operand.lies_with(out):
                return index
    best, score = -1, (-1, -1)
    for index, operand in enumerate(spec.operands):
        if operand.shape != shape or any(expanded(operand)):
            continue
        tiles = 0 if operand.layout is None else int(np.count_nonzero(operand.layout.bytes))
        rank = (2 * (operand.layout is not None) + is_dense(operand), tiles)
        if rank > score:
            best, score = index, rank
    return best


def _innermost(operand: Operand) -> int:
    """The dimension, of more than one element, of adjacent elements; -1 if there is none."""
    wide = [d for d, extent in enumerate(operand.shape) if extent > 1]
    return min(wide, key=lambda d: operand.strides[d], default=-1)


def _regrouped(build: Builder, index: int, source: Operand, lead: Operand) -> bool:
    """Transpose an operand whose elements adjoin along another dimension, to send it in groups."""
    # popops does so for operands of elementwise operators ([PL, lib/popops/ElementWise.cpp],
    # `TransposeInputs`; [PL, lib/popops/Rearrange.cpp], `regroupIfBeneficial`): blocks of both
    # dimensions are exchanged among the tiles that hold the operand, and transposed there. False,
    # and nothing done, if a group would be smaller than a grain. The groups of the destination
    # count: the operand's own may be odd (the gradient of a matrix for 30,522 tokens), but then
    # poplin's plan had the other dimension as its output channels, in groups. This estimate errs
    # towards more cycles.
    inner = _innermost(lead)
    if inner < 0 or lead.shape[inner] % max(1, _REGROUP_BYTES // source.item_bytes):
        return False
    elements = spread_of(source, build.tiles).elements
    nbytes = elements * source.item_bytes
    first = build.exchange(f"regroup operand {index}", nbytes, nbytes, messages(nbytes, nbytes, 2))
    last = build.map(f"transpose operand {index}", "rearrange", elements, source.dtype, flops=0)
    build.hold(f"regrouped operand {index}", nbytes, first, last + 1)
    return True


def bring(build: Builder, index: int, lead: Operand, spread: Spread) -> tuple[str, int]:
    """Exchange operand ``index`` to the tiles of ``lead``, if it is not there; hold it to the end.

    Returns ("same" | "scalar" | "vector" | "broadcast", most elements held on a tile).
    """
    operand = build.spec.operands[index]
    if operand.again and operand.shape == lead.shape:  # it was brought, or is what leads
        return "same", int(spread.elements.max(initial=0))
    if operand.shape == lead.shape and not any(expanded(operand)):
        source = build.place(index, spread if is_dense(operand) and is_dense(lead) else None)
        if source.layout is None or not source.lies_with(lead):
            if _planned_as(lead) == "weight" and _planned_as(source) == "output":
                # a weight's gradient: its channels are in other groups
                # ([PL, lib/popops/ScaledAdd.cpp], regroupTensor)
                elements = spread_of(source, build.tiles).elements
                kind = f"popops::Transpose2D<{poplar_type(source.dtype)}>"
                cycles = transform_cycles(elements * source.item_bytes, _REGROUP_BYTES)
                build.compute(f"regroup operand {index}", kind, cycles)
            turned = not spread.run and _innermost(source) != _innermost(lead)
            if turned and _regrouped(build, index, source, lead):
                turned = False
            build.fetch_and_hold(f"operand {index}", source, spread.elements, scattered=turned)
        return "same", int(spread.elements.max(initial=0))
    source, operand = folded(build.place(index)), folded(operand)
    need = broadcast_need(operand, lead, spread)
    step = build.fetch(f"broadcast operand {index}", source, need, broadcast=True)
    build.hold(f"operand {index}", need * operand.item_bytes, step)
    kind = (
        "scalar"
        if operand.elements == 1
        else "vector"
        if operand.shape[-1:] == lead.shape[-1:]
        else "broadcast"
    )
    return kind, int(need.max(initial=0))


def _planned_as(operand: Operand) -> str:
    """The operand's role in the product that placed it ("input", "weight", "output"), or ""."""
    key = operand.layout.key if operand.layout is not None else None
    return key[2] if isinstance(key, tuple) and key[0] == "planned" else ""


_REGROUP_BYTES = 8  # popops' least group: 4 of float16, 2 of float32


def broadcast_need(operand: Operand, lead: Operand, spread: Spread) -> np.ndarray:
    """Elements of a broadcast operand that each tile needs for its share of ``lead``."""
    pad = len(lead.shape) - len(operand.shape)
    extents = (1,) * pad + operand.shape
    axes = tuple(
        extent == whole and whole > 1 for extent, whole in zip(extents, lead.shape, strict=True)
    )
    need = touched(lead, axes, spread.elements, spread.run)
    return np.minimum(need, prod(operand.shape))


def along(lead: Operand, axes: tuple[int, ...]) -> Operand:
    """A tensor that is broadcast to ``lead`` from its dimensions ``axes`` alone."""
    shape = tuple(n if d in axes else 1 for d, n in enumerate(lead.shape))
    return Operand(shape, "float32", (0,) * len(shape))


def elementwise(spec: OpSpec, machine: Machine, kinds: tuple[str, ...]) -> Plan:
    """Any elementwise operator as compute sets of ``kinds``, after the exchange that it needs."""
    build = Builder(spec, machine)
    outputs = [out for out in spec.outputs if out is not None]
    output = outputs[0] if outputs else spec.operands[0]
    index = leading(spec, output.shape)
    if index < 0:  # every operand is broadcast: the result lies linearly, and they come to it
        spread = build.linear(output.elements, output.dtype)
        lead = placed(output, spread.layout(output.dtype))
        result = spread
    else:
        lead = build.place(index)
        spread = spread_of(lead, machine.tiles)
        result = result_spread(spread, lead, output)
    others = (other for other in range(len(spec.operands)) if other != index)
    forms = {bring(build, other, lead, spread)[0] for other in others}
    dtype = lead.dtype if output.dtype == "bool" else output.dtype
    for position, kind in enumerate(kinds):
        chosen = _form(kind, forms, spec, in_place=position > 0 or is_in_place(spec))
        build.map(f"{base_name(spec)}/{chosen}", chosen, spread.elements, dtype)
    # an optimiser's update is one fused expression [POPART, willow/src/popx/op/accumulatex.cpp]
    fused = is_in_place(spec) and spec.operands[0].role in (Role.OPTIMISER_STATE, Role.WEIGHT)
    if len(kinds) > 1 and not fused:
        first = max(0, build.next - len(kinds))
        build.hold("intermediate", spread.elements * output.item_bytes, first)
    return build.plan(result.layouts(spec.outputs))


def _form(kind: str, forms: set[str], spec: OpSpec, in_place: bool) -> str:
    """The vertex's form: broadcast by scalar or along the last dimension, in place, or general."""
    if "same" not in forms:
        if "vector" in forms and kind in _VECTOR_FORMS:
            return _VECTOR_FORMS[kind]
        if kind in _SCALAR_FORMS and ("scalar" in forms or not forms):
            return _SCALAR_FORMS[kind]
    alpha = dict(spec.kwargs).get("alpha", spec.args[2] if len(spec.args) > 2 else 1)
    if kind == "add" and "same" in forms and alpha != 1:
        return "scaled_add"
    return _IN_PLACE_FORMS.get(kind, kind) if in_place else kind


def _kinds(spec: OpSpec) -> tuple[str, ...]:
    name = base_name(spec).rstrip("_") if not base_name(spec).startswith("_") else base_name(spec)
    kinds = next(table[name] for table in (UNARY, BINARY, TERNARY) if name in table)
    if name == "pow" and len(spec.args) > 1:
        by_power = {
            2: ("square",),
            0.5: ("sqrt",),
            -0.5: ("rsqrt",),
            -1: ("inverse",),
            1: ("copy",),  # in the gradient of a square
            3: ("square", "mul_"),
        }
        power = spec.args[1]
        kinds = by_power.get(power, kinds) if isinstance(power, int | float) else kinds
    # by a number: popops::scaledAddTo(a, 1 - w, b, w)
    if name == "lerp" and len(spec.operands) == 2:
        return ("scaled_add",)
    if name == "div" and dict(spec.kwargs).get("rounding_mode"):
        return (*kinds, "round")
    return kinds


def _names(table: Any) -> list[str]:
    return [f"aten.{name}{tail}" for name in table for tail in ("", "_")]


@lowering(*_names(UNARY), *_names(BINARY), *_names(TERNARY), elementwise=True)
def lower_elementwise(spec: OpSpec, machine: Machine) -> Plan:
    """Unary, binary and ternary operators of the tables above, in place or not."""
    return elementwise(spec, machine, _kinds(spec))


@lowering(*(f"aten.{name}" for name in FILL), elementwise=True)
def fill(spec: OpSpec, machine: Machine) -> Plan:
    """Constants, laid out as the operand they are made from or linearly; ``empty`` writes none."""
    build = Builder(spec, machine)
    layouts: list[Layout | None] = []
    for out in spec.outputs:
        if out is None:
            layouts.append(None)
            continue
        like = spec.operands[0] if spec.operands else None
        if out.layout is not None:
            spread = spread_of(out, machine.tiles)
        elif (
            like is not None and like.layout and like.shape == out.shape and not any(expanded(like))
        ):
            source = spread_of(like, machine.tiles)
            spread = result_spread(source, like, out)
        else:
            spread = build.linear(out.elements, out.dtype)
        if "empty" not in spec.name:
            build.map("fill", "fill", spread.elements, out.dtype, flops=0)
        layouts.append(spread.layout(out.dtype))
    return build.plan(tuple(layouts))


@lowering(*(f"aten.{name}" for name in COPY), elementwise=True)
def copy(spec: OpSpec, machine: Machine) -> Plan:
    """Copies and casts on the source's tiles, which rearrange another order of dimensions."""
    # `copy_` writes to its first operand's tiles and so exchanges a source with another layout
    build = Builder(spec, machine)
    out = spec.outputs[0]
    if out is None or not spec.operands:
        return build.plan((None,) * len(spec.outputs))
    source_index = 1 if base_name(spec).startswith("copy") and len(spec.operands) > 1 else 0
    source = spec.operands[source_index]
    if source_index == 1 and source.shape != spec.operands[0].shape:
        return elementwise(spec, machine, ("copy",))
    if source_index == 0 and any(expanded(source)):
        return elementwise(spec, machine, ("copy" if source.dtype == out.dtype else "cast",))
    lead, spread = build.place(0), build.spread(0)
    result = spread
    if source_index == 1:
        bring(build, 1, lead, spread)
    else:
        result = result_spread(spread, lead, out)
    if source.dtype != out.dtype:
        build.map("cast", "cast", spread.elements, out.dtype, flops=0)
    elif source.strides != out.strides and source_index == 0 and is_dense(source):
        build.map("rearrange", "rearrange", spread.elements, out.dtype, flops=0)
    else:
        build.map("copy", "copy", spread.elements, out.dtype, flops=0)
    return build.plan((result.layout(out.dtype), *(None,) * (len(spec.outputs) - 1)))


# PopART has a variant that writes over the operand (willow/include/popart/op/*.hpp).
describe_aten(
    """add sub mul pow relu leaky_relu exp expm1 log1p sigmoid ceil floor round clamp clamp_min
    clamp_max elu selu silu sign softplus hardsigmoid hardshrink softshrink atan asinh sinh gelu
    threshold hardtanh""",
    in_place=True,
)
# What the updates of optimisers are made of (popart's ``AdamUpdater`` and others).
describe_aten(
    """add sub mul div sqrt pow square neg reciprocal rsqrt lerp addcdiv addcmul clamp clamp_min
    clamp_max sign exp maximum where""",
    fused_in_update=True,
)
describe_aten("div div_ reciprocal reciprocal_ rsqrt rsqrt_ log log2 log10 pow atanh", divides=True)
describe_aten("lt le gt ge maximum minimum relu clamp", compares=True)
describe_aten("add add_", addition=True)
describe("aten.prelu", promotion=Promotion.OPERANDS)
# Of what a tensor is made like only the shape is read.
describe_aten(
    """ones_like zeros_like full_like empty_like new_zeros new_ones new_full new_empty
    new_empty_strided""",
    unread=(0,),
)
describe_aten("empty empty_like empty_strided new_empty new_empty_strided", leaves_unwritten=True)
describe_aten("_to_copy clone", copy=True)
describe_aten("clone copy_ new_zeros", moves=True)
describe_aten("_to_copy", popart_name="Cast")
describe_aten("clamp clamp_", popart_name="Clip")
