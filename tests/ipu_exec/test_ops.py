"""PopTorch's operators.

Numbers against plain PyTorch, inside models that compile; what they cost; what they refuse.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ipu_exec as poptorch
from ipu_exec import Error, MatMulSerializationMode, UsageError, popart
from ipu_exec.lowering import Builder
from ipu_exec.lowering.plan import OpSpec, Plan
from ipu_exec.machine import Machine
from ipu_exec.option_groups.engine_options import TARGET_VARIABLE
from tests.models import model_of


def run(function: Callable[..., Any]) -> Any:
    """A function as a model."""
    return model_of(lambda self, *args: function(*args))


def trained(function: Callable[..., Any], width: int) -> Any:
    """A function behind a linear layer, its result squared into a loss."""

    def forward(self, x: torch.Tensor, *args: torch.Tensor) -> Any:
        out = function(self.fc(x), *args)
        return out, poptorch.identity_loss(out**2, "sum")

    return model_of(forward, fc=nn.Linear(width, width))


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def infer(function: Callable[..., Any], *args: torch.Tensor) -> Any:
    return poptorch.inferenceModel(run(function), options())(*args)


def infer_with_layers_outside(function: Callable[..., Any], *args: torch.Tensor) -> Any:
    """Infer with a function whose layers are outside the model; PopTorch refuses their weights."""
    return poptorch.inferenceModel(run(function), options().lenient())(*args)


def compiled(function: Callable[..., Any], *args: torch.Tensor) -> poptorch.PoplarExecutor:
    model = poptorch.inferenceModel(run(function), options())
    model.compile(*args)
    return model


def names(model: poptorch.PoplarExecutor) -> list[str]:
    return [op.aten.removesuffix(".default") for op in model.executable.graph.ops]


def gradients(
    function: Callable[..., Any], x: torch.Tensor, *args: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight's gradient as trained here, and as by plain PyTorch."""
    torch.manual_seed(2)
    model = trained(function, x.shape[-1])
    _, loss = model(x, *args)
    loss.backward()
    plain = model.fc.weight.grad
    assert plain is not None
    before = model.fc.weight.detach().clone()
    poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), lr=1.0))(x, *args)
    return before - model.fc.weight.detach(), plain


# -- control flow ---


def test_for_loop_goes_on_with_what_the_body_returned_and_leaves_its_inputs() -> None:
    x, y = torch.ones(3), torch.zeros(3)

    def body(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x.mul_(2), y + x]

    results = infer(lambda x, y: poptorch.for_loop(5, body, [x, y]), x, y)
    assert [tensor.tolist() for tensor in results] == [[32.0] * 3, [62.0] * 3]
    assert (x == 1).all()
    one = compiled(lambda x, y: poptorch.for_loop(1, body, [x, y]), x, y)
    five = compiled(lambda x, y: poptorch.for_loop(5, body, [x, y]), x, y)
    assert names(five).count("aten.mul_.Tensor") == 5
    assert five.executable.cycles_per_call > one.executable.cycles_per_call


@pytest.mark.parametrize("value", [True, False])
def test_cond_runs_one_body_and_the_profile_has_both(value: bool) -> None:
    ran: list[str] = []

    def yes(x: torch.Tensor) -> torch.Tensor:
        ran.append("yes")
        return x + 1

    def no(x: torch.Tensor) -> torch.Tensor:
        ran.append("no")
        return torch.exp(x)

    x = torch.randn(4)
    model = compiled(lambda c, x: poptorch.cond(c, yes, [x], no, [x])[0], torch.tensor([value]), x)
    assert ran == ["yes", "no"]
    assert {"aten.add.Tensor", "aten.exp", "aten.where.self"} <= set(names(model))
    ran.clear()
    assert torch.equal(model(torch.tensor([value]), x), x + 1 if value else x.exp())
    assert ran == (["yes"] if value else ["no"])


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda x: poptorch.for_loop(2, lambda x: [x, x], [x]), "takes 1 tensors and returns 2"),
        (
            lambda x: poptorch.for_loop(2, lambda x: x, (x,)),
            "to be a list of tensors.*Object is not list",
        ),
        (
            lambda x: poptorch.for_loop(2, lambda *x: x, [x, 5]),
            "contained in list at index 1 is not torch.tensor",
        ),
        (lambda x: poptorch.for_loop(-1, lambda x: x, [x]), "whole number"),
        (lambda x: poptorch.cond(x[0] > 0, lambda: x, [], lambda: x[:1], []), "different tensors"),
        (
            lambda x: poptorch.cond(x[0] > 0, lambda: x, (), lambda: x, ()),
            "to be a list of tensors",
        ),
        (lambda x: poptorch.dynamic_slice(x, 0, 1, 2, 1), "takes torch tensors"),
        (
            lambda x: poptorch.dynamic_slice(x, 0, torch.tensor(1), 2.0, 1),
            "Size must be an integer",
        ),
        (
            lambda x: poptorch.dynamic_slice(x, 0, torch.tensor(1), 0, 1),
            "start and end of a slice must be different",
        ),
        (
            lambda x: poptorch.dynamic_slice(x, 0, torch.tensor(1), -2, 1),
            "the end less than the start",
        ),
        (
            lambda x: poptorch.dynamic_slice(x, 0, torch.tensor(1), 3, 1),
            r"size of the slice \(3\) must be a factor",
        ),
        (
            lambda x: poptorch.dynamic_update(x, x[None], 0, torch.tensor(0), 1),
            "same dimensionality",
        ),
        (lambda x: poptorch.dynamic_update(x, x.double(), 0, torch.tensor(0), 1), "same dtype"),
        (lambda x: poptorch.serializedMatMul(x, x, "no"), "MatMulSerializationMode"),
        (lambda x: poptorch.nop(3), "takes torch tensors"),
        (lambda x: poptorch.set_overlap_for_input(x, 1), "OverlapMode"),
        (lambda x: poptorch.ipu_print_tensor(x, float_format="hex"), "'scientific'"),
        (lambda x: poptorch.NameScope(3), "takes a name"),
        (lambda x: poptorch.fps(x, [0]), "list of at least 2"),
        (lambda x: poptorch.fps(x, [0, 4], 2), "float type"),
        (lambda x: poptorch.nearest(x, x, [0] * 3, [0] * 4), "has the shape"),
        (lambda x: poptorch.ctc_beam_search_decoder(x, x), r"\[time, batch, classes\]"),
        (lambda x: poptorch.MultiConv().partialsTypes(torch.int32), "Invalid partials types"),
        (lambda x: poptorch.MultiConv().planType(1), "Invalid plan type"),
        (
            lambda x: poptorch.MultiConv().availableMemoryProportions("a"),
            "Invalid availableMemoryProportions",
        ),
        (lambda x: poptorch.CPU(3, "three"), "takes a function and a name"),
    ],
)
def test_wrong_arguments_are_errors(run: Callable[[torch.Tensor], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        infer(run, torch.arange(4.0))


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (
            lambda x: poptorch.for_loop(2, torch.exp, [x])[0],
            r"for_loop\(\) is only supported in inference",
        ),
        (
            lambda x: poptorch.cond(x[0] > 0, torch.exp, [x], torch.sin, [x])[0],
            r"cond\(\) is only supported in inf",
        ),
    ],
)
def test_popart_differentiates_no_control_flow(run: Callable[..., Any], says: str) -> None:
    with pytest.raises(Error, match=says):
        poptorch.trainingModel(trained(run, 4), options())(torch.arange(4.0))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: (x + 1).squeeze_(),
        lambda x: (x + 1).transpose_(1, 3),
        lambda x: (x + 1).unsqueeze_(0),
        lambda x: torch.nn.functional.adaptive_avg_pool1d(x[0].transpose(1, 2), 1),  # as_strided_
    ],
)
def test_a_tensor_may_change_its_shape_in_place(change: Callable[..., Any]) -> None:
    x = torch.randn(1, 3, 1, 4)
    ours, plain = gradients(lambda x: change(x) * 2, x)
    torch.testing.assert_close(ours, plain)


def test_distributions_check_their_arguments() -> None:
    def draw(rate: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Normal(rate, rate.sqrt()).sample((3,))

    assert infer(draw, torch.tensor([2.0, 3.0])).shape == (3, 2)


# -- slices ---


@pytest.mark.parametrize(("size", "step"), [(3, 1), (3, 2), (6, 4)])
def test_dynamic_slices_are_slices(size: int, step: int) -> None:
    x = torch.randn(4, 12)
    for start in (0, 2):
        result = infer(
            lambda x, s: poptorch.dynamic_slice(x, 1, s, size, step), x, torch.tensor([start])
        )
        assert torch.equal(result, x[:, start : start + size : step])
    ours, plain = gradients(
        lambda x, s: poptorch.dynamic_slice(x, 1, s, 3, 1), x, torch.tensor([2])
    )
    torch.testing.assert_close(ours, plain)


def test_dynamic_update_puts_a_slice_into_a_copy() -> None:
    x, part = torch.randn(4, 9), torch.randn(4, 2)
    result = infer(
        lambda x, p, s: poptorch.dynamic_update(x, p, 1, s, 2),
        x,
        part,
        torch.tensor([3, 3, 3, 3])[:1],
    )
    wanted = x.clone()
    wanted[:, 3:5] = part
    assert torch.equal(result, wanted)


# -- products ---


@pytest.mark.parametrize("mode", list(MatMulSerializationMode))
def test_a_serialised_product_is_the_product_in_parts(mode: MatMulSerializationMode) -> None:
    a, b = torch.randn(8, 12), torch.randn(12, 16)
    product = infer(lambda a, b: poptorch.serializedMatMul(a, b, mode, 4), a, b)
    torch.testing.assert_close(product, a @ b)
    count = names(compiled(lambda a, b: poptorch.serializedMatMul(a, b, mode, 4), a, b)).count(
        "aten.mm"
    )
    assert count == (1 if mode is MatMulSerializationMode.Disabled else 4)
    ours, plain = gradients(
        lambda a, b: poptorch.serializedMatMul(a, b, mode, 4, keep_precision=True), a, b
    )
    torch.testing.assert_close(ours, plain)
    if mode is not MatMulSerializationMode.Disabled:
        with pytest.raises(UsageError, match="does not divide"):
            poptorch.serializedMatMul(a, b, mode, 5)


def test_a_serialised_product_needs_less_memory_at_a_time() -> None:
    a, b = torch.randn(512, 512), torch.randn(512, 4096)
    mode = MatMulSerializationMode.OutputChannels

    def temporaries(factor: int) -> int:
        model = compiled(lambda a, b: poptorch.serializedMatMul(a, b, mode, factor), a, b)
        return max(
            int(v.tile_bytes.max()) for v in model.executable.variables if v.role == "temporary"
        )

    assert temporaries(8) < temporaries(1)


def test_multi_conv_computes_the_convolutions() -> None:
    first, second = nn.Conv2d(2, 3, 3), nn.Conv2d(2, 4, 3)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with (
            poptorch.MultiConv()
            .availableMemoryProportions((0.2, 0.3))
            .partialsTypes(torch.half)
            .cycleBackOff(0.1)
        ):
            return first(x), second(x)

    x = torch.randn(1, 2, 8, 8)
    assert all(
        torch.equal(a, b) for a, b in zip(infer_with_layers_outside(both, x), both(x), strict=True)
    )


@pytest.mark.parametrize(
    ("forward", "says"),
    [
        (lambda x: x * 2, "Unexpected end_multi_conv"),
        (lambda x: nested(x), "Nested poptorch.MultiConv is not supported"),
        (lambda x: CHAIN[1](CHAIN[0](x)), "needs the result of another.*test_ops.py"),
    ],
)
def test_wrong_multi_convs_are_errors_of_the_compile(forward: Any, says: str) -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        with poptorch.MultiConv():
            result: torch.Tensor = forward(x)
        return result

    x = torch.randn(1, 2, 8, 8)
    with pytest.raises(Error, match=says):
        infer_with_layers_outside(inside, x)
    assert infer_with_layers_outside(CHAIN[0], x).shape == (1, 2, 6, 6), "nothing is left open"


CHAIN = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3)


def nested(x: torch.Tensor) -> torch.Tensor:
    with poptorch.MultiConv():
        result: torch.Tensor = CHAIN[0](x)
    return result


# -- names and the host ---


def test_a_name_scope_is_in_the_names_of_its_operators() -> None:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with poptorch.NameScope("Outer"), poptorch.NameScope("Inner"):
            x = self.fc(x)
        torch.ops.poptorch.push_name_scope("Hooked")
        x = torch.tanh(x)
        torch.ops.poptorch.pop_name_scope()
        return torch.relu(x)

    model = poptorch.inferenceModel(model_of(forward, fc=nn.Linear(4, 4)), options())
    model.compile(torch.ones(2, 4))
    operators = [op.name for op in model.executable.graph.ops]
    assert {"Outer/Inner/fc/addmm", "Hooked/tanh", "relu"} <= set(operators)
    assert not any(name.startswith("Outer") for name in names(compiled(torch.relu, torch.ones(2))))


def test_printing_shows_tensor_and_gradient_and_changes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = torch.tensor([[1.0, 2.0]])

    def shown(x: torch.Tensor) -> torch.Tensor:
        return poptorch.ipu_print_tensor(x, "summation")

    ours, _ = gradients(shown, x)
    text = capsys.readouterr().err
    plain, _ = gradients(lambda x: x, x)
    assert torch.equal(ours, plain)
    assert text.count("summation: (\n (") == 2, (
        "once by the plain run, once by ours; compiling prints nothing"
    )
    assert text.count("summation_gradient: (\n (") == 2
    infer(
        lambda x: poptorch.ipu_print_tensor(
            x, "t", digits=3, float_format="fixed", open_bracket="["
        ),
        x / 3,
    )
    assert "t: [\n [0.33, 0.67)\n)" in capsys.readouterr().err


def test_checkpoints_give_back_what_they_are_given() -> None:
    a, b = torch.ones(1), torch.ones(2)
    assert poptorch.recomputationCheckpoint(a) is a
    assert poptorch.recomputationCheckpoint(a, b) == (a, b)
    listed = poptorch.recomputationCheckpoint([a, b])
    assert isinstance(listed, list) and listed[1] is b
    with pytest.raises(ValueError):
        poptorch.recomputationCheckpoint(3)


def test_work_of_the_host_runs_amid_the_model_and_costs_its_way() -> None:
    def on_host(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.sort(x.numpy()))

    model = run(lambda x: model.host(model.host(x * 2)) + 1)  # type: ignore[operator]
    model.host = poptorch.CPU(on_host, "sort it")  # type: ignore[assignment]
    x = torch.tensor([3.0, 1.0, 2.0])
    wrapped = poptorch.inferenceModel(model, options())
    assert wrapped(x).tolist() == [3.0, 5.0, 7.0]
    assert model(x).tolist() == [3.0, 5.0, 7.0]
    assert names(wrapped).count("ipu_custom.host_sort_it") == 2
    latency = 2 * 9e-6 * wrapped.executable.target.clock_hz
    plain = compiled(lambda x: x * 2 + 1, x)
    assert wrapped.executable.cycles_per_call - plain.executable.cycles_per_call > 2 * latency
    behind_a_layer = trained(poptorch.CPU(lambda x: x * 1, "same"), 2)
    with pytest.raises(Error, match="inference models only"):
        poptorch.trainingModel(behind_a_layer, options())(torch.ones(2, 2))


# -- custom operators ---


def cube(
    x: torch.Tensor, bias: torch.Tensor, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    return scale * x**3 + bias, x * bias


def lower_cube(spec: OpSpec, machine: Machine) -> Plan:
    build = Builder(spec, machine)
    placement = build.spread(0)
    build.compute("cube", "acme::Cube", np.where(placement.elements > 0, 1000, 0))
    return build.plan(tuple(placement.layout("float32") for _ in spec.outputs))


@pytest.mark.parametrize("lowered", [True, False])
def test_a_custom_operator_computes_trains_and_costs_what_its_user_says(lowered: bool) -> None:
    poptorch.register_custom_op(
        "Cube", "com.acme", cube, lower_cube if lowered else None, lower_cube if lowered else None
    )

    def op(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        outputs = poptorch.custom_op(
            [x, bias], "Cube", "com.acme", 1, example_outputs=[x, x], attributes={"scale": 2.0}
        )
        assert isinstance(outputs, list)
        return outputs[0] + outputs[1]

    x, bias = torch.randn(2, 4), torch.randn(2, 4)
    assert torch.equal(infer(op, x, bias), op(x, bias))
    operators = names(compiled(op, x, bias))
    assert any(name.startswith("ipu_custom.com_acme_Cube") for name in operators) == lowered
    assert ("aten.pow.Tensor_Scalar" in operators) != lowered
    ours, plain = gradients(op, x, bias)
    torch.testing.assert_close(ours, plain)


def test_the_custom_operator_that_poptorch_brings_along_is_there() -> None:
    """Hugging Face's DeBERTa gathers with it, in training too."""
    data, index = torch.randn(2, 3, 5), torch.randint(5, (2, 3, 7), dtype=torch.int32)

    def forward(self, data: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        target = torch.zeros(2, 3, index.shape[-1])
        (gathered,) = poptorch.custom_op(
            [data * self.weight, index],
            "FastGatherLastDim",
            "poptorch.custom_ops",
            1,
            example_outputs=[target],
            attributes={"axis": -1},
        )
        return poptorch.identity_loss(gathered, "sum") if self.training else gathered

    model = model_of(forward, weight=nn.Parameter(torch.ones(5)))
    result = poptorch.inferenceModel(model.eval())(data, index)
    assert torch.equal(result, torch.gather(data, -1, index.long()))
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    poptorch.trainingModel(model.train(), optimizer=optimizer)(data, index)
    counts = torch.nn.functional.one_hot(index.long(), 5).sum(2)
    expected = 1 - (counts * data).sum((0, 1))
    torch.testing.assert_close(model.weight.detach(), expected)
    with pytest.raises(Error, match="except for the last"):
        poptorch.inferenceModel(model.eval())(data, index[:, :2].contiguous())


def test_a_custom_operator_without_a_backward_lowering_says_so_in_training() -> None:
    poptorch.register_custom_op("Half", "com.acme", lambda x: x / 2, lower_cube)

    def half(x: torch.Tensor) -> torch.Tensor:
        return poptorch.custom_op([x], "Half", "com.acme", 1, [x])[0]

    assert infer(half, torch.ones(2)).tolist() == [0.5, 0.5]
    with pytest.raises(poptorch.LoweringError, match="com_acme_Half_backward"):
        gradients(half, torch.ones(2, 2))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"name": "Nothing"},
            "com.acme.Nothing is not registered; registered are .*com.acme.Cube",
        ),
        ({"example_outputs": []}, "example_outputs promise"),
        ({"attributes": {1: 2}}, "keys must be strings"),
        ({"attributes": {"a": None}}, "must be floats, ints, strings"),
        ({"attributes": {"a": [1, 2.0]}}, "must all be the same"),
        ({"attributes": {"a": "é"}}, "non-ASCII"),
        ({"attributes": {"a": -1e39}}, r"-1e\+39 is too low for a Popart float attribute"),
        ({"attributes": {"a": [0.0, 1e39]}}, "too high for a Popart float attribute"),
    ],
)
def test_wrong_custom_operators_are_errors(arguments: dict[str, Any], says: str) -> None:
    poptorch.register_custom_op("Cube", "com.acme", cube)
    x = torch.ones(2)
    defaults = {
        "inputs": [x, x],
        "name": "Cube",
        "domain": "com.acme",
        "domain_version": 1,
        "example_outputs": [x, x],
    }
    with pytest.raises(ValueError, match=says):
        poptorch.custom_op(**{**defaults, **arguments})


# -- search ---


def test_nearest_points_are_the_nearest_of_their_sample() -> None:
    x, y = torch.randn(20, 3), torch.randn(7, 3)
    plain = torch.tensor(
        [min(range(7), key=lambda j: float((x[i] - y[j]).norm())) for i in range(20)]
    )
    assert torch.equal(infer(poptorch.nearest, x, y), plain)
    batch_x, batch_y = [0] * 8 + [1] * 12, [0] * 3 + [1] * 4
    nearest = infer(lambda x, y: poptorch.nearest(x, y, batch_x, torch.tensor(batch_y)), x, y)
    assert (nearest[:8] < 3).all() and (nearest[8:] >= 3).all()
    assert torch.equal(nearest[:8], infer(poptorch.nearest, x[:8], y[:3]))


def test_farthest_points_are_each_farthest_from_those_before() -> None:
    src = torch.randn(30, 2)
    sampled = infer(lambda s: poptorch.fps(s, [0, 10, 30], 0.5), src).tolist()
    assert len(sampled) == 5 + 10 and sampled[0] == 0 and sampled[5] == 10
    for start, end, subset in ((0, 10, sampled[:5]), (10, 30, sampled[5:])):
        for count in range(1, len(subset)):
            distance = [
                min(float((src[i] - src[j]).norm()) for j in subset[:count])
                for i in range(start, end)
            ]
            assert subset[count] - start == int(np.argmax(distance))
    torch.manual_seed(0)
    starts = {int(poptorch.fps(src, [0, 30], 0.1, random_start=True)[0]) for _ in range(20)}
    assert len(starts) > 5


def test_beam_search_finds_the_likeliest_labels() -> None:
    """Against all paths of a small problem.

    The probability of a labelling is the sum over its alignments.
    """
    steps, classes = 4, 3
    probs = torch.randn(steps, 2, classes, generator=torch.Generator().manual_seed(1)).log_softmax(
        -1
    )
    lengths = torch.tensor([4, 3], dtype=torch.int32)
    scores, sizes, labels = infer(
        lambda p, n: poptorch.ctc_beam_search_decoder(p, n, 0, 50, 3), probs, lengths
    )
    assert (scores.shape, sizes.shape, labels.shape) == ((2, 3), (2, 3), (2, 3, steps))
    for entry, length in enumerate(lengths.tolist()):
        total: dict[tuple[int, ...], float] = {}
        for path in itertools.product(range(classes), repeat=length):
            merged = tuple(k for k, _ in itertools.groupby(path) if k != 0)
            total[merged] = total.get(merged, 0.0) + math.exp(
                sum(probs[t, entry, k] for t, k in enumerate(path))
            )
        best = sorted(total.items(), key=lambda item: -item[1])[:3]
        for rank, (wanted, probability) in enumerate(best):
            assert tuple(labels[entry, rank, : sizes[entry, rank]].tolist()) == wanted
            assert float(scores[entry, rank]) == pytest.approx(math.log(probability), rel=1e-4)
    narrow = poptorch.ctc_beam_search_decoder(probs, lengths, 0, 1, 1)
    assert (narrow[0] <= scores[:, :1] + 1e-6).all()


def test_searching_costs_more_with_more_points() -> None:
    def cycles(points: int) -> int:
        return compiled(
            lambda s: poptorch.fps(s, [0, points], 0.5), torch.ones(points, 3)
        ).executable.cycles_per_call

    assert cycles(512) > 4 * cycles(32)
    few, many = (compiled(poptorch.nearest, torch.ones(n, 8), torch.ones(n, 8)) for n in (64, 4096))
    assert many.executable.cycles_per_call > few.executable.cycles_per_call


# -- logs and hardware ---


def test_log_levels_by_name_and_number() -> None:
    logger = logging.getLogger("ipu_exec")
    handlers = list(logger.handlers)
    try:
        for number, (name, level) in enumerate(
            [("TRACE", 5), ("DEBUG", 10), ("INFO", 20), ("WARN", 30), ("ERR", 40)]
        ):
            poptorch.setLogLevel(name)
            assert logger.level == level
            poptorch.setLogLevel("OFF")
            assert not logger.isEnabledFor(logging.CRITICAL)
            poptorch.setLogLevel(number)
            assert logger.level == level
        with pytest.raises(ValueError, match="Invalid log level integer"):
            poptorch.setLogLevel(5)
        with pytest.raises(
            ValueError,
            match=(
                r"Unknown log level: wibble\. Valid values are DEBUG, ERR, INFO, OFF, TRACE and"
                r" WARN"
            ),
        ):
            poptorch.setLogLevel("wibble")
        assert len(logger.handlers) == 1
    finally:
        logger.setLevel(logging.NOTSET)
        logger.handlers[:] = handlers


def test_what_poptorchs_tests_and_libraries_ask_of_its_parts() -> None:
    assert poptorch.hasMLIRSupportOnPlatform()
    assert isinstance(poptorch.Options()._execution_strategy, poptorch.PipelinedExecution)
    assert int(popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized) == 3
    for mode in popart.SyntheticDataMode:
        assert poptorch.Options().enableSyntheticData(int(mode)).synthetic_data is (
            mode.name != "Off"
        )
    with pytest.raises(AttributeError, match="part of PopART"):
        _ = popart.Builder
    assert poptorch.poptorch_core.Error is Error
    assert not poptorch.poptorch_core.isCompilingWithDispatcher()
    assert not poptorch._impl.isDispatchTracing()
    model = run(torch.exp)
    assert poptorch._impl.unwrapIfWrapped(model) is model
    wrapped = poptorch.inferenceModel(model)
    assert poptorch._impl.unwrapIfWrapped(wrapped) is wrapped.model
    poptorch._impl.unwrapModelIfNecessary(model)
    poptorch._impl.rewrapModelIfNecessary(model)
    poptorch._logging.setPopartLogLevel("DEBUG")
    with pytest.raises(ValueError, match="Level must be one of"):
        poptorch._logging.setPopartLogLevel("FOO")


def test_messages_go_to_what_stderr_is_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("ipu_exec")
    monkeypatch.setattr(logger, "handlers", [])
    try:
        poptorch.setLogLevel("INFO")
        for text in ("here", "there"):
            with contextlib.redirect_stderr(io.StringIO()) as err:
                logger.info(text)
            assert text in err.getvalue()
    finally:
        logger.setLevel(logging.NOTSET)


def test_the_modelled_machine_stands_for_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """Applications stop where there is none, and where it is not the generation that they were
    tuned for.
    """
    assert poptorch.ipuHardwareIsAvailable() and poptorch.ipuHardwareIsAvailable(num_ipus=64)
    assert poptorch.ipuHardwareVersion() == 2
    monkeypatch.setenv(TARGET_VARIABLE, "mk1")
    assert poptorch.ipuHardwareVersion() == 1


def test_what_stands_for_poptorchs_inner_modules() -> None:
    with pytest.raises(AttributeError, match="compiled core"):
        _ = poptorch.poptorch_core.compileWithTrace
    assert poptorch.testing.allclose([torch.ones(2).half()], (torch.ones(2),))
    assert not poptorch.testing.allclose(torch.ones(2), torch.zeros(2))
