"""Blocks for models that name none, by the module tree and the captured graph."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import ipu_exec
from ipu_exec.compiler import passes
from ipu_exec.errors import PipelineDepthError
from ipu_exec.graph import Graph
from ipu_exec.session.compile_options import compile_options
from ipu_exec.session.proposed_blocks import (
    deep_enough,
    prepare,
    propose,
    script_lines,
)
from tests.models import model_of


class Layer(torch.nn.Module):
    """Two linear layers, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.contract = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.contract(self.expand(x))


class Transformer(torch.nn.Module):
    """An embedding, layers in a list, a head."""

    def __init__(self, layers: int = 3, tied: bool = False) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(32, 16)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.unused = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(16, 32)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def captured(model: torch.nn.Module, *inputs: torch.Tensor) -> Graph:
    asked = compile_options(ipu_exec.Options(), False, 2, {})
    return passes.capture_model(model, inputs, {}, None, (), asked)


TOKENS = torch.zeros(2, 4, dtype=torch.long)
NUMBERS = torch.zeros(2, 8)


def test_layers_of_a_list_an_embedding_and_a_head_begin_blocks_as_they_are_called() -> None:
    model = Transformer()
    blocks = propose(model, captured(model, TOKENS), 4)
    assert blocks == ("embed", "layers.0", "layers.1", "layers.2", "head")


def test_a_model_in_a_wrapper_with_its_loss_is_looked_into() -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    model = model_of(lambda self, x: (y := self.model(x), y.square().mean()), model=plain)
    assert propose(model, captured(model, NUMBERS), 2) == ("model.0", "model.2")


def test_layers_are_cut_inside_only_where_no_more_crosses_than_at_their_beginning() -> None:
    model = Transformer(layers=1)
    blocks = propose(model, captured(model, TOKENS), 4)
    parts = ("layers.0.norm1", "layers.0.linear1", "layers.0.norm2")
    # linear2 would send the hidden layer, twice as wide, and the residual beside it
    assert blocks == ("embed", "layers.0", *parts, "head")


def test_a_module_that_the_model_returns_to_begins_no_block() -> None:
    again, once = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    model = model_of(lambda self, x: self.again(self.once(self.again(x))), again=again, once=once)
    assert propose(model, captured(model, NUMBERS), 1) == ("once",)


def test_lists_in_lists_are_opened_up_to_their_layers() -> None:
    stage = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)) for _ in range(2)]
    model = torch.nn.Sequential(*stage)
    assert propose(model, captured(model, NUMBERS), 2) == ("0.0", "0.1", "1.0", "1.1")


def test_lists_of_layers_inside_layers_are_opened() -> None:
    """As hierarchical networks have them: stages in a list, each with a list of its layers."""

    def stage() -> torch.nn.Module:
        down, blocks = torch.nn.Linear(8, 8), torch.nn.Sequential(Layer(), Layer())
        return model_of(lambda self, x: self.blocks(self.down(x)), down=down, blocks=blocks)

    stages = torch.nn.Sequential(stage(), stage())
    model = model_of(lambda self, x: self.stages(x).sum(), stages=stages)
    names = propose(model, captured(model, NUMBERS), 2)
    each = ("down", "blocks.0", "blocks.1")
    assert names == tuple(f"stages.{k}.{part}" for k in range(2) for part in each)


def test_a_batch_is_cut_only_where_every_input_can_be(tmp_path: Path) -> None:
    """The edges of a graph are two rows, whatever the nodes; the plan is of the other model."""
    of_other = {"kind": "inference", "state_in_parts": False}
    counts = ("shards", "replicas", "micro_batch", "accumulation", "script_samples")
    stages = [{"ipu": ipu, "blocks": [f"B{ipu}"]} for ipu in range(4)]
    content = {"format": "ipuscope placement", "version": 2, "stages": stages}
    content["mapping"] = {**of_other, **dict.fromkeys(counts, 1)}
    (tmp_path / "plan.json").write_text(json.dumps(content))
    model = torch.nn.Linear(8, 8)

    def accumulation(*inputs: torch.Tensor) -> int:
        options = ipu_exec.Options().loadPlacement(tmp_path / "plan.json")
        options = prepare(model, options, True, inputs) or options
        return int(options.Training.gradient_accumulation)

    assert accumulation(torch.zeros(32, 8), torch.zeros(2, 100)) == 1
    assert accumulation(torch.zeros(32, 8), torch.zeros(8)) == 8


def test_a_batch_is_cut_into_the_next_number_of_micro_batches_that_divides_it() -> None:
    options = ipu_exec.Options().replicationFactor(2)
    deeper = deep_enough(options, True, 7, 32)
    assert deeper.Training.gradient_accumulation == 8
    assert options.Training.gradient_accumulation == 1
    assert deep_enough(deeper, True, 7, 32) is deeper
    assert deep_enough(options, False, 3, 10).device_iterations == 5


def test_a_batch_that_is_too_small_is_said() -> None:
    with pytest.raises(PipelineDepthError, match="at least 7; it is 1, and the 6 samples") as error:
        deep_enough(ipu_exec.Options(), True, 7, 6)
    assert error.value.least == 7


@pytest.mark.parametrize(("ipus", "returns"), [((0, 1, 1), False), ((0, 1, 0), True)])
def test_the_lines_of_a_script(ipus: Sequence[int], returns: bool) -> None:
    names = ("embed", "layers.3", "odd-name.head")
    lines = list(script_lines(names, ipus, 8, True))
    assert lines[1] == 'poptorch.BeginBlock(model.layers[3], "layers.3", ipu_id=1)'
    assert 'model.get_submodule("odd-name.head")' in lines[2]
    assert lines[-1] == "options.Training.gradientAccumulation(8)"
    assert any("AutoStage.AutoIncrement" in line for line in lines) is returns
