"""Random operator calls, as the input of the compiler's lowering."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ipu_exec.lowering import lower
from ipu_exec.lowering.plan import Operand, OpSpec, Plan
from ipu_exec.machine import Machine

HALF, FLOAT = "float16", "float32"


@dataclass(frozen=True)
class Case:
    """One call: the name of its builder, its extents, and the type of its elements."""

    kind: str
    extents: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.kind} {' x '.join(map(str, self.extents))} {self.dtype}"


def tensor(*shape: int, dtype: str, role: str = "activation") -> Operand:
    """A dense operand in row-major order."""
    strides = tuple(prod(shape[d + 1 :]) for d in range(len(shape)))
    return Operand(shape, dtype, strides, 0, prod(shape), None, role)


def _call(name: str, args: tuple[Any, ...], *outputs: Operand) -> OpSpec:
    return OpSpec(name, args, (), outputs)


def _product(extents: tuple[int, ...], dtype: str) -> OpSpec:
    g, m, k, n = extents
    left, right = tensor(g, m, k, dtype=dtype), tensor(g, k, n, dtype=dtype)
    return _call("aten.bmm.default", (left, right), tensor(g, m, n, dtype=dtype))


def _convolution(extents: tuple[int, ...], dtype: str) -> OpSpec:
    batch, ins, outs, size, kernel = extents
    data = tensor(batch, ins, size, size, dtype=dtype)
    weight = tensor(outs, ins, kernel, kernel, dtype=dtype, role="weight")
    edge = kernel // 2
    out_size = size + 2 * edge - kernel + 1
    settings = (None, (1, 1), (edge, edge), (1, 1), False, (0, 0), 1)
    out = tensor(batch, outs, out_size, out_size, dtype=dtype)
    return _call("aten.convolution.default", (data, weight, *settings), out)


def _embedding(extents: tuple[int, ...], dtype: str) -> OpSpec:
    rows, columns, count = extents
    table = tensor(rows, columns, dtype=dtype, role="weight")
    out = tensor(count, columns, dtype=dtype)
    return _call("aten.embedding.default", (table, tensor(count, dtype="int32")), out)


def _sum(extents: tuple[int, ...], dtype: str) -> OpSpec:
    rows, columns = extents
    out = tensor(rows, dtype=dtype)
    return _call("aten.sum.dim_IntList", (tensor(rows, columns, dtype=dtype), (1,)), out)


def _column_sum(extents: tuple[int, ...], dtype: str) -> OpSpec:
    rows, columns = extents
    out = tensor(columns, dtype=dtype)
    return _call("aten.sum.dim_IntList", (tensor(rows, columns, dtype=dtype), (0,)), out)


def _layer(extents: tuple[int, ...], dtype: str) -> OpSpec:
    batch, ins, outs = extents
    weight = Operand((ins, outs), dtype, (1, ins), 0, ins * outs, None, "weight")
    bias = tensor(outs, dtype=dtype, role="weight")
    args = (bias, tensor(batch, ins, dtype=dtype), weight)
    return _call("aten.addmm.default", args, tensor(batch, outs, dtype=dtype))


def _softmax(extents: tuple[int, ...], dtype: str) -> OpSpec:
    whole = tensor(*extents, dtype=dtype)
    return _call("aten._softmax.default", (whole, 1, False), tensor(*extents, dtype=dtype))


def _map(name: str) -> Callable[[tuple[int, ...], str], OpSpec]:
    def build(extents: tuple[int, ...], dtype: str) -> OpSpec:
        whole = tensor(*extents, dtype=dtype)
        return _call(name, (whole,), tensor(*extents, dtype=dtype))

    return build


def _norm(extents: tuple[int, ...], dtype: str) -> OpSpec:
    rows, columns = extents
    data = tensor(rows, columns, dtype=dtype)
    scale, shift = (tensor(columns, dtype=dtype, role="weight") for _ in range(2))
    outputs = (data, tensor(rows, 1, dtype=FLOAT), tensor(rows, 1, dtype=FLOAT))
    return _call("aten.native_layer_norm.default", (data, (columns,), scale, shift, 1e-5), *outputs)


def _pool(extents: tuple[int, ...], dtype: str) -> OpSpec:
    batch, channels, size = extents
    pooled = tensor(batch, channels, size // 2, size // 2, dtype=dtype)
    settings = ((2, 2), (2, 2))
    data = tensor(batch, channels, size, size, dtype=dtype)
    return _call("aten.avg_pool2d.default", (data, *settings), pooled)


@dataclass(frozen=True)
class Kind:
    """How a case of one kind is built, and the range of its extents."""

    build: Callable[[tuple[int, ...], str], OpSpec]
    low: tuple[int, ...]
    high: tuple[int, ...]
    multiplies: bool = False


KINDS = {
    "product": Kind(_product, (1, 1, 1, 1), (16, 2048, 2048, 2048), True),
    "layer": Kind(_layer, (1, 16, 16), (512, 4096, 4096), True),
    "convolution": Kind(_convolution, (1, 4, 4, 8, 1), (8, 256, 256, 56, 5), True),
    "embedding": Kind(_embedding, (8, 4, 1), (50_000, 1024, 4096)),
    "sum": Kind(_sum, (1, 2), (8192, 4096)),
    "column sum": Kind(_column_sum, (2, 2), (8192, 4096)),
    "softmax": Kind(_softmax, (1, 2), (8192, 2048)),
    "layer norm": Kind(_norm, (1, 4), (8192, 2048)),
    "relu": Kind(_map("aten.relu.default"), (1, 1), (8192, 4096)),
    "exp": Kind(_map("aten.exp.default"), (1, 1), (8192, 4096)),
    "pooling": Kind(_pool, (1, 1, 2), (8, 256, 112)),
}


def drawn(kind: str, random_: random.Random) -> Case:
    """A case whose extents are uniform in their logarithms."""
    about = KINDS[kind]
    extents = tuple(
        round(low * (high / low) ** random_.random())
        for low, high in zip(about.low, about.high, strict=True)
    )
    return Case(kind, extents, random_.choice((HALF, FLOAT)))


def larger(case: Case, axis: int, by: int) -> Case:
    """The same case with one extent larger."""
    extents = tuple(n + by * (d == axis) for d, n in enumerate(case.extents))
    return replace(case, extents=extents)


def plan_of(case: Case, machine: Machine) -> Plan:
    """The compiler's plan of the call."""
    return lower(KINDS[case.kind].build(case.extents, case.dtype), machine)


def spec_of(case: Case) -> OpSpec:
    """The call itself."""
    return KINDS[case.kind].build(case.extents, case.dtype)
