"""Tensor sharding: what one of the IPUs that share a stage's tensors runs, holds and exchanges."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

import ipu_exec
from examples.models import Example, gpt3
from examples.models.gpt2 import Decoder, Gpt2Config
from ipu_exec.compiler.executable import Executable
from ipu_exec.machine import TARGETS
from ipu_exec.session.compilation import compile_step
from ipuscope.profiler.timeline import schedule_types
from ipuscope.profiler.timeline.links import ring_cycles

CONFIG = Gpt2Config(hidden=256, heads=8, sequence=64)
PLAN = {
    "layer.qkv": "colwise",
    "layer.output": "rowwise",
    "layer.expand": ColwiseParallel(),
    "layer.contract": RowwiseParallel(),
}


class OneLayer(nn.Module):
    """A transformer layer with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Decoder(CONFIG)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ipu_exec.Block("layer"):
            return self.layer(x).square().mean()


def compiled(
    shards: int,
    plan: Mapping[str, Any] | str = PLAN,
    model: nn.Module | None = None,
    batch: tuple[torch.Tensor, ...] | None = None,
    options: ipu_exec.Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Executable:
    model = model if model is not None else OneLayer()
    options = (options or ipu_exec.Options()).showCompilationProgressBar(False)
    options.tensorSharding(shards, plan).Training.gradientAccumulation(16)
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    inputs = batch or (torch.randn(1, CONFIG.sequence, CONFIG.hidden),)
    return compile_step(model, inputs, {}, options, optimizer, True)


def collectives(made: Executable, task: int) -> list[Any]:
    return [
        step
        for body in made.tree.bodies
        if body.task == task
        for step in body.steps
        if step.type == "GlobalExchange" and step.plan is not None
    ]


@pytest.mark.parametrize("shards", [2, 4, 8])
def test_two_all_reduces_each_way_of_2_t_minus_1_over_t_of_the_activation(shards: int) -> None:
    executable = compiled(shards)
    activation = CONFIG.sequence * CONFIG.hidden * 4
    for task in (schedule_types.FORWARD, schedule_types.BACKWARD):
        steps = collectives(executable, task)
        assert [step.op >= 0 for step in steps] == [True, True]
        for step in steps:
            assert step.bytes_in.sum() == step.bytes_out.sum()
            assert step.bytes_in.sum() == 2 * activation * (shards - 1) // shards
            assert step.cycles == ring_cycles(TARGETS["mk2"].links, 0, 1, shards, activation, 2)


def test_products_fall_with_the_shards() -> None:
    """Floating-point operations and cycles of a layer's products, by the granularity of plans."""

    def products(made: Executable) -> tuple[int, int]:
        ops = [op.id for op in made.graph.ops if op.aten.split(".")[1] in ("mm", "addmm")]
        flops = sum(made.tree.op_plans[op].flops for op in ops)
        return flops, sum(made.tree.op_cycles[op] for op in ops)

    flops, cycles = products(compiled(1))
    for shards in (2, 4, 8):
        fewer, less = products(compiled(shards))
        assert fewer == pytest.approx(flops / shards, rel=0.05)  # biases are whole
        assert less < cycles
        cycles = less


def test_each_ipu_stores_its_share_of_weights_and_state() -> None:
    """1 / t of the tensors that are cut; norms and the biases after all-reduces are whole."""
    whole = 2 * 2 * CONFIG.hidden + 2 * CONFIG.hidden  # two norms, two biases
    cut = sum(p.numel() for p in OneLayer().parameters()) - whole
    for shards in (1, 2, 4, 8):
        executable = compiled(shards)
        for role, copies in (("weight", 1), ("accumulator", 1), ("optimiser state", 2)):
            held = sum(v.bytes for v in executable.variables if v.role == role)
            steps = 4 * 12 if role == "optimiser state" else 0  # AdamW counts steps a weight
            assert held == copies * 4 * (whole + cut // shards) + steps


def model_of(layers: int = 4, **sizes: int) -> Example:
    return gpt3.example(replace(gpt3.TINY, layers=layers, **sizes))


def test_weights_are_shared_over_shards_stages_and_replicas() -> None:
    """Each IPU's stored weights are 1 / (t p rts) of the model's, where layers are alike."""
    shards, stages, replicas = 4, 2, 2
    with ipu_exec.no_weights():
        example = model_of(layers=4, hidden=128)
    options = ipu_exec.Options().replicationFactor(replicas)
    half = 1 + 4 * 2  # two of four layers, behind the embedding
    parts = example.blocks[:half], example.blocks[half:]
    two = (ipu_exec.Stage(*blocks).ipu(ipu) for ipu, blocks in enumerate(parts))
    options.setExecutionStrategy(ipu_exec.PipelinedExecution(*two))
    location = ipu_exec.TensorLocationSettings().useReplicatedTensorSharding()
    options.TensorLocations.setWeightLocation(location.minElementsForReplicatedTensorSharding(1024))
    executable = compiled(shards, gpt3.plan(), example.module, example.inputs(1), options)
    assert executable.attached_ipus == shards * stages
    matrices = [
        (name, p)
        for name, p in example.module.named_parameters()
        if name.split(".")[0] in ("qkv", "mix", "first", "second")
    ]
    names = {name for name, p in matrices if p.dim() > 1}
    nbytes = 4 * sum(p.numel() for name, p in matrices if name in names)
    for ipu in range(stages):
        mine = [
            v
            for v in executable.variables
            if v.ipu == ipu and v.role == "weight" and v.name in names
        ]
        held = sum(v.bytes for v in mine)
        rounded = sum(4 * np.count_nonzero(v.tile_bytes) for v in mine)  # up, on each tile
        share = nbytes / (shards * stages * replicas)
        assert share <= held < share + rounded / replicas
        assert held == pytest.approx(share, rel=0.1)


def test_equal_parts_of_sharded_layers_are_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last of each part of a layer run, in one run of the model."""
    ran: dict[str, int] = {}
    for part in (gpt3.Qkv, gpt3.Mix, gpt3.Inner):
        forward = part.forward

        def counted(self: Any, *args: Any, forward: Any = forward) -> Any:
            ran[type(self).__name__] = ran.get(type(self).__name__, 0) + 1
            return forward(self, *args)

        monkeypatch.setattr(part, "forward", counted)
    with ipu_exec.no_weights():
        example = model_of(layers=6)
    executable = compiled(2, gpt3.plan(), example.module, example.inputs(1))
    assert ran == {"Qkv": 2, "Mix": 2, "Inner": 4}
    assert {op.module for op in executable.graph.ops} >= {f"first.{layer}" for layer in range(6)}


def test_a_layer_that_a_style_wraps_is_captured_as_it_runs() -> None:
    """What a parallel style does around a layer's forward does not belong to the layer."""

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x).square().mean()

    plan = {"layers.*": ColwiseParallel(output_layouts=Replicate())}
    executable = compiled(2, plan, Chain(), (torch.randn(4, 16),))
    assert len(collectives(executable, schedule_types.FORWARD)) == 4


def test_a_memory_proportion_holds_for_a_shared_result() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(64, 128)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = ipu_exec.set_available_memory(self.head(x), 0.125)
            return nn.functional.cross_entropy(scores, x.argmax(-1))

    plan = {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    executable = compiled(2, plan, Head(), (torch.randn(16, 64),))
    products = [op for op in executable.graph.ops if op.aten.split(".")[1] in ("mm", "addmm")]
    assert products and all(op.attributes.proportion == 0.125 for op in products)


class Inner(nn.Module):
    """The inner layers of a transformer, on a part of the sequence outside the products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(CONFIG.hidden)
        self.expand = nn.Linear(CONFIG.hidden, 4 * CONFIG.hidden)
        self.contract = nn.Linear(4 * CONFIG.hidden, CONFIG.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.contract(torch.relu(self.expand(self.norm(x))))).square().mean()


def test_collectives_of_a_sequence_that_is_shared() -> None:
    """A gather before the products and a reduce-scatter after them replace an all-reduce."""
    plan = {
        "": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
        ),
        "norm": SequenceParallel(use_local_output=True),
        "expand": ColwiseParallel(input_layouts=Shard(1)),
        "contract": RowwiseParallel(output_layouts=Shard(1)),
    }
    executable = compiled(4, plan, Inner())
    steps = collectives(executable, schedule_types.FORWARD)
    assert [executable.graph.ops[step.op].aten.split(".")[1] for step in steps] == [
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
    ]
    activation = CONFIG.sequence * CONFIG.hidden * 4
    assert [step.bytes_in.sum() for step in steps] == [activation * 3 // 4] * 2


def test_norms_of_weights_that_are_shared_are_reduced() -> None:
    """LAMB reduces the norm of a matrix shared by IPUs, not that of a weight each has whole."""
    model = OneLayer()
    optimizer = ipu_exec.optim.LAMB(model.parameters(), lr=0.1)
    executable = compiled(2, PLAN, model, optimizer=optimizer)
    update = next(body for body in executable.tree.bodies if body.task == schedule_types.UPDATE)
    reduced = {
        executable.graph.ops[s.op].module for s in update.steps if s.type == "GlobalExchange"
    }
    assert reduced == {"layer/qkv", "layer/output", "layer/expand", "layer/contract"}


def test_the_model_is_left_as_it_was() -> None:
    model = OneLayer()
    before = {name: id(p) for name, p in model.named_parameters()}
    attributes = [dict(vars(module)) for module in model.modules()]
    compiled(4, PLAN, model)
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert [dict(vars(module)) for module in model.modules()] == attributes
    assert not torch.distributed.is_initialized()


def test_numbers_are_the_unsharded_models() -> None:
    losses = []
    for shards in (1, 4):
        torch.manual_seed(0)
        model = OneLayer()
        options = ipu_exec.Options().showCompilationProgressBar(False).tensorSharding(shards, PLAN)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trained = ipu_exec.trainingModel(model, options, optimizer)
        batch = torch.randn(2, CONFIG.sequence, CONFIG.hidden)
        losses.append([float(trained(batch[:1])) for _ in range(2)])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("vocabulary", [128, 132])
def test_a_vocabulary_is_shared_by_embedding_head_and_loss(vocabulary: int) -> None:
    example = model_of(vocabulary=vocabulary)
    if vocabulary % 8:
        with pytest.raises(ipu_exec.Error, match=r"'word.weight': its dimension 0 has 132.*136"):
            compiled(8, gpt3.plan(), example.module, example.inputs(1))
        return
    executable = compiled(8, gpt3.plan(), example.module, example.inputs(1))
    tables = ("word.weight", "head.weight")
    for weight in (v for v in executable.variables if v.name in tables and v.role == "weight"):
        assert weight.bytes == vocabulary // 8 * gpt3.TINY.hidden * 4
    # nobody has the scores, or the gradient, of the whole vocabulary
    assert all(vocabulary not in value.shape for value in executable.graph.values.values())


@pytest.mark.parametrize(
    ("shards", "plan", "said"),
    [
        (3, PLAN, "a power of two"),
        (0, PLAN, "a power of two"),
        (2, {"layer.nothing": "colwise"}, "'layer.nothing' is not a module of OneLayer"),
        (2, {"layer.qkv": "sideways"}, "'sideways' is not a style"),
        (2, {"layer.qkv": 7}, "a style is one of torch.distributed.tensor.parallel"),
        (2, "auto", "OneLayer has no tp_plan"),
        (2, {"layer.norm": ColwiseParallel()}, "PyTorch refuses ColwiseParallel for 'layer.norm'"),
        (16, PLAN, "in module 'layer': shape.*view"),  # 8 heads
        (512, PLAN, "at most 256"),
    ],
)
def test_bad_plans_say_what_is_wrong(shards: int, plan: Any, said: str) -> None:
    logged: list[logging.LogRecord] = []
    log = logging.getLogger("torch._subclasses.fake_tensor")
    listener = logging.Handler()
    listener.emit = logged.append  # type: ignore[method-assign]
    log.addHandler(listener)
    with pytest.raises(ipu_exec.Error, match=said):
        compiled(shards, plan)
    log.removeHandler(listener)
    assert not logged, "PyTorch's traceback stands before the error"
    assert not torch.distributed.is_initialized()


def test_more_ipus_than_there_are() -> None:
    options = ipu_exec.Options().replicationFactor(64)
    with pytest.raises(ipu_exec.Error, match=r"8 x 1 x 64 = 512 IPUs"):
        compiled(8, options=options)


def test_a_model_says_its_own_plan() -> None:
    model = OneLayer()
    model.layer._tp_plan = {"qkv": "colwise", "output": "rowwise"}
    executable = compiled(2, "auto", model)
    assert len(collectives(executable, schedule_types.FORWARD)) == 1
