"""What PopTorch refuses and this would run: refused, unless options are lenient."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import torch
from torch import nn

import ipu_exec as poptorch
from ipu_exec import errors


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
    errors.warn_once.cache_clear()
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
    model = poptorch.inferenceModel(Runs(torch.exp), quiet())
    with pytest.raises(poptorch.Error, match="Please compile the model before"):
        model.compilationTime()
    model.compile(torch.ones(1, 4))
    assert model.compilationTime() > datetime.timedelta(0)


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
