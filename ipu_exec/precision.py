"""What an IPU does about float16 besides computing in it: stochastic rounding, and automatic loss scaling."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

HALF_MAX = 65504.0
# PopART's defaults of automatic loss scaling (popart sessionoptions.hpp, AutomaticLossScalingSettings).
BIN_EDGE = 0.125  # of the largest float16: a gradient beyond it is large
LARGE_SHARE = 1e-7  # more large ones than that: the scale is halved, else doubled
MAX_SCALE = 32768.0  # the largest power of two that a float16 loss can be multiplied by


def round_stochastically(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """float32 ``values`` as float16: up or down with probabilities that make the expected result the value itself.

    Values beyond the largest float16 become that; NaN stays. Subnormal results have their own, even spacing.
    """
    values = values.clamp(-HALF_MAX, HALF_MAX)
    near = values.half()
    error = values - near.float()
    # The neighbour on the other side of the value. Bits of floats are ordered, as sign and magnitude.
    bits = near.view(torch.int16)
    outward = torch.where(near != 0, (error > 0) == (near > 0), True)
    step = torch.where(outward, 1, -1).to(torch.int16)
    beside = torch.where((near == 0) & (error < 0), torch.full_like(bits, -(2**15) + 1), bits + step)
    other = beside.view(torch.float16)
    gap = (other.float() - near.float()).abs()
    share = torch.where(error != 0, error.abs() / gap, torch.zeros_like(error))
    drawn = torch.rand(values.shape, generator=generator)
    return torch.where(drawn < share, other, near)


@dataclass
class LossScaler:
    """The loss scale of float16 training, changed after each weight update (PopART's automatic loss scaling).

    Where more than `LARGE_SHARE` of the elements of float16 weight gradients, as scaled, lie beyond `BIN_EDGE` times
    the largest float16, the scale is halved, else doubled up to `MAX_SCALE`. Without float16 gradients it stays.
    """

    scale: float

    def observe(self, gradients: Iterable[torch.Tensor]) -> None:
        """Look at the gradients of a weight update, and make infinite ones the largest float16, as an IPU does."""
        large = total = 0
        for gradient in gradients:
            if gradient.dtype is torch.float16:
                large += int((gradient.abs() > BIN_EDGE * HALF_MAX).sum() + gradient.isnan().sum())
                total += gradient.numel()
                gradient.clamp_(-HALF_MAX, HALF_MAX)
        if total:
            self.scale = self.scale / 2 if large > LARGE_SHARE * total else min(self.scale * 2, MAX_SCALE)


@dataclass
class Precision:
    """How float16 is treated in training. None: as PyTorch does."""

    scaler: LossScaler | None = None
    rounding: torch.Generator | None = field(default=None)

    @contextlib.contextmanager
    def update(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Inside, float16 weights and gradients are float32 ones of the same values; after it weights are rounded.

        An IPU's optimisers compute in float32 too: a gradient that is scaled back need not fit into float16.
        """
        if self.rounding is None and self.scaler is None:
            yield
            return
        halves = [p for group in optimizer.param_groups for p in group["params"] if p.dtype is torch.float16]
        kept = [parameter.data for parameter in halves]
        for parameter in halves:
            gradient, parameter.grad = parameter.grad, None
            parameter.data = parameter.data.float()
            parameter.grad = None if gradient is None else gradient.float()
            state = optimizer.state.get(parameter, {})
            state.update({k: v.float() for k, v in state.items() if _is_half(v)})
        try:
            yield
        finally:
            for parameter, place in zip(halves, kept, strict=True):
                parameter.grad = None
                new = parameter.data
                place.copy_(new if self.rounding is None else round_stochastically(new, self.rounding))
                parameter.data = place


def _is_half(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float16
