"""Real numbers of a call.

Training equals a plain PyTorch loop bit for bit; outputs by mode; errors of a call.

But for the first test, which compiles for real, what compiles is replaced by a fake of a few lines.
"""

from __future__ import annotations

import copy
import gc
import logging
import re
import sys
import types
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional

import ipu_exec as poptorch
from ipu_exec import Error, MeanReductionStrategy, Options, OutputMode, ReductionType
from ipu_exec.graph import Graph
from ipu_exec.numerics import loop as numerics
from ipu_exec.session.call_plan import plan_call
from tests.models import model_of

MICRO = 4


class Executable:
    cycles_per_call = 1234
    contents = ()
    graph = Graph()
    placement = types.SimpleNamespace(attached_ipus=1)

    def __init__(self, fits: bool = True) -> None:
        self.fits = fits

    def check_memory(self, profile_path: str = "") -> None:
        if not self.fits:
            raise poptorch.OutOfMemoryError("too much", profile_path=profile_path)


class Session:
    """A stand-in for `ipu_exec.session.autoreport.ProfileSession`."""

    opened: ClassVar[list[Session]] = []

    def __init__(
        self,
        options: Options,
        executable: Executable,
        folder: str,
        model: str,
        peers: object = (),
        trainer: str = "",
    ) -> None:
        self.path, self.runs, self.closed, self.published = "the/path", 0, 0, 0
        Session.opened.append(self)

    def record_run(self, host_start_us: int, host_end_us: int) -> None:
        assert host_start_us <= host_end_us
        self.runs += 1

    def publish(self) -> None:
        self.published += 1

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def compiled(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> list[dict[str, Any]]:
    """The arguments of each compile, as dicts."""
    calls: list[dict[str, Any]] = []
    monkeypatch.delenv("POPLAR_ENGINE_OPTIONS", raising=False)
    if request.function is test_training_equals_a_plain_loop_bit_for_bit:
        return calls

    def compile_step(
        model: Any,
        args: Any,
        kwargs: Any,
        options: Any,
        optimizer: Any,
        training: bool,
        progress: Any,
        contents: Any = (),
        groupings: Any = None,
    ) -> Executable:
        torch.rand(3)  # a compiler that draws random numbers must not change the training
        calls.append({"args": args, "kwargs": kwargs, "training": training})
        progress(0.5, "half")
        return Executable(fits=options.model_name != "too large")

    for name, content in (
        ("session.compilation", {"compile_step": compile_step}),
        ("session.autoreport", {"ProfileSession": Session}),
    ):
        module = types.ModuleType(f"ipu_exec.{name}")
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, f"ipu_exec.{name}", module)
    monkeypatch.setattr(Session, "opened", [])
    return calls


class Network(nn.Module):
    """Two Blocks, with dropout and running statistics so that order and seeds matter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("B1", ipu_id=0):
            x = self.drop(functional.relu(self.norm(self.first(x))))
        with poptorch.Block("B2", ipu_id=1):
            x = self.last(x)
            return x, functional.cross_entropy(x, y)


def network() -> Network:
    torch.manual_seed(3)
    return Network()


def data(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(samples, 6, generator=generator), torch.randint(
        0, 3, (samples,), generator=generator
    )


def options(iterations: int = 1, accumulation: int = 1, replicas: int = 1) -> Options:
    opts = (
        Options()
        .deviceIterations(iterations)
        .replicationFactor(replicas)
        .autoRoundNumIPUs(True)
        .showCompilationProgressBar(False)
    )
    opts.Training.gradientAccumulation(accumulation)
    return opts


OPTIMISERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "AdamW": lambda m: poptorch.optim.AdamW(m.parameters(), lr=0.01),
}
STRATEGIES = {
    "pipelined": poptorch.PipelinedExecution("B1", "B2"),
    "sharded": poptorch.ShardedExecution("B1", "B2"),
}


def plain_loop(
    model: Network,
    optimizer: torch.optim.Optimizer,
    iterations: int,
    accumulation: int,
    replicas: int,
    mean: bool,
) -> list[torch.Tensor]:
    """Accumulation as anyone would write it in PyTorch.

    Replicas are copies of the model with their own statistics.
    """
    copies = [model, *(copy.deepcopy(model) for _ in range(replicas - 1))]
    x, y = data(MICRO * iterations * accumulation * replicas)
    losses = []
    for i in range(iterations):
        for one in copies[1:]:
            for parameter, theirs in zip(one.parameters(), model.parameters(), strict=True):
                parameter.data.copy_(theirs.data)
        for r, one in enumerate(copies):
            one.zero_grad()
            for a in range(accumulation):
                start = ((i * accumulation + a) * replicas + r) * MICRO
                loss = one(x[start : start + MICRO], y[start : start + MICRO])[1]
                loss.backward()
                losses.append(loss.detach())
        for parameters in zip(*(one.parameters() for one in copies), strict=True):
            gradient = parameters[0].grad
            for other in parameters[1:]:
                gradient = gradient + other.grad
            parameters[0].grad = gradient / (accumulation * replicas) if mean else gradient
        optimizer.step()
    return losses


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("iterations", "accumulation", "replicas", "reduction"),
    [
        (3, 4, 1, ReductionType.Mean),
        (2, 3, 2, ReductionType.Mean),
        (2, 3, 3, ReductionType.Sum),
    ],
)
def test_training_equals_a_plain_loop_bit_for_bit(
    optimiser: str,
    strategy: str,
    iterations: int,
    accumulation: int,
    replicas: int,
    reduction: ReductionType,
) -> None:
    ours, theirs = network(), network()
    opts = (
        options(iterations, accumulation, replicas)
        .setExecutionStrategy(STRATEGIES[strategy])
        .randomSeed(11)
    )
    opts.outputMode(OutputMode.All).Training.accumulationAndReplicationReductionType(reduction)
    model = poptorch.trainingModel(ours, opts, OPTIMISERS[optimiser](ours))
    batch = data(MICRO * opts.batch_factor)
    losses = model(*batch)[1]

    torch.manual_seed(11)
    expected = plain_loop(
        theirs,
        OPTIMISERS[optimiser](theirs),
        iterations,
        accumulation,
        replicas,
        reduction is ReductionType.Mean,
    )

    for name, value in theirs.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    # The plain loop runs a replica after the other; outputs are ordered as inputs are, replicas
    # innermost.
    by_replica = torch.stack(expected).reshape(iterations, replicas, accumulation)
    assert torch.equal(losses, by_replica.transpose(1, 2).flatten())
    assert all(parameter.grad is None for parameter in ours.parameters())


def test_momentum_goes_on_over_calls() -> None:
    ours, theirs = network(), network()
    opts = options(2, 2).randomSeed(11)
    model = poptorch.trainingModel(ours, opts, OPTIMISERS["SGD"](ours))
    one_call = options(4, 2).randomSeed(11)
    other = poptorch.trainingModel(theirs, one_call, OPTIMISERS["SGD"](theirs))
    x, y = data(MICRO * 8)
    model(x[:16], y[:16])
    model(x[16:], y[16:])
    other(x, y)
    assert all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    )


def scale() -> nn.Module:
    """A model whose weight, 2, has the mean of its input as gradient."""
    return model_of(
        lambda self, x: (self.weight * x).mean(), weight=nn.Parameter(torch.tensor(2.0))
    )


def test_compiling_draws_no_random_numbers() -> None:
    weights = []
    for seeded in (True, False):
        model = network()
        torch.manual_seed(0)
        opts = options(2, 2).randomSeed(0) if seeded else options(2, 2)
        poptorch.trainingModel(model, opts, OPTIMISERS["SGD"](model))(*data(MICRO * 4))
        weights.append(model.last.weight)
    assert torch.equal(*weights)


def quadratic() -> tuple[nn.Module, torch.Tensor]:
    return scale(), torch.tensor([1.0, 2.0, 4.0, 9.0])


@pytest.mark.parametrize("strategy", MeanReductionStrategy)
@pytest.mark.parametrize(("accumulation", "replicas"), [(4, 1), (2, 2), (1, 4)])
def test_every_mean_strategy_averages(
    strategy: MeanReductionStrategy, accumulation: int, replicas: int
) -> None:
    model, x = quadratic()
    opts = options(1, accumulation, replicas)
    opts.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=1.0))(x)
    torch.testing.assert_close(model.weight.detach(), torch.tensor(2.0 - 4.0))


def test_sum_adds() -> None:
    model, x = quadratic()
    opts = options(1, 2, 2)
    opts.Training.accumulationAndReplicationReductionType(ReductionType.Sum)
    poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=1.0))(x)
    assert model.weight.item() == 2.0 - 16.0


def test_loss_scaling_by_a_power_of_two_changes_nothing() -> None:
    weights = []
    for scaling in (1.0, 1024.0):
        model = network()
        optimizer = poptorch.optim.SGD(
            model.parameters(), lr=0.1, momentum=0.9, loss_scaling=scaling
        )
        poptorch.trainingModel(model, options(2, 2).randomSeed(0), optimizer)(*data(MICRO * 4))
        weights.append(model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_half_accumulators_hold_running_means() -> None:
    model = network()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, accum_type=torch.float16)
    chosen = poptorch.trainingModel(model, options(), optimizer).options.Training
    assert (
        chosen.mean_accumulation_and_replication_reduction_strategy is MeanReductionStrategy.Running
    )


def test_float16_trains_as_a_loop_with_running_means_where_a_sum_overflows() -> None:
    """The loop computes in float64, but for the gradients of each micro-batch."""
    torch.manual_seed(0)
    model = model_of(
        lambda self, x: poptorch.identity_loss(self.linear(x) * 30_000, "sum"),
        linear=torch.nn.Linear(4, 3),
    ).half()
    wanted, updates = copy.deepcopy(model.linear), (torch.rand(12, 4).half() + 0.5).chunk(2)
    rate = 2.0**-18
    for update in updates:
        means = [torch.zeros(weight.shape).double() for weight in wanted.parameters()]
        for count, row in enumerate(update, 1):
            loss = (wanted(row) * 30_000).sum()
            for mean, new in zip(
                means, torch.autograd.grad(loss, list(wanted.parameters())), strict=True
            ):
                mean += (new.double() - mean) / count
        for weight, mean in zip(wanted.parameters(), means, strict=True):
            assert mean.abs().min() * len(update) > torch.finfo(torch.float16).max
            weight.data -= (rate * mean).half()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=rate, accum_type=torch.float16)
    trained = poptorch.trainingModel(model, options(1, 6), optimizer)
    for update in updates:
        trained(update)
    for name, weight in wanted.named_parameters():
        ours = trained.state_dict()[f"linear.{name}"]
        torch.testing.assert_close(ours, weight.data, rtol=0, atol=2.0**-11)


def test_float16_accumulators_come_before_compiling() -> None:
    model = network()
    wrapped = poptorch.trainingModel(
        model, options(), poptorch.optim.SGD(model.parameters(), lr=0.1)
    )
    wrapped(*data(MICRO))
    with pytest.raises(
        Error, match=r"Invalid optimizer: .* would require changing options\.Training\."
    ):
        wrapped.setOptimizer(
            poptorch.optim.SGD(model.parameters(), lr=0.1, accum_type=torch.float16)
        )
    wrapped.destroy()
    wrapped.setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.1, accum_type=torch.float16))
    chosen = wrapped.options.Training
    assert chosen.meanAccumulationAndReplicationReductionStrategy is MeanReductionStrategy.Running


# gives its input back, its sum, and something that is not a tensor
ECHO = model_of(lambda self, x: {"rows": x, "sum": x.sum(), "name": "echo"})
X = torch.arange(12.0).reshape(12, 1)  # 6 micro-batches of 2: 3 device iterations, 2 replicas


@pytest.mark.parametrize(
    ("mode", "period", "rows", "sums"),
    [
        (OutputMode.Default, None, list(range(12)), [1, 5, 9, 13, 17, 21]),
        (OutputMode.All, None, list(range(12)), [1, 5, 9, 13, 17, 21]),
        (OutputMode.Final, None, [8, 9, 10, 11], [17, 21]),
        (OutputMode.EveryN, 3, [8, 9, 10, 11], [17, 21]),
        (OutputMode.EveryN, 1, list(range(12)), [1, 5, 9, 13, 17, 21]),
        (OutputMode.Sum, None, [0 + 4 + 8, 1 + 5 + 9, 2 + 6 + 10, 3 + 7 + 11], [27, 39]),
    ],
)
def test_output_modes(
    mode: OutputMode, period: int | None, rows: list[int], sums: list[int]
) -> None:
    opts = options(3, 1, 2)
    if mode is not OutputMode.Default:
        opts.outputMode(mode, period)
    out = poptorch.inferenceModel(ECHO, opts)(X)
    assert out["rows"].flatten().tolist() == rows
    assert out["sum"].tolist() == sums
    assert out["name"] == "echo"


def test_one_output_keeps_its_shape() -> None:
    out = poptorch.inferenceModel(ECHO, options(3).outputMode(OutputMode.Final))(X)
    assert out["rows"].shape == (4, 1)
    assert out["sum"].shape == ()


def test_every_n_counts_micro_batches_through_the_call() -> None:
    model = network()
    opts = options(2, 3).outputMode(OutputMode.EveryN, 2).randomSeed(0)
    _, losses = poptorch.trainingModel(model, opts, OPTIMISERS["SGD"](model))(*data(MICRO * 6))
    model = network()
    every = options(2, 3).outputMode(OutputMode.All).randomSeed(0)
    _, all_losses = poptorch.trainingModel(model, every, OPTIMISERS["SGD"](model))(*data(MICRO * 6))
    assert torch.equal(losses, all_losses[1::2])
    model = network()
    with pytest.raises(Error, match="6 micro-batches a replica"):
        poptorch.trainingModel(
            model, options(2, 3).outputMode(OutputMode.EveryN, 4), OPTIMISERS["SGD"](model)
        )


def test_training_returns_the_last_micro_batch_by_default() -> None:
    model = network()
    output, loss = poptorch.trainingModel(model, options(2, 3), OPTIMISERS["SGD"](model))(
        *data(MICRO * 6)
    )
    assert output.shape == (MICRO, 3)
    assert loss.shape == ()
    assert not loss.requires_grad


@pytest.mark.parametrize(
    ("kind", "first_of_replica"),
    [
        (poptorch.CommGroupType.Consecutive, [0, 0, 1, 1]),
        (poptorch.CommGroupType.Orthogonal, [0, 1, 0, 1]),
    ],
)
def test_replicas_of_a_group_take_the_same_input(kind: Any, first_of_replica: list[int]) -> None:
    opts = options(1, 1, 4).inputReplicaGrouping(2, kind)
    out = poptorch.inferenceModel(ECHO, opts)(torch.tensor([[0.0], [1.0]]))
    assert out["rows"].flatten().tolist() == first_of_replica


def test_inputs_may_be_nested_and_named(compiled: list[dict[str, Any]]) -> None:
    x, y, z = torch.arange(4.0), torch.arange(8.0), torch.arange(4.0).reshape(4, 1)

    def forward(
        self, pair: Any, *, named: dict[str, torch.Tensor], scale: float = 1.0
    ) -> list[torch.Tensor]:
        return [(pair[0] + pair[1][0]) * scale, named["z"]]

    model = poptorch.inferenceModel(model_of(forward), options(4))
    first, second = model((x, [y[:4]]), named={"z": z}, scale=2.0)
    assert first.tolist() == ((x + y[:4]) * 2).tolist()
    assert torch.equal(second, z)
    assert compiled[0]["args"][0][0].shape == (1,)
    assert compiled[0]["kwargs"]["scale"] == 2.0


def test_each_replica_has_its_own_running_statistics() -> None:
    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.sum()
        return self.seen.clone()

    inner = model_of(add_up, seen=torch.zeros(1))
    model = poptorch.inferenceModel(inner, options(2, 1, 2).broadcastBuffers(False))
    x = torch.tensor([1.0, 10.0, 2.0, 20.0])
    assert model(x).tolist() == [1.0, 10.0, 3.0, 30.0]
    model.copyWeightsToHost()
    assert inner.seen.item() == 3.0
    assert model(x).tolist() == [4.0, 40.0, 6.0, 60.0]
    model.load_state_dict({"seen": torch.zeros(1)})
    assert model(x).tolist() == [1.0, 10.0, 3.0, 30.0]


def test_replicas_of_a_batch_norm_need_no_leave_to_differ() -> None:
    model = nn.BatchNorm1d(2)
    with torch.random.fork_rng():
        x = torch.randn(8, 2)
    wrapped = poptorch.inferenceModel(model, options(1, 1, 2))
    wrapped(x)
    wrapped.copyWeightsToHost()
    wanted = nn.BatchNorm1d(2)
    wanted(x[:4])
    torch.testing.assert_close(model.running_mean, wanted.running_mean)


def returning(returned: Callable[[torch.Tensor], Any]) -> Any:
    """A model that returns the function of its input times a weight."""
    return model_of(lambda self, x: returned(self.weight * x), weight=nn.Parameter(torch.ones(1)))


@pytest.mark.parametrize(
    ("returned", "gradient"),
    [
        (lambda v: v.sum(), 3.0),
        (lambda v: (v.mean(), v.sum()), 3.0),
        (lambda v: (poptorch.identity_loss(v, "mean"), v.sum()), 1.5),
        (lambda v: (poptorch.identity_loss(v.sum() * 2, "none"), v.sum()), 6.0),
        (lambda v: {"loss": poptorch.identity_loss(v, "sum"), "other": v}, 3.0),
    ],
)
def test_the_loss_is_the_last_scalar_or_what_is_marked(returned: Any, gradient: float) -> None:
    model = returning(returned)
    poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), lr=1.0))(
        torch.tensor([1.0, 2.0])
    )
    assert model.weight.item() == pytest.approx(1 - gradient)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (lambda v: v, r"no loss, its outputs have the shapes \(2,\)"),
        (lambda v: poptorch.identity_loss(v, "none"), "must be one number"),
        (lambda v: poptorch.identity_loss(v, "max"), "'sum', 'mean' or 'none'"),
    ],
)
def test_a_model_without_a_usable_loss_is_an_error(returned: Any, says: str) -> None:
    model = returning(returned)
    wrapped = poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), lr=1.0))
    with pytest.raises(Error, match=says):
        wrapped(torch.tensor([1.0, 2.0]))


# -- the executor ---


def trainer(**counts: int) -> tuple[poptorch.PoplarExecutor, Network]:
    model = network()
    return poptorch.trainingModel(model, options(**counts), OPTIMISERS["SGD"](model)), model


def test_compiles_once_for_the_micro_batch(compiled: list[dict[str, Any]]) -> None:
    model, _ = trainer(iterations=2, accumulation=3)
    assert not model.isCompiled()
    model(*data(MICRO * 6))
    model(*data(MICRO * 6))
    assert [call["args"][0].shape for call in compiled] == [(MICRO, 6)]
    assert model.isCompiled()
    assert model.isAttachedToDevice()
    assert model.executable.cycles_per_call == 1234


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda m, x, y: (m.setOptimizer(OPTIMISERS["AdamW"](m.model)), (x, y))[1],
            "the optimiser changed",
        ),
        (
            lambda m, x, y: (m.model.first.requires_grad_(False), (x, y))[1],
            "which parameters require grad changed",
        ),
        (
            lambda m, x, y: (setattr(m.model, "last", nn.Linear(8, 4)), (x, y))[1],
            "the shape or dtype of a weight changed",
        ),
    ],
)
def test_recompiles_and_says_why(
    change: Any, says: str, compiled: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    model, _ = trainer(accumulation=2)
    batch = data(MICRO * 2)
    model(*batch)
    wanted = change(model, *batch)
    with caplog.at_level(logging.WARNING, logger="ipu_exec"):
        model(*wanted)
    assert len(compiled) == 2
    assert re.search("recompiling because .*" + says, caplog.text)


def test_a_new_learning_rate_does_not_recompile(compiled: list[dict[str, Any]]) -> None:
    model, inner = trainer()
    model(*data(MICRO))
    before = inner.last.weight.detach().clone()
    old = model._optimizer
    model.setOptimizer(torch.optim.SGD(inner.parameters(), lr=0.0, momentum=0.9))
    assert model._optimizer.state == old.state  # type: ignore[union-attr]
    model(*data(MICRO))
    assert len(compiled) == 1
    assert torch.equal(inner.last.weight.detach(), before)


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda m: m(*data(MICRO * 6 + 1)), "25 samples .* not a multiple of the 6 micro-batches"),
        (lambda m: m(data(24)[0], torch.tensor(1)), "input 1 has 1 samples"),
        (lambda m: m(data(24)[0][:, :0], data(24)[1]), r"Zero-sized tensors .* \[24, 0\]"),
        (lambda m: m.cycleCount(), "Please set option logCycleCount to True"),
        (lambda m: m.attachToDevice(), "after compiling"),
        (lambda m: m.detachFromDevice(), "after compiling"),
        (lambda m: m.setOptimizer(nn.Linear(1, 1)), "not Linear"),
        (
            lambda m: m.setOptimizer(torch.optim.SGD(nn.Linear(1, 1).parameters())),
            "none of the model's parameters",
        ),
    ],
)
def test_wrong_calls_are_errors(run: Any, says: str) -> None:
    with pytest.raises(Error, match=says):
        run(trainer(iterations=2, accumulation=3)[0])


def test_inputs_and_outputs_have_32_bits_and_no_gradient(caplog: pytest.LogCaptureFixture) -> None:
    class Counts(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            return y, y.argmax(-1), y.double(), y > 0

    model = Counts(2, 3)
    x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    with caplog.at_level(logging.WARNING, logger="ipu_exec"):
        returned = poptorch.inferenceModel(model, options())(x)
    assert "Input tensor has requires_grad=True set. This tensor will be detached" in caplog.text
    assert [out.dtype for out in returned] == [
        torch.float32,
        torch.int32,
        torch.float32,
        torch.bool,
    ]
    assert torch.equal(returned[0], model(x.detach().float())[0])
    wide = nn.Linear(2, 3).double()
    out = poptorch.inferenceModel(wide, options())(x.detach())
    assert torch.equal(out, wide(x).detach().float())


def test_a_returned_buffer_is_what_it_was_then() -> None:
    model = model_of(lambda self, x: self.sum.add_(x), sum=torch.zeros(1))
    x = torch.tensor([1.0, 10.0, 2.0, 20.0])
    replicated = options(iterations=2, replicas=2).broadcastBuffers(False)
    assert poptorch.inferenceModel(model, replicated)(x).tolist() == [1.0, 10.0, 3.0, 30.0]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_training_model_with_every_weight_frozen_only_runs(accumulation: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3).eval(), returning(lambda v: v.mean())
    )
    before = copy.deepcopy(model.requires_grad_(False))
    x = torch.randn(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=0.5)
    wrapped = poptorch.trainingModel(model, options(accumulation=accumulation), optimizer)
    assert torch.equal(wrapped(x), before(x.chunk(accumulation)[-1]))
    assert all(
        torch.equal(model.state_dict()[name], value) for name, value in before.state_dict().items()
    )


def test_wrong_wrapping_is_an_error() -> None:
    model = network()
    with pytest.raises(Error, match=r"gradientAccumulation to 1 .*deviceIterations.* It is 2"):
        poptorch.inferenceModel(model, options(accumulation=2))
    with pytest.raises(Error, match="nothing to train"):
        poptorch.trainingModel(torch.nn.ReLU(), options())
    with pytest.raises(Error, match=r"takes a torch\.nn\.Module"):
        poptorch.inferenceModel(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(Error, match="compile but do not run"):
        poptorch.inferenceModel(model, options().useOfflineIpuTarget())(*data(MICRO))


def test_weights_are_shared_with_the_users_model() -> None:
    model, inner = trainer()
    before = inner.last.weight.detach().clone()
    model(*data(MICRO))
    assert not torch.equal(inner.last.weight, before)
    model.load_state_dict(network().state_dict())
    assert torch.equal(inner.last.weight, before)
    assert model.last is inner.last
    assert list(model.state_dict()) == list(inner.state_dict())


def test_runs_are_recorded_and_the_profile_is_closed_once() -> None:
    model = network()
    opts = options()
    opts.autoreport = True
    wrapped = poptorch.trainingModel(model, opts, OPTIMISERS["SGD"](model))
    wrapped.compile(*data(MICRO))
    wrapped(*data(MICRO))
    wrapped(*data(MICRO))
    (session,) = Session.opened
    assert (session.published, session.runs, session.closed) == (1, 2, 0)
    wrapped.destroy()
    wrapped.destroy()
    assert session.closed == 1


def test_the_profile_is_closed_when_the_model_goes_away() -> None:
    opts = options()
    opts.autoreport = True
    wrapped = poptorch.inferenceModel(ECHO, opts)
    wrapped(X)
    del wrapped
    gc.collect()
    assert Session.opened[0].closed == 1


def test_out_of_memory_is_raised_after_the_profile_was_closed() -> None:
    opts = options().modelName("too large")
    opts.autoreport = True
    with pytest.raises(poptorch.OutOfMemoryError) as raised:
        poptorch.inferenceModel(ECHO, opts)(X)
    assert raised.value.profile_path == "the/path"
    assert Session.opened[0].closed == 1


def test_the_progress_bar_is_shown_on_stderr_unless_switched_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    poptorch.inferenceModel(ECHO, options())(X)
    assert capsys.readouterr().err == ""
    poptorch.inferenceModel(ECHO, options().showCompilationProgressBar())(X)
    captured = capsys.readouterr()
    assert "Graph compilation: 100%" in captured.err
    assert captured.out == ""


def test_a_batch_is_ordered_iteration_then_accumulation_then_replica() -> None:
    plan = plan_call(options(2, 3, 2), training=True)
    micro_batch = numerics.micro_batches(((torch.arange(12),), {}), plan)
    order = [
        int(micro_batch(plan.micro_batch_index(iteration, step, replica))[0][0])
        for iteration in range(2)
        for step in range(3)
        for replica in range(2)
    ]
    assert order == list(range(12))


def test_an_input_multiplied_by_a_weight_in_place_is_not_of_the_scripts_graph() -> None:
    model = model_of(
        lambda self, x: x.mul_(self.weight).sum(), weight=torch.nn.Parameter(torch.ones(3))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x = torch.arange(6.0).reshape(2, 3)
    assert poptorch.trainingModel(model, options(accumulation=2), optimizer)(x) == 12
    assert not x.requires_grad
    assert model.weight.tolist() == [0.25, -0.25, -0.75]


def test_without_an_optimiser_weights_step_as_in_plain_sgd() -> None:
    model = scale()
    poptorch.trainingModel(model, options())(torch.tensor([1.0, 2.0, 4.0, 9.0]))
    torch.testing.assert_close(model.weight.detach(), torch.tensor(2.0 - 0.01 * 4.0))


def test_a_trained_vector_may_be_written_under_a_mask() -> None:
    """Wav2Vec2 does so; PyTorch's gradient for it has a shape that depends on the mask."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(x)
        hidden[mask] = self.vector
        return hidden.pow(2).mean()

    x, mask = torch.randn(2, 5, 3), torch.tensor([[True, False, False, True, False], [False] * 5])
    model = model_of(forward, layer=nn.Linear(3, 4), vector=nn.Parameter(torch.ones(4)))
    plain = copy.deepcopy(model)
    plain(x, mask).backward()
    with torch.no_grad():
        expected = [parameter - parameter.grad for parameter in plain.parameters()]  # type: ignore[operator]
    poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))(x, mask)
    for parameter, value in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter, value)


def test_inputs_arrive_contiguous_whatever_the_caller_did_to_them() -> None:
    flat = model_of(lambda self, x, y: (x.view(-1), y.view(-1)))
    x, y = torch.arange(3.0).expand(4, 3), torch.arange(12.0).view(3, 4).t()
    options = Options().deviceIterations(2).showCompilationProgressBar(False)
    first, second = poptorch.inferenceModel(flat, options)(x, y)
    assert torch.equal(first, x.reshape(-1))
    assert torch.equal(second, y.reshape(-1))
