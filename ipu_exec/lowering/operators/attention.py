"""Scaled dot-product attention, part by part (docs/cycles.md#compound-operators)."""

from __future__ import annotations

from dataclasses import replace

from ipu_exec.lowering.build import Builder, row_major
from ipu_exec.lowering.layouts import Spread
from ipu_exec.lowering.operator_info import Promotion, describe, words
from ipu_exec.lowering.operators.elementwise import bring
from ipu_exec.lowering.operators.reduce import broadcast_back, reduce_over
from ipu_exec.lowering.plan import Layout, Operand, OpSpec, Plan
from ipu_exec.lowering.products.matmul import multiply, sides_of
from ipu_exec.lowering.products.product import Product
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import Machine


def transposed(operand: Operand) -> Operand:
    """A view with the last two dimensions swapped."""
    swap = (*range(len(operand.shape) - 2), len(operand.shape) - 1, len(operand.shape) - 2)
    shape, strides = (tuple(one[d] for d in swap) for one in (operand.shape, operand.strides))
    return replace(operand, shape=shape, strides=strides)


def _part(build: Builder, name: str, left: Operand, right: Operand) -> tuple[Operand, Product]:
    """Append left x right and hold the result to the end."""
    first = build.next
    done = multiply(build, name, sides_of(build.spec, left, right), left.dtype)
    shape = (*left.shape[:-1], right.shape[-1])
    result = row_major(shape, left.dtype, done.outputs.layout(left.dtype))
    assert result.layout is not None
    build.hold(name, result.layout.bytes, max(first, build.next - 1))
    return result, done


def _softmax_in_place(build: Builder, scores: Operand, spread: Spread) -> None:
    last = (len(scores.shape) - 1,)
    most = reduce_over(build, scores, spread, last, "MAX", "max")
    broadcast_back(build, most, "broadcast max", scores.item_bytes)
    build.map("subtract max", "sub_vector", spread.elements, scores.dtype)
    build.map("exp", "exp", spread.elements, scores.dtype)
    total = reduce_over(build, scores, spread, last, "ADD", "sum")
    build.map("inverse", "inverse", total.spread.elements, "float32")
    broadcast_back(build, total, "broadcast sum")
    build.map("scale by sum", "mul_vector", spread.elements, scores.dtype)


_FORWARD = words("""
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
        _scaled_dot_product_efficient_attention _scaled_dot_product_attention_math
        scaled_dot_product_attention _scaled_dot_product_fused_attention_overrideable
    """)
_BACKWARD = words(
    """
        _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_flash_attention_backward
        _scaled_dot_product_efficient_attention_backward
        _scaled_dot_product_fused_attention_overrideable_backward
    """
)


def _mask(spec: OpSpec, first: int, scores: tuple[int, ...]) -> int | None:
    """Operand index of the mask: no vector, the first after ``first`` that broadcasts to scores."""
    for index, operand in enumerate(spec.operands[first:], first):
        if operand.shape[-2:] == scores[-2:] and operand.layout is not None:
            return index
    return None


def _probabilities(
    build: Builder, query: Operand, key: Operand, mask_from: int
) -> tuple[Operand, Spread]:
    scores, done = _part(build, "scores", query, transposed(key))
    spread = Spread(done.outputs.key, done.outputs.elements)
    build.map("scale", "mul_scalar", spread.elements, scores.dtype)
    mask = _mask(build.spec, mask_from, scores.shape)
    if mask is not None:
        bring(build, mask, scores, spread)
        build.map("mask", "add_", spread.elements, scores.dtype)
    elif any(a is True for a in build.spec.args):
        build.map("causal mask", "select", spread.elements, scores.dtype)
    _softmax_in_place(build, scores, spread)
    return scores, spread


@lowering(*(f"aten.{name}" for name in _FORWARD))
def attention(spec: OpSpec, machine: Machine) -> Plan:
    """softmax(Q K^T / sqrt d + mask) V; the scores stay on their tiles between the two products."""
    build = Builder(spec, machine)
    query, key, value = (build.place(i) for i in range(3))
    scores, spread = _probabilities(build, query, key, 3)
    named = dict(spec.kwargs).get("dropout_p", 0.0)
    if next((a for a in spec.args if isinstance(a, float)), named) > 0:
        build.map("dropout", "dropout", spread.elements, scores.dtype)
    _, done = _part(build, "values", scores, value)
    layout, others = done.outputs.layout(spec.output.dtype), build.linear_layouts(spec.outputs[1:])
    return build.plan((layout, *others), constants=done.worklists, note=str(done.splits))


@lowering(*(f"aten.{name}" for name in _BACKWARD))
def attention_backward(spec: OpSpec, machine: Machine) -> Plan:
    """Four gradients of recomputed probabilities: the forward keeps only their logarithmic sums."""
    build = Builder(spec, machine)
    grad, query, key, value = (build.place(i) for i in range(4))
    probabilities, spread = _probabilities(build, query, key, 5)
    _, grad_value = _part(build, "grad value", transposed(probabilities), grad)
    grad_scores, done = _part(build, "grad scores", grad, transposed(value))
    there = Spread(done.outputs.key, done.outputs.elements)
    if done.outputs.key != spread.key:
        build.fetch_and_hold("probabilities", probabilities, there.elements)
    build.map("multiply", "mul", there.elements, grad.dtype)
    total = reduce_over(build, grad_scores, there, (len(grad_scores.shape) - 1,), "ADD", "sum")
    broadcast_back(build, total, "broadcast sum")
    build.map("subtract", "sub_vector", there.elements, grad.dtype)
    build.map("multiply by probabilities", "mul_", there.elements, grad.dtype)
    build.map("scale gradient", "mul_scalar", there.elements, grad.dtype)
    _, grad_query = _part(build, "grad query", grad_scores, key)
    _, grad_key = _part(build, "grad key", transposed(grad_scores), query)
    products = (grad_query, grad_key, grad_value)
    layouts: list[Layout | None] = [
        None if out is None else product.outputs.layout(out.dtype)
        for out, product in zip(spec.outputs, products, strict=False)
    ]
    layouts += build.linear_layouts(spec.outputs[3:])
    return build.plan(tuple(layouts), constants=done.worklists)


describe("aten.scaled_dot_product_attention", promotion=Promotion.OPERANDS)
describe(*(f"aten.{name}" for name in (*_FORWARD, *_BACKWARD)), uses_memory_proportion=True)
