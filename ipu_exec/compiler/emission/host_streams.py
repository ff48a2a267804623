"""The tensors that the host sends and receives, by stage, and which of them are overlapped."""

from __future__ import annotations

from ipu_exec.compiler.options import CompileOptions
from ipu_exec.compiler.placement.place import Placement
from ipu_exec.enums import OverlapMode
from ipu_exec.graph import Graph
from ipuscope.profiler.enums import Direction

_NO_OVERLAP = OverlapMode.NoOverlap.value
Streams = dict[tuple[int, bool], list[int]]  # (stage, over I/O tiles) -> storages


def inputs_by_stage(graph: Graph, placement: Placement, options: CompileOptions) -> Streams:
    """Inputs by the stage that reads them first; an input that nothing reads is not sent."""
    inputs: Streams = {}
    for value in graph.inputs if options.host_io else ():
        storage = graph.values[value].storage
        if storage in placement.home:
            beside = graph.overlapped_inputs.get(storage, _NO_OVERLAP) != _NO_OVERLAP
            inputs.setdefault((placement.home[storage], beside), []).append(storage)
    return inputs


def makers(graph: Graph) -> dict[int, int]:
    """The operator that creates each storage, by storage."""
    first_makers: dict[int, int] = {}
    for op in graph.ops:
        for value in op.outputs:
            if value is not None:
                first_makers.setdefault(graph.values[value].storage, op.id)
    return first_makers


def outputs_by_stage(graph: Graph, placement: Placement, options: CompileOptions) -> Streams:
    """Outputs by the stage that sends them; sent once, or of the backward, they do not overlap."""
    made_by = makers(graph)
    outputs: Streams = {}
    for value in graph.outputs if options.host_io else ():
        storage = graph.values[value].storage
        maker = made_by.get(storage)
        stage, beside = placement.home.get(storage, 0), False
        if maker is not None:
            stage = placement.op_stage[maker]
            named = graph.overlapped_outputs.get(storage, _NO_OVERLAP) != _NO_OVERLAP
            forward = graph.ops[maker].direction == Direction.FORWARD
            beside = named and forward and not options.outputs_once
        outputs.setdefault((stage, beside), []).append(storage)
    return outputs
