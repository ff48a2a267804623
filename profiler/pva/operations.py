"""Operations and where they come from (docs/libpva.md#operations).

An operation is a captured operator; its debug context is in the layer "popart", like the vendor's.
Its parent is in the layer "poptorch" and names the ATen operator, its module and its line. Steps
without an operator (copies between chips and to the host, syncs) form operations without a name, so
that every step belongs to an operation.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.enums import Role
from ipuscope.profiler.file import records
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.pva.lists import LazyList, Shown, plain
from ipuscope.profiler.pva.model import Model
from ipuscope.profiler.pva.programs import Program, make_program
from ipuscope.profiler.pva.variables import LoweredVariable, lowered
from ipuscope.profiler.report.frames import looked_up

if TYPE_CHECKING:
    from ipuscope.profiler.pva.report import Report


_OF_OPERATOR = (
    *("id", "popart_name", "aten", "file", "line", "stage", "direction", "module"),
    *("flops", "cycles", "plan"),
)


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


@cache
def _torch_schema(aten: str) -> str:
    """The name "aten::addmm" of "aten.addmm.default", in the form that PyTorch's own tools use."""
    space, _, name = aten.partition(".")
    return f"{space}::{name.split('.')[0]}"


class OperationAnalysis:
    """All operations in program order; one without steps (a view) follows its predecessor."""

    def __init__(self, report: Report) -> None:
        self._model = report._model

    @property
    def operations(self) -> LazyList[Operation]:
        """The captured operators, in the order in which they run."""
        order = self._in_program_order
        return LazyList(len(order), lambda i: self._operation(order[i]))

    @property
    def contexts(self) -> int:
        """How many debug contexts there are, parents included."""
        return 2 * len(self._rows) + len(self._without)

    def __repr__(self) -> str:
        return f"OperationAnalysis(operations={self.operations!r})"

    def _operation(self, at: int) -> Operation:
        """One of the operators or, behind them, of the bodies' steps without operator."""
        if at >= len(self._rows):
            return self._without[at - len(self._rows)]
        id, name, *_ = row = self._rows[at]
        return Operation(self._model, name, self._context(row), self._steps.get(id, []))

    @cached_property
    def _in_program_order(self) -> list[int]:
        """Positions as `_operation` takes them; a view is behind the operator before it."""
        first, key = -1, []
        for id, *_ in self._rows:
            first = self._steps.get(id, (first,))[0]
            key.append(first)
        key += [operation.firstStepIndex for operation in self._without]
        return np.argsort(key, kind="stable").tolist()

    @cached_property
    def _steps(self) -> dict[int, list[int]]:
        """The steps of each operator; of -2 - b those of body b that have none."""
        columns, (rows, _) = self._model.report.file.table(records.Step), self._model.step_rows
        keys = np.where(columns["op"] < 0, -2 - columns["body"], columns["op"])
        steps_of = defaultdict[int, list[int]](list)
        for step, key in enumerate(keys[rows].tolist()):
            steps_of[key].append(step)
        return steps_of

    @cached_property
    def _rows(self) -> list[tuple[Any, ...]]:
        """Of each operator what `_context` takes."""
        ops, blocks = map(self._model.report.file.table, (records.Op, records.Block))
        ops.read(*_OF_OPERATOR, "block")
        block = looked_up(ops["block"], blocks["id"], blocks["name"], "")
        columns = [ops[name] for name in _OF_OPERATOR] + [block]
        return [*zip(*(column.tolist() for column in columns), strict=True)]

    @cached_property
    def _tensors(self) -> tuple[dict[int, set[str]], dict[int, set[str]]]:
        """Names of tensors that each operator uses, and of those that it makes.

        They lack the number that tells a tensor's variables apart.
        """
        variables, uses = map(self._model.report.file.table, (records.Variable, records.Use))
        names, role, tensor = variables["name"].copy(), variables["role"], variables["tensor"]
        whole = np.flatnonzero((tensor >= 0) & (role != Role.STASH))
        _, first, same = np.unique(tensor[whole], return_index=True, return_inverse=True)
        names[whole] = names[whole[first[same]]]
        row = rows_of(uses["variable"], variables["id"])
        of_tensor = (variables["category"] == "variable") & (role != Role.TEMPORARY)
        here = np.flatnonzero((row >= 0) & of_tensor[row])
        op, row = uses["op"][here], row[here]
        # it has variables of the other roles only to account for their memory
        made_here = (role == Role.ACTIVATION) | (role == Role.GRADIENT)
        makes = made_here[row] & (variables["op"][row] == op)
        used: dict[int, set[str]] = {}
        made: dict[int, set[str]] = {}
        for id, name, is_own in zip(op.tolist(), names[row], makes.tolist(), strict=True):
            (made if is_own else used).setdefault(id, set()).add(name)
        return used, made

    def _context(self, row: tuple[Any, ...]) -> DebugContext:
        id, name, aten, file, line, stage, direction, module, flops, cycles, plan, block = row
        used, made = (names.get(id, set()) for names in self._tensors)
        place = Location(file, line)
        kind = _kind(name)
        about = {
            "layer": "poptorch",
            "op_name": name,
            "op_type": kind,
            "torch_schema": _torch_schema(aten),
            "module": module,
            "block": block,
            "stage": stage,
            "direction": direction,
        }
        parent = DebugContext(2 * id + 2, name, place, about)
        fields = {
            "layer": "popart",
            "category": "op",
            "instanceId": str(id),
            "opid": kind,
            "inputs": sorted(used - made),
            "outputs": sorted(made),
            "attributes": {"flops": flops, "cycles": cycles, "plan": plan},
            "parentId": parent.id,
        }
        return DebugContext(2 * id + 1, name, place, fields, parent)

    @cached_property
    def _without(self) -> list[Operation]:
        """Of each body its steps without operator."""
        bodies = self._model.report.file.table(records.Body)
        name_of = dict(zip(bodies["id"].tolist(), bodies["name"].tolist(), strict=True))
        first = 2 * max((row[0] for row in self._rows), default=-1) + 3
        entries = []
        for id, key in enumerate(sorted((key for key in self._steps if key < 0), key=abs), first):
            name = name_of.get(-2 - key, "")
            about = {"layer": "poplar", "category": "api", "name": name}
            fields = {**about, "inputs": [], "outputs": []}
            context = DebugContext(id, name, Location("", 0), fields)
            entries.append(Operation(self._model, "", context, self._steps[key]))
        return entries
