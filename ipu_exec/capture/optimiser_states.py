"""The dtypes in which PopTorch's optimisers keep states, and the storages that they merge."""

from __future__ import annotations

import torch

from ipu_exec.base.optimiser_attributes import accumulates_in_velocity, state_dtype
from ipu_exec.graph import Graph
from ipuscope.profiler.enums import Role


def keep_as_optimizer_does(graph: Graph, optimizer: torch.optim.Optimizer) -> None:
    """Give states and accumulators the dtypes in which an optimiser of PopTorch keeps them.

    If one tensor holds accumulated gradients and velocities, the velocity is the accumulator.
    """
    if accumulates_in_velocity(optimizer):
        _join_velocities_to_accumulators(graph)
    dtypes: dict[int, str] = {}  # by storage
    for storage in graph.storages.values():
        if storage.parameter < 0:
            continue
        dtype = state_dtype(optimizer, storage.name.rpartition("/")[2])
        if dtype is not None:
            storage.dtype = dtypes[storage.id] = str(dtype).removeprefix("torch.")
    for value in graph.values.values():
        value.dtype = dtypes.get(value.storage, value.dtype)


def _join_velocities_to_accumulators(graph: Graph) -> None:
    storages = graph.storages
    accumulators = {s.parameter: s.id for s in storages.values() if s.role == Role.ACCUMULATOR}
    velocities = [s.id for s in storages.values() if s.name.endswith("/momentum_buffer")]
    joined: dict[int, int] = {}
    for velocity in velocities:
        if storages[velocity].parameter in accumulators:
            joined[velocity] = accumulators[storages.pop(velocity).parameter]
    for value in graph.values.values():
        value.storage = joined.get(value.storage, value.storage)
