"""What users of plain PyTorch get wrong at first: one message, with the line and a way out."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import ipu_exec as poptorch
from ipu_exec.session.leftovers import warn_of_leftovers
from ipuscope.waiting import EVERY_VARIABLE
from tests.ipu_exec.test_run import ipu_run, write
from tests.models import model_of


class WithLoss(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.model(x)
        return output, torch.nn.functional.cross_entropy(output, y)


def trained(model: torch.nn.Module) -> poptorch.PoplarExecutor:
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    return poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))


def inputs(samples: int, labels: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(samples, 6), torch.randint(3, (labels or samples,))


LOOP = """
import poptorch, torch

class WithLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)

    def forward(self, x, y):
        output = self.layer(x)
        return output, torch.nn.functional.cross_entropy(output, y)

net, other = WithLoss(), torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
of_another = torch.optim.SGD(other.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
scaler = torch.amp.GradScaler("cpu")
model = poptorch.trainingModel(net, poptorch.Options(), optimizer)
for step in range(2):
    optimizer.zero_grad()
    with torch.autocast("cpu"):
        output, loss = model(torch.randn(4, 6), torch.randint(3, (4,)))
    half = loss / 2
    scaler.scale(half).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    optimizer.step()
    scheduler.step()
    other(torch.ones(6)).sum().backward()
    of_another.step()
optimizer.zero_grad()
"""


@pytest.mark.parametrize("asked", [("--compile-only",), ()])
def test_what_is_left_of_a_plain_loop_is_named_before_the_compile(
    tmp_path: Path, asked: tuple[str, ...]
) -> None:
    write(tmp_path / "train.py", LOOP)
    process = ipu_run(*asked, "train.py", cwd=tmp_path)
    lines = process.stderr.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("train.py:22: UserWarning"))
    assert [line.split(": ")[:2] for line in lines[first + 1 : first + 7]] == [
        ["  line 20", "optimizer.zero_grad()"],
        ["  line 21", "torch.autocast('cpu')"],
        ["  line 24", "scaler.scale(half)"],
        ["  line 24", "scaler.scale(half).backward()"],
        ["  line 25", "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)"],
        ["  line 26", "scaler.step(optimizer)"],
    ]
    assert lines[first + 7].startswith("  line 27: optimizer.step()")
    assert "line 28" not in process.stderr and "of_another" not in process.stderr


def test_a_loop_without_leftovers_is_not_warned_of() -> None:
    model = trained(WithLoss(torch.nn.Linear(6, 3)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.compile(*inputs(8))
        warn_of_leftovers(None, model.model)


UNWRAPPED = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.ones(4)).sum()
    loss.backward()
    optimizer.step()
print("trained")
"""


@pytest.mark.parametrize("asked", [(), ("--num-ipus", "2")])
def test_training_on_the_host_is_told_at_its_first_backward(
    tmp_path: Path, asked: tuple[str, ...]
) -> None:
    write(tmp_path / "train.py", UNWRAPPED)
    process = ipu_run(*asked, "train.py", cwd=tmp_path, **{EVERY_VARIABLE: "600"})
    first = process.stderr.splitlines()[0]
    assert first.startswith("ipu-run: warning: train.py:7: loss.backward() runs on the host")
    assert process.stderr.count("ipu-run: warning:") == 1
    assert "poptorch.trainingModel(module" in process.stderr.split("ipu-run:")[2]
    assert "--num-ipus 4 puts its layers on 4 IPUs" in process.stderr


def test_a_step_on_the_host_is_told_without_a_backward(tmp_path: Path) -> None:
    gradient = "torch.autograd.grad(loss, model.weight)"
    write(tmp_path / "train.py", UNWRAPPED.replace("loss.backward()", gradient))
    process = ipu_run("train.py", cwd=tmp_path)
    first = "ipu-run: warning: train.py:8: optimizer.step() runs on the host"
    assert process.stderr.startswith(first) and process.stderr.count("warning") == 1


def test_an_uneven_last_batch_is_told_of_drop_last() -> None:
    model = trained(WithLoss(torch.nn.Linear(6, 3)))
    model(*inputs(8))
    with pytest.raises(poptorch.UsageError, match=r"\[4, 6\].*drop_last=True"):
        model(*inputs(4))
    with pytest.raises(poptorch.UsageError) as larger:
        model(*inputs(12))
    assert "drop_last" not in str(larger.value)


def test_an_error_of_the_model_has_the_sizes_that_were_passed() -> None:
    model = trained(WithLoss(torch.nn.Linear(6, 3)))
    with pytest.raises(ValueError, match=r"2.* to match .*1") as error:
        model(*inputs(8, 4))
    differ, cut = error.value.__notes__
    assert differ.endswith("differ in their number of samples: x 8, y 4")
    assert cut.endswith("They are x (8, 6), y (4,)")


def test_labels_for_a_model_without_a_loss_are_shown_where_they_go() -> None:
    model = trained(torch.nn.Sequential(torch.nn.Linear(6, 3)))
    with pytest.raises(poptorch.UsageError, match="too many positional") as labels:
        model(*inputs(8))
    with pytest.raises(poptorch.Error, match=r"\(2, 3\) \(of one micro-batch\)") as in_the_loop:
        model(inputs(8)[0])
    for error in (labels, in_the_loop):
        assert "return output, torch.nn.functional.cross_entropy(output, " in str(error.value)


def test_inputs_and_weights_on_a_gpu_are_refused_with_the_way_out() -> None:
    with FakeTensorMode():
        there = torch.empty(8, 6, device="cuda")
        moved = torch.nn.ParameterList([torch.nn.Parameter(torch.empty(3, device="cuda"))])
    model = trained(WithLoss(torch.nn.Linear(6, 3)))
    with pytest.raises(poptorch.UsageError, match=r"on cuda:0\. Modules and inputs stay on the"):
        model(there, inputs(8)[1])
    with pytest.raises(poptorch.UsageError, match="the weight 0 is on a GPU"):
        poptorch.inferenceModel(moved)


def test_a_module_of_torch_jit_is_refused_by_its_name() -> None:
    model = torch.nn.Sequential(torch.jit.script(torch.nn.Linear(6, 3)))
    with pytest.raises(poptorch.UsageError, match=r"inferenceModel: 0 was scripted .* torch\.jit"):
        poptorch.inferenceModel(model)


def test_lazy_weights_are_refused_until_the_model_has_run() -> None:
    model = WithLoss(torch.nn.LazyLinear(3))
    for wrap in (poptorch.trainingModel, poptorch.inferenceModel):
        with pytest.raises(poptorch.UsageError, match=r"lazy weight .*weight .*WithLoss once on a"):
            wrap(model)
    model(*inputs(8))
    trained(model)(*inputs(8))


def test_a_sparse_input_is_refused_with_the_way_out() -> None:
    model = poptorch.inferenceModel(torch.nn.Linear(6, 3))
    with pytest.raises(poptorch.UsageError, match=r"sparse_coo.*to_dense"):
        model(torch.eye(6).to_sparse())


def test_an_error_of_cuda_says_where_modules_stay(tmp_path: Path) -> None:
    source = "import poptorch\nraise RuntimeError('Found no NVIDIA driver on your system')"
    write(tmp_path / "train.py", source)
    process = ipu_run("train.py", cwd=tmp_path)
    assert 'Delete .to("cuda") and .cuda()' in process.stderr.splitlines()[-1]


@pytest.mark.parametrize("whole", [True, False])
def test_torch_compile_is_left_out_with_a_warning(whole: bool) -> None:
    net = torch.nn.Linear(6, 3)
    given = torch.compile(WithLoss(net)) if whole else WithLoss(torch.compile(net))
    before = net.weight.detach().clone()
    with warnings.catch_warnings(record=True) as told:
        model = trained(given)
        model(*inputs(8))
    model.copyWeightsToHost()
    assert [str(one.message)[:30] for one in told] == ["torch.compile has no effect on"]
    assert not torch.equal(before, net.weight)
    with pytest.raises(poptorch.UsageError, match=r"torch\.compile has no effect .* delete it"):
        torch.compile(model)


@torch.jit.script
def bucket(x: torch.Tensor, size: int) -> torch.Tensor:
    """As DeBERTa's, whose type_as of a number TorchScript does not run on fake tensors."""
    return torch.where(x < size, torch.tensor(size - 1).type_as(x), x)


def test_a_function_of_torch_jit_is_captured_as_it_was_written() -> None:
    x = torch.arange(6)
    model = poptorch.inferenceModel(model_of(lambda self, x: bucket(x.argsort(), 4) * 2))
    assert torch.equal(model(x), bucket(x, 4) * 2)


def test_a_function_that_torch_compiled_runs_as_written_even_after_a_reset() -> None:
    compiled: list[object] = []
    double = torch.compile(lambda x: 2 * x, backend=lambda graph, inputs: compiled.append(graph))
    model = poptorch.inferenceModel(model_of(lambda self, x: double(x)))
    assert model(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    torch._dynamo.reset()
    assert model(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    assert not compiled
