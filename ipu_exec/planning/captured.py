"""The model as graphs: one for each micro-batch size and each number of shards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ipu_exec.capture.control_flow import read_contents
from ipu_exec.compiler import passes
from ipu_exec.compiler.options import CompileOptions
from ipu_exec.errors import ContentError, UsageError
from ipu_exec.graph import Graph
from ipu_exec.session import proposed_blocks
from ipu_exec.session.applied_levers import pull_on_inputs
from ipu_exec.session.call_plan import FirstCall, samples_of
from ipu_exec.session.compile_options import compile_options
from ipuscope.planner.levers.settings import Levers
from ipuscope.planner.mappings import Key

NO_BATCH = (
    "no input has a batch dimension, so that there are no samples to cut into micro-batches: give"
    " the model tensors whose first dimension counts samples"
)


class Captured:
    """Graphs of a first call's model, each captured on first use."""

    def __init__(self, call: FirstCall, stages: int) -> None:
        """``stages``: the number of stages that a model without Blocks is to be given."""
        self.call, self._stages = call, stages
        self.modules: tuple[str, ...] = ()  # that begin a Block each, where the model names none
        self._graphs: dict[tuple[int, int, bool], Graph] = {}
        self.samples = samples_of(call.micro_batch)
        check_batch(call)

    def graph(self, key: Key) -> Graph:
        """The graph that a key's costs come from. Errors are those of a capture."""
        wanted = (key.shards, key.micro_batch, key.accumulates)
        if wanted not in self._graphs:
            with self.call.prepared():
                self._graphs[wanted] = self._captured(key)
        return self._graphs[wanted]

    def options(self, key: Key) -> CompileOptions:
        """The script's compile options, for the key's micro-batch."""
        call = self.call
        from_script = compile_options(call.options, call.training, key.micro_batch, call.groupings)
        return replace(from_script, shards=key.shards)

    def _captured(self, key: Key) -> Graph:
        inputs = pull_on_inputs(
            self.call.micro_batch, Levers(micro_batch=key.micro_batch), self.samples
        )
        graph = self._once(key, inputs)
        if not graph.blocks:
            model = self.call.model
            self.modules = self.modules or proposed_blocks.propose(model, graph, self._stages)
            proposed_blocks.begin_blocks(model, self.modules)
            graph = self._once(key, inputs)
        return graph

    def _once(self, key: Key, inputs: Any) -> Graph:
        args, kwargs = inputs
        call = self.call
        optimizer = call.optimizer if call.training else None
        options = replace(self.options(key), micro_batches=2 if key.accumulates else 1)
        sharding = replace(call.options.tensor_sharding, shards=key.shards)
        for_whom = (call.model, args, kwargs, optimizer)
        try:
            return passes.capture_model(*for_whom, (), options, sharding)
        except ContentError:
            contents = read_contents(call.model, args, kwargs, call.training)
            return passes.capture_model(*for_whom, contents, options, sharding)


def check_batch(call: FirstCall) -> None:
    """UsageError where no input counts samples."""
    tensors = [one for one in tree_leaves(call.micro_batch) if isinstance(one, torch.Tensor)]
    if not tensors or not tensors[0].dim():
        raise UsageError(NO_BATCH)
