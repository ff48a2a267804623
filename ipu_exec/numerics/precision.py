"""An IPU's float16 handling: stochastic rounding and automatic loss scaling."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ipu_exec.base.context import NOTHING
from ipu_exec.base.optimiser_attributes import STATES, loss_scaling, state_dtype
from ipu_exec.capture.rewrites.casts import Casting
from ipu_exec.errors import UsageError
from ipu_exec.lowering import info
from ipu_exec.numerics.collectives import Instances
from ipu_exec.numerics.randomness import seed_of_replica

HALF_MAX = 65504.0
# PopART's automatic loss scaling: the defaults of AutomaticLossScalingSettings [POPART,
# willow/include/popart/sessionoptions.hpp] (binEdgeLocation was 0.0625 before its last release),
# and factors and bound of LossScaleUpdateOpx [POPART, willow/src/popx/op/lossscaleupdatex.cpp].
BIN_EDGE = 0.125  # binEdgeLocation, of the largest float16: a gradient beyond it is large
# thresholdUpperCountProportion: with more large ones the scale is halved, else doubled
LARGE_SHARE = 1e-7
UPDATE_PERIOD = 1  # updatePeriod: weight updates from one change of the scale to the next
MAX_SCALE = 32768.0  # the largest power of two that a float16 loss can be multiplied by
_SETTINGS = {
    "binEdgeLocation": "edge",
    "thresholdUpperCountProportion": "share",
    "updatePeriod": "period",
}


def round_stochastically(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """float32 ``values`` as float16, rounded so that the expected result is the value itself.

    Values beyond the largest float16 become that; NaN stays. Subnormals are spaced evenly.
    """
    values = values.clamp(-HALF_MAX, HALF_MAX)
    near = values.half()
    error = values - near.float()
    # The neighbour on the value's other side: bits of floats are ordered, as sign and magnitude.
    bits = near.view(torch.int16)
    outward = torch.where(near != 0, (error > 0) == (near > 0), True)
    step = torch.where(outward, 1, -1).to(torch.int16)
    beside = torch.where(
        (near == 0) & (error < 0), torch.full_like(bits, -(2**15) + 1), bits + step
    )
    other = beside.view(torch.float16)
    gap = (other.float() - near.float()).abs()
    share = torch.where(error != 0, error.abs() / gap, torch.zeros_like(error))
    drawn = torch.rand(values.shape, generator=generator)
    return torch.where(drawn < share, other, near)


@dataclass
class LossScaler:
    """The loss scale of float16 training, changed after weight updates as PopART changes it.

    It is halved if more than ``share`` of the elements of float16 gradients, as scaled, exceed
    ``edge`` times the largest float16, else doubled, up to `MAX_SCALE`; without elements it
    stays. Elements are counted over ``period`` weight updates, in all float16 results of backward
    operators except views, copies and concatenations (PopART's AllNonViewChangingGradientTensors;
    [POPART, willow/src/transforms/automaticlossscaling.cpp]).
    """

    scale: float
    edge: float = BIN_EDGE
    share: float = LARGE_SHARE
    period: int = UPDATE_PERIOD
    _large: int = 0
    _total: int = 0
    _updates: int = 0

    @staticmethod
    def of(scale: float, popart: Mapping[str, Any]) -> LossScaler:
        """The scaler with ``_Popart``'s ``automaticLossScalingSettings.binEdgeLocation`` etc.

        Error if a share is not in 0 ... 1 or the period is not an integer above 0.
        """
        prefix = "automaticLossScalingSettings."
        settings = {
            own: popart[prefix + name] for name, own in _SETTINGS.items() if prefix + name in popart
        }
        period = settings.get("period", UPDATE_PERIOD)
        shares = [settings.get("edge", BIN_EDGE), settings.get("share", LARGE_SHARE)]
        if (
            not all(0 <= share <= 1 for share in shares)
            or not isinstance(period, int)
            or period < 1
        ):
            raise UsageError(
                f"_Popart's {prefix}...: binEdgeLocation and thresholdUpperCountProportion are in 0"
                f" ... 1 and updatePeriod is a whole number above 0, not {settings}"
            )
        return LossScaler(scale, **settings)

    def count(self, gradient: torch.Tensor) -> None:
        """Count one float16 gradient's elements."""
        self._large += int((gradient.abs() > self.edge * HALF_MAX).sum() + gradient.isnan().sum())
        self._total += gradient.numel()

    def update(self, gradients: Iterable[torch.Tensor], together: Instances | None = None) -> None:
        """Change the scale after a weight update's gradients have been computed.

        ``gradients``: the weights'; infinite ones become the largest float16, as on an IPU.
        ``together``: the instances whose replicas' gradients are counted too.
        """
        for gradient in gradients:
            if gradient.dtype is torch.float16:
                gradient.clamp_(-HALF_MAX, HALF_MAX)
        self._updates += 1
        if self._updates < self.period:
            return
        if together is not None:
            self._large, self._total = together.total([self._large, self._total])
        if self._total:
            many = self._large > self.share * self._total
            self.scale = self.scale / 2 if many else min(self.scale * 2, MAX_SCALE)
        self._large = self._total = self._updates = 0


class _Counting(TorchDispatchMode):
    """While entered, the scaler counts the results of backward operators."""

    def __init__(self, scaler: LossScaler) -> None:
        super().__init__()
        self._scaler = scaler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        operator = info(str(func))
        in_backward = torch._C._current_graph_task_id() >= 0
        if in_backward and not operator.view and not operator.moves:
            node = torch._C._current_autograd_node()
            results = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
            accumulates = node is not None and node.name() == "torch::autograd::AccumulateGrad"
            if not accumulates and all(result.dtype is torch.float16 for result in results):
                for result in results:
                    self._scaler.count(result)
        return output


@dataclass
class Precision:
    """The handling of float16. None: as in PyTorch."""

    scaler: LossScaler | None = None
    rounding: torch.Generator | None = field(default=None)  # of what all replicas round alike
    casting: contextlib.AbstractContextManager[Any] = NOTHING
    _rounding_of: dict[int, torch.Generator] = field(default_factory=dict)  # of one replica's own

    def model(self, replica: int) -> contextlib.AbstractContextManager[Any]:
        """Entered around forward and backward of a replica."""
        if isinstance(self.casting, Casting):
            self.casting.replica = replica
        return self.casting

    def counting(self) -> contextlib.AbstractContextManager[Any]:
        """Entered around everything else that observes a micro-batch's operators."""
        return _Counting(self.scaler) if self.scaler is not None else NOTHING

    def accumulate(
        self, optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor], replica: int = 0
    ) -> None:
        """Round accumulated gradients if the optimiser stores them in float16.

        ``replica`` (over all instances) draws its own numbers, so that updates draw the same.
        """
        if state_dtype(optimizer, "accumulator") is torch.float16:
            for parameter in parameters:
                if parameter.grad is not None and parameter.grad.dtype is torch.float32:
                    parameter.grad.copy_(self._rounded(parameter.grad, self._drawn_by(replica)))

    @contextlib.contextmanager
    def update(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Inside, float16 weights and gradients are float32; afterwards they are rounded.

        An IPU's optimisers also compute in float32: neither a gradient that is scaled back nor
        Adam's ``eps`` need fit into float16. States in float16 are rounded too.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        halves = [p for p in parameters if p.dtype is torch.float16]
        halves_before = [parameter.data for parameter in halves]
        for parameter in halves:
            gradient, parameter.grad = parameter.grad, None
            parameter.data = parameter.data.float()
            parameter.grad = None if gradient is None else gradient.float()
            state = optimizer.state.get(parameter, {})
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dtype is torch.float16:
                    state[name] = value.float()
        try:
            yield
        finally:
            for parameter, place in zip(halves, halves_before, strict=True):
                parameter.grad = None
                new = parameter.data
                place.copy_(
                    new if self.rounding is None else round_stochastically(new, self.rounding)
                )
                parameter.data = place
        in_half = {name for name in STATES if state_dtype(optimizer, name) is torch.float16}
        for parameter in parameters if in_half else ():
            for name, value in optimizer.state.get(parameter, {}).items():
                if name in in_half and isinstance(value, torch.Tensor):
                    # PopTorch scales velocities as the loss, so that small ones are not lost
                    scale = loss_scaling(optimizer) if name == "momentum_buffer" else 1.0
                    value.copy_(self._rounded(value * scale, self.rounding) / scale)

    def _drawn_by(self, replica: int) -> torch.Generator | None:
        if self.rounding is None:
            return None
        if replica not in self._rounding_of:
            seed = seed_of_replica(self.rounding.initial_seed(), replica + 1)
            self._rounding_of[replica] = torch.Generator().manual_seed(seed)
        return self._rounding_of[replica]

    @staticmethod
    def _rounded(values: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        """The float32 values rounded to float16 values."""
        if generator is not None:
            return round_stochastically(values, generator).float()
        return values.clamp(-HALF_MAX, HALF_MAX).half().float()
