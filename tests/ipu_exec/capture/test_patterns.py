"""PopART's patterns that change what a program costs (ipu_exec.capture.patterns)."""

from __future__ import annotations

import pytest
import torch

import ipu_exec
from ipu_exec.compiler.executable import Executable
from ipu_exec.session.compilation import compile_step
from tests.models import model_of

WORDS, WIDTH, LOOKED_UP = 8000, 64, 16
TIED = {"TiedGather": True, "TiedGatherAccumulate": True}


def next_word(self, words: torch.Tensor, next_words: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(self.head(self.embedding(words)), next_words)


def compiled(tied: bool, patterns: dict[str, bool], accumulation: int = 4) -> Executable:
    embedding = torch.nn.Embedding(WORDS, WIDTH)
    head = torch.nn.Linear(WIDTH, WORDS, bias=False)
    if tied:
        head.weight = embedding.weight
    model = model_of(next_word, embedding=embedding, head=head)
    options = ipu_exec.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    options._Popart.setPatterns(patterns)
    batch = (torch.randint(WORDS, (LOOKED_UP,)), torch.randint(WORDS, (LOOKED_UP,)))
    return compile_step(
        model, batch, {}, options, torch.optim.SGD(model.parameters(), lr=0.1), True
    )


def dense_gradients(executable: Executable) -> int:
    """The number of gradients of the table's full size."""
    return sum(v.role == "gradient" and v.bytes >= WORDS * WIDTH * 4 for v in executable.variables)


def names(executable: Executable) -> list[str]:
    return [op.aten for op in executable.graph.ops if op.direction == "backward"]


@pytest.mark.parametrize(
    ("tied", "patterns", "dense"),
    [
        (False, {}, 1),  # the head's alone
        (False, {"SparseAccumulate": False}, 2),
        (True, {}, 3),  # both and their sum
        (True, TIED, 1),
        (True, {**TIED, "SparseAccumulate": False}, 3),
    ],
)
def test_an_embeddings_gradient_is_added_row_by_row(tied, patterns, dense):
    executable = compiled(tied, patterns)
    assert dense_gradients(executable) == dense
    sparse = [op for op in executable.graph.ops if op.aten.startswith("aten.index_put_")]
    assert len(sparse) == ("embedding_dense_backward" not in " ".join(names(executable)))
    for op in sparse:
        into = executable.graph.storages[executable.graph.values[op.writes[0]].storage]
        assert into.role == "accumulator" and into.name.startswith("embedding.weight")


def test_rows_cost_less_than_a_table():
    assert compiled(True, TIED).cycles_per_call < compiled(True, {}).cycles_per_call
    assert (
        compiled(False, {}).cycles_per_call
        < compiled(False, {"SparseAccumulate": False}).cycles_per_call
    )


def test_a_tied_products_gradient_is_added_before_the_rest_of_the_backward():
    """It does not wait for the embedding's rows: the table's size is free again at once."""
    executable = compiled(True, TIED)
    ops = [op for op in executable.graph.ops if op.direction == "backward"]
    adds = [n for n, op in enumerate(ops) if op.aten.startswith("aten.add_")]
    rows = next(n for n, op in enumerate(ops) if op.aten.startswith("aten.index_put_"))
    made = [n for n, op in enumerate(ops) if set(op.outputs) & set(ops[adds[0]].inputs[1:])]
    assert len(adds) == 1 and adds[0] == made[0] + 1 < rows
    gradient = max((v for v in executable.variables if v.role == "gradient"), key=lambda v: v.bytes)
    steps = [step for body in executable.tree.bodies for step in body.steps]
    assert gradient.bytes >= WORDS * WIDTH * 4
    assert "index_put" not in " ".join(step.name for step in steps[gradient.start : gradient.stop])


def test_without_an_accumulator_nothing_is_rewritten():
    assert "aten.embedding_dense_backward.default" in names(compiled(True, TIED, accumulation=1))


def test_operators_are_numbered_in_order_after_a_rewrite():
    executable = compiled(True, TIED)
    graph = executable.graph
    assert [op.id for op in graph.ops] == list(range(len(graph.ops)))
    for op in graph.ops:
        assert op.forward_op < op.id
        for value in (*op.inputs, *op.writes, *(v for v in op.outputs if v is not None)):
            assert value in graph.values
    for value in graph.values.values():
        assert value.producer < len(graph.ops)
        if value.producer >= 0:
            assert value.id in graph.ops[value.producer].outputs
