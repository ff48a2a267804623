"""Capture records every op with its direction, Block, module, source line and pair."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import ipu_exec
from ipu_exec.base.context import refusing
from ipu_exec.base.user_tracebacks import warn_once
from ipu_exec.capture.loss import find_final_loss, find_loss
from ipu_exec.capture.step import capture
from ipu_exec.compiler.placement.reads import read_values
from tests.models import Mnist, mnist_batch, model_of


def training_graph(model: nn.Module, *args: torch.Tensor, accumulate: bool = True, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    return capture(model, args, {}, optimizer=optimizer, accumulate=accumulate, find_loss=find_loss)


def test_every_forward_and_backward_op_has_its_block_and_pair():
    model = Mnist()
    graph = training_graph(model, *mnist_batch(4))
    assert [block.name for block in graph.blocks] == ["B1", "B2", "B3", "B4"]
    block_of = {}
    for op in graph.ops:
        if op.direction == "forward":
            block_of[op.id] = op.block
            assert op.block >= 0 and op.file.endswith("models.py") and op.line > 0
        if op.direction == "backward" and op.forward_op >= 0:
            assert op.block == block_of[op.forward_op]
    convolutions = [op for op in graph.ops if op.aten == "aten.convolution_backward.default"]
    assert sorted(op.module for op in convolutions) == ["conv1", "conv2"]
    assert {op.aten for op in graph.ops if op.direction == "update"} >= {
        "aten.addcdiv_.default",
        "aten.zero_.default",
    }


def test_weights_states_and_accumulators_are_told_apart_and_belong_together():
    model = Mnist()
    graph = training_graph(model, *mnist_batch(4))
    by_role: dict[str, list] = {}
    for storage in graph.storages.values():
        by_role.setdefault(storage.role, []).append(storage)
    weights = {storage.id: storage for storage in by_role["weight"]}
    assert {storage.name for storage in weights.values()} == {
        name for name, _ in model.named_parameters()
    }
    for role in ("accumulator", "optimiser state"):
        for storage in by_role[role]:
            assert storage.name.startswith(weights[storage.parameter].name + "/")
    assert {storage.name for storage in by_role["input"]} == {"input.0", "input.1"}


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("layers", [1, 6])
def test_a_weight_that_the_loss_does_not_need_is_not_updated(accumulate: bool, layers: int):
    encoder = [model_of(lambda self, x: self.fc(x), fc=nn.Linear(3, 3), rest=nn.Linear(3, 5))]
    encoder += [copy.deepcopy(encoder[0]) for _ in range(layers - 1)]
    model = model_of(
        lambda self, x: self.encoder(x).sum(),
        encoder=nn.Sequential(*encoder),
        pooler=nn.Linear(3, 4),
    )
    graph = training_graph(model, torch.ones(2, 3), accumulate=accumulate)
    used = {graph.storage_of(v).name for op in graph.ops for v in (*op.inputs, *op.writes)}
    assert {name for name, _ in model.named_parameters() if name in used} == {
        f"encoder.{layer}.fc.{name}" for layer in range(layers) for name in ("weight", "bias")
    }
    assert not any("pooler" in name or "rest" in name for name in used)


def test_without_accumulation_gradients_go_straight_to_the_optimiser():
    graph = training_graph(Mnist(), *mnist_batch(4), accumulate=False)
    assert not any(storage.role == "accumulator" for storage in graph.storages.values())
    named = {storage.name for storage in graph.storages.values() if storage.role == "gradient"}
    assert "fc2.bias/gradient" in named


def test_names_follow_the_module_path_and_are_unique():
    def layer() -> nn.Module:
        attention = model_of(
            lambda self, x: self.project(x) @ x.transpose(-1, -2), project=nn.Linear(8, 8)
        )
        return model_of(lambda self, x: self.attention(x), attention=attention)

    model = model_of(
        lambda self, x: torch.relu(self.layer[1](torch.relu(self.layer[0](x) @ x))),
        layer=nn.ModuleList([layer(), layer()]),
    )
    graph = capture(model, (torch.randn(4, 8),), {})
    names = [op.name for op in graph.ops]
    assert "layer.0/attention/project/addmm" in names
    assert "layer.1/attention/mm" in names
    assert "relu" in names and "relu_1" in names
    assert len(names) == len(set(names))


def test_nothing_real_is_touched():
    model = Mnist()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    training_graph(model, *mnist_batch(4), optimizer=optimizer)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not optimizer.state and torch.equal(state, torch.get_rng_state())


def test_tied_weights_are_one_storage():
    a, b = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    b.weight = a.weight
    model = model_of(lambda self, x: self.b(self.a(x)).sum(), a=a, b=b)
    graph = training_graph(model, torch.randn(2, 8))
    assert sum(storage.role == "weight" for storage in graph.storages.values()) == 1
    assert sum(storage.role == "accumulator" for storage in graph.storages.values()) == 1


def test_a_branch_on_data_is_an_error_with_the_line():
    branching = model_of(lambda self, x: x if x.sum() > 0 else -x)
    with pytest.raises(ipu_exec.Error, match=r"content of a tensor.*test_step\.py:\d+"):
        capture(branching, (torch.randn(3),), {})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x[x > 0], r"aten::nonzero are unsupported.*test_step\.py:\d+"),
        (lambda x: torch.fft.rfft(x).abs(), r"an IPU has no complex64.*test_step\.py:\d+"),
        (lambda x: x.to_sparse().to_dense(), r"an IPU has no sparse tensors.*test_step\.py:\d+"),
        (lambda x: x.to(torch.float8_e5m2), r"no float8_e5m2: .*Cast, or.*test_step\.py:\d+"),
        (lambda x: torch.nested.nested_tensor([x, x[1:]]), r"pad nested.*test_step\.py:\d+"),
        (lambda x: x + torch.ones(3, device="cuda"), r"names a GPU.*test_step\.py:\d+"),
        (
            lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
            r"torch's cond is not modelled: take ipu_exec.cond.*test_step\.py:\d+",
        ),
        (lambda x: x.to("cuda:1"), r"names a GPU.*test_step\.py:\d+"),
    ],
    ids=[
        "a shape from data",
        "complex numbers",
        "sparse",
        "float8",
        "nested",
        "made",
        "cond",
        "moved",
    ],
)
def test_what_no_ipu_can_do_is_an_error_with_the_line(call, message):
    with pytest.raises(ipu_exec.Error, match=message):
        capture(model_of(lambda self, x: call(x)), (torch.randn(3),), {})


def test_bfloat16_is_said_to_cost_as_float16():
    warn_once.cache_clear()
    with pytest.warns(UserWarning, match="an IPU has no bfloat16") as told:
        capture(nn.Linear(3, 2).bfloat16(), (torch.ones(1, 3, dtype=torch.bfloat16),), {})
    assert told[0].filename == __file__


def test_a_check_of_arguments_in_torch_is_no_branch_of_the_model():
    graph = capture(nn.GaussianNLLLoss(), (torch.rand(3), torch.rand(3), torch.rand(3)), {})
    assert "aten.log.default" in {op.aten for op in graph.ops}


def test_big_models_need_no_memory_for_their_weights():
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(16_384, 16_384) for _ in range(4)))
    graph = capture(model, (torch.randn(1, 16_384),), {})
    assert (
        sum(storage.elements for storage in graph.storages.values() if storage.role == "weight")
        > 1e9
    )


@pytest.mark.parametrize(
    "call", [nn.Dropout(0.1), lambda x: torch.dropout(x, 0.1, True)], ids=["module", "function"]
)
def test_dropout_is_one_operator_each_way(call):
    model = model_of(lambda self, x: call(self.layer(x)).sum(), layer=nn.Linear(8, 8))
    graph = training_graph(model, torch.randn(4, 8))
    named = {op.direction: op for op in graph.ops if "dropout" in op.aten}
    assert [named[d].aten for d in ("forward", "backward")] == [
        "aten.native_dropout.default",
        "aten.native_dropout_backward.default",
    ]
    assert named["backward"].forward_op == named["forward"].id
    assert not any("bernoulli" in op.aten for op in graph.ops)
    # the mask is drawn again from the seed: what the backward reads is the gradient alone
    assert read_values(named["backward"]) == named["backward"].inputs[:1]


def checkpointed(layer: nn.Module) -> nn.Module:
    """A layer that torch runs again in the backward."""

    def forward(self, x):
        output = torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=False)
        return output.square().sum()

    return model_of(forward, layer=layer)


def test_dropout_in_a_checkpointed_layer_is_drawn_again_in_the_backward():
    model = checkpointed(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.ReLU()))
    graph = training_graph(model, torch.randn(4, 8))
    dropouts = [(op.direction, op.aten) for op in graph.ops if "dropout" in op.aten]
    again = ("backward", "aten.native_dropout.default")
    assert dropouts == [
        ("forward", "aten.native_dropout.default"),
        again,
        ("backward", "aten.native_dropout_backward.default"),
    ]


def test_dropout_is_pytorchs_again_after_capture():
    before = torch.dropout

    def fail(self, x):
        raise ipu_exec.Error("on purpose")

    with pytest.raises(ipu_exec.Error, match="on purpose"):
        capture(model_of(fail), (torch.randn(4),), {})
    assert torch.dropout is before is torch._VF.dropout


def test_dropout_in_evaluation_is_nothing():
    assert not any(
        "dropout" in op.aten for op in capture(nn.Dropout(0.1).eval(), (torch.randn(4),), {}).ops
    )


def test_a_checkpointed_layer_finds_its_weights_again_in_the_backward():
    model = checkpointed(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    graph = training_graph(model, torch.randn(4, 8))
    for direction in ("forward", "backward"):
        op = next(
            op for op in graph.ops if op.direction == direction and op.aten == "aten.addmm.default"
        )
        assert "weight" in {graph.storages[graph.values[v].storage].role for v in op.inputs}


def with_buffer(change) -> nn.Module:
    """A model that changes its buffer ``y`` while it runs."""

    def forward(self, x):
        change(self, x)
        return x + 1

    return model_of(forward, y=torch.ones(2))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda m, x: m._buffers.pop("y"),
            r"Buffer y is removed from the model when calling the forward method\.",
        ),
        (lambda m, x: setattr(m, "y", x), r"Buffer y is reassigned .* self\.y\.copy_\(src\)"),
    ],
)
def test_a_buffer_stays_the_tensor_that_the_device_holds(change, says: str):
    with pytest.raises(ipu_exec.Error, match=says):
        capture(with_buffer(change), (torch.ones(2),), {})
    capture(with_buffer(lambda m, x: m.y.copy_(x)), (torch.ones(2),), {})


def test_several_losses_that_are_not_marked_as_one_are_said():
    def captured(combine) -> bool:
        def losses(self, x):
            y = self.fc(x)
            return combine(
                nn.functional.mse_loss(y, x), nn.functional.cross_entropy(y, torch.tensor([1]))
            )

        model = model_of(losses, fc=nn.Linear(3, 3))
        optimizer = torch.optim.SGD(model.parameters())
        try:
            with refusing(True):
                capture(
                    model,
                    (torch.ones(1, 3),),
                    {},
                    optimizer=optimizer,
                    find_loss=find_final_loss,
                )
        except ipu_exec.Error as error:
            return "Multiple independent losses found in graph" in error.message
        return False

    for combine in (
        lambda a, b: a + 5 * b,
        lambda a, b: (a, b),
        lambda a, b: (a.exp() + 1, a.detach() * 1, a * 2),
    ):
        assert captured(combine)
    for combine in (
        lambda a, b: ipu_exec.identity_loss(a + 5 * b, "none"),
        lambda a, b: (ipu_exec.identity_loss(a + 5 * b, "none"), a, b),
        lambda a, b: 5 * b,
        lambda a, b: (a, b.detach()),
        lambda a, b: (a, a.exp()),
    ):
        assert not captured(combine)


@pytest.mark.parametrize(
    "beside",
    [lambda y: (y.argmax(-1) == 1).float().mean(), lambda y: y.pow(2).mean()],
    ids=["accuracy", "regulariser"],
)
def test_a_number_beside_the_loss_is_not_what_is_trained(beside):
    y = nn.Linear(3, 3)(torch.ones(1, 3))
    loss = nn.functional.cross_entropy(y, torch.tensor([1]))
    for returned in ((loss, beside(y)), (beside(y), loss), {"loss": loss, "other": [beside(y)]}):
        assert find_final_loss(returned) is loss
    own = y.abs().sum()
    for returned in ((loss, loss.exp()), (loss + 1, loss), (y[:, :1], own), (own, y[:, :1])):
        found = find_final_loss(returned)
        assert found is loss or found is own


class Masked(nn.Module):
    """Changes a softmax that its backward needs, in place or not (as in Wav2Vec2's pretraining)."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.in_place = nn.Linear(8, 8), in_place

    def forward(self, x: torch.Tensor, mask: torch.Tensor, target: torch.Tensor):
        scores = torch.softmax(self.layer(x), -1)
        if self.in_place:
            scores *= mask
        else:
            scores = scores * mask
        return scores, nn.functional.mse_loss(scores, target)


def test_what_the_backward_needs_may_be_changed_in_place_as_in_poptorch():
    """PyTorch refuses it.

    Nothing in a program of PopART's changes, so that its backward has what the forward had.
    """
    batch = torch.randn(8, 8), (torch.rand(8, 8) > 0.5).float(), torch.randn(8, 8)
    plain = Masked(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        plain(*batch)[1].backward()
    trained = []
    for in_place in (True, False):
        model = Masked(in_place)
        options = ipu_exec.Options().showCompilationProgressBar(False)
        options.Training.gradientAccumulation(2)
        executor = ipu_exec.trainingModel(
            model, options, ipu_exec.optim.SGD(model.parameters(), lr=0.5)
        )
        for _ in range(3):
            executor(*batch)
        trained.append(model.layer.weight.detach().clone())
        graph = executor.executable.graph
        names = [op.aten.split(".")[1] for op in graph.ops]
        assert graph.mutates is in_place
        # the softmax is kept for its gradient, and the product needs a copy of it only if it takes
        # its place
        assert ("clone" in names) is in_place
        gradient = next(op for op in graph.ops if op.aten.startswith("aten._softmax_backward_data"))
        outputs = {value for op in graph.ops for value in op.outputs}
        assert all(v in outputs for v in gradient.inputs)
    assert torch.equal(*trained)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * gradient * x


class Reversed(torch.autograd.Function):
    """Runs nothing forward, and changes the gradient (domain adaptation's reversal)."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def reentrant(x):
    return torch.utils.checkpoint.checkpoint(lambda x: torch.tanh(x * 3), x, use_reentrant=True)


def custom(x):
    ipu_exec.register_custom_op("CaptureSquare", "com.acme", lambda x: x * x)
    return ipu_exec.custom_op([x], "CaptureSquare", "com.acme", 1, [x])[0]


@pytest.mark.parametrize("apart", [Square.apply, Reversed.apply, reentrant, custom, torch.relu])
def test_the_backward_of_what_autograd_does_not_see_into_stays_in_its_block(apart):
    def forward(self, x):
        with ipu_exec.Block("A", ipu_id=0):
            x = apart(self.first(x))
        with ipu_exec.Block("B", ipu_id=1):
            return self.last(x).square().sum()

    model = model_of(forward, first=nn.Linear(8, 8), last=nn.Linear(8, 8))
    graph = training_graph(model, torch.randn(4, 8))
    backward = [op for op in graph.ops if op.direction == "backward"]
    # the last Block's comes first, and nothing of it comes after the first op of the other
    blocks = [op.block for op in backward if op.forward_op >= 0 and op.aten.split(".")[1] != "add_"]
    assert blocks == sorted(blocks, reverse=True)
    assert set(blocks) == {0, 1}
    for op in backward:
        if op.forward_op >= 0:
            assert op.block == graph.ops[op.forward_op].block
    assert sum(op.forward_op < 0 for op in backward) <= 2  # of the loss, which no op made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("layer", "name", "count"),
    [
        (nn.LSTM(8, 16, num_layers=2, batch_first=True), "lstm", 2),
        (nn.GRU(8, 16, bidirectional=True, dropout=0.5, num_layers=2), "gru", 4),
        (nn.RNN(8, 16, bias=False), "rnn_tanh", 1),
        (nn.RNN(8, 16, nonlinearity="relu"), "rnn_relu", 1),
    ],
)
def test_a_recurrent_layer_is_one_operator_each_way(layer, name, count, dtype):
    def forward(self, x):
        outputs, states = self.layer(x)
        last = states[0] if isinstance(states, tuple) else states
        assert outputs.shape == (5, 3, 16 * (1 + self.layer.bidirectional))
        assert last.shape == (count, 5 if self.layer.batch_first else 3, 16)
        return outputs.float().square().sum()

    before = torch._VF.lstm, torch._VF.gru
    model = model_of(forward, layer=copy.deepcopy(layer)).to(dtype)
    graph = training_graph(model, torch.randn(5, 3, 8, dtype=dtype))
    assert (torch._VF.lstm, torch._VF.gru) == before
    recurrent = [op.aten for op in graph.ops if op.aten.startswith("ipu_rnn.")]
    assert (
        recurrent
        == [f"ipu_rnn.{name}.default"] * count + [f"ipu_rnn.{name}_backward.default"] * count
    )
    # every weight has its gradient, of its own shape
    shapes = {
        graph.values[v].shape
        for op in graph.ops
        if op.aten.endswith("_backward.default")
        for v in op.outputs
    }
    assert {tuple(p.shape) for p in layer.parameters()} <= shapes


def test_a_packed_sequence_and_a_projection_are_taken_apart_as_pytorch_does():
    layer = nn.LSTM(8, 16, proj_size=4)
    model = model_of(lambda self, x: self.layer(x)[0].square().sum(), layer=layer)
    graph = training_graph(model, torch.randn(5, 3, 8))
    assert not any(op.aten.startswith("ipu_rnn.") for op in graph.ops)
