"""Weights that Blocks share, and their gradients, which a large profile has worked out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from ipuscope.planner.costs.cuts import Ties
from ipuscope.planner.costs.tied_gradients import TiedGradients
from ipuscope.profiler import held
from ipuscope.profiler.file import from_json
from ipuscope.profiler.held import INT, MOST_NUMBER
from ipuscope.profiler.report import Report

TIES, GRADIENTS = "tied weights", "gradients of tied weights"  # names of the answers
_COLUMNS = {one.name: INT for one in fields(TiedGradients)}


def known_ties(report: Report) -> tuple[Ties, TiedGradients]:
    """`Ties.from_report` and `TiedGradients.from_report`."""
    blocks = len(report.blocks)
    ties = report.answered(TIES, lambda said: _ties(blocks, said), lambda: Ties.from_report(report))

    def make() -> dict[str, np.ndarray]:
        gradients = TiedGradients.from_report(report, ties)
        return {name: getattr(gradients, name) for name in _COLUMNS}

    def sound(columns: Mapping[str, np.ndarray]) -> bool:
        of_blocks = [columns[name] for name in ("home", "reader", "added_by")]
        least = min(column.min(initial=0) for column in columns.values())
        return bool(least >= 0 and max(one.max(initial=-1) for one in of_blocks) < blocks)

    return ties, TiedGradients(**report.answered_columns(GRADIENTS, _COLUMNS, make, sound))


def worked_out(report: Report) -> dict[str, Any]:
    """The answers, for the file."""
    ties, gradients = known_ties(report)
    columns = {name: getattr(gradients, name) for name in _COLUMNS}
    return {TIES: asdict(ties), GRADIENTS: held.plain(columns)}


def _ties(blocks: int, said: Any) -> Ties | None:
    """From JSON; None where it is not what was written."""
    try:
        ties: Ties = from_json.read(Ties, said)
    except (ValueError, TypeError):
        return None
    columns = (ties.names, ties.blocks, ties.nbytes, ties.tensors)
    if not all(isinstance(one, tuple) and len(one) == len(ties) for one in columns):
        return None
    readers = all(
        len(of) > 1 and list(of) == sorted(set(of)) and of[0] >= 0 and of[-1] < blocks
        for of in ties.blocks
    )
    numbers = all(0 <= one < MOST_NUMBER for one in (*ties.nbytes, *ties.tensors))
    return ties if readers and numbers else None
