"""Multi-convolutions: the convolutions of a ``with MultiConv()`` become one operator, as in PopART.

Operators between them that depend on one of them run after it, all others before it. The
operators of their gradients become one, too. `ipu_exec.lowering.products.multi_conv` plans it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from ipu_exec.enums import MultiConvPlanType
from ipu_exec.errors import UsageError
from ipu_exec.graph import Graph, OperatorAttributes, OpNode
from ipu_exec.lowering import info
from ipuscope.profiler.enums import Direction

FORWARD, BACKWARD = "poplin.multi_conv", "poplin.multi_conv_backward"
_GRADIENT = "aten.convolution_backward."  # what this pass makes one operator of, as it is called
# Poplin's defaults [PL, include/poplin/MultiConvolution.hpp].
RESERVED_TILES = 50  # perConvReservedTiles
CYCLE_BACK_OFF = 0.1


@dataclass
class MultiConvGroup:
    """The settings of a ``with MultiConv()``, and the convolutions inside it."""

    settings: dict[str, Any]
    convolutions: list[int] = field(default_factory=list)  # op ids

    def attributes(self, index: int) -> OperatorAttributes:
        """The attributes of one of the convolutions."""
        one = {
            name: self._of(name, index) for name in ("availableMemoryProportions", "partialsTypes")
        }
        dtype = one["partialsTypes"]
        return OperatorAttributes(
            proportion=one["availableMemoryProportions"] or 0.0,
            partials=str(dtype).removeprefix("torch.") if dtype is not None else "",
            dithering=self._of("enableConvDithering", index),
        )

    def _of(self, name: str, index: int) -> Any:
        values = self.settings.get(name)
        if values is None:
            return None
        if len(values) not in (1, len(self.convolutions)):
            raise UsageError(
                f"MultiConv.{name} has {len(values)} values, and there are {len(self.convolutions)}"
                " convolutions inside: give one for all or one for each"
            )
        return values[0] if len(values) == 1 else values[index]

    @property
    def parallel(self) -> bool:
        """Whether the convolutions run at the same time, on tiles of their own."""
        return self.settings.get("planType") is not MultiConvPlanType.Serial


def is_convolution(aten: str) -> bool:
    """Whether a MultiConv takes the operator."""
    return info(aten).convolution and not aten.startswith(_GRADIENT)


def fuse(graph: Graph, groups: Sequence[MultiConvGroup]) -> None:
    """Make each group one operator forward and one backward.

    A serial group's convolutions stay separate, planned as asked. Error if a group has no
    convolution, or one that needs another's result.
    """
    for group in groups:
        if not group.convolutions:
            raise UsageError(
                "Unexpected end_multi_conv: there is no convolution inside the MultiConv"
            )
        for index, number in enumerate(group.convolutions):
            attributes, op = group.attributes(index), graph.ops[number]
            proportion = attributes.proportion or op.attributes.proportion
            op.attributes = replace(attributes, proportion=proportion, popart=op.attributes.popart)
    members = {op: k for k, group in enumerate(groups) for op in group.convolutions}
    for op in graph.ops:
        if op.forward_op in members and op.aten.startswith(_GRADIENT):
            op.attributes = graph.ops[op.forward_op].attributes
    sets: dict[tuple[int, str, int], list[OpNode]] = {}
    for op in graph.ops:
        first = op.id if op.id in members else op.forward_op
        belongs = op.id == first or op.aten.startswith(_GRADIENT)
        if first in members and belongs and groups[members[first]].parallel:
            sets.setdefault((members[first], op.direction, op.block), []).append(op)
    for (k, direction, _), convolutions in sets.items():
        if len(convolutions) > 1:
            _fuse(graph, convolutions, groups[k], direction)


def _fuse(graph: Graph, convolutions: list[OpNode], group: MultiConvGroup, direction: str) -> None:
    order = _together(graph, convolutions)
    if order is None:
        if direction == Direction.BACKWARD:
            return  # they stay as they are
        first, last = convolutions[0], convolutions[-1]
        raise UsageError(
            f"the convolutions of a MultiConv run at the same time, but one of {first.name} ..."
            f" {last.name} needs the result of another. Give that one a MultiConv of its own, or"
            " none",
            location=f"{last.file}:{last.line}" if last.file else "",
        )
    lead = convolutions[0]
    module = _shared([op.module for op in convolutions])
    name = "/".join(
        part
        for part in (module, "gradient" * (direction == Direction.BACKWARD), "multi_conv")
        if part
    )
    count = sum(op.name == name or op.name.startswith(name + "_") for op in graph.ops)
    settings = {
        "proportions": tuple(op.attributes.proportion for op in convolutions),
        "partials": tuple(op.attributes.partials for op in convolutions),
        "dithering": tuple(op.attributes.dithering for op in convolutions),
        "reserved_tiles": group.settings.get("perConvReservedTiles", RESERVED_TILES),
        "back_off": group.settings.get("cycleBackOff", CYCLE_BACK_OFF),
    }
    fused = replace(
        lead,
        aten=FORWARD if direction == Direction.FORWARD else BACKWARD,
        args=tuple(op.args for op in convolutions),
        kwargs=tuple(settings.items()),
        inputs=tuple(value for op in convolutions for value in op.inputs),
        outputs=tuple(value for op in convolutions for value in op.outputs),
        name=f"{name}_{count}" if count else name,
        module=module,
        attributes=OperatorAttributes(popart=lead.attributes.popart),
    )
    ids = {op.id for op in convolutions}
    ops = [fused if op is lead else op for op in order if op is lead or op.id not in ids]
    new = {op.id: index for index, op in enumerate(ops)}
    new |= dict.fromkeys(ids, new[lead.id]) | {-1: -1}
    for op in ops:
        op.id, op.forward_op = new[op.id], new[op.forward_op]
    for value in graph.values.values():
        value.producer = new[value.producer]
    graph.outside = new[graph.outside]
    graph.ops[:] = ops


def _shared(modules: list[str]) -> str:
    """The path of the innermost module that contains all of these."""
    levels = zip(*(module.split("/") for module in modules), strict=False)
    return "/".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels))


def _together(graph: Graph, members: list[OpNode]) -> list[OpNode] | None:
    """All ops in an order in which the members are adjacent; None if one needs another."""
    first, last = members[0].id, members[-1].id
    ids = {op.id for op in members}
    before: list[OpNode] = []
    after: list[OpNode] = []
    theirs: set[int] = set()  # storages that hold results of members, or what was made of those
    for op in graph.ops[first : last + 1]:
        needs = any(graph.values[value].storage in theirs for value in op.inputs)
        if op.id in ids and needs:
            return None
        if op.id in ids or needs:
            theirs.update(_storages(graph, op))
        if op.id not in ids:
            (after if needs else before).append(op)
    return [*graph.ops[:first], *before, *members, *after, *graph.ops[last + 1 :]]


def _storages(graph: Graph, op: OpNode) -> Iterator[int]:
    return (graph.values[value].storage for value in (*op.outputs, *op.writes) if value is not None)
