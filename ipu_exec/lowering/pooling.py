"""Pooling and its gradients: each output's window is on its tile but for the halo, which is exchanged.

3 cycles a vector of each window element (5 for the gradient of a maximum), and what each piece of a field row costs for
each window element. No indices are made: the gradient looks for the largest values again, as popnn's.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.elementwise import base_name
from ipu_exec.lowering.layouts import Spread, apportion, ceil_div, digest, spread_of
from ipu_exec.lowering.plan import Operand, OpSpec, Plan
from ipu_exec.lowering.product import CHANNEL_RUN
from ipu_exec.lowering.registry import lowering
from ipu_exec.lowering.vertices import poplar_type
from ipu_exec.machine import Machine

WORKERS = 6


def pooling_cycles(outputs: np.ndarray, items: int, width: int, channels: int, lanes: int, kind: str) -> np.ndarray:
    """Cycles of ``popnn::MaxPooling``, ``SumPooling`` or ``MaxPoolingGradient`` for ``outputs`` on each tile.

    A worker has positions of a group of channels, in pieces of field rows of ``width``. For each piece and each of the
    ``items`` elements of a window it goes over the vectors of the group, and over the piece for each of them
    (poplibs lib/popnn/PerformanceEstimation.hpp, getPoolingCycles).
    """
    group = max(1, min(channels, CHANNEL_RUN))
    vectors = -(-group // lanes)
    share = ceil_div(ceil_div(outputs, group), WORKERS)
    pieces, start = ceil_div(share, max(width, 1)), 10 if kind == "gradient" else 0
    before, each = {"max": (4, 3), "sum": (5, 3), "gradient": (7, 5)}[kind]
    # per piece and item: the item, the channel group, and for each vector the start of the loop over the piece
    through = 23 + 11 + start + vectors * (3 + before)
    worker = 36 + start + vectors * share + pieces * (17 + items * through) + items * vectors * each * share
    return np.where(outputs > 0, 13 + WORKERS * worker, 0)


def _channels(data: Operand) -> int:
    """Of a batch of images; an image alone has them first."""
    return data.shape[1] if len(data.shape) > 3 else data.shape[0]


def _window(spec: OpSpec, position: int, data: Operand, out: Operand) -> int:
    """Elements of a window: as given, or input over output extents for adaptive pooling."""
    rank = len(data.shape) - 2
    if "adaptive" in spec.name:
        return max(1, prod(-(-a // b) for a, b in zip(data.shape[-rank:], out.shape[-rank:], strict=True)))
    kernel: Any = dict(spec.kwargs).get("kernel_size", spec.args[position] if len(spec.args) > position else 1)
    many = kernel if isinstance(kernel, tuple) else (kernel,)
    spatial = (
        max(1, int(spec.name.split("d.")[0][-1]))
        if "d." in spec.name and spec.name.split("d.")[0][-1].isdigit()
        else rank
    )
    return prod(many) if len(many) > 1 else many[0] ** spatial


def _stride(spec: OpSpec, position: int, window: int) -> int:
    """Input elements that separate two windows (a product over dimensions); the window's own size by default."""
    if "adaptive" in spec.name or len(spec.args) <= position or not spec.args[position]:
        return window
    if "fractional" in spec.name:  # (kernel, output size): windows lie at random, input over output apart
        source, pooled = spec.operands["backward" in spec.name], spec.args[position]
        return max(1, prod(source.shape[-len(pooled) :]) // max(1, prod(pooled)))
    stride = spec.args[position]
    many = stride if isinstance(stride, tuple) else (stride,)
    return int(prod(many)) if len(many) > 1 else int(many[0] ** (len(spec.operands[0].shape) - 2))


def _halo(build: Builder, source: Operand, lies: Spread, share: float, width: int) -> None:
    """Exchange the part of the windows that lies on other tiles.

    A tile's share is whole field rows and fragments of rows: a border of a row on each side of its piece, and
    ``share`` of a window that overlaps its neighbour.
    """
    border = np.minimum(lies.elements, np.ceil(width * (1 + share)).astype(np.int64))
    border = np.where((lies.elements > 0) & (lies.elements < source.elements), border, 0)
    nbytes = border * source.item_bytes
    step = build.exchange("halo", nbytes, nbytes)
    build.hold("halo", nbytes, step, build.next)


@lowering(
    "aten.max_pool2d_with_indices",
    "aten.max_pool3d_with_indices",
    "aten.max_pool1d_with_indices",
    "aten.max_pool2d",
    "aten.max_pool1d",
    "aten.avg_pool1d",
    "aten.avg_pool2d",
    "aten.avg_pool3d",
    "aten._adaptive_avg_pool2d",
    "aten._adaptive_avg_pool3d",
    "aten.adaptive_avg_pool1d",
    "aten.adaptive_avg_pool2d",
    "aten.adaptive_max_pool2d",
    "aten.adaptive_max_pool3d",
    "aten.fractional_max_pool2d",
    "aten.fractional_max_pool3d",
)
def pool(spec: OpSpec, machine: Machine) -> Plan:
    """Outputs lie where their windows do."""
    build = Builder(spec, machine)
    data, lies = build.place(0), build.spread(0)
    out = spec.outputs[0]
    assert out is not None
    window = _window(spec, 1, data, out)
    overlap = max(0.0, window / _stride(spec, 2, window) - 1)
    _halo(build, data, lies, overlap, data.shape[-1])
    outputs = apportion(out.elements, lies.elements)
    lanes = 4 if data.item_bytes == 2 else 2
    maximum = "max" in base_name(spec)
    kind = f"popnn::{'MaxPooling' if maximum else 'SumPooling'}<{poplar_type(data.dtype)}>"
    cycles = pooling_cycles(outputs, window, out.shape[-1], _channels(data), lanes, "max" if maximum else "sum")
    build.compute(base_name(spec), kind, cycles, window * out.elements)
    key = ("pooled", lies.run and max(1, lies.run // window), digest(lies.key, data.shape, data.strides, out.shape))
    spread = Spread(key, outputs)
    return build.plan(tuple(None if o is None else spread.layout(o.dtype) for o in spec.outputs))


@lowering(
    "aten.max_pool2d_with_indices_backward",
    "aten.max_pool3d_with_indices_backward",
    "aten.avg_pool2d_backward",
    "aten.avg_pool3d_backward",
    "aten._adaptive_avg_pool2d_backward",
    "aten._adaptive_avg_pool3d_backward",
    "aten.adaptive_max_pool2d_backward",
    "aten.adaptive_max_pool3d_backward",
    "aten.fractional_max_pool2d_backward",
    "aten.fractional_max_pool3d_backward",
)
def pool_backward(spec: OpSpec, machine: Machine) -> Plan:
    """Each input gradient looks at the windows that hold it, where the input lies; gradients come to it."""
    build = Builder(spec, machine)
    grad, data = build.place(0), build.place(1)
    lies = spread_of(data, machine.tiles)
    out = spec.outputs[0]
    assert out is not None
    window = _window(spec, 2, data, grad)
    stride = _stride(spec, 3, window)
    lanes = 4 if data.item_bytes == 2 else 2
    maximum = "max" in base_name(spec)
    for index in (0, 2) if maximum and len(spec.operands) > 2 else (0,):
        source = build.place(index)
        need = apportion(source.elements, lies.elements)
        step = build.fetch(f"operand {index}", source, need)
        build.hold(f"operand {index}", need * source.item_bytes, step, 1 << 30)
    reached = max(1, round(window / stride))
    kind = f"popnn::{'MaxPoolingGrad' if maximum else 'SumPooling'}<{poplar_type(data.dtype)}>"
    # an element of the window meets every ``apart``-th input of a row
    apart = max(1, round(stride ** (1 / max(1, len(data.shape) - 2))))
    width, items = max(1, data.shape[-1] // apart), max(1, round(reached * apart))
    met = ceil_div(lies.elements, apart)
    cycles = pooling_cycles(met, items, width, _channels(data), lanes, "gradient" if maximum else "sum")
    build.compute(base_name(spec), kind, cycles, reached * out.elements)
    same = (data.shape, data.strides) == (out.shape, out.strides)
    key = lies.key if same else ("pooled", lies.run, digest(lies.key, out.shape, out.strides))
    return build.plan((Spread(key, lies.elements).layout(out.dtype),))
