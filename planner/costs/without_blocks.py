"""A profile of a model without Blocks, read as if one Block were around all of it.

A compile with `poptorch.BeginBlock(model, "model", ipu_id=0)` differs from one without any in the
table of Blocks and in the Block of operators and variables, and in nothing that is executed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ipuscope.profiler.enums import Direction, Role
from ipuscope.profiler.file import records, schema
from ipuscope.profiler.file.reader import Reader
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report import Report

NAME = "model"  # of the Block


def with_a_block(report: Report) -> Report:
    """The report, with one Block if it has none; ValueError if that is not exactly one stage."""
    if len(report.blocks):
        return report
    if len(report.stages) != 1:
        raise ValueError(f"{report.path} has no Blocks, and {len(report.stages)} stages")
    return report.once("with one Block", lambda: _OneBlock(report.path))


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
        columns = super().some(record, {*wanted, "op"} & self._names_of(record), rows)
        columns |= self._blocks_of(record, columns)
        return {name: columns[name] for name in wanted}

    def _names_of(self, record: type[Any]) -> set[str]:
        return {column.name for column in schema.columns(record)}

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


class _OneBlock(Report):
    """A report that reads with `_Reader`."""

    _opens = _Reader

    @property
    def state(self) -> tuple[int, ...]:
        """Empty: what is read is not what the file has, and no answer about it is stored."""
        return ()
