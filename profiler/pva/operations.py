"""Operations and where they come from (docs/libpva.md#operations).

An operation is a captured operator; its debug context is in the layer "popart", like the vendor's.
Its parent is in the layer "poptorch" and names the ATen operator, its module and its line. Steps
without an operator (copies between chips and to the host, syncs) form operations without a name, so
that every step belongs to an operation.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.enums import Role
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.pva.lists import LazyList, Shown, plain
from ipuscope.profiler.pva.model import Model
from ipuscope.profiler.pva.programs import Program, make_program
from ipuscope.profiler.pva.variables import LoweredVariable, lowered

if TYPE_CHECKING:
    from ipuscope.profiler.pva.report import Report


# an operator has variables of the other roles only to account for their memory
_MADE = (Role.ACTIVATION, Role.GRADIENT)


@plain
class Location(Shown):
    """A line of user code."""

    fileName: str
    lineNumber: int
    functionName: str = ""


class DebugContext(Shown):
    """The knowledge of one layer of the software about an operation.

    ``json`` is all of it, ``layer`` only the layer's name.
    """

    __slots__ = ("_fields", "id", "location", "name", "parents")
    _shown = ("id", "name", "json")

    def __init__(
        self, id: int, name: str, location: Location, fields: dict[str, Any], *parents: DebugContext
    ) -> None:
        self.id = id
        self.name = name
        self.location = location
        self.parents = list(parents)
        self._fields = fields

    @property
    def fields(self) -> dict[str, Any]:
        """All fields of the debug context, as in ``json``."""
        return dict(self._fields)

    @property
    def json(self) -> str:
        """The debug context as JSON text."""
        return json.dumps(self._fields)

    @property
    def layer(self) -> str:
        """JSON text whose only key is ``layer``."""
        return json.dumps({"layer": self._fields["layer"]})

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DebugContext)
            and self.id == other.id
            and self._fields == other._fields
        )

    def __hash__(self) -> int:
        return hash(self.id)


class Operation(Shown):
    """An operator of the model, or steps of a part of the program without operator."""

    _shown = ("name", "firstStepIndex", "lastStepIndex")

    def __init__(self, model: Model, name: str, context: DebugContext, steps: list[int]) -> None:
        self._model, self._steps = model, steps
        self.name = name
        self.debugContext = context

    @property
    def replacedDebugContext(self) -> list[DebugContext]:
        """Debug contexts of the operations that an optimiser replaced with this one: none."""
        return []

    def programs(self) -> list[Program]:
        """Its steps; empty if the operator costs nothing (a view)."""
        return [
            make_program(self._model, int(self._model.steps["node"][step])) for step in self._steps
        ]

    @property
    def vars(self) -> LazyList[LoweredVariable]:
        """Variables that its programs use, one entry per tile."""
        rows = sorted({row for step in self._steps for row in self._model.variables_of_step(step)})
        return lowered(self._model, rows)

    @property
    def firstStepIndex(self) -> int:
        """Position of its first step in `livenessProgramSteps`; -1 if it has no steps."""
        return self._steps[0] if self._steps else -1

    @property
    def lastStepIndex(self) -> int:
        """Position of its last step in `livenessProgramSteps`."""
        return self._steps[-1] if self._steps else -1


def _kind(popart_name: str) -> str:
    """PopART's type of an operator, from its name: "MatMul" from "layer.3/attention/MatMul/1"."""
    parts = popart_name.split("/")
    return parts[-2] if parts[-1].isdecimal() and len(parts) > 1 else parts[-1]


def _torch_schema(aten: str) -> str:
    """The name "aten::addmm" of "aten.addmm.default", in the form that PyTorch's own tools use."""
    space, _, name = aten.partition(".")
    return f"{space}::{name.split('.')[0]}"


def _in_program_order(operations: list[Operation]) -> list[Operation]:
    """Operations sorted by first step; those without steps come after the one that they follow."""
    first, key = -1, []
    for operation in operations:
        first = operation.firstStepIndex if operation.firstStepIndex >= 0 else first
        key.append(first)
    return [operations[at] for at in np.argsort(key, kind="stable").tolist()]


class OperationAnalysis:
    """All operations in program order; one without steps (a view) follows its predecessor."""

    def __init__(self, report: Report) -> None:
        self._model = report._model

    @property
    def operations(self) -> LazyList[Operation]:
        """The captured operators, in the order in which they run."""
        return LazyList(len(self._all), lambda i: self._all[i])

    def __repr__(self) -> str:
        return f"OperationAnalysis(operations={self.operations!r})"

    @cached_property
    def _all(self) -> list[Operation]:
        model, ops = self._model, self._model.report.ops
        steps_of: dict[int, list[int]] = {}
        for step, op in enumerate(model.steps["op"].tolist()):
            steps_of.setdefault(op, []).append(step)
        operations = []
        columns = {str(name): ops[name].tolist() for name in ops}
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        for id, row in zip(ops.index.tolist(), rows, strict=True):
            operations.append(
                Operation(model, row["popart_name"], self._context(id, row), steps_of.get(id, []))
            )
        operations += self._without(steps_of.get(-1, []), 2 * (max(ops.index, default=-1) + 1) + 1)
        return _in_program_order(operations)

    @cached_property
    def _tensor_names(self) -> list[str]:
        """The tensor name of each variable, without the number that tells its variables apart."""
        variables = self._model.variables
        first: dict[int, str] = {}
        names = []
        columns = (variables[name] for name in ("name", "tensor", "role"))
        for name, tensor, role in zip(*columns, strict=True):
            whole = tensor >= 0 and role != Role.STASH
            names.append(first.setdefault(int(tensor), str(name)) if whole else str(name))
        return names

    def _context(self, id: int, row: dict[str, Any]) -> DebugContext:
        variables = self._model.variables
        used = self._model.variables_of_op.get(id, [])
        tensors = [
            i
            for i in used
            if variables["category"][i] == "variable" and variables["role"][i] != Role.TEMPORARY
        ]
        own = [i for i in tensors if variables["op"][i] == id and variables["role"][i] in _MADE]
        own_names = {self._tensor_names[i] for i in own}
        read = {self._tensor_names[i] for i in tensors} - own_names
        place = Location(row["file"], row["line"])
        kind = _kind(row["popart_name"])
        about = {
            "layer": "poptorch",
            "op_name": row["popart_name"],
            "op_type": kind,
            "torch_schema": _torch_schema(row["aten"]),
            "module": row["module"],
            "block": row["block_name"],
            "stage": row["stage"],
            "direction": row["direction"],
        }
        parent = DebugContext(2 * id + 2, row["popart_name"], place, about)
        fields = {
            "layer": "popart",
            "category": "op",
            "instanceId": str(id),
            "opid": kind,
            "inputs": sorted(read),
            "outputs": sorted(own_names),
            "attributes": {"flops": row["flops"], "cycles": row["cycles"], "plan": row["plan"]},
            "parentId": parent.id,
        }
        return DebugContext(2 * id + 1, row["popart_name"], place, fields, parent)

    def _without(self, steps: list[int], first: int) -> list[Operation]:
        bodies = self._model.report.bodies
        name_of = dict(zip(bodies["body"].tolist(), bodies["name"].tolist(), strict=True))
        body_of = self._model.steps["body"]
        entries: list[Operation] = []
        for body in np.unique(body_of[steps]).tolist() if steps else []:
            here = [step for step in steps if body_of[step] == body]
            name = name_of.get(body, "")
            fields = {
                "layer": "poplar",
                "category": "api",
                "name": name,
                "inputs": [],
                "outputs": [],
            }
            context = DebugContext(first + len(entries), name, Location("", 0), fields)
            entries.append(Operation(self._model, "", context, here))
        return entries
