"""float16: stochastic rounding is unbiased, exact where it can be, and seeded.

The loss scale follows the gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ipu_exec as poptorch
from ipu_exec.numerics.precision import HALF_MAX, LossScaler, Precision, round_stochastically
from tests.models import WithLoss, mean_square, model_of


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    "value",
    [
        1.0002,
        -1.0002,
        3.1415927,
        -0.1,
        1e-5,
        -1e-5,
        2.0**-24 * 0.3,
        -(2.0**-25),
        1023.9,
        65503.9,
        2**-14 * 0.99999,
    ],
)
def test_rounding_is_to_a_neighbour_and_unbiased(value: float) -> None:
    count = 200_000
    values = torch.full((count,), value)
    rounded = round_stochastically(values, generator()).double()
    neighbours = rounded.unique()
    assert len(neighbours) == 2
    low, high = neighbours.tolist()
    exact = float(values[0])
    assert low < exact < high
    assert torch.tensor([low, high]).half().double().tolist() == [low, high]
    # No float16 lies between: the one after `low` is `high`.
    bits = torch.tensor([low, high]).half().view(torch.int16).int()
    assert abs(int(bits[1] - bits[0])) == 1 or (
        0.0 in (low, high) and max(abs(low), abs(high)) == 2.0**-24
    )
    share = (exact - low) / (high - low)
    deviation = (high - low) * (share * (1 - share) / count) ** 0.5
    assert abs(float(rounded.mean()) - exact) < 5 * deviation + 1e-12


def test_what_is_a_float16_stays_and_what_is_too_large_is_the_largest() -> None:
    exact = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    exact = exact[exact.isfinite()]
    assert torch.equal(round_stochastically(exact.float(), generator()), exact)
    rounded = round_stochastically(torch.tensor([1e6, -1e6, torch.inf, torch.nan]), generator())
    assert rounded[:3].tolist() == [HALF_MAX, -HALF_MAX, HALF_MAX]
    assert rounded[3].isnan()


def half_model() -> WithLoss:
    layer = nn.Linear(8, 4).half()
    nn.init.uniform_(layer.weight, 0.5, 0.9)  # where the spacing of float16 is 2^-11
    return WithLoss(layer)


def trained(
    rounded: bool, seed: int = 1, steps: int = 1, lr: float = 1e-5, kind: str = "SGD"
) -> tuple[WithLoss, WithLoss]:
    """The model after training and before."""
    torch.manual_seed(0)
    model = half_model()
    before = copy.deepcopy(model)
    options = poptorch.Options().showCompilationProgressBar(False).randomSeed(seed)
    options.Precision.enableStochasticRounding(rounded)
    wrapped = poptorch.trainingModel(
        model, options, getattr(poptorch.optim, kind)(model.parameters(), lr=lr)
    )
    x, target = torch.randn(4, 8).half(), torch.randn(4, 4).half()
    for _ in range(steps):
        wrapped(x, target)
    return model, before


def test_updates_too_small_for_float16_are_not_lost_on_average() -> None:
    """Each is less than half the spacing.

    Rounded to nearest nothing ever changes, stochastically it adds up.
    """
    lost, before = trained(rounded=False, steps=30, lr=5e-5)
    assert torch.equal(lost.model.weight, before.model.weight), "rounded to nearest"
    after, before = trained(rounded=True, steps=30, lr=5e-5)
    assert not torch.equal(after.model.weight, before.model.weight)
    assert after.model.weight.dtype is torch.float16
    single = copy.deepcopy(before).float()
    optimizer = torch.optim.SGD(single.parameters(), lr=5e-5)
    torch.manual_seed(0)
    half_model()
    x, target = torch.randn(4, 8).half().float(), torch.randn(4, 4).half().float()
    for _ in range(30):
        optimizer.zero_grad()
        single(x, target)[1].backward()
        optimizer.step()
    wanted = single.model.weight - before.model.weight.float()
    seeds = [trained(rounded=True, seed=seed, steps=30, lr=5e-5)[0] for seed in range(12)]
    moved = torch.stack(
        [model.model.weight.float() - before.model.weight.float() for model in seeds]
    ).mean(0)
    assert torch.nn.functional.cosine_similarity(moved.flatten(), wanted.flatten(), 0) > 0.5
    moved, wanted = moved.detach(), wanted.detach()
    assert float((moved * wanted).sum() / (wanted * wanted).sum()) == pytest.approx(1.0, abs=0.4)


def test_rounding_is_seeded() -> None:
    weights = [trained(rounded=True, seed=seed, steps=5)[0].model.weight for seed in (3, 3, 4)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "LAMB", "RMSprop"])
def test_every_optimiser_rounds_and_goes_on_from_a_float16_state(kind: str) -> None:
    model, before = trained(rounded=True, steps=3, lr=1e-3, kind=kind)
    assert model.model.weight.dtype is torch.float16
    assert not torch.equal(model.model.weight, before.model.weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert optimizer.state[model.model.weight]["exp_avg"].dtype is torch.float16
    storage = model.model.weight.data_ptr()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with Precision(rounding=generator()).update(optimizer):
        optimizer.step()
    assert model.model.weight.dtype is torch.float16
    assert model.model.weight.data_ptr() == storage, "whoever shares the weight's memory still does"


def test_float32_models_are_trained_as_ever() -> None:
    def run(rounded: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 1))
        options = poptorch.Options().showCompilationProgressBar(False)
        options.Precision.enableStochasticRounding(rounded)
        options.Training.setAutomaticLossScaling(rounded)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        poptorch.trainingModel(mean_square(model), options, optimizer)(torch.ones(2, 4))
        return model[0].weight.detach()

    assert torch.equal(run(False), run(True))


# -- loss scaling ---


def seen(scaler: LossScaler, *gradients: torch.Tensor) -> float:
    """The scale after an update with these gradients."""
    for gradient in gradients:
        scaler.count(gradient)
    scaler.update(gradients)
    return scaler.scale


def test_the_scale_doubles_until_gradients_are_large_and_then_halves() -> None:
    scaler = LossScaler(1.0)
    small, large = torch.full((1000,), 0.5).half(), torch.full((1000,), 0.2 * HALF_MAX).half()
    assert seen(scaler, small) == 2.0
    assert seen(scaler, small, large) == 1.0
    overflown = torch.tensor([torch.inf, -torch.inf, 1.0]).half()
    assert seen(scaler, overflown) == 0.5
    assert overflown.tolist() == [HALF_MAX, -HALF_MAX, 1.0]
    assert seen(scaler) == 0.5, "no float16 gradient"
    for _ in range(40):
        seen(scaler, small)
    assert scaler.scale == 32768.0


def test_gradients_of_activations_count_and_what_only_moves_them_does_not() -> None:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The gradient of ``outer`` is large, and that of the weight small again."""
        inner = self.weight * 1e-3
        outer = (inner * 100).view(2, 2)
        return (torch.cat([outer, outer]).reshape(-1) * 200).sum() * x.sum()

    def counted(half: bool) -> LossScaler:
        weight = torch.ones(4, dtype=torch.float16 if half else torch.float32)
        model = model_of(forward, weight=nn.Parameter(weight))
        options = poptorch.Options().showCompilationProgressBar(False)
        options.Training.setAutomaticLossScaling(True)
        wrapped = poptorch.trainingModel(
            model, options, poptorch.optim.SGD(model.parameters(), lr=1e-6)
        )
        wrapped(torch.ones(1).half() if half else torch.ones(1))
        return wrapped._precision.scaler

    # 200 x 2 branches x 100 = 40,000 is beyond an eighth of 65,504; the weight's own, 40, is not
    assert counted(half=True).scale == 0.5
    assert counted(half=False).scale == 1.0, "float32 says nothing"


def test_the_scaler_takes_popart_s_settings() -> None:
    options = poptorch.Options()
    for name, value in (
        ("binEdgeLocation", 0.5),
        ("thresholdUpperCountProportion", 0.2),
        ("updatePeriod", 2),
    ):
        options._Popart.set(f"automaticLossScalingSettings.{name}", value)
    scaler = LossScaler.of(8.0, options._Popart.settings)
    small, large = (
        torch.full((10,), 0.4 * HALF_MAX).half(),
        torch.full((10,), 0.6 * HALF_MAX).half(),
    )
    assert seen(scaler, small) == 8.0, "counted, and changed at the second"
    assert seen(scaler, small) == 16.0
    seen(scaler, small)
    assert seen(scaler, small, large[:8]) == 8.0  # 8 of 28
    seen(scaler, small)
    assert seen(scaler, small, large[:4]) == 16.0  # 4 of 24
    options._Popart.set("automaticLossScalingSettings.updatePeriod", 0)
    with pytest.raises(poptorch.Error, match="updatePeriod is a whole number above 0"):
        LossScaler.of(8.0, options._Popart.settings)


def test_training_finds_a_scale_at_which_small_gradients_survive() -> None:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).float().sum() * 1e-8  # a gradient that is 0 in float16

    def moved(automatic: bool) -> tuple[float, float]:
        model = model_of(forward, weight=nn.Parameter(torch.zeros(4).half()))
        options = poptorch.Options().showCompilationProgressBar(False)
        options.Training.setAutomaticLossScaling(automatic)
        wrapped = poptorch.trainingModel(
            model, options, poptorch.optim.SGD(model.parameters(), lr=1e4)
        )
        for _ in range(20):
            wrapped(torch.ones(1))
        scaler = wrapped._precision.scaler if wrapped._precision else None
        return float(model.weight[0].detach()), scaler.scale if scaler else 1.0

    still, scale = moved(False)
    assert (still, scale) == (0.0, 1.0)
    now, scale = moved(True)
    assert scale == 32768.0
    # 1e4 x 1e-8 a step, in the steps whose scaled gradient float16 can hold: from a scale of 8 on.
    assert now == pytest.approx(-1e-4 * 17, rel=0.1)


# -- optimisers' states ---

HALF_STATES = {
    "Adam": {
        "first_order_momentum_accum_type": "exp_avg",
        "second_order_momentum_accum_type": "exp_avg_sq",
    },
    "LAMB": {
        "first_order_momentum_accum_type": "exp_avg",
        "second_order_momentum_accum_type": "exp_avg_sq",
    },
    "RMSprop": {"second_order_momentum_accum_type": "square_avg"},
    "SGD": {"velocity_accum_type": "momentum_buffer"},
}


def line(dtype: torch.dtype = torch.float32) -> Any:
    """A model whose weight has the mean of its input as gradient."""
    weight = nn.Parameter(torch.ones(4, dtype=dtype))
    return model_of(lambda self, x: (self.weight * x).mean(0).sum(), weight=weight)


def after(
    kind: str,
    dtype: torch.dtype = torch.float32,
    accumulation: int = 1,
    steps: int = 3,
    **types: Any,
) -> tuple[Any, ...]:
    """(optimiser, weight, executable) after some steps on numbers that float16 cannot hold."""
    model = line(dtype)
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    settings = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(poptorch.optim, kind)(model.parameters(), lr=1e-2, **settings, **types)
    wrapped = poptorch.trainingModel(model, options, optimizer)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(steps):
            wrapped(torch.randn(accumulation * 2, 4).to(dtype))
    return optimizer, model.weight, wrapped.executable


def fits_half(values: torch.Tensor) -> bool:
    return torch.equal(values, values.half().float())


@pytest.mark.parametrize(
    ("kind", "argument", "state"), [(k, a, s) for k, t in HALF_STATES.items() for a, s in t.items()]
)
def test_states_are_rounded_to_float16_where_that_is_their_type(
    kind: str, argument: str, state: str
) -> None:
    single, weight, _ = after(kind)
    half, other, executable = after(kind, **{argument: torch.float16})
    assert not fits_half(single.state[weight][state])
    assert fits_half(half.state[other][state]) and half.state[other][state].dtype is torch.float32
    assert not torch.equal(weight, other)
    torch.testing.assert_close(weight, other, rtol=1e-2, atol=1e-4)
    dtypes = {
        s.name.split("/")[1]: s.dtype
        for s in executable.graph.storages.values()
        if s.parameter >= 0
    }
    assert dtypes[state] == "float16"
    assert all(dtype == "float32" for name, dtype in dtypes.items() if name not in (state, "step"))
    bytes_of = {v.name: v.bytes for v in executable.variables}
    assert bytes_of[f"weight/{state}"] == 4 * 2


def test_velocities_are_kept_scaled_as_the_loss_is() -> None:
    """The smallest float16 is 6e-8: velocities of 1e-9 are lost, and kept when scaled by 2^20."""
    gradient = torch.full((1, 4), 1e-9)
    for scaling, lost in ((1.0, True), (2.0**20, False)):
        model = line()
        optimizer = poptorch.optim.SGD(
            model.parameters(),
            lr=1e-2,
            momentum=0.9,
            velocity_accum_type=torch.float16,
            loss_scaling=scaling,
        )
        options = poptorch.Options().showCompilationProgressBar(False)
        poptorch.trainingModel(model, options, optimizer)(gradient)
        velocity = optimizer.state[model.weight]["momentum_buffer"]
        assert bool((velocity == 0).all()) is lost


def test_a_combined_accumulator_is_one_tensor_and_numbers_are_the_same() -> None:
    _, weight, apart = after("SGD", accumulation=4, steps=2)
    _, other, combined = after(
        "SGD", accumulation=4, steps=2, use_combined_accum=True, accum_type=torch.float16
    )
    assert torch.equal(weight, other)
    roles = [
        {s.name for s in executable.graph.storages.values() if s.parameter >= 0}
        for executable in (apart, combined)
    ]
    assert roles == [{"weight/accumulator", "weight/momentum_buffer"}, {"weight/accumulator"}]
    (accumulator,) = [v for v in combined.variables if v.name == "weight/accumulator"]
    assert accumulator.bytes == 4 * 4, (
        "of the weight's type: PopTorch's types are for separate tensors"
    )


def test_accumulators_are_rounded_to_float16_where_that_is_their_type() -> None:
    _, weight, plain = after("SGD", accumulation=4, steps=1)
    _, other, half = after("SGD", accumulation=4, steps=1, accum_type=torch.float16)
    assert not torch.equal(weight, other)
    torch.testing.assert_close(weight, other, rtol=1e-3, atol=1e-5)
    for executable, dtype in ((plain, "float32"), (half, "float16")):
        (accumulator,) = [s for s in executable.graph.storages.values() if s.role == "accumulator"]
        assert accumulator.dtype == dtype
    _, alone, _ = after("SGD", accumulation=1, steps=1)
    _, same, _ = after("SGD", accumulation=1, steps=1, accum_type=torch.float16)
    assert torch.equal(alone, same), "one gradient is not accumulated"


def test_float16_weights_have_float32_states_with_poptorchs_optimisers() -> None:
    optimizer, weight, executable = after("Adam", torch.float16)
    assert weight.dtype is torch.float16
    assert optimizer.state[weight]["exp_avg_sq"].dtype is torch.float32
    dtypes = {
        s.name: s.dtype for s in executable.graph.storages.values() if s.role == "optimiser state"
    }
    assert (dtypes["weight/exp_avg"], dtypes["weight/exp_avg_sq"]) == ("float32", "float32")


OF_TORCH: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.05),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.05),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.05),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.05),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.05),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.05),
}


@pytest.mark.parametrize("kind", OF_TORCH)
def test_pytorchs_optimisers_update_float16_weights_in_float32(kind: str) -> None:
    """PopTorch converts them so; PyTorch's own in float16 give NaN at once (Adam's eps)."""
    model = line(torch.float16)
    optimizer = OF_TORCH[kind](model.parameters())
    quiet = poptorch.Options().showCompilationProgressBar(False)
    wrapped = poptorch.trainingModel(model, quiet, optimizer)
    inputs = [torch.full((1, 4), 2.0**-k).half() for k in (1, 12, 3)]
    weight = torch.nn.Parameter(model.weight.detach().float())
    plain = OF_TORCH[kind]([weight])
    for x in inputs:
        half = line(torch.float16)
        half.weight.data.copy_(weight.data)
        output = half(x)
        loss = output[-1] if isinstance(output, tuple) else output
        loss.backward()
        weight.grad = half.weight.grad.float()
        plain.step()
        weight.data.copy_(weight.data.half())
        wrapped(x)
    assert model.weight.isfinite().all()
    assert torch.equal(model.weight.detach().float(), weight.detach())
    tensors = [v for v in optimizer.state[model.weight].values() if isinstance(v, torch.Tensor)]
    assert all(value.dtype is torch.float32 for value in tensors)
    states = [s for s in wrapped.executable.graph.storages.values() if s.role == "optimiser state"]
    assert {s.dtype for s in states if s.parameter >= 0} <= {"float32"}
