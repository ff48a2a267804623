"""PopTorch's point sampling (``fps``, ``nearest``) and CTC beam search over tiles.

No published cycle count was found for any of the three. Their algorithms are known (PointNet++, the
prefix beam search), so a plan is their elementwise work over tiles with the formulas of
docs/cycles.md#elementwise; the split is ours.
"""

from __future__ import annotations

import numpy as np

from ipu_exec.lowering import costs
from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.layouts import ceil_div, split_evenly
from ipu_exec.lowering.plan import OpSpec, Plan
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import SYNC_CYCLES, Machine, exchange_latency


def _distance_cycles(pairs: np.ndarray, features: int, dtype: str) -> np.ndarray:
    """Squared distances of ``pairs`` per tile: subtract, square and add each feature."""
    kinds = ("sub", "square", "add")
    return np.sum([costs.KINDS[kind].cycles(pairs * features, dtype) for kind in kinds], axis=0)


@lowering("ipu_exec.nearest")
def nearest(spec: OpSpec, machine: Machine) -> Plan:
    """Queries are spread over the tiles, each with all points: distances, then the minimum."""
    build = Builder(spec, machine)
    x, y = build.place(0), build.place(1)
    features = x.shape[1] if len(x.shape) > 1 else 1
    rows = split_evenly(x.shape[0], machine.tiles)
    build.fetch_and_hold("queries", x, rows * features)
    points = np.where(rows > 0, y.elements, 0)
    build.fetch_and_hold("points", y, points, broadcast=True)
    pairs = rows * y.shape[0]
    build.compute(
        "distances",
        "popops::SquaredDistance<float>",
        _distance_cycles(pairs, features, x.dtype),
        3 * int(pairs.sum()) * features,
    )
    build.hold("distances", pairs * 4, build.next - 1)
    build.map("least", "min", pairs, x.dtype)
    out = spec.output
    return build.plan((build.linear(out.elements, out.dtype).layout(out.dtype),))


@lowering("ipu_exec.fps")
def fps(spec: OpSpec, machine: Machine) -> Plan:
    """Each sample: distances to the newest, the farthest on each tile, and the farthest of all."""
    # Points are spread over the tiles. Samples depend on each other, so one compute set takes as
    # long as all of them, with their exchanges' latency.
    build = Builder(spec, machine)
    source = build.place(0)
    features = source.shape[1] if len(source.shape) > 1 else 1
    out = spec.output
    samples = out.elements
    rows = split_evenly(source.shape[0], machine.tiles)
    step = build.fetch("points", source, rows * features)
    build.hold("points", rows * (features * source.item_bytes + 4), step)
    once = _distance_cycles(rows, features, source.dtype) + costs.KINDS["max"].cycles(
        rows, "float32"
    )
    apart = 2 * (SYNC_CYCLES + exchange_latency(machine.target))  # to one tile and back to all
    cycles = np.where(rows > 0, samples * (once + apart), 0)
    build.compute("samples", "popops::FarthestPoint<float>", cycles, 4 * samples * source.elements)
    return build.plan(
        (build.linear(samples, out.dtype).layout(out.dtype),), note=f"{samples} samples in turn"
    )


@lowering("ipu_exec.ctc_beam_search_decoder")
def ctc_beam_search(spec: OpSpec, machine: Machine) -> Plan:
    """Beam search over groups of tiles, one time step after another."""
    # A batch's entries are spread over groups, the classes of an entry over its group's tiles. In
    # each step every beam is extended by every class (an addition and a log-sum-exp, 3 elementwise
    # operations), and the best `beam_width` are selected by comparing each with each beam.
    build = Builder(spec, machine)
    probs = build.place(0)
    steps, batch, classes = probs.shape
    width = int(spec.args[3])
    group = max(1, machine.tiles // max(1, batch))
    share = ceil_div(classes, group)
    scores = np.zeros(machine.tiles, np.int64)
    used = min(machine.tiles, batch * min(group, classes))
    scores[:used] = width * share * ceil_div(batch, max(1, used // min(group, classes)))
    fetched = np.where(scores > 0, ceil_div(probs.elements, used), 0)
    step = build.fetch_and_hold("probabilities", probs, fetched)
    build.hold("beams", np.where(scores > 0, width * (steps + 3) * 4, 0), step)
    once = sum(costs.KINDS[kind].cycles(scores, "float32") for kind in ("add", "exp", "log"))
    pick = costs.KINDS["compare"].cycles(scores * max(1, int(np.log2(max(2, width)))), "float32")
    apart = 2 * (SYNC_CYCLES + exchange_latency(machine.target))
    cycles = np.where(scores > 0, steps * (once + pick + apart), 0)
    build.compute(
        "time steps", "popnn::CTCExtendAndSelect<float>", cycles, 4 * steps * int(scores.sum())
    )
    layouts = [
        build.linear(o.elements, o.dtype).layout(o.dtype) if o is not None else None
        for o in spec.outputs
    ]
    return build.plan(tuple(layouts), note=f"{steps} time steps in turn")
