"""PopART's patterns that change what a program costs (ipu_exec.capture.rewrites.patterns)."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import ipu_exec
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.rows.block_rows import block_rows
from ipu_exec.graph import Graph, OpNode
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


MODE = ipu_exec.MatMulSerializationMode
PARTS = 4


def in_parts(head_ipu: int, product=None, change=None, replicas: int = 1) -> Executable:
    """A tied head in parts as the third stage, on the embedding's IPU or on another one."""
    product = product or (
        lambda x, w: ipu_exec.serializedMatMul(x, w.t(), MODE.OutputChannels, PARTS)
    )

    def forward(self, words: torch.Tensor, next_words: torch.Tensor) -> torch.Tensor:
        with ipu_exec.Block("words"):
            x = self.embedding(words)
        with ipu_exec.Block("layer"):
            x = self.layer(x)
        with ipu_exec.Block("head"):
            return torch.nn.functional.cross_entropy(product(x, self.embedding.weight), next_words)

    embedding, layer = torch.nn.Embedding(WORDS, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
    model = model_of(forward, embedding=embedding, layer=layer)
    options = ipu_exec.Options().showCompilationProgressBar(False).replicationFactor(replicas)
    options.Training.gradientAccumulation(8)
    options._Popart.setPatterns(TIED)
    ipus = zip(("words", "layer", "head"), (0, 1, head_ipu), strict=True)
    stages = [ipu_exec.Stage(name).ipu(ipu) for name, ipu in ipus]
    options.setExecutionStrategy(ipu_exec.PipelinedExecution(*stages))
    options.autoRoundNumIPUs(True)
    if change is not None:
        change(options)
    batch = (torch.randint(WORDS, (LOOKED_UP,)), torch.randint(WORDS, (LOOKED_UP,)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    return compile_step(model, batch, {}, options, optimiser, True)


def added_to_the_table(executable: Executable) -> list[OpNode]:
    graph = executable.graph
    return [
        op
        for op in graph.ops
        if op.aten.startswith("aten.add_") and op.direction == "backward"
        if graph.storages[graph.values[op.writes[0]].storage].name.startswith("embedding")
    ]


@pytest.mark.parametrize(
    "product",
    [
        lambda x, w: ipu_exec.serializedMatMul(x, w.t(), MODE.OutputChannels, PARTS),
        lambda x, w: ipu_exec.serializedMatMul(x, w.t(), MODE.ReducingDim, PARTS),
    ],
)
def test_a_serialised_products_gradient_is_added_in_slices(product):
    """Each before the next is computed: together they are the whole accumulator, each part once."""
    executable = in_parts(0, product)
    graph, adds = executable.graph, added_to_the_table(executable)[-PARTS:]
    touched = torch.zeros(WORDS * WIDTH)
    for op in adds:
        into, part = (graph.values[value] for value in op.inputs)
        assert into.shape == part.shape and len(graph.values[op.inputs[1]].shape) == 2
        torch.as_strided(touched, into.shape, into.strides, into.offset).add_(1)
        maker = next(op for op in graph.ops if part.storage in stored(graph, op.outputs))
        between = graph.ops[maker.id + 1 : op.id]
        assert maker.aten.startswith("aten.mm") and all(map(graph.only_aliases, between))
    assert (touched == 1).all()


def stored(graph: Graph, values) -> set[int]:
    return {graph.values[value].storage for value in values if value is not None}


@pytest.mark.parametrize(
    "product",
    [
        lambda x, w: torch.cat([x @ part for part in w.t().split(WORDS // PARTS, -1)], -1),
        lambda x, w: ipu_exec.serializedMatMul(x, w.t(), MODE.InputChannels, PARTS),
    ],
)
def test_other_gradients_stay_whole(product):
    (add,) = added_to_the_table(in_parts(0, product))
    assert add.inputs[0] == add.outputs[0]


def test_stages_of_an_ipu_add_to_one_accumulator():
    """On another IPU the gradient travels to the weight's stage instead."""
    home, away = in_parts(0), in_parts(2)
    for executable, stage, block in ((home, 2, "head"), (away, 0, "words")):
        placement, graph = executable.placement, executable.graph
        adds = added_to_the_table(executable)
        assert {placement.op_stage[op.id] for op in adds} == {stage}
        assert {graph.blocks[op.block].name for op in adds} == {block}
        into = [v for v in executable.variables if v.name.startswith("embedding.weight/acc")]
        assert [(v.ipu, v.bytes, v.always_live) for v in into] == [(0, WORDS * WIDTH * 4, 1)]
        sent = {t.storage for t in placement.transfers if t.direction == "backward"}
        parts = {graph.values[op.inputs[1]].storage for op in adds}
        assert len(parts & sent) == (0 if executable is home else PARTS)
    # what would cross each cut is said of Blocks on IPUs of their own: the same of both
    assert [(row.copy_bytes, row.copy_back_bytes) for row in block_rows(home)] == [
        (row.copy_bytes, row.copy_back_bytes) for row in block_rows(away)
    ]
    table = WORDS * WIDTH * 4
    assert all(row.copy_back_bytes >= table for row in block_rows(home)[:2])
    # at home no two parts of the gradient are live at once
    shape = f"[{WORDS // PARTS}, {WIDTH}]"
    parts = [v for v in home.variables if v.role == "gradient" and v.shape == shape]
    spans = sorted((v.start, v.stop) for v in parts)
    assert len(spans) == PARTS and all(a[1] <= b[0] for a, b in pairwise(spans))


@pytest.mark.parametrize(
    ("change", "share"),
    [
        (lambda to: to.useReplicatedTensorSharding(True), 2),
        (lambda to: to.useOnChipStorage(False), 1),
    ],
)
def test_slices_of_accumulators_that_are_not_whole_on_the_chip(change, share):
    def of_accumulators(options):
        to = ipu_exec.TensorLocationSettings().minElementsForReplicatedTensorSharding(2)
        options.TensorLocations.setAccumulatorLocation(change(to.minElementsForOffChip(2)))

    executable = in_parts(0, change=of_accumulators, replicas=2)
    adds = added_to_the_table(executable)
    assert len(adds) == PARTS and {executable.placement.op_stage[op.id] for op in adds} == {2}
    name = "embedding.weight/accumulator"
    (held,) = {
        v.bytes for v in executable.variables if v.name.startswith(name) and v.role == "accumulator"
    }
    assert held == pytest.approx(WORDS * WIDTH * 4 / share, rel=0.01)
    for op in adds:
        flops = executable.tree.op_plans[op.id].flops
        assert flops == pytest.approx(WORDS * WIDTH / PARTS / share, rel=0.02)  # rounded up
