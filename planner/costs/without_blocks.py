"""A profile of a model without Blocks, read as if one Block were around all of it.

A compile with `poptorch.BeginBlock(model, "model", ipu_id=0)` differs from one without any in the
table of Blocks and in the Block of operators and variables, and in nothing that is executed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ipuscope.planner.costs.cuts import even_runs
from ipuscope.profiler.analysis.operators import executed_ops
from ipuscope.profiler.answers import stored
from ipuscope.profiler.enums import Direction, Role
from ipuscope.profiler.file import records, schema
from ipuscope.profiler.file.reader import Reader
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report import Report
from ipuscope.profiler.report.tables import ProfileFile

NAME = "model"  # of the Block
_MOST = 4  # Blocks that are proposed, one an IPU


def with_a_block(report: Report) -> Report:
    """The report, with one Block if it has none; ValueError if that is not exactly one stage."""
    if len(report.blocks):
        return report
    if len(report.stages) != 1:
        raise ValueError(f"{report.path} has no Blocks, and {len(report.stages)} stages")
    return report.file.once("with one Block", lambda: _OneBlock(report.path))


def whole_modules(modules: Iterable[str]) -> dict[str, int]:
    """The first operator of each module that runs once without interruption, and of those around.

    ``modules`` of the forward operators, in order. A module that is called again would begin its
    Block again, after others.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    returning: set[str] = set()
    for at, module in enumerate(modules):
        path = ""
        for label in module.replace("/", ".").split("."):
            path = f"{path}.{label}" if path else label
            if last.setdefault(path, at) < at - 1:
                returning.add(path)
            first.setdefault(path, at)
            last[path] = at
    return {path: at for path, at in first.items() if path not in returning}


@stored
def blocks_to_begin(report: Report) -> tuple[str, ...]:
    """The modules at which four (or two) Blocks of about equal cycles could begin, in order.

    They begin at layers (up to the first number in a path, or its first name) and what runs first,
    or at any module where these are too few; the longest is as short as that allows (`even_runs`).
    None for a model with Blocks, without a schedule, imported, or with fewer than two such modules.
    """
    if len(report.blocks) or report.imported or not len(report.runs):
        return ()
    ops = report.ops[["module", "direction"]]
    modules = ops.loc[ops["direction"] == Direction.FORWARD, "module"].tolist()
    whole = {name: at for name, at in whole_modules(modules).items() if name}
    first = min(whole, key=whole.__getitem__, default="")
    layers = {name: whole[name] for name in (first, *map(layer_of, modules)) if name in whole}
    named = layers if len({*layers.values()}) >= _MOST else whole
    begins = {named[name]: name for name in sorted(named, key=len, reverse=True)}
    if len(begins) < 2:
        return ()
    spent = executed_ops(report)["total_cycles"].groupby(ops["module"]).sum().to_dict()
    cycles = [spent.pop(module, 0) for module in modules]  # of the backward, too
    at = sorted(begins)
    starts = even_runs(np.add.reduceat(cycles, at), min(_MOST, 1 << (len(at).bit_length() - 1)))
    return tuple(begins[at[one]] for one in starts)


def layer_of(module: str) -> str:
    """The layer that a module is in: "layers.3" of "layers.3/attention"."""
    labels = module.replace("/", ".").split(".")
    numbers = (at + 1 for at, label in enumerate(labels) if label.isdecimal())
    return ".".join(labels[: next(numbers, 1)])


def block_line(name: str, ipu: int) -> str:
    """The line that begins a Block at a module: ``model.layers[3]`` for "layers.3"."""
    labels = name.split(".")
    module = "model" + "".join(f"[{n}]" if n.isdecimal() else f".{n}" for n in labels)
    if not all(label.isidentifier() or label.isdecimal() for label in labels):
        module = f'model.get_submodule("{name}")'
    return f'poptorch.BeginBlock({module}, "{name}", ipu_id={ipu})'


class _Reader(Reader):
    """Says of each operator and variable that it is of Block 0."""

    def count(self, record: type[Any]) -> int:
        return 1 if record is records.Block else super().count(record)

    def columns(self, record: type[Any]) -> dict[str, np.ndarray]:
        if record is records.Block:
            return self._block
        columns = super().columns(record)
        return {**columns, **self._blocks_of(record, columns)}

    def some(self, record: type[Any], names: Iterable[str], rows: int) -> dict[str, np.ndarray]:
        wanted = list(names)
        if record is records.Block:
            return {name: self._block[name] for name in wanted}
        if "block" not in wanted or record not in (records.Op, records.Variable):
            return super().some(record, wanted, rows)
        names = {column.name for column in schema.columns(record)}
        columns = super().some(record, {*wanted, "op"} & names, rows)
        columns |= self._blocks_of(record, columns)
        return {name: columns[name] for name in wanted}

    def _blocks_of(self, record: type[Any], columns: dict[str, np.ndarray]) -> dict[str, Any]:
        """The Blocks of operators and variables; nothing for other tables."""
        if record is records.Op:
            return {"block": np.zeros_like(columns["block"])}
        if record is not records.Variable:
            return {}
        # as the compiler does it: what the weight update makes for itself is of no Block
        op, update = columns["op"], self._in_update
        is_listed = (op >= 0) & (op < len(update))
        of_block = np.where(is_listed, ~update[op.clip(0, max(0, len(update) - 1))], False)
        return {"block": np.where(of_block, 0, -1)}

    @cached_property
    def _in_update(self) -> np.ndarray:
        """Whether each operator is of the weight update, by id."""
        ops = super().columns(records.Op)
        update = np.zeros(int(ops["id"].max(initial=-1)) + 1, dtype=bool)
        update[ops["id"]] = ops["direction"] == Direction.UPDATE
        return update

    @cached_property
    def _block(self) -> dict[str, np.ndarray]:
        stage = {name: int(values[0]) for name, values in super().columns(records.Stage).items()}
        variables = super().columns(records.Variable)
        inputs = int(variables["bytes"][variables["role"] == Role.INPUT].sum())
        row = {
            "id": 0,
            "name": NAME,
            "stage": stage["id"],
            "ipu": stage["ipu"],
            "forward_cycles": stage["forward_cycles"],
            "backward_cycles": stage["backward_cycles"],
            "update_cycles": stage["update_cycles"],
            "weight_bytes": stage["weight_bytes"],
            "input_bytes": inputs,
            "copy_bytes": 0,
            "copy_back_bytes": 0,
        }
        return {
            name: np.array([value], dtype=object if name == "name" else np.int64)
            for name, value in row.items()
        }


class _File(ProfileFile):
    """A file that is read with `_Reader`."""

    _opens = _Reader

    @property
    def state(self) -> tuple[int, ...]:
        """Empty: what is read is not what the file has, and no answer about it is stored."""
        return ()


class _OneBlock(Report):
    _opens = _File
