"""Optimisers: PyTorch's numbers, PopTorch's arguments."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

import ipu_exec
from ipu_exec import Error, optim
from ipu_exec.base.optimiser_attributes import loss_scaling
from tests.models import model_of

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 3), (3,))]


def run(make: Make, steps: int = 5) -> list[torch.nn.Parameter]:
    weights = parameters()
    optimizer = make(weights)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()
    return weights


def same(ours: Make, theirs: Make) -> bool:
    return all(torch.equal(a, b) for a, b in zip(run(ours), run(theirs), strict=True))


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (
            optim.SGD,
            torch.optim.SGD,
            {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        ),
        (optim.Adam, torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
        (optim.AdamW, torch.optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.99)}),
        (optim.RMSprop, torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    ],
)
def test_updates_are_pytorchs_bit_for_bit(ours: Any, theirs: Any, settings: dict[str, Any]) -> None:
    extra = {"loss_scaling": 128.0, "accum_type": torch.float16}
    assert same(lambda p: ours(p, **settings, **extra), lambda p: theirs(p, **settings))
    assert isinstance(ours(parameters(), **settings), theirs)


def test_poptorchs_arguments_are_kept() -> None:
    sgd = optim.SGD(
        parameters(),
        lr=0.1,
        loss_scaling=2.0,
        use_combined_accum=True,
        velocity_accum_type=torch.float16,
    )
    assert sgd.loss_scaling == 2.0
    assert vars(sgd)["use_combined_accum"] is True
    assert vars(sgd)["velocity_accum_type"] is torch.float16
    assert loss_scaling(sgd) == 2.0
    assert loss_scaling(torch.optim.SGD(parameters(), lr=0.1)) == 1.0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: optim.AdamW(p, accum_type=torch.int32), "accum_type"),
        (lambda p: optim.SGD(p, loss_scaling=0.0), "loss_scaling is a number above 0"),
        (lambda p: optim.LARS(p, momentum=1.0), "LARS"),
        (lambda p: optim.LARS(p, lr=-1.0), "LARS"),
        (lambda p: optim.LAMB(p, betas=(1.0, 0.9)), "LAMB"),
        (lambda p: optim.Adam(p, bias_correction=False, amsgrad=True), "bias_correction=False"),
        (
            lambda p: optim.SGD(p).variable_attrs.markAsConstant("betas"),
            "Unknown attribute betas, allowed values",
        ),
    ],
)
def test_wrong_arguments_are_errors(make: Make, says: str) -> None:
    with pytest.raises(Error, match=says):
        make(parameters())


def test_the_first_step_without_bias_correction() -> None:
    weight, lr, eps = torch.nn.Parameter(torch.tensor([1.0, -2.0])), 0.1, 1e-8
    weight.grad = torch.tensor([0.5, 0.25])
    expected = weight.detach() * (1 - lr * 0.01) - lr * (0.1 * weight.grad) / (
        (0.001 * weight.grad**2).sqrt() + eps
    )
    optim.AdamW([weight], lr=lr, eps=eps, bias_correction=False).step()
    torch.testing.assert_close(weight.detach(), expected)


def test_gradients_above_the_norm_are_scaled_down() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    optim.SGD([weight], lr=1.0, max_grad_norm=1.0).step()
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.6, -0.8]), rtol=1e-4, atol=1e-4)


def lamb_step(weight: torch.Tensor, gradient: torch.Tensor, **settings: Any) -> torch.Tensor:
    parameter = torch.nn.Parameter(weight.clone())
    parameter.grad = gradient.clone()
    optim.LAMB([parameter], lr=0.1, **settings).step()
    return parameter.detach()


def test_lamb_moves_a_weight_by_lr_times_its_norm() -> None:
    weight, gradient = torch.tensor([3.0, 4.0]), torch.tensor([0.1, -0.7])
    for settings, length in (({}, 0.5), ({"max_weight_norm": 2.0}, 0.2)):
        moved = weight - lamb_step(weight, gradient, weight_decay=0.0, **settings)
        # After bias correction the first direction is the sign of the gradient, scaled to the norm
        # of the weight.
        torch.testing.assert_close(moved, gradient.sign() * length / 2**0.5, rtol=1e-5, atol=1e-5)


def test_a_loss_scaling_of_none_is_1() -> None:
    assert loss_scaling(optim.AdamW([torch.nn.Parameter(torch.ones(1))], loss_scaling=None)) == 1.0


def test_lamb_with_a_bound_of_0_is_adam_for_the_group_that_has_it() -> None:
    weight, gradient = torch.tensor([3.0, 4.0]), torch.tensor([0.1, -0.7])
    moved = weight - lamb_step(weight, gradient, weight_decay=0.0, max_weight_norm=0.0)
    torch.testing.assert_close(moved, gradient.sign() * 0.1, rtol=1e-5, atol=1e-5)
    bias, matrix = (torch.nn.Parameter(weight.clone()) for _ in range(2))
    groups = [{"params": [bias], "max_weight_norm": 0}, {"params": [matrix]}]
    optimizer = optim.LAMB(groups, lr=1.0, weight_decay=0.0, max_weight_norm=2.0)
    bias.grad = matrix.grad = gradient
    optimizer.step()
    torch.testing.assert_close((weight - bias).detach(), gradient.sign(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        (weight - matrix).detach(), gradient.sign() * 2 / 2**0.5, rtol=1e-5, atol=1e-5
    )


def test_lamb_does_not_scale_where_the_weight_is_zero() -> None:
    moved = lamb_step(torch.zeros(2), torch.tensor([0.1, -0.7]))
    torch.testing.assert_close(moved, torch.tensor([-0.1, 0.1]), rtol=1e-5, atol=1e-5)


def test_lamb_without_bias_correction_starts_with_larger_directions_of_the_same_length() -> None:
    weight, gradient = torch.tensor([3.0, 4.0]), torch.tensor([0.1, -0.7])
    moved = weight - lamb_step(weight, gradient, weight_decay=0.0, bias_correction=False)
    assert moved.norm() == pytest.approx(0.5, rel=1e-5)
    decayed = weight - lamb_step(weight, gradient, weight_decay=1.0, bias_correction=False)
    assert not torch.allclose(moved, decayed)


def test_lars_gives_each_matrix_its_own_rate() -> None:
    matrix, vector = torch.nn.Parameter(torch.full((2, 2), 2.0)), torch.nn.Parameter(torch.ones(3))
    optimizer = optim.LARS(
        [matrix, vector], lr=0.5, momentum=0.9, weight_decay=0.1, trust_coefficient=0.01
    )
    for _ in range(2):
        matrix.grad, vector.grad = torch.full((2, 2), 1.0), torch.full((3,), 1.0)
        optimizer.step()
    # norms 4 and 2: rate 0.01 * 4 / (2 + 0.1 * 4); each element's step is that times (1 + 0.1 * 2)
    first = 0.5 * 0.01 * 4 / 2.4 * 1.2
    norm = 2 * (2 - first)
    second = 0.9 * first + 0.5 * 0.01 * norm / (2 + 0.1 * norm) * (1 + 0.1 * (2 - first))
    torch.testing.assert_close(matrix.detach(), torch.full((2, 2), 2 - first - second))
    torch.testing.assert_close(vector.detach(), torch.full((3,), 1 - 0.5 - 0.5 * 1.9))


def test_lars_takes_a_plain_step_where_a_norm_is_zero() -> None:
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    weight.grad = torch.ones(2, 2)
    optim.LARS([weight], lr=0.5).step()
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), -0.5))


@pytest.mark.parametrize(("momentum", "centered"), [(0.0, False), (0.9, False), (0.9, True)])
def test_rmsprop_of_tensorflow(momentum: float, centered: bool) -> None:
    """Against its formula written out for one weight.

    The mean square starts at 1, eps is inside the root.
    """
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    ours = optim.RMSprop(
        [weight],
        lr=0.1,
        alpha=0.9,
        eps=0.01,
        momentum=momentum,
        centered=centered,
        use_tf_variant=True,
    )
    value, square, mean, moving = 1.0, 1.0, 0.0, 0.0
    for gradient in (0.5, -0.25, 2.0):
        weight.grad = torch.tensor([gradient])
        ours.step()
        square = 0.9 * square + 0.1 * gradient**2
        mean = 0.9 * mean + 0.1 * gradient
        variance = square - mean**2 if centered else square
        moving = momentum * moving + 0.1 * gradient / (variance + 0.01) ** 0.5
        value -= moving
    torch.testing.assert_close(weight.detach(), torch.tensor([value]))


def test_a_copy_keeps_poptorchs_arguments() -> None:
    optimizer = optim.SGD(parameters(), lr=0.1, loss_scaling=8.0)
    optimizer.variable_attrs.markAsConstant("momentum")
    for other in (
        copy.copy(optimizer),
        copy.deepcopy(optimizer),
        pickle.loads(pickle.dumps(optimizer)),
    ):
        assert loss_scaling(other) == 8.0
        assert other.variable_attrs.constant == ("momentum",)


def test_what_is_variable() -> None:
    attributes = optim.SGD(parameters(), lr=0.1, momentum=0.9).variable_attrs
    assert not attributes.isConstant("lr")
    assert not attributes.isConstant("momentum")
    assert attributes.isConstant("loss_scaling")
    attributes.markAsVariable("loss_scaling")
    attributes.markAsConstant("lr")
    assert (attributes.isConstant("loss_scaling"), attributes.isConstant("lr")) == (False, True)


def linear_model() -> Any:
    torch.manual_seed(0)
    return model_of(lambda self, x: self.linear(x).square().sum(), linear=torch.nn.Linear(3, 2))


X = torch.tensor([[1.0, 2.0, 3.0]])
KINDS: list[Any] = [
    lambda p: optim.SGD(p, lr=0.01, momentum=0.9),
    lambda p: optim.AdamW(p, lr=0.01),
    lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True, use_tf_variant=True),
    lambda p: optim.LAMB(p, lr=0.01),
]


@pytest.mark.parametrize("make", KINDS)
def test_training_goes_on_from_the_ipus_state_as_if_it_had_not_stopped(make: Make) -> None:
    """From ``ipu_state`` alone, as a checkpoint that a real IPU made has nothing in ``state``."""
    model = linear_model()
    optimizer = make(model.parameters())
    assert optimizer.state_dict()["ipu_state"] is None
    executor = ipu_exec.trainingModel(model, optimizer=optimizer)
    executor.compile(X)
    assert all(
        not value.any()
        for name, value in optimizer.state_dict()["ipu_state"].items()
        if "Accl1" not in name
    )
    for _ in range(3):
        executor(X)
    weights, checkpoint = copy.deepcopy(model.state_dict()), {**optimizer.state_dict(), "state": {}}
    assert checkpoint["ipu_state"]["Accl1___linear.weight"].shape == (2, 3)
    executor(X)

    resumed = linear_model()
    resumed.load_state_dict(weights)
    second = make(resumed.parameters())
    second.load_state_dict(checkpoint)
    assert second.state_dict()["ipu_state"].keys() == checkpoint["ipu_state"].keys(), (
        "read back before a model has it"
    )
    ipu_exec.trainingModel(resumed, optimizer=second)(X)
    assert torch.equal(resumed.linear.weight, model.linear.weight)
    assert all(
        torch.equal(value, second.state_dict()["ipu_state"][name])
        for name, value in optimizer.state_dict()["ipu_state"].items()
    )


def test_ipu_param_has_what_the_device_computes_with() -> None:
    model = linear_model()
    optimizer = optim.SGD(model.parameters(), lr=0.5, weight_decay=0.1, loss_scaling=4.0)
    ipu_exec.trainingModel(model, optimizer=optimizer).compile(X)
    ipu_param = optimizer.state_dict()["ipu_param"]
    assert float(ipu_param["lossScaling_FLOAT"]) == 4.0
    assert float(ipu_param["scaledLearningRate0___specific___linear.bias"]) == 0.125
    assert float(ipu_param["weightDecayScaleFactor0___specific___linear.bias"]) == pytest.approx(
        0.95
    )


def test_each_parameter_trains_with_the_ipu_param_that_was_loaded_for_it() -> None:
    """Until the groups change, as a device does until it is told of another optimiser."""
    model = linear_model()
    optimizer = optim.SGD(model.parameters(), lr=0.125, loss_scaling=4.0)
    executor = ipu_exec.trainingModel(model, optimizer=optimizer)
    executor.compile(X)
    changed = optimizer.state_dict()
    frozen = "scaledLearningRate0___specific___linear.weight"
    changed["ipu_param"][frozen] = torch.tensor(0.0)
    del changed["ipu_param"]["lossScaling_FLOAT"]  # what is missing stays as it is
    optimizer.load_state_dict(changed)
    before = copy.deepcopy(model.state_dict())
    executor(X)
    assert torch.equal(model.linear.weight, before["linear.weight"])
    assert not torch.equal(model.linear.bias, before["linear.bias"])
    read = optimizer.state_dict()["ipu_param"]
    assert float(read[frozen]) == 0.0
    assert float(read["lossScaling_FLOAT"]) == 4.0
    optimizer.param_groups[0]["lr"] = 0.0625
    executor.setOptimizer(optimizer)
    executor(X)
    assert not torch.equal(model.linear.weight, before["linear.weight"])
    assert float(optimizer.state_dict()["ipu_param"][frozen]) == 0.015625


def _resumed(ours: bool, scheduled_first: bool) -> dict[str, torch.Tensor]:
    """Weights after three updates, and after three more of a model, optimiser and schedule anew."""
    saved: list[dict[str, Any]] = []
    for _ in range(2):
        model = linear_model()
        optimizer = (optim if ours else torch.optim).AdamW(model.parameters(), lr=0.03)
        if saved and not scheduled_first:
            optimizer.load_state_dict(saved[1])
        schedule = LambdaLR(optimizer, lambda epoch: 3 / (3 + epoch))
        if saved and scheduled_first:
            optimizer.load_state_dict(saved[1])
        if saved:
            model.load_state_dict(saved[0])
            schedule.load_state_dict(saved[2])
        trains = ipu_exec.trainingModel(model, optimizer=optimizer) if ours else None
        for _ in range(3):
            if trains is None:
                optimizer.zero_grad()
                model(X).backward()
                optimizer.step()
                schedule.step()
            else:
                trains(X)
                schedule.step()
                trains.setOptimizer(optimizer)
        saved = copy.deepcopy([one.state_dict() for one in (model, optimizer, schedule)])
    return saved[0]


@pytest.mark.parametrize("scheduled_first", [True, False])
def test_a_run_resumes_as_in_pytorch_whenever_its_scheduler_is_made(scheduled_first: bool) -> None:
    """Making one sets the rate again, with this schedule to the first one."""
    ours, theirs = (_resumed(whose, scheduled_first) for whose in (True, False))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_momentum_that_may_change_has_velocities() -> None:
    model = linear_model()
    optimizer = optim.SGD(model.parameters(), lr=0.5, momentum=0.0)
    ipu_exec.trainingModel(model, optimizer=optimizer).compile(X)
    state = optimizer.state_dict()
    assert {"Accl1___linear.weight", "Accl1___linear.bias"} <= set(state["ipu_state"])
    assert float(state["ipu_param"]["momentum___specific___linear.weight"]) == 0.0


def test_offline_there_is_no_state_of_a_device() -> None:
    model, options = linear_model(), ipu_exec.Options().useOfflineIpuTarget()
    optimizer = optim.Adam(model.parameters())
    ipu_exec.trainingModel(model, options, optimizer).compile(X)
    assert optimizer.state_dict()["ipu_state"] is None


def test_poptorchs_optimisers_are_known_by_their_class() -> None:
    """Hugging Face's optimum-graphcore turns an optimiser that is no `optim.Optimizer` into one."""
    model = linear_model()
    ours = optim.LAMB(model.parameters())
    assert isinstance(ours, optim.Optimizer) and not ours.has_state()
    assert not isinstance(torch.optim.Adam(model.parameters()), optim.Optimizer)
    ipu_exec.trainingModel(model, optimizer=ours).compile(X)
    assert not ours.has_state()
    ours.state_dict()
    assert ours.has_state()


def test_the_state_of_an_optimiser_of_pytorchs_is_refused() -> None:
    theirs = torch.optim.Adam(parameters(), lr=0.3).state_dict()
    ours = optim.Adam(parameters())
    with pytest.raises(Error, match="Only IPU optimizer states can be loaded onto the IPU"):
        ours.load_state_dict(theirs)
    ours.load_state_dict({"ipu_state": None, "ipu_param": None, **theirs})
    assert ours.param_groups[0]["lr"] == 0.3


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return [line for line in messages if "optimizer with" in line]


def test_the_log_says_what_the_device_is_told_of_the_optimiser(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = linear_model()
    caplog.set_level(logging.DEBUG, logger="ipu_exec")
    optimizer = optim.SGD(model.parameters(), lr=0.5, loss_scaling=2.0, accum_type=torch.float16)
    executor = ipu_exec.trainingModel(model, optimizer=optimizer)
    assert not said(caplog), "there is no device yet"
    executor.compile(X)
    whole, group = said(caplog)
    assert whole.startswith("Updating graph optimizer with SGD2, defaultLearningRate=0.5,")
    assert "defaultMomentum=0 (const)" in whole
    assert "defaultVelocityScaling=2, " in whole and "lossScaling=2, " in whole
    assert "accumType=float16, firstOrderMomentumAccumType=float32" in whole
    assert group.startswith("Updating group 0 optimizer with SGD2, learningRate=0.5, momentum=0")
    executor.setOptimizer(optimizer)
    assert not said(caplog), "nothing changed"
    optimizer.param_groups[0]["lr"] = 0.25
    executor.setOptimizer(optimizer)
    assert "learningRate=0.25" in said(caplog)[1]


def test_of_an_optimiser_of_pytorchs_defaults_are_constant(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = linear_model()
    caplog.set_level(logging.DEBUG, logger="ipu_exec")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    ipu_exec.trainingModel(model, optimizer=optimizer).compile(X)
    whole, _ = said(caplog)
    constants = {word.split("=")[0] for word in whole.split(", ") if word.endswith("(const)")}
    assert constants >= {"defaultBeta1", "defaultBeta2", "defaultEps", "defaultWeightDecay"}
    assert "defaultLearningRate" not in constants


def test_the_state_is_read_where_the_device_went_on(caplog: pytest.LogCaptureFixture) -> None:
    model = linear_model()
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    executor = ipu_exec.trainingModel(model, optimizer=optimizer)
    executor(X)
    caplog.set_level(logging.DEBUG, logger="ipu_exec")
    first = optimizer.state_dict()
    assert "Writing optimiser state tensors from IPU to host." in caplog.text
    caplog.clear()
    optimizer.state_dict()
    assert "Using cached optimiser state dict" in caplog.text
    executor(X)
    later = optimizer.state_dict()["ipu_state"]["Accl1___linear.weight"]
    assert not torch.equal(later, first["ipu_state"]["Accl1___linear.weight"])
    caplog.clear()
    optimizer.load_state_dict(first)
    executor.setOptimizer(optimizer)
    executor(X)
    assert "Writing optimiser state tensors from host to IPU memory." in caplog.text
    executor.detachFromDevice()
    assert optimizer.has_state()


@pytest.mark.parametrize("kind", [torch.optim.SGD, optim.SGD])
def test_nesterov_is_torchs(kind: Any) -> None:
    plain, model = linear_model(), linear_model()
    wrapped = ipu_exec.trainingModel(
        model, optimizer=kind(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    )
    stepped = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    for _ in range(3):
        wrapped(X)
        stepped.zero_grad()
        plain(X).backward()
        stepped.step()
    assert torch.equal(model.linear.weight, plain.linear.weight)


def test_a_script_may_keep_its_own_under_the_name_step() -> None:
    model = linear_model()
    optimizer: Any = optim.SGD(model.parameters(), lr=0.1)
    optimizer.step = 0
    ipu_exec.trainingModel(model, optimizer=optimizer)(X)
    assert not torch.equal(model.linear.weight, linear_model().linear.weight)


def test_arguments_that_are_none_were_not_given() -> None:
    adam = optim.Adam(parameters(), lr=0.1, accum_type=None, loss_scaling=None)
    assert (adam.accum_type, adam.loss_scaling) == (torch.float32, 1.0)  # type: ignore[attr-defined]


def test_automatic_loss_scaling_has_a_state_and_an_anchor() -> None:
    model = linear_model().half()
    optimizer = optim.SGD(model.parameters(), lr=0.0, loss_scaling=2.0)
    options = ipu_exec.Options().showCompilationProgressBar(False)
    options.Training.setAutomaticLossScaling(True)
    options.anchorTensor("scale", "finalLossScale", ipu_exec.OutputMode.Final)
    executor = ipu_exec.trainingModel(model, options, optimizer)
    executor.compile(X.half())
    assert "finalLossScale" in executor.getTensorNames()
    scales = []
    for _ in range(12):
        factor = optimizer.state_dict()["ipu_state"]["lossScaleUpdateFactor"]
        executor(X.half())
        scales.append(float(executor.getAnchoredTensor("scale")))
        assert scales[-1] == 2.0 * float(factor)
    assert len(set(scales)) > 1, "it was changed meanwhile"


def test_momentum_begins_where_the_optimiser_before_had_none() -> None:
    """States go on in an optimiser of the same kind, whose settings may need further ones."""
    model = torch.nn.Linear(2, 1)
    losses = model_of(lambda self, x: self.layer(x).sum(), layer=model)
    quiet = ipu_exec.Options().showCompilationProgressBar(False)
    before = torch.optim.RMSprop(model.parameters(), lr=0.1)
    wrapped = ipu_exec.trainingModel(losses, quiet, before)
    wrapped(torch.ones(1, 2))
    after = torch.optim.RMSprop(model.parameters(), lr=0.1, momentum=0.9, centered=True)
    wrapped.setOptimizer(after)
    wrapped(torch.ones(1, 2))
    state = after.state[model.weight]
    assert float(state["step"]) == 2 and bool((state["momentum_buffer"] > 0).all())


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "LAMB", "LARS"])
def test_only_a_users_own_subclass_is_warned_of(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    kind = getattr(optim, name)
    optim.check_supported(kind([torch.nn.Parameter(torch.ones(2))], lr=0.1))
    assert not caplog.records
    own = type("Own", (kind,), {})
    optim.check_supported(own([torch.nn.Parameter(torch.ones(2))], lr=0.1))
    assert "`Own` subclassed from" in caplog.text


def test_an_optimiser_may_have_three_betas() -> None:
    class Three(torch.optim.SGD):
        """As timm's Adan."""

        def __init__(self, weights: Any) -> None:
            super().__init__(weights, lr=0.1)
            self.defaults["betas"] = self.param_groups[0]["betas"] = (0.9, 0.8, 0.7)

    model = torch.nn.Linear(4, 1)
    loss = model_of(lambda self, x: self.layer(x).sum(), layer=model)
    before = model.weight.detach().clone()
    training = ipu_exec.trainingModel(loss, None, Three(model.parameters()))
    training(torch.ones(2, 4))
    assert torch.equal(model.weight, before - 0.1 * 2)
