"""Memory settings for the example models, shared by `compile` and `rebalance`."""

from __future__ import annotations

import torch

import ipu_exec


def configure(options: ipu_exec.Options, name: str, ipus: int) -> None:
    """Set memory options as users do for these models (docs/memory-model.md#knobs).

    A proportion of 0.2 and, except for convolutional ones, optimiser state off the chip; a tied
    embedding's gradient is sparse.
    """
    options.setAvailableMemoryProportion({f"IPU{ipu}": 0.2 for ipu in range(ipus)})
    if not name.startswith(("resnet", "efficientnet")):
        off_chip = ipu_exec.TensorLocationSettings().useOnChipStorage(False)
        options.TensorLocations.setOptimizerLocation(off_chip)
        options._Popart.setPatterns({"TiedGather": True, "TiedGatherAccumulate": True})


def optimiser(module: torch.nn.Module, half: bool) -> torch.optim.Optimizer:
    """AdamW; with float16 weights, accumulators and first moments are float16 too, as in
    Graphcore's configurations.
    """
    dtype = torch.float16 if half else torch.float32
    return ipu_exec.optim.AdamW(
        module.parameters(), lr=1e-4, accum_type=dtype, first_order_momentum_accum_type=dtype
    )
