"""The executor beyond numbers.

Inputs that do not fit, anchored tensors, latencies, files and the cache.
"""

from __future__ import annotations

import collections
import copy
import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ipu_exec as poptorch
from ipu_exec import Error, OutputMode
from ipu_exec.session.files import executable_file as executables
from tests.models import Mlp, Mnist, mnist_batch, model_of


class Small(nn.Module):
    """One linear layer; with a target, its output and loss."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(
        self, x: torch.Tensor, target: torch.Tensor | None = None, scale: float = 1.0
    ) -> Any:
        out = self.fc(x) * scale
        return out if target is None else (out, nn.functional.mse_loss(out, target))


def quiet(iterations: int = 1, accumulation: int = 1) -> poptorch.Options:
    options = poptorch.Options().deviceIterations(iterations).showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    return options


def small() -> Small:
    torch.manual_seed(1)
    return Small()


# -- inputs ---


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (
            (torch.ones(3, 4),),
            "Shape mismatch for x: expected torch.Size([2, 4]) but got torch.Size([3, 4])",
        ),
        (
            (torch.ones(2, 4).double(),),
            "Data type mismatch for x: expected torch.float32 but got torch.float64",
        ),
        (
            (torch.ones(2, 4), torch.ones(2, 3)),
            "Type mismatch for target: expected NoneType but got Tensor",
        ),
        ((torch.ones(2, 4), None, 2.0), "Value mismatch for scale: expected 1.0 but got 2.0"),
        ((), "missing a required argument: 'x'"),
        ((1, 2, 3, 4), "too many positional arguments"),
    ],
)
def test_other_inputs_than_compiled_for_are_errors_until_destroyed(inputs: Any, says: str) -> None:
    wrapped = poptorch.inferenceModel(small(), quiet())
    wrapped(torch.ones(2, 4))
    with pytest.raises(Error, match=re.escape(says)):
        wrapped(*inputs)
    wrapped.destroy()
    assert not wrapped.isCompiled()
    assert wrapped(torch.ones(3, 4)).shape == (3, 3)


def test_a_module_that_torch_fx_made_runs() -> None:
    module = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
    x = torch.randn(2, 4)
    assert torch.equal(poptorch.inferenceModel(module)(x), module(x))


def test_arguments_count_by_name_and_defaults_are_given() -> None:
    wrapped = poptorch.inferenceModel(small(), quiet())
    x = torch.ones(2, 4)
    assert torch.equal(wrapped(x), wrapped(scale=1.0, x=x))
    executable = wrapped.executable
    wrapped(x, None)
    assert wrapped.executable is executable


def test_inputs_in_dicts_are_compared_key_by_key() -> None:
    wrapped = poptorch.inferenceModel(model_of(lambda self, d: d["x"] / d["y"]), quiet())
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    assert wrapped({"x": one, "y": two}) == wrapped({"y": two, "x": one}) == 0.5
    with pytest.raises(Error, match="Missing arguments: x"):
        wrapped({"y": two})
    with pytest.raises(Error, match="Unexpected arguments: z"):
        wrapped({"x": one, "y": two, "z": one})


class Pair:
    def __init__(self, a: torch.Tensor, b: torch.Tensor, name: str = "pair") -> None:
        self.a, self.b, self.name = a, b, name


class NamedPair(Pair):
    """Found by the class it is made from."""


class PairParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct: Pair) -> Iterator[torch.Tensor]:
        yield struct.a
        yield struct.b

    def reconstruct(
        self, original_structure: Pair, tensor_iterator: Iterator[torch.Tensor]
    ) -> Pair:
        return type(original_structure)(
            next(tensor_iterator), next(tensor_iterator), original_structure.name
        )


class Result(collections.OrderedDict[str, torch.Tensor]):
    """A class made from dict, as libraries return."""


def test_a_loss_is_found_in_a_class_made_from_dict() -> None:
    """Hugging Face's models return such.

    A class of its own: nobody took one apart before the first training step.
    """

    class Trained(collections.OrderedDict[str, torch.Tensor]):
        pass

    def forward(self, x: torch.Tensor) -> Trained:
        out = self.layer(x)
        return Trained(loss=out.pow(2).mean(), out=out)

    model = model_of(forward, layer=nn.Linear(4, 3))
    result = poptorch.trainingModel(model, quiet())(torch.ones(2, 4))
    assert (
        isinstance(result, Trained)
        and result["loss"].numel() == 1
        and result["out"].shape == (2, 3)
    )


def test_own_structures_are_cut_into_micro_batches_and_put_together() -> None:
    poptorch.registerCustomArgParser(Pair, PairParser())

    def add(self, pair: Pair) -> Result:
        assert pair.name == "mine" and pair.a.shape == (2,)
        return Result(sum=pair.a + pair.b, a=pair.a)

    wrapped = poptorch.inferenceModel(model_of(add), quiet(iterations=3))
    result = wrapped(NamedPair(torch.arange(6.0), torch.ones(6), "mine"))
    assert isinstance(result, Result)
    assert list(result) == ["sum", "a"]
    assert torch.equal(result["sum"], torch.arange(6.0) + 1)
    with pytest.raises(Error, match=r"Shape mismatch for pair\[1\]"):
        wrapped(NamedPair(torch.arange(6.0), torch.ones(12), "mine"))
    with pytest.raises(Error, match="a class and an ICustomArgParser"):
        poptorch.registerCustomArgParser(Pair, PairParser)  # type: ignore[arg-type]


def test_backward_on_an_output_is_an_error_that_names_the_way() -> None:
    output, loss = poptorch.trainingModel(small(), quiet())(torch.ones(2, 4), torch.ones(2, 3))
    for tensor in (output, loss):
        with pytest.raises(
            Error, match=r"backward\(\) cannot be called explicitly on outputs of a PopTorch model"
        ):
            tensor.backward()
    assert torch.equal(copy.deepcopy(output), output)
    saved = io.BytesIO()
    torch.save({"output": output}, saved)
    loaded = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)["output"]
    assert torch.equal(loaded, output), "anyone can load it"
    assert "backward" not in vars(loaded)


@pytest.mark.parametrize("kind", [AssertionError, TypeError, ValueError, RuntimeError, Error])
def test_what_poptorch_raises_for_wrong_arguments_catches_ours(kind: type[Exception]) -> None:
    with pytest.raises(kind):
        poptorch.Options().deviceIterations(0)
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        poptorch.inferenceModel(small(), quiet()).options.deviceIterations(2)


def test_is_running_on_ipu_in_the_model_only() -> None:
    model = model_of(lambda self, x, y: x + y if poptorch.isRunningOnIpu() else x * y)
    x, y = torch.tensor([50.0]), torch.tensor([2.0])
    assert poptorch.inferenceModel(model, quiet())(x, y) == 52
    assert model(x, y) == 100
    assert not poptorch.isRunningOnIpu()


# -- optimisers ---


def test_a_constant_attribute_cannot_change_and_a_variable_one_can() -> None:
    model = small()
    first = poptorch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    first.variable_attrs.markAsConstant("weight_decay")  # type: ignore[union-attr]
    wrapped = poptorch.trainingModel(model, quiet(), first)
    wrapped(torch.ones(2, 4), torch.ones(2, 3))
    wrapped.setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.1))
    with pytest.raises(
        Error, match=r"weight_decay was marked as constant.*expected \[0.1\] but got \[0.2\]"
    ):
        wrapped.setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.2))
    wrapped.destroy()
    wrapped.setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.2))


@pytest.mark.parametrize(("relaxed", "level"), [(False, logging.WARNING), (True, logging.DEBUG)])
def test_unknown_attributes_are_said_once(
    relaxed: bool, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = poptorch.trainingModel(
        model, quiet().relaxOptimizerAttributesChecks(relaxed), optimizer
    )
    optimizer.param_groups[0]["initial_lr"] = 0.1
    optimizer.step = 0  # type: ignore[assignment, method-assign]
    with caplog.at_level(logging.DEBUG, logger="ipu_exec"):
        wrapped.setOptimizer(optimizer)
        wrapped.setOptimizer(optimizer)
    said = [record for record in caplog.records if "Ignoring unexpected" in record.message]
    assert [record.levelno for record in said] == [level, level]
    assert "optimizer attribute in SGD optimizer: ['step']" in said[0].message
    assert "group 0 attribute in SGD optimizer: ['initial_lr']" in said[1].message


def test_a_scheduler_and_the_state_of_a_device_are_no_unknown_attributes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = small()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = poptorch.trainingModel(model, quiet(), optimizer)
    wrapped.compile(torch.ones(2, 4), torch.zeros(2, 3))
    optimizer.load_state_dict(optimizer.state_dict())
    torch.optim.lr_scheduler.LinearLR(optimizer)
    with caplog.at_level(logging.DEBUG, logger="ipu_exec"):
        wrapped.setOptimizer(optimizer)
    assert "unexpected optimizer attribute" not in caplog.text


@pytest.mark.parametrize(("momentum", "centered"), [(0.0, False), (0.9, True)])
def test_tensorflows_rmsprop_compiles_and_trains(momentum: float, centered: bool) -> None:
    model = small()
    before = model.fc.weight.detach().clone()
    optimizer = poptorch.optim.RMSprop(
        model.parameters(), lr=0.1, momentum=momentum, centered=centered, use_tf_variant=True
    )
    wrapped = poptorch.trainingModel(model, quiet(), optimizer)
    wrapped(torch.ones(2, 4), torch.ones(2, 3))
    assert not torch.equal(before, model.fc.weight)
    states = {v.name for v in wrapped.executable.variables if v.role == "optimiser state"}
    assert ("fc.weight/momentum_buffer" in states) == (momentum > 0)
    assert ("fc.weight/grad_avg" in states) == centered


@pytest.mark.parametrize(
    ("name", "why"), [("LBFGS", "fixed program"), ("SparseAdam", "no sparse tensors")]
)
def test_optimisers_that_no_fixed_program_can_be_are_refused(name: str, why: str) -> None:
    model = torch.nn.Linear(3, 2)
    with pytest.raises(poptorch.Error, match=f"{name} .*{why}"):
        poptorch.trainingModel(model, quiet(), getattr(torch.optim, name)(model.parameters()))


# -- anchored tensors ---


def test_anchored_tensors_are_pytorchs(caplog: pytest.LogCaptureFixture) -> None:
    x, target = torch.randn(6, 4), torch.randn(6, 3)
    options = quiet(iterations=1, accumulation=3)
    options.anchorTensor("gradient", "Gradient___model.fc.weight", OutputMode.All)
    options.anchorTensor("sum", "Gradient___fc.bias", OutputMode.Sum)
    options.anchorTensor("updated", "UpdatedVar___model.fc.weight")
    options.anchorTensor("hidden", "fc/addmm:0", OutputMode.EveryN, 3)
    options.anchorTensor("late", "fc/addmm:0")
    options.anchorTensor("never", "fc/addmm:0", OutputMode.EveryN, 4)
    options.anchorTensor("back", "fc/gradient/mm:0", OutputMode.All)
    options.anchorTensor("input", "input.0", OutputMode.All)
    model = small()
    plain = copy.deepcopy(model)
    wrapped = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    with caplog.at_level(logging.DEBUG, logger="ipu_exec"):
        wrapped(x, target)
    for line in (
        "Gradient___model.fc.weight ALL/1",
        "fc.bias Sum/1",
        "addmm:0 EVERYN/3",
        "addmm:0 FINAL/1",
    ):
        assert line in caplog.text

    gradients, biases = [], []
    for part, wanted in zip(x.split(2), target.split(2), strict=True):
        plain.zero_grad()
        plain(part, wanted)[1].backward()
        gradients.append(plain.fc.weight.grad.clone())  # type: ignore[union-attr]
        biases.append(plain.fc.bias.grad.clone())
    with pytest.raises(Error, match="'never'"):
        wrapped.getAnchoredTensor("never")  # of three micro-batches none is the fourth
    got = {
        short: wrapped.getAnchoredTensor(short)
        for short in options.anchored_tensors
        if short != "never"
    }
    assert torch.equal(got["gradient"], torch.cat(gradients))
    assert torch.equal(got["sum"], biases[0] + biases[1] + biases[2])
    torch.testing.assert_close(got["updated"], plain.fc.weight.detach() - 0.1 * sum(gradients) / 3)
    assert torch.equal(got["hidden"], plain.fc(x[4:]))
    assert torch.equal(got["late"], got["hidden"])
    assert torch.equal(got["input"], x)
    assert torch.equal(got["back"], torch.cat(gradients)), (
        "addmm's weight gradient is the product of this name"
    )
    # The outputs are the same as without anchors, and so is the training.
    assert set(wrapped.getTensorNames()) >= {
        "fc.weight",
        "fc/addmm:0",
        "Gradient___fc.bias",
        "UpdatedVar___fc.bias",
    }


def test_every_name_that_is_listed_can_be_kept() -> None:
    batch = mnist_batch(4)
    names = poptorch.trainingModel(Mnist(), quiet())
    names.compile(*batch)
    options = quiet()
    listed = names.getTensorNames()
    for number, name in enumerate(listed):
        options.anchorTensor(str(number), name)
    wrapped = poptorch.trainingModel(Mnist(), options)
    wrapped(*batch)
    assert len(listed) > 50
    for number in range(len(listed)):
        wrapped.getAnchoredTensor(str(number))


def test_wrong_names_are_errors_with_the_nearest() -> None:
    options = quiet()
    options.anchorTensor("wrong", "Gradient___fc.weigth")
    with pytest.raises(
        Error, match=r"no tensor 'Gradient___fc.weigth'; it has 'Gradient___fc.weight'"
    ):
        poptorch.trainingModel(small(), options)(torch.ones(2, 4), torch.ones(2, 3))
    wrapped = poptorch.inferenceModel(small(), quiet())
    for ask in (
        wrapped.getTensorNames,
        wrapped.copyWeightsToHost,
        wrapped.copyWeightsToDevice,
        lambda: wrapped.getAnchoredTensor("x"),
        lambda: wrapped.rng_state,
    ):
        with pytest.raises(AssertionError):
            ask()


# -- times ---


def sizes(counters: dict[str, list[list[float]]]) -> list[tuple[int, int]]:
    return [(len(rows), len(rows[0])) for rows in counters.values()]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    ("mode", "period", "outputs"),
    [(OutputMode.Final, 1, 1), (OutputMode.All, 1, 4), (OutputMode.EveryN, 2, 2)],
)
def test_counters_have_an_entry_a_transfer(
    mode: OutputMode, period: int, outputs: int, replicas: int
) -> None:
    options = (
        quiet(iterations=2, accumulation=2).outputMode(mode, period).replicationFactor(replicas)
    )
    wrapped = poptorch.trainingModel(small(), options)
    assert sizes(wrapped.getPerfCounters()) == [(1, 0)] * 4
    assert wrapped.getLatency() == (0.0, 0.0, 0.0)
    wrapped(torch.ones(8 * replicas, 4), torch.ones(8 * replicas, 3))
    counters = wrapped.getPerfCounters()
    assert sizes(counters) == [
        (2, 4 * replicas),
        (2, 4 * replicas),
        (2, outputs * replicas),
        (2, outputs * replicas),
    ]
    assert counters["input"][0] == sorted(counters["input"][0])
    assert min(counters["input"][0]) == 0.0


def test_synthetic_data_costs_no_transfer() -> None:
    x = torch.randn(4, 64)

    def run(synthetic: bool) -> tuple[torch.Tensor, poptorch.PoplarExecutor]:
        torch.manual_seed(0)
        wrapped = poptorch.inferenceModel(
            Mlp([64, 64, 64]), quiet(iterations=2).enableSyntheticData(synthetic)
        )
        return wrapped(x), wrapped

    copied, plain = run(False)
    same, synthetic = run(True)
    assert torch.equal(copied, same)
    assert synthetic.executable.cycles_per_call < plain.executable.cycles_per_call
    assert sizes(synthetic.getPerfCounters()) == [(1, 0)] * 4
    assert synthetic.getLatency() == (0.0, 0.0, 0.0)
    assert not [b for b in synthetic.executable.timeline.bodies if b.kind == "host I/O"]


def test_latencies_add_up_and_are_the_schedules() -> None:
    wrapped = poptorch.inferenceModel(Mlp([64, 64, 64]), quiet(iterations=5))
    wrapped(torch.ones(20, 64))
    latency = wrapped.getLatency()
    parts = (wrapped.getHostIpuLatency(), wrapped.getComputeLatency(), wrapped.getIpuHostLatency())
    assert latency[0] <= latency[2] <= latency[1]
    # One input and one output: the three parts follow each other without a gap.
    assert sum(part[2] for part in parts) == pytest.approx(latency[2])
    clock = wrapped.executable.target.clock_hz
    assert latency[1] <= wrapped.executable.cycles_per_call / clock
    last = wrapped.getPerfCounters()["output_complete"][0][-1]
    assert last <= wrapped.executable.cycles_per_call / clock


# -- files ---


def compiled(
    path: Path, export_model: bool = True
) -> tuple[poptorch.PoplarExecutor, tuple[torch.Tensor, ...]]:
    model, batch = Mnist(), mnist_batch(8)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=2.0)
    wrapped = poptorch.trainingModel(model, quiet(accumulation=2).useOfflineIpuTarget(), optimizer)
    wrapped.compileAndExport(str(path), *batch, export_model=export_model)
    return wrapped, batch


@pytest.fixture
def no_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("it compiles")

    monkeypatch.setattr("ipu_exec.compiler.passes.compile_graph", refuse)


def test_a_file_with_its_model_runs_as_it_was_compiled(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    original, batch = compiled(tmp_path / "deep" / "model.poptorch")
    request.getfixturevalue("no_compiling")
    changed = []
    with pytest.warns(UserWarning, match="load only files of people you trust"):
        loaded = poptorch.load(tmp_path / "deep" / "model.poptorch", edit_opts_fn=changed.append)
    assert changed == [changed[0]] and isinstance(changed[0], poptorch.Options)
    assert (
        loaded.isCompiled()
        and loaded.executable.cycles_per_call == original.executable.cycles_per_call
    )
    before = loaded.model.fc2.weight.detach().clone()
    loaded(*batch)
    assert not torch.equal(loaded.model.fc2.weight, before)
    with pytest.raises(Error, match="Shape mismatch"):
        loaded(*mnist_batch(4))


def test_an_executable_alone_goes_into_its_model_and_no_other(
    tmp_path: Path, request: pytest.FixtureRequest, recwarn: pytest.WarningsRecorder
) -> None:
    path = tmp_path / "model.poptorch"
    _, batch = compiled(path, export_model=False)
    request.getfixturevalue("no_compiling")
    model = Mnist()
    wrapped = poptorch.trainingModel(
        model, quiet(accumulation=2), poptorch.optim.SGD(model.parameters(), lr=0.1)
    )
    wrapped.loadExecutable(str(path))
    wrapped(*batch)
    assert wrapped.options.connection_type is poptorch.ConnectionType.Always
    assert not recwarn.list, "nothing in it can run code, so there is nothing to warn of"
    with pytest.raises(Error, match="export_model=False"):
        poptorch.load(path)
    with pytest.raises(Error, match=r"another model: it has conv1\.bias"):
        poptorch.trainingModel(Mlp([4, 4]), quiet()).loadExecutable(str(path))
    with pytest.raises(Error, match="compiled by trainingModel"):
        poptorch.inferenceModel(Mnist(), quiet()).loadExecutable(str(path))


def test_the_random_state_is_saved_and_can_be_set() -> None:
    model = nn.Dropout()
    wrapped = poptorch.inferenceModel(model, quiet().randomSeed(7))
    x = torch.ones(64)
    wrapped.compile(x)
    state = wrapped.rng_state
    first = wrapped(x)
    wrapped.rng_state = state
    assert not torch.equal(first, wrapped(x)), "the first call was seeded by randomSeed"
    wrapped.rng_state = state
    second = wrapped(x)
    wrapped.rng_state = state
    assert torch.equal(second, wrapped(x))


def test_a_seeded_device_has_random_numbers_of_its_own() -> None:
    x = torch.ones(64)
    first = poptorch.inferenceModel(nn.Dropout(), quiet().randomSeed(7))
    second = poptorch.inferenceModel(nn.Dropout(), quiet().randomSeed(7))
    torch.manual_seed(3)
    host = torch.get_rng_state()
    drawn = [first(x), first(x)]
    assert torch.equal(torch.get_rng_state(), host)
    assert torch.equal(second(x), drawn[0])
    assert torch.equal(second(x), drawn[1])
    assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.parametrize(
    ("content", "says"), [(b"text", "not a compiled model"), (None, "No such file")]
)
def test_other_files_are_errors(content: bytes | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Error, match=says):
        executables.read(path)


def test_a_model_that_cannot_be_pickled_says_so(tmp_path: Path) -> None:
    class Local(nn.Linear):
        pass

    wrapped = poptorch.inferenceModel(Local(2, 2), quiet())
    with pytest.raises(Error, match="top of a module"):
        wrapped.compileAndExport(str(tmp_path / "x"), torch.ones(1, 2))
    wrapped.save(str(tmp_path / "x"), export_model=False)
    assert (tmp_path / "x").exists()


# -- the cache ---


def test_the_cache_is_hit_by_the_same_model_and_missed_by_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def cycles(model: nn.Module, accumulation: int = 2) -> tuple[int, bool]:
        caplog.clear()
        wrapped = poptorch.trainingModel(
            model, quiet(accumulation=accumulation).enableExecutableCaching(str(tmp_path))
        )
        with caplog.at_level(logging.INFO, logger="ipu_exec"):
            wrapped(*mnist_batch(4 * accumulation))
        return wrapped.executable.cycles_per_call, "taken from the cache" in caplog.text

    first, hit = cycles(Mnist())
    assert not hit
    assert cycles(Mnist()) == (first, True)
    assert not cycles(Mnist(), accumulation=4)[1]
    wider = Mnist()
    wider.fc1, wider.fc2 = nn.Linear(320, 128), nn.Linear(128, 10)
    assert not cycles(wider)[1]
    assert len(list(tmp_path.iterdir())) == 3
    for file in tmp_path.iterdir():
        file.write_bytes(b"broken")
    assert cycles(Mnist()) == (first, False)


def test_the_cache_is_hit_whatever_the_learning_rate(tmp_path: Path) -> None:
    weights = []
    for rate in (0.1, 0.2, 0.0):
        torch.manual_seed(0)
        model = Mnist()
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        options = quiet(accumulation=2).enableExecutableCaching(str(tmp_path))
        poptorch.trainingModel(model, options, optimizer)(*mnist_batch(8))
        assert optimizer.param_groups[0]["lr"] == rate
        weights.append(model.fc2.weight.detach().clone())
    assert len([*tmp_path.glob("*.ipuexec")]) == 1
    assert not torch.equal(weights[0], weights[1]) and not torch.equal(weights[1], weights[2])


def test_the_cache_can_be_set_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "cache"))
    poptorch.inferenceModel(small(), quiet())(torch.ones(2, 4))
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_another_compilers_executables_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(tmp_path / "model.poptorch")
    monkeypatch.setattr(executables, "fingerprint", lambda: "other")
    with pytest.raises(Error, match="another version of IPUscope"):
        executables.read(tmp_path / "model.poptorch")
