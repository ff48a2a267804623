"""What PopTorch refuses although this engine could run it: refused unless options are lenient."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import torch
from torch import nn

import ipu_exec as poptorch
from ipu_exec.base.user_tracebacks import warn_once
from ipu_exec.compiler.placement.place import warn_of_ipus


class Runs(nn.Module):
    """A function of a linear layer's output."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear(x))


def quiet() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def two_losses(y: torch.Tensor) -> torch.Tensor:
    target = torch.zeros(2, dtype=torch.long)
    return nn.functional.cross_entropy(y, target) + nn.functional.nll_loss(y, target)


CONSTANT = torch.ones(4)

REFUSED = [
    (
        lambda y: y.index_select(1, torch.LongTensor([1, 0])),
        r"Expected an IPU tensor but got tensor\(device=cpu, shape=\[2\], dtype=Long\)",
        False,
    ),
    (
        lambda y: y + CONSTANT[None],
        r"Expected an IPU tensor but got tensor\(device=cpu, shape=\[1, 4\], dtype=Float\)",
        False,
    ),
    (
        lambda y: nn.functional.interpolate(y[None], scale_factor=2, mode="linear"),
        "currently only 'nearest' is supported",
        False,
    ),
    (
        lambda y: nn.functional.one_hot(y.argmax(1)),
        "OneHot num classes must be specified and must be constant",
        False,
    ),
    (two_losses, "Multiple independent losses found in graph. Graph must have one", True),
]


@pytest.mark.parametrize(("function", "says", "training"), REFUSED)
def test_it_is_refused_with_its_way_out(function: Any, says: str, training: bool) -> None:
    def wrapped(options: poptorch.Options) -> poptorch.PoplarExecutor:
        if training:
            return poptorch.trainingModel(Runs(function), options)
        return poptorch.inferenceModel(Runs(function), options)

    with pytest.raises(poptorch.Error, match=says) as caught:
        wrapped(quiet()).compile(torch.ones(2, 4))
    assert "--lenient" in caught.value.message
    warn_once.cache_clear()
    with pytest.warns(UserWarning, match=says):
        wrapped(quiet().lenient()).compile(torch.ones(2, 4))


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y + CONSTANT.to("ipu"),
        lambda y: y + CONSTANT.ipu(),
        lambda y: y.half() + CONSTANT.to("ipu:0", torch.float16),
        lambda y: y + torch.ones(4, device="ipu"),
        lambda y: y + torch.LongTensor([1, 1, 1, 1]).to(device=torch.device("ipu")),
        lambda y: y + torch.ones(4),
        lambda y: y + torch.tensor([1.0] * 4, device=y.device),
        lambda y: y + torch.as_tensor(1.0, dtype=y.dtype, device=y.device).repeat(4),
        lambda y: y + CONSTANT.double().type_as(y),
        lambda y: y + CONSTANT.to(y),
        lambda y: y + CONSTANT.to(y.device),
        lambda y: y + (CONSTANT if CONSTANT.device == y.device else CONSTANT.to(y.device)),
        lambda y: torch.vmap(lambda row: row + row.new_ones(4).to(row.device))(y),
        lambda y: y.to(CONSTANT.dtype).type_as(y) + 1,
        lambda y: y[:, [0, 1, 2, 3]] + 1,
        lambda y: y + torch.zeros(4, device="ipu").copy_(CONSTANT),
    ],
)
def test_what_is_made_on_the_ipu_or_moved_there_is_taken(function: Any) -> None:
    model = Runs(function)
    x = torch.ones(2, 4)
    executor = poptorch.inferenceModel(model, quiet())
    expected = model.linear(x) + 1
    torch.testing.assert_close(executor(x).float(), expected, atol=1e-2, rtol=0)
    torch.testing.assert_close(executor(x).float(), expected, atol=1e-2, rtol=0)


def test_a_constant_that_forward_moves_and_keeps_stays_real() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.ones(4) * 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.scale = self.scale.to(x.device)
            self.kept = x * self.scale
            return self.kept

    executor = poptorch.inferenceModel(Scaled(), quiet())
    for _ in range(2):
        assert torch.equal(executor(torch.ones(2, 4)), torch.full((2, 4), 2.0))


def test_the_environment_is_lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not poptorch.Options()._values["lenient"]
    monkeypatch.setenv("IPUSCOPE_LENIENT", "1")
    assert poptorch.Options()._values["lenient"]


def test_without_a_device_any_number_of_ipus_will_do() -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for ipu, layer in enumerate(self.layers):
                with poptorch.Block(ipu_id=ipu):
                    x = layer(x)
            return x

    options = quiet().deviceIterations(3)
    with pytest.raises(poptorch.Error, match="specifies the use of 3 IPUs"):
        poptorch.inferenceModel(Three(), options).compile(torch.ones(3, 4))
    poptorch.inferenceModel(Three(), quiet().deviceIterations(3).useOfflineIpuTarget()).compile(
        torch.ones(3, 4)
    )


def test_hooks_are_called_around_each_compile() -> None:
    met: list[str] = []
    before = poptorch.registerPreCompileHook(lambda: met.append("before"))
    after = poptorch.registerPostCompileHook(lambda: met.append("after"))
    try:
        model = poptorch.inferenceModel(Runs(lambda y: met.append("forward") or y), quiet())
        model.compile(torch.ones(1, 4))
        assert met == ["before", "forward", "after"]
    finally:
        before.remove()
    model.destroy()
    model.compile(torch.ones(1, 4))
    after.remove()
    assert met == ["before", "forward", "after", "forward", "after"]
    with pytest.raises(RuntimeError, match="Post-compile hook must be callable"):
        poptorch.registerPostCompileHook(1)  # type: ignore[arg-type]


def test_messages_of_torch_name_the_users_tensors() -> None:
    model = poptorch.inferenceModel(Runs(lambda y: torch.relu(y, 1, 2)), quiet())
    with pytest.raises(TypeError) as caught:
        model.compile(torch.ones(1, 4))
    assert "FakeTensor" not in str(caught.value)


def test_the_time_of_a_compile() -> None:
    model = poptorch.inferenceModel(Runs(torch.exp), poptorch.Options())
    with pytest.raises(poptorch.Error, match="Please compile the model before"):
        model.compilationTime()
    model.compile(torch.ones(1, 4))
    assert model.compilationTime() > datetime.timedelta(0)
    without_bar = poptorch.inferenceModel(Runs(torch.exp), quiet())
    without_bar.compile(torch.ones(1, 4))
    with pytest.raises(poptorch.Error, match="Please set showCompilationProgressBar"):
        without_bar.compilationTime()


def test_the_number_of_positional_arguments_is_settled() -> None:
    class Sum(nn.Module):
        def forward(self, first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
            return first + sum(others)

    x = torch.ones(1)
    model = poptorch.inferenceModel(Sum(), quiet())
    model(x, x, x)
    message = "Number of positional arguments mismatch: expected 3 arguments but got 2"
    with pytest.raises(poptorch.Error, match=message):
        model(x, x)
    with pytest.raises(poptorch.Error, match="Mandatory parameter first missing"):
        model()


def test_a_shape_that_depends_on_data_is_torchs_error_too() -> None:
    model = poptorch.inferenceModel(Runs(lambda y: y[y > 0]), quiet())
    with pytest.raises(poptorch.Error, match="output shape is determined by the tensor values"):
        model.compile(torch.ones(1, 4))
    with pytest.raises(torch._subclasses.fake_tensor.DynamicOutputShapeException):
        model.compile(torch.ones(1, 4))


def test_a_pod_in_one_process_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_ipus.cache_clear()
    for _ in range(2):  # the second time it is known
        options = quiet().replicationFactor(128)
        poptorch.trainingModel(Runs(lambda y: y.sum()), options).compile(torch.ones(128, 4))
    assert caplog.text.count("this process compiles for 128 IPUs") == 1
    assert "2 instances or more" in caplog.text


@pytest.mark.parametrize("size", [0, -1])
def test_slices_have_a_size(size: int) -> None:
    def update(y: torch.Tensor) -> torch.Tensor:
        return poptorch.dynamic_update(y, y[:, :1], 1, torch.tensor([0]), size)

    with pytest.raises(poptorch.Error, match=r"dynamic_update: .* of a (slice|tensor)"):
        poptorch.inferenceModel(Runs(update), quiet()).compile(torch.ones(1, 4))


def test_counting_needs_a_number_of_bins() -> None:
    numbers = torch.tensor([0, 2, 2])

    class Counts(nn.Module):
        def __init__(self, **bins: int) -> None:
            super().__init__()
            self.bins = bins

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.bincount(x, weights=x * 0.5, **self.bins)

    model = poptorch.inferenceModel(Counts(minlength=3), quiet())
    assert model(numbers).tolist() == [0, 0, 2]
    assert model.executable.graph.ops[-1].aten == "aten.scatter_add.default"
    with pytest.raises(poptorch.Error, match="Bincount `minlength` must be specified"):
        poptorch.inferenceModel(Counts(), quiet()).compile(numbers)


def test_an_optimiser_of_ones_own_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    class Own(poptorch.optim.SGD):
        pass

    model = Runs(lambda y: y.sum())
    poptorch.trainingModel(model, quiet(), Own(model.parameters(), lr=0.1))
    assert "Optimizer `Own` subclassed from classes in poptorch.optim" in caplog.text


def test_the_metadata_of_a_file_is_read_without_unpickling(tmp_path: Any) -> None:
    file = str(tmp_path / "model.poptorch")
    poptorch.inferenceModel(Runs(torch.exp), quiet()).compileAndExport(
        file, torch.ones(1, 4), export_model=False
    )
    assert poptorch.importPoptorchMetadataFromFile(file) == b""


def test_a_loss_of_no_weight_is_warned_of_and_trains_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """PopTorch runs such a model."""
    model = Runs(lambda y: y.sum().detach())
    wrapped = poptorch.trainingModel(model, quiet(), torch.optim.SGD(model.parameters(), lr=1.0))
    before = model.linear.weight.detach().clone()
    wrapped(torch.ones(1, 4))
    assert "there is nothing to train" in caplog.text
    assert torch.equal(model.linear.weight, before)


def test_cycles_are_those_of_a_call_that_was_logged() -> None:
    model = poptorch.inferenceModel(nn.Linear(2, 2), quiet().logCycleCount(True))
    model.compile(torch.ones(1, 2))
    with pytest.raises(poptorch.Error, match="Please run the model at least once"):
        model.cycleCount()
    model(torch.ones(1, 2))
    assert model.cycleCount() == model.executable.cycles_per_call > 0


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_images_are_upsampled_as_poptorch_does(mode: str) -> None:
    def larger(y: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(y[None, None], scale_factor=2, mode=mode)

    model = Runs(larger)
    x = torch.randn(4, 4)
    torch.testing.assert_close(poptorch.inferenceModel(model, quiet())(x), model(x))


def test_what_only_the_cpu_computes_with_is_no_matter_of_the_ipu() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = torch.ones(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += self.calls * 2
            return x + 1

    assert poptorch.inferenceModel(Counts(), quiet())(torch.ones(1)).item() == 2


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop])
def test_optimisers_of_torch_are_not_warned_of(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = Runs(lambda y: y.sum())
    poptorch.trainingModel(model, quiet(), kind(model.parameters(), lr=0.1))
    assert "subclassed" not in caplog.text
