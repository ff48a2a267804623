"""Host I/O that overlaps with compute: `set_overlap_for_input` and `set_overlap_for_output`.

PopTorch's rules (user guide, 'Overlapping compute and I/O'; its tests): an input is named before
anything reads it, an output as it is returned; tiles are set aside for I/O; every output is sent
(OutputMode.All) or summed; pipelines do not overlap. PopART's do if its IR is explicit:
``options._Popart.set("enableExplicitIR", True)`` allows them here.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import torch

from ipu_exec.enums import OutputMode, OverlapMode
from ipu_exec.errors import Error
from ipu_exec.graph import Graph

_MARK = "_ipu_overlap"
INPUT, OUTPUT = "set_overlap_for_input", "set_overlap_for_output"


def marked(tensor: torch.Tensor, place: str, mode: OverlapMode) -> torch.Tensor:
    """A view of ``tensor`` with its marks, for `note_overlaps` to find. Error: it has this one."""
    if getattr(tensor, _MARK, ("",))[0] == place:
        raise Error(f"poptorch.{place} marks a tensor that is marked: it is beside compute already")
    view = tensor.view_as(tensor)
    for name, value in vars(tensor).items():
        if name.startswith("_ipu_") and name != _MARK:
            setattr(view, name, value)
    setattr(view, _MARK, (place, mode.value, tensor))
    return view


def note_overlaps(
    graph: Graph, tensors: Iterable[tuple[torch.Tensor, int]], model: torch.nn.Module
) -> None:
    """Note in ``graph`` which of its inputs and outputs are overlapped.

    ``tensors``: all recorded ones, with their values. Error if a marked tensor is not an input or
    output of the ``model``, or is returned twice.
    """
    met = list(tensors)
    values = {id(tensor): value for tensor, value in met}
    marks = [
        (place, mode, values[id(source)], view)
        for tensor, view in met
        for place, mode, source in [getattr(tensor, _MARK, ("", "", None))]
        if place
    ]
    for place, mode, source, view in marks:
        if place == INPUT and source in graph.inputs:
            others = [op for op in graph.ops if source in op.inputs and view not in op.outputs]
            if others or source in graph.outputs:
                number = graph.inputs.index(source)
                raise Error(
                    "poptorch.set_overlap_for_input must be the only op applied to an input. This"
                    f" is not the case for input {number} to the model. Call it first of"
                    f" {_name(model, number)}, and go on with what it returns"
                )
            graph.overlapped_inputs[graph.values[view].storage] = mode
    for place, mode, source, view in marks:
        if place == OUTPUT and view in graph.outputs:
            if sum(value in (source, view) for value in graph.outputs) > 1:
                raise Error(
                    "poptorch.set_overlap_for_output cannot be used with a tensor that is returned"
                    " twice. Please check all returned tensors including those nested in"
                    " tuples/lists."
                )
            graph.overlapped_outputs[graph.values[view].storage] = mode
    for place, _, source, view in marks:
        if (source not in graph.inputs) if place == INPUT else (view not in graph.outputs):
            which = "input" if place == INPUT else "output"
            way = "Call it on what forward is given" if place == INPUT else "Return what it returns"
            raise Error(
                f"poptorch.{place} applied on a node which is not a tensor {which} to the model."
                f" {way}, unchanged"
            )


def _name(model: torch.nn.Module, index: int) -> str:
    """The name of an input in ``forward``, if every input is a tensor of its own."""
    try:
        names = list(inspect.signature(model.forward).parameters)
    except ValueError:  # a builtin without a signature
        names = []
    return names[index] if index < len(names) else str(index)


def modes(graph: Graph) -> set[str]:
    """The modes of the overlapped inputs and outputs."""
    modes = {*graph.overlapped_inputs.values(), *graph.overlapped_outputs.values()}
    return modes - {OverlapMode.NoOverlap.value}


def across(graph: Graph, iterations: int) -> bool:
    """Whether transfers overlap from one device iteration into the next; all or none have to."""
    return iterations > 1 and modes(graph) == {OverlapMode.OverlapDeviceIterationLoop.value}


def check(
    graph: Graph, *, pipelined: bool, explicit_ir: bool, io_tiles: int, mode: OutputMode
) -> None:
    """Error if something is overlapped and the options do not allow it.

    ``pipelined``: the execution strategy is a pipeline; ``explicit_ir``: PopART's IR may be
    explicit; ``io_tiles``: tiles of an IPU set aside for I/O; ``mode``: the output mode.
    """
    if not modes(graph):
        return
    if pipelined and not explicit_ir:
        raise Error(
            "Overlapped IO is not supported with poptorch.PipelinedExecution. If you are using only"
            " one IPU, please switch to poptorch.ShardedExecution. (PopART can, with an explicit"
            ' IR: to model that, set options._Popart.set("enableExplicitIR", True).)'
        )
    if not io_tiles:
        raise Error(
            "No IO tiles allocated. You must allocate at least 32 IO tiles using "
            "poptorch.Options().TensorLocations.numIOTiles."
        )
    if mode not in (OutputMode.All, OutputMode.Sum):
        raise Error(
            f"Unsupported output mode for overlapped IO: OutputMode.{mode.name}. Please switch"
            " output mode to poptorch.OutputMode.All or poptorch.OutputMode.Sum."
        )
