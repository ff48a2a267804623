"""What the IPUs that share a stage's tensors exchange: collectives of tensor sharding.

Each is one exchange between IPUs over a ring (docs/pods.md#collectives); a result lies as its
operand does, and where it has another size, linearly.
"""

from __future__ import annotations

import numpy as np

from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.layouts import Spread, apportion
from ipu_exec.lowering.operator_info import describe
from ipu_exec.lowering.plan import Collective, OpSpec, Plan
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import Machine
from ipuscope.profiler.timeline.links import ring_cycles

_GATHER = "_c10d_functional.all_gather_into_tensor"
_SCATTER = "_c10d_functional.reduce_scatter_tensor"
_TO_ALL = "_c10d_functional.all_to_all_single"
describe("_c10d_functional.wait_tensor", view=True, popart_name="Identity")


@lowering(
    "_c10d_functional.all_reduce",
    "_c10d_functional.all_reduce_",
    in_place=True,
    makes_alike=True,
    popart_name="ReplicatedAllReduce",
)
def all_reduce(spec: OpSpec, machine: Machine) -> Plan:
    """A reduce-scatter and an all-gather: 2 (t - 1) / t of the bytes in and out of each IPU."""
    return _collective(spec, machine, rounds=2)


describe(_GATHER, makes_alike=True, popart_name="ReplicatedAllGather")
describe(_SCATTER, makes_different=True, popart_name="ReplicatedReduceScatter")
describe(_TO_ALL, makes_different=True, popart_name="ReplicatedAllToAll")


@lowering(_GATHER, _SCATTER, _TO_ALL)
def one_round(spec: OpSpec, machine: Machine) -> Plan:
    """(t - 1) / t of the larger of result and operand comes from the others, or goes to them."""
    return _collective(spec, machine, rounds=1)


def _collective(spec: OpSpec, machine: Machine, rounds: int) -> Plan:
    build = Builder(spec, machine)
    operand, spread = build.lead(0)
    out = spec.output
    same = out.elements == operand.elements
    result = spread if same else build.linear(out.elements, out.dtype)
    shards, nbytes = machine.shards, max(operand.nbytes, out.nbytes)
    moved = rounds * nbytes * (shards - 1) // shards
    name = spec.name.split(".")[1].strip("_")
    build.steps.append(
        Collective(
            name,
            _on_tiles(moved, result, spread),
            _on_tiles(moved, spread, result),
            ring_cycles(machine.target.links, 0, 1, shards, nbytes, rounds) if shards > 1 else 0,
        )
    )
    note = f"between {shards} IPUs that share the stage's tensors"
    return build.plan((result.layout(out.dtype),), note=note)


def _on_tiles(total: int, where: Spread, otherwise: Spread) -> np.ndarray:
    """``total`` bytes over the tiles, as a tensor lies there."""
    elements = where.elements if where.elements.any() else otherwise.elements
    return apportion(total, elements)
