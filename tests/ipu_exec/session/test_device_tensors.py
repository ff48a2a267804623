"""Weights on the device and on the host: copied when PopTorch copies them, and not otherwise."""

from __future__ import annotations

import copy
import io
import logging
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import ipu_exec as poptorch
from ipu_exec.session.device_tensors import DeviceTensors, Listed


class Line(nn.Module):
    """Weight times input, plus a buffer; a loss where it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("offset", torch.zeros(3))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> Any:
        self.calls.add_(1)
        out = x * self.weight + self.offset
        return (out, out.sum()) if self.training else out


X = torch.ones(1, 3)


def quiet() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def value(out: Any) -> float:
    return float((out[0] if isinstance(out, tuple) else out)[0, 0])


def set_to(tensor: torch.Tensor, number: float) -> None:
    with torch.no_grad():
        tensor.fill_(number)


def address(tensor: torch.Tensor) -> int:
    return int(torch._C._data_address(tensor))


def test_inference_sees_weights_of_when_they_were_copied() -> None:
    model = Line().eval()
    wrapped = poptorch.inferenceModel(model, quiet())
    assert value(wrapped(X)) == 1
    set_to(model.weight, 5)
    assert value(wrapped(X)) == 1, "as on an IPU, where nobody copied them"
    assert model.weight[0] == 5, "the host's are the script's"
    wrapped.copyWeightsToDevice()
    assert value(wrapped(X)) == 5


@pytest.mark.parametrize("how", ["load_state_dict", "attach", "destroy"])
def test_weights_go_to_the_device_as_poptorch_sends_them(how: str) -> None:
    model = Line().eval()
    wrapped = poptorch.inferenceModel(model, quiet())
    wrapped.compile(X)
    set_to(model.weight, 5)
    if how == "load_state_dict":
        wrapped.load_state_dict(model.state_dict())
    elif how == "attach":
        wrapped.detachFromDevice()
    else:
        wrapped.destroy()
    assert value(wrapped(X)) == 5


def test_what_inference_writes_into_buffers_stays_on_the_device() -> None:
    model = Line().eval()
    wrapped = poptorch.inferenceModel(model, quiet())
    wrapped(X), wrapped(X)
    assert model.calls == 0
    wrapped.copyWeightsToHost()
    assert wrapped.model.calls == 2
    assert model.calls == 2


def test_only_updatable_buffers_are_copied_alone() -> None:
    model = Line().eval()
    wrapped = poptorch.inferenceModel(model, quiet().updatableNamedBuffers(["offset"]))
    wrapped(X)
    set_to(model.offset, 2)
    set_to(model.weight, 7)
    assert value(wrapped(X)) == 1
    wrapped.copyNamedBuffersToDevice()
    assert value(wrapped(X)) == 3
    other = poptorch.inferenceModel(Line().eval(), quiet())
    other.compile(X)
    with pytest.raises(poptorch.Error, match="No named buffers marked as updatable"):
        other.copyNamedBuffersToDevice()
    unknown = poptorch.inferenceModel(Line().eval(), quiet().updatableNamedBuffers(["weight"]))
    with pytest.raises(poptorch.Error, match="'weight', which is not a buffer of the model"):
        unknown(X)


def test_training_goes_on_from_the_device(caplog: pytest.LogCaptureFixture) -> None:
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    wrapped = poptorch.trainingModel(model, quiet(), optimizer)
    assert value(wrapped(X)) == 1
    assert model.weight[0] == 0
    set_to(model.weight, 50)
    with caplog.at_level(logging.WARNING, logger="ipu_exec"):
        assert value(wrapped(X)) == 0
    assert "weight was changed on the host, and the device has not seen it" in caplog.text
    assert model.weight[0] == -1
    caplog.clear()
    set_to(model.weight, 70)
    assert value(wrapped(X)) == -1
    assert not caplog.text, "the same tensors are named once"
    set_to(model.weight, 50)
    wrapped.copyWeightsToDevice()
    assert value(wrapped(X)) == 50


def test_inference_takes_what_was_trained(caplog: pytest.LogCaptureFixture) -> None:
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    training = poptorch.trainingModel(model, quiet(), optimizer)
    model.eval()
    inference = poptorch.inferenceModel(model, quiet())
    assert value(inference(X)) == 1
    training(X)
    with caplog.at_level(logging.DEBUG, logger="ipu_exec"):
        assert value(inference(X)) == 0
        assert value(inference(X)) == 0
    assert caplog.text.count("Implicit copyWeightsToHost()") == 1
    assert caplog.text.count("Implicit copyWeightsToDevice()") == 1


def test_the_module_says_whether_its_weights_were_copied(caplog: pytest.LogCaptureFixture) -> None:
    model: Any = Line()
    training = poptorch.trainingModel(model, quiet())
    assert model.copyWeightsToHostIfNeeded() is False
    training(X), training(X)
    with caplog.at_level(logging.DEBUG, logger="ipu_exec"):
        model.state_dict()
    assert "Implicit copyWeightsToHost()" in caplog.text
    assert model.copyWeightsToHostIfNeeded() is False
    training(X)
    assert model.copyWeightsToHostIfNeeded() is True


def test_copying_over_trained_weights_warns(caplog: pytest.LogCaptureFixture) -> None:
    training = poptorch.trainingModel(Line(), quiet())
    training(X)
    training.copyWeightsToDevice()
    assert "overwrite the trained ones" in caplog.text
    caplog.clear()
    training(X)
    set_to(training.model.weight, 5)
    training.copyWeightsToDevice()
    assert not caplog.text, "what was written is what the device has"


def test_a_module_is_wrapped_once_for_training() -> None:
    model: Any = Line()
    training = poptorch.trainingModel(model, quiet())
    training(X)
    with pytest.raises(RuntimeError, match=r"already been wrapped .* Call model.destroy\(\)"):
        poptorch.trainingModel(model, quiet())
    poptorch.inferenceModel(model, quiet())
    model.destroy()
    assert type(model) is Line
    assert not training.isCompiled()
    poptorch.trainingModel(model, quiet())


def test_copies_and_files_of_a_wrapped_module_are_the_plain_module() -> None:
    model = Line()
    training = poptorch.trainingModel(model, quiet())
    training(X)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))]
    for restored in (*copies, torch.load(file, weights_only=False)):
        assert type(restored) is Line
        assert torch.equal(restored.weight, model.weight)
    assert type(model).__name__ == "Line"
    assert isinstance(model, Line)


def test_a_device_of_an_id_is_held_by_one_model_at_a_time() -> None:
    first = poptorch.inferenceModel(Line().eval(), quiet().useIpuId(1))
    second = poptorch.inferenceModel(Line().eval(), quiet().useIpuId(1))
    first(X)
    with pytest.raises(poptorch.Error, match=r"Failed to acquire 1 IPU\(s\): device 1"):
        second(X)
    first.detachFromDevice()
    second(X)
    with pytest.raises(poptorch.Error, match="Failed to acquire"):
        first(X)
    with pytest.raises(poptorch.Error, match="Device is not attached"):
        first.detachFromDevice()


def test_a_parameter_put_in_anothers_place_is_seen_at_the_next_call() -> None:
    model = Line().eval()
    wrapped = poptorch.inferenceModel(model, quiet())
    wrapped(X)
    model.weight = nn.Parameter(torch.full((3,), 5.0))
    assert value(wrapped(X)) == 1, "the device has what was copied"
    wrapped.copyWeightsToDevice()
    assert value(wrapped(X)) == 5


def test_nothing_is_held_twice_until_it_differs() -> None:
    model = Line()
    held = DeviceTensors()
    host = Listed(model).host
    held.copy_to_device(host)
    before = address(model.weight)
    with held.training(host):
        set_to(model.weight, 3)
    assert address(model.weight) == before, "written in place, alone"
    with held.inference(host, {}):
        assert address(model.weight) == before
    set_to(model.weight, 4)
    assert address(model.weight) != before, "the device keeps its own"
    held.copy_to_host(host)
    assert model.weight[0] == 3


def test_tied_weights_stay_tied_where_host_and_device_differ() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x) - self.second(x)

    model = Tied()
    wrapped = poptorch.inferenceModel(model, quiet())
    wrapped(torch.ones(1, 2))
    set_to(model.first.weight, 9)
    assert wrapped(torch.ones(1, 2)).abs().sum() == 0
    assert model.second.weight is model.first.weight
    assert model.first.weight[0, 0] == 9


def _read_from_a_file(weight: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(weight, file)
    file.seek(0)
    return torch.load(file)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "memory",
    [
        _read_from_a_file,
        lambda weight: torch.from_numpy(weight.numpy()),
        lambda weight: weight.share_memory_(),
    ],
)
def test_memory_that_pytorch_did_not_allocate_is_not_shared(memory: Any) -> None:
    """Written to while shared, what `torch.load` gave ended the process."""
    model = Line()
    model.weight = nn.Parameter(memory(torch.ones(3)))
    training = poptorch.trainingModel(model, quiet())
    inference = poptorch.inferenceModel(copy.copy(model).eval(), quiet())
    for _ in range(2):
        training(X)
        inference(X)
    assert model.weight.tolist() == pytest.approx([0.98] * 3)
