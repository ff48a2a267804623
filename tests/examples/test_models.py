"""Each model family compiles, training and inference, on one IPU and as a pipeline, without a
fallback.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ipu_exec
from examples.models import NAMES, Example, build, split
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.rows.profile_rows import op_rows, stage_rows
from ipu_exec.session.compilation import compile_step
from tests.models import Mnist, mnist_batch

# One of each family: sizes of a family lower the same operators.
FAMILIES = [name for name in NAMES if name not in ("bert-base", "gpt2-small")]


def compiled(
    name: str, stages: int, training: bool, optimiser: Any = torch.optim.AdamW
) -> Executable:
    example = build(name, tiny=True)
    options = (
        ipu_exec.Options()
        .showCompilationProgressBar(False)
        .setExecutionStrategy(split(example, stages))
    )
    if training:
        options.Training.gradientAccumulation(2 * stages)
    else:
        options.deviceIterations(stages)
        example.module.eval()
    optimizer = optimiser(example.module.parameters(), lr=0.01) if training else None
    return compile_step(
        example.module, example.inputs(example.micro_batch), {}, options, optimizer, training
    )


@pytest.mark.parametrize(("stages", "training"), [(2, True), (1, False)])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_compiles_without_a_fallback(name: str, stages: int, training: bool) -> None:
    executable = compiled(name, stages, training)
    rows = list(op_rows(executable))
    assert not [row.aten for row in rows if row.estimated]
    blocks = build(name, tiny=True).blocks
    assert [block.name for block in executable.graph.blocks] == list(blocks)
    assert executable.cycles_per_call > 0
    assert executable.overflow is None
    directions = {row.direction for row in rows}
    assert directions == ({"forward", "backward", "update"} if training else {"forward"})


@pytest.mark.parametrize(
    "optimiser",
    [
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.RMSprop,
        ipu_exec.optim.LAMB,
        ipu_exec.optim.LARS,
    ],
)
def test_every_optimiser_is_lowered(optimiser: type) -> None:
    rows = list(op_rows(compiled("bert-large", 2, True, optimiser)))
    assert any(row.direction == "update" for row in rows)
    assert not any(row.estimated for row in rows)


def test_a_tied_weight_is_held_once() -> None:
    executable = compiled("gpt2-medium", 1, True)
    weights = [v.name for v in executable.variables if v.role == "weight"]
    assert len(weights) == len(set(weights))
    assert sum("word" in name for name in weights) == 1


def test_gradients_clipped_by_the_optimiser_are_lowered() -> None:
    def clipping(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return ipu_exec.optim.AdamW(parameters, lr=lr, max_grad_norm=1.0)

    executable = compiled("bert-large", 2, True, clipping)
    norms = [op for op in executable.graph.ops if op.direction == "update" and "norm" in op.aten]
    plain = [
        op
        for op in compiled("bert-large", 2, True).graph.ops
        if op.direction == "update" and "norm" in op.aten
    ]
    trained = sum(p.requires_grad for p in build("bert-large", tiny=True).module.parameters())
    assert not plain
    assert sum(len(op.inputs) for op in norms) >= trained  # of each gradient, then of the norms
    assert not any(row.estimated for row in op_rows(executable))


class Clipped(torch.nn.Module):
    """Clips by itself what comes back through it, as a model with gradient clipping inside does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Mnist()

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        out, loss = self.inner(images, labels)
        grads = torch.autograd.grad(
            loss, list(self.inner.parameters()), retain_graph=True, create_graph=True
        )
        total = torch.nn.utils.get_total_norm(grads)
        return out, ipu_exec.identity_loss(loss + torch.relu(total - 1.0), "none")


def compiled_on_nothing(
    example: Example,
    stages: int,
    training: bool,
    accumulation: int,
    optimiser: type = ipu_exec.optim.AdamW,
) -> Executable:
    """A model of its real size, in float16, without weights in memory."""
    module = example.module.half().train(training)
    options = (
        ipu_exec.Options()
        .showCompilationProgressBar(False)
        .setExecutionStrategy(split(example, stages))
    )
    if training:
        options.Training.gradientAccumulation(accumulation)
    else:
        options.deviceIterations(stages)
    inputs = tuple(
        t.half() if t.is_floating_point() else t for t in example.inputs(example.micro_batch)
    )
    optimizer = optimiser(module.parameters(), lr=0.01) if training else None
    return compile_step(module, inputs, {}, options, optimizer, training)


@pytest.mark.parametrize(
    ("name", "parameters"), [("bert-base", 109_482_240), ("gpt2-small", 124_439_808)]
)
def test_a_model_of_its_real_size_compiles_without_weights_in_memory(
    name: str, parameters: int
) -> None:
    with torch.device("meta"):
        example = build(name)
    executable = compiled_on_nothing(example, 4, True, 16, ipu_exec.optim.LAMB)
    weights = sum(s.elements for s in executable.graph.storages.values() if s.role == "weight")
    assert weights == pytest.approx(parameters, rel=0.03)
    assert not any(row.estimated for row in op_rows(executable))
    # a weight is multiplied with every token once forward and twice backward, two flops each
    tokens = example.micro_batch * example.inputs(1)[0].shape[-1]
    flops = sum(row.flops for row in op_rows(executable) if row.direction != "update")
    assert flops > 6 * 0.7 * parameters * tokens


def test_mnist_in_its_four_blocks() -> None:
    options = ipu_exec.Options().showCompilationProgressBar(False)
    blocks = ("B1", "B2", "B3", "B4")
    options.setExecutionStrategy(
        ipu_exec.PipelinedExecution(*(ipu_exec.Stage(b).ipu(i) for i, b in enumerate(blocks)))
    )
    options.Training.gradientAccumulation(16)
    model = Mnist()
    executable = compile_step(
        model, mnist_batch(8), {}, options, torch.optim.SGD(model.parameters(), lr=0.1), True
    )
    assert [stage.ipu for stage in stage_rows(executable)] == [0, 1, 2, 3]
    assert executable.overflow is None
    assert not any(row.estimated for row in op_rows(executable))


def test_a_model_may_look_at_its_own_gradients() -> None:
    model = Clipped()
    options = ipu_exec.Options().showCompilationProgressBar(False)
    executable = compile_step(
        model, mnist_batch(8), {}, options, torch.optim.SGD(model.parameters(), lr=0.1), True
    )
    assert not any(row.estimated for row in op_rows(executable))
