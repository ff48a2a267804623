"""Each model family compiles, training and inference, on one IPU and as a pipeline, without a fallback."""

from __future__ import annotations

import pytest
import torch

import ipu_exec
from examples.models import NAMES, build, split
from ipu_exec.compile import Executable, compile_step

# One of each family: sizes of a family lower the same operators.
FAMILIES = [name for name in NAMES if name not in ("bert-base", "gpt2-small")]


def compiled(name: str, stages: int, training: bool, optimiser: type = torch.optim.AdamW) -> Executable:
    example = build(name, tiny=True)
    options = ipu_exec.Options().showCompilationProgressBar(False).setExecutionStrategy(split(example, stages))
    if training:
        options.Training.gradientAccumulation(2 * stages)
    else:
        options.deviceIterations(stages)
        example.module.eval()
    made = optimiser(example.module.parameters(), lr=0.01) if training else None
    return compile_step(example.module, example.inputs(example.micro_batch), {}, options, made, training)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_compiles_without_a_fallback(name: str, stages: int, training: bool) -> None:
    executable = compiled(name, stages, training)
    rows = list(executable._op_rows())
    assert not [row.aten for row in rows if row.estimated]
    blocks = build(name, tiny=True).blocks
    assert [block.name for block in executable.graph.blocks] == list(blocks)
    assert executable.cycles_per_call > 0
    assert executable.overflow is None
    directions = {row.direction for row in rows}
    assert directions == ({"forward", "backward", "update"} if training else {"forward"})


@pytest.mark.parametrize(
    "optimiser", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, ipu_exec.optim.LAMB]
)
def test_every_optimiser_is_lowered(optimiser: type) -> None:
    rows = list(compiled("bert-large", 2, True, optimiser)._op_rows())
    assert any(row.direction == "update" for row in rows)
    assert not any(row.estimated for row in rows)


def test_a_tied_weight_is_held_once() -> None:
    executable = compiled("gpt2-medium", 1, True)
    weights = [v.name for v in executable.variables if v.role == "weight"]
    assert len(weights) == len(set(weights))
    assert sum("word" in name for name in weights) == 1
