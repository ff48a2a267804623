"""Dtypes and exceptions of numbers.

Half next to float, running statistics, floating-point exceptions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ipu_exec as poptorch
from ipu_exec import Error, HalfFloatCastingBehavior
from tests.models import model_of

DOWN, UP = HalfFloatCastingBehavior.FloatDowncastToHalf, HalfFloatCastingBehavior.HalfUpcastToFloat


def options(**counts: int) -> poptorch.Options:
    opts = poptorch.Options().showCompilationProgressBar(False)
    for name, count in counts.items():
        getattr(opts, name)(count)
    return opts


def weighted(function: Callable[..., Any]) -> Any:
    """A model that calls a function with its input and a float32 weight."""
    return model_of(lambda self, x: function(x, self.weight), weight=nn.Parameter(torch.ones(4, 4)))


X = torch.full((2, 4), 0.1).half()


@pytest.mark.parametrize(
    ("casting", "function", "dtype"),
    [
        (None, lambda x, w: x + w[0], torch.float32),
        (UP, lambda x, w: x + w[0], torch.float32),
        (DOWN, lambda x, w: x + w[0], torch.float16),
        (DOWN, lambda x, w: w[0] + x, torch.float16),
        (DOWN, lambda x, w: nn.functional.linear(x, w), torch.float16),
        (DOWN, lambda x, w: torch.cat([x, w]), torch.float16),
        (DOWN, lambda x, w: (w[:2] * 1).add_(x), torch.float32),  # in place: what is written
        (DOWN, lambda x, w: (w * 1).type_as(x) + 1, torch.float16),
        (DOWN, lambda x, w: w * 2, torch.float32),
    ],
)
def test_mixed_operands_are_cast_as_asked(casting: Any, function: Any, dtype: torch.dtype) -> None:
    opts = options()
    if casting is not None:
        opts.Precision.halfFloatCasting(casting)
    executor = poptorch.inferenceModel(weighted(function), opts)
    out = executor(X)
    assert out.dtype is dtype
    graph = executor.executable.graph
    assert graph.values[graph.outputs[0]].dtype == str(dtype).removeprefix("torch."), (
        "the profile has it too"
    )


def test_float32_weights_are_trained_by_a_float16_forward() -> None:
    """As PopTorch describes it, weights are stored in float32 and cast if an input is float16."""
    model = nn.Linear(4, 1, bias=False)
    nn.init.constant_(model.weight, 0.5)
    wrapped = poptorch.trainingModel(
        model_of(lambda self, x: self.layer(x).flatten().mean(), layer=model),
        _down(),
        torch.optim.SGD(model.parameters(), lr=1e-5),
    )
    loss = wrapped(X)
    assert loss.dtype is torch.float16
    assert model.weight.dtype is torch.float32
    # each gradient is the mean input, 0.1 in float16; the update is far less than float16 could
    # hold next to 0.5
    torch.testing.assert_close(
        model.weight.detach(), torch.full((1, 4), 0.5 - 1e-5 * float(X[0, 0])), rtol=0, atol=1e-8
    )


def _down() -> poptorch.Options:
    opts = options()
    opts.Precision.halfFloatCasting(DOWN)
    return opts


# -- running statistics ---


def statistics(always_float: bool | None, half: bool, replicas: int = 1) -> nn.BatchNorm1d:
    """A batch norm after 64 float16 batches of ones.

    Its mean was 0.97: so near that float16 takes no step to it.
    """
    opts = options(replicationFactor=replicas)
    if always_float is not None:
        opts.Precision.runningStatisticsAlwaysFloat(always_float)
    model = nn.BatchNorm1d(2, affine=half, momentum=2**-7)
    model.get_buffer("running_mean").fill_(0.97)
    if half:
        model.half()
    executor = poptorch.inferenceModel(model, opts)
    for _ in range(64):
        executor(torch.ones(4 * replicas, 2).half())
    executor.copyWeightsToHost()
    return model


def test_running_statistics_are_kept_in_float32_or_in_float16() -> None:
    stuck = torch.tensor(0.97).half()
    assert float(((1 - 2**-7) * stuck.float() + 2**-7).half()) == float(stuck)
    exact = 1 - (1 - 0.97) * (1 - 2**-7) ** 64
    from_half = 1 - (1 - float(stuck)) * (1 - 2**-7) ** 64
    for replicas in (1, 2):
        exported = statistics(True, half=True, replicas=replicas).running_mean
        assert exported.dtype is torch.float16
        assert float(exported[0]) == float(torch.tensor(from_half).half()), "what float32 rounds to"
    assert float(statistics(False, half=False).running_mean[0]) == float(stuck)
    assert float(statistics(False, half=True).running_mean[0]) == float(stuck)
    default = statistics(None, half=False).running_mean
    assert default.dtype is torch.float32 and float(default[0]) == pytest.approx(exact, abs=1e-6)


def test_statistics_that_are_set_from_outside_are_taken() -> None:
    opts = options()
    opts.Precision.runningStatisticsAlwaysFloat(True)
    model = nn.BatchNorm1d(2, affine=False, momentum=0.5).half()
    executor = poptorch.inferenceModel(model, opts)
    executor(torch.ones(4, 2).half())
    executor.copyWeightsToHost()
    assert model.running_mean.tolist() == [0.5, 0.5]
    model.running_mean.fill_(3.0)
    executor.copyWeightsToDevice()
    executor(torch.ones(4, 2).half())
    executor.copyWeightsToHost()
    assert model.running_mean.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x @ w,
        lambda x, w: w @ x.t(),
        lambda x, w: torch.einsum("ij,jk->ik", x, w),
        lambda x, w: nn.functional.layer_norm(w, (4,), x[0]),
    ],
)
def test_products_and_norms_of_half_and_float_are_made_in_float(function: Any) -> None:
    """PyTorch refuses them, PopTorch promotes.

    Graphcore's BERT gathers float16 with a one-hot matrix in float32.
    """
    x, model = torch.randn(2, 4), weighted(function)
    with pytest.raises(RuntimeError):
        model(x.half())
    output = poptorch.inferenceModel(model, options())(x.half())
    assert output.dtype is torch.float32
    assert torch.equal(output, model(x.half().float()))
    loss = weighted(lambda x, w: function(x, w).sum())
    poptorch.trainingModel(loss, options(), torch.optim.SGD(loss.parameters(), lr=1.0))(x.half())
    plain = weighted(lambda x, w: function(x, w).sum())
    plain(x.half().float()).backward()
    assert torch.equal(loss.weight, 1 - plain.weight.grad)  # type: ignore[operator]


@pytest.mark.parametrize("layer", [nn.Linear(4, 3), nn.Conv1d(2, 3, 2)])
@pytest.mark.parametrize("weights", [torch.float16, torch.float32])
def test_a_layer_has_the_dtype_of_its_input(layer: nn.Module, weights: torch.dtype) -> None:
    """PyTorch refuses weights of another dtype; PopTorch casts them to that of the input."""
    x = torch.randn(2, 4)
    layer = copy.deepcopy(layer).to(weights)
    for inputs in (x, x.half()):
        output = poptorch.inferenceModel(layer, options())(inputs)
        cast = copy.deepcopy(layer).to(inputs.dtype)
        assert output.dtype is inputs.dtype
        assert torch.equal(output, cast(inputs))


# -- floating-point exceptions ---

ONE, INF, NAN = torch.ones(2, 4), torch.full((2, 4), torch.inf), torch.full((2, 4), torch.nan)


@pytest.mark.parametrize(
    ("function", "x", "what"),
    [
        (lambda x, w: x / (x - x), ONE, "a division by zero in 0/div"),
        (lambda x, w: (x - x).log(), ONE, "a division by zero in 0/log"),
        (lambda x, w: (x - x) / (x - x), ONE, "an invalid operation in 0/div"),
        (lambda x, w: (-x).sqrt(), ONE, "an invalid operation in 0/sqrt"),
        (lambda x, w: x - x, INF, "an invalid operation in 0/sub"),
        (lambda x, w: (x * 1e30).mul_(1e30), ONE, "an overflow in 0/mul_1"),
        (lambda x, w: (x * 1e5).half(), ONE, "an overflow in 0/to_copy"),
        (lambda x, w: x.relu(), NAN, "an invalid operation in 0/relu"),
    ],
)
def test_an_exception_names_its_operator_and_line(
    function: Any, x: torch.Tensor, what: str
) -> None:
    opts = options()
    opts.Precision.enableFloatingPointExceptions(True)
    model = nn.Sequential(weighted(function))
    with pytest.raises(
        Error, match=rf"floating-point exception: {what} .*in module '0'.*test_casts\.py:\d+"
    ):
        poptorch.inferenceModel(model, opts)(x)
    poptorch.inferenceModel(model, options())(x)  # nothing is said where they are off


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x, w: x.masked_fill(w[:2] > 0, -torch.inf).exp(), ONE),  # an attention mask
        (lambda x, w: x + 1, NAN),
        (lambda x, w: x * 2, INF),
        (lambda x, w: torch.empty(1000) * 0 is not None and x, ONE),
        (lambda x, w: x @ w, ONE),
    ],
)
def test_what_only_passes_through_is_no_exception(function: Any, x: torch.Tensor) -> None:
    opts = options()
    opts._Popart.set("enableFloatingPointChecks", True)
    poptorch.inferenceModel(weighted(function), opts)(x)


def test_exceptions_of_the_backward_and_of_the_weight_update() -> None:
    opts = options()
    opts.Precision.enableFloatingPointExceptions(True)
    model = weighted(
        lambda x, w: (w - w).abs().sqrt().sum()
    )  # the gradient of a root at zero is infinite
    with pytest.raises(
        Error, match=r"a division by zero in gradient/div .*backward.*test_casts\.py:\d+"
    ):
        poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=1.0))(ONE)
    model = weighted(lambda x, w: (w * 1e30).sum())
    with pytest.raises(Error, match="the weight update of 'weight' made infinite"):
        poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=1e30))(ONE)


@pytest.mark.parametrize("kept", [torch.float16, torch.float32])
def test_a_norm_of_half_takes_an_input_in_float(kept: torch.dtype) -> None:
    """PyTorch refuses float16 parameters beside a float32 input, as PopTorch does not."""
    model = nn.BatchNorm1d(4).half()
    model.running_mean, model.running_var = torch.zeros(4, dtype=kept), torch.ones(4, dtype=kept)
    x = torch.randn(8, 4)
    expected = copy.deepcopy(model).float()
    executor = poptorch.inferenceModel(model, options())
    output = executor(x)
    executor.copyWeightsToHost()
    assert output.dtype is torch.float32 and torch.equal(output, expected(x))
    assert model.running_mean.dtype is kept
    assert torch.equal(model.running_mean, expected.running_mean.to(kept))


def test_a_norm_without_statistics_takes_an_input_in_float() -> None:
    model = nn.BatchNorm1d(4, track_running_stats=False).half()
    x = torch.randn(8, 4)
    output = poptorch.inferenceModel(model, options())(x)
    assert torch.equal(output, copy.deepcopy(model).float()(x))


def test_a_norm_of_half_may_keep_its_statistics_in_float() -> None:
    """PyTorch refuses float32 statistics beside float16 weights; PopTorch takes them."""
    model = nn.BatchNorm1d(4).half().eval()
    model.running_mean, model.running_var = torch.rand(4), torch.rand(4) + 1
    x = torch.randn(2, 4).half()
    output = poptorch.inferenceModel(model, options())(x)
    assert output.dtype is torch.float16
    expected = copy.deepcopy(model).float()(x.float())
    torch.testing.assert_close(output.float(), expected, atol=2e-3, rtol=2e-3)
