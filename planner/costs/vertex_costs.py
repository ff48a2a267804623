"""What starting a vertex takes, and how its cycles an element change in float16.

By the vertex's published name, from the formulas of docs/cycles.md: cycles are a start and so many
for each element (or, of copies, for each byte). Those of elementwise vertices are rows of
`ipuscope.profiler.vertices`, with which the engine counts.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report
from ipuscope.profiler.vertices import WORKERS, rows

HALVES = 0.5  # where float16 has twice the elements in a vector
STAYS = 1.0  # an element at a time, or float32 whatever the model

# Cycles of a vertex without elements, all its workers together.
STARTS = {
    "popops::MultiSlice": 180,
    "popops::MultiUpdateAdd": 216,
    "poplin::ConvPartial1x1Out": 337,  # with one block of weights; each more takes 221
    "poplin::ConvPartialnx1": 450,
    **dict.fromkeys(("popops::Reduce", "poplin::ReduceAdd"), 192),
    **{f"popops::Dynamic{one}1{d}": 403 for one in ("Slice", "UpdateSlice") for d in "Dd"},
}
# Times as many cycles an element in float16, where it is not half.
_IN_HALF = {
    # pooling: rows take most, not their elements
    **dict.fromkeys(("popops::EncodeOneHot", "popnn::MaxPooling", "popnn::MaxPoolingGrad"), STAYS),
    # a row of ten outputs: (3 + 34 + 4 * 7) / (3 + 45 + 8 * 7); shorter ones are less than halved
    "poplin::ConvPartialnx1": 0.625,
}


@dataclass(frozen=True)
class VertexCost:
    """Of a vertex: cycles of its start (-1: unknown), times as many an element in float16."""

    start: int = -1
    in_half: float = HALVES
    sums: bool = False  # it adds up
    product: bool = False  # its results may be partial sums
    rearranges: bool = False  # puts operands in another order
    looks_up: bool = False  # of rows by their indices
    of_half: bool = False


def _parts(name: str) -> tuple[str, str, list[str]]:
    """Vertex, its function if it has one, and the words of its type."""
    kind, _, types = name.partition("<")
    words = types.replace("::", ",").replace(">", ",").split(",")
    return kind, next((one for one in words if len(one) > 1 and one.isupper()), ""), words


@cache
def _elementwise() -> dict[tuple[str, str], tuple[int, float]]:
    """Start, and times the cycles in float16, by vertex and function; "": of any other one."""
    known: dict[tuple[str, str], tuple[int, float]] = {}
    for _, vertex, (base, worker, cycles, elements, half, halves, *_) in rows():
        kind, function, _ = _parts(vertex)
        start = base + WORKERS * worker
        known[kind, function] = start, (half / halves) / (cycles / elements)
        known.setdefault((kind, ""), (start, HALVES))
    return known


@cache
def of_vertex(name: str) -> VertexCost:
    """The cost of a vertex by its published name, "popops::UnaryOp1D<...EXPONENT,float>"."""
    kind, function, words = _parts(name)
    other = _elementwise().get((kind, ""), (STARTS.get(kind, -1), _IN_HALF.get(kind, HALVES)))
    start, in_half = _elementwise().get((kind, function), other)
    if words[0] and "float" not in words:  # integers and truths are as long in any model
        in_half = STAYS
    sums = "::Reduce" in kind and not {"ReduceMax", "ReduceMin"} & {*words}
    what = sums, "::Conv" in kind, kind == "popops::Transpose2D", "::Multi" in kind
    return VertexCost(start, in_half, *what, words[0] == "half")


def step_vertices(report: Report, steps: np.ndarray) -> np.recarray[Any, Any]:
    """`VertexCost` of steps by their ids, as columns, each by the first type of its compute set.

    Steps without vertices have that of an unknown one.
    """
    uses, types = report.file.table(records.VertexUse), report.file.table(records.VertexType)
    sets, first = np.unique(uses["compute_set"], return_index=True)
    type_of_set = dict(zip(sets.tolist(), uses["vertex_type"][first].tolist(), strict=True))
    cost_of_type = {
        int(number): of_vertex(str(name))
        for number, name in zip(types["id"], types["name"], strict=True)
    }
    table = report.file.table(records.Step)
    order = np.argsort(table["id"], kind="stable")
    at = order[np.searchsorted(table["id"][order], steps)]
    here, which = np.unique(table["compute_set"][at], return_inverse=True)
    costs = [cost_of_type.get(type_of_set.get(one, -1), VertexCost()) for one in here.tolist()]
    of_fields = [(one.name, type(one.default)) for one in fields(VertexCost)]
    return np.array([astuple(cost) for cost in costs], of_fields)[which].view(np.recarray)
