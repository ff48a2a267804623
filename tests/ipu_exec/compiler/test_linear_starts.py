"""Small weights that no operator lays out do not pile up on the same tiles."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import ipu_exec
from ipuscope.profiler.enums import Role

LAYERS = 6


class Scaled(nn.Module):
    """Layers with a bias each, and norms with two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList(nn.Linear(256, 256) for _ in range(LAYERS))
        self.norm = nn.ModuleList(nn.LayerNorm(256) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer, norm in zip(self.layer, self.norm, strict=True):
            x = norm(torch.relu(layer(x)))
        return x, nn.functional.mse_loss(x, target)


def test_biases_and_norms_lie_one_behind_the_other_with_their_states() -> None:
    model = Scaled()
    options = ipu_exec.Options().showCompilationProgressBar(False)
    optimiser = ipu_exec.optim.AdamW(model.parameters(), lr=1e-3)
    executor = ipu_exec.trainingModel(model, options, optimiser)
    x = torch.zeros(8, 256)
    executor.compile(x, x)
    held: dict[Role, dict[str, np.ndarray]] = {}
    for variable in executor.executable.variables:
        small = ".bias" in variable.name or "norm.0.weight" in variable.name
        if variable.always_live and small:
            held.setdefault(variable.role, {})[variable.name] = np.asarray(variable.tile_bytes)
    weights = held[Role.WEIGHT]
    assert len(weights) == 2 * LAYERS + 1
    assert np.count_nonzero(sum(weights.values())) == sum(map(np.count_nonzero, weights.values()))
    moments = 0
    for name, nbytes in held[Role.OPTIMISER_STATE].items():
        weight = next(each for name_of, each in weights.items() if name.startswith(name_of))
        if nbytes.sum() == weight.sum():  # the count of updates is one number
            assert np.array_equal(nbytes, weight)
            moments += 1
    assert moments == 2 * len(weights)
