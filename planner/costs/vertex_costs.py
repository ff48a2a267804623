"""What starting a vertex takes, and how its cycles an element change in float16.

By the vertex's published name, from the formulas of docs/cycles.md, to which a test holds the
tables: cycles are a start and so many for each element (or, of copies, for each byte).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache

import numpy as np

from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report

HALVES = 0.5  # where float16 has twice the elements in a vector
STAYS = 1.0  # an element at a time, or float32 whatever the model

# Cycles of a vertex without elements, all its workers together.
STARTS = {
    "popops::BinaryOp1D": 173,
    "popops::BinaryOp1DInPlace": 58,
    "popops::BroadcastVectorInner": 160,
    "popops::ScaledAddSupervisor": 60,
    "popops::Fill": 156,
    "popops::Cast1DSingleWorker": 234,
    "popops::Transpose2D": 588,
    "poplar_rt::Memcpy64BitSupervisor": 22,
    "popops::MultiSlice": 180,
    "popops::MultiUpdateAdd": 216,
    "poprand::UniformSupervisor": 170,
    "poprand::DropoutSupervisor": 150,
    "poplin::ConvPartial1x1Out": 337,  # with one block of weights; each more takes 221
    "poplin::ConvPartialnx1": 450,
    **dict.fromkeys(("popops::Reduce", "poplin::ReduceAdd"), 192),
    **{f"popops::Dynamic{one}1{d}": 403 for one in ("Slice", "UpdateSlice") for d in "Dd"},
    **{f"popops::{one}": 122 for one in ("BroadcastScalar1D", "UnaryOp1D", "Select", "Clamp")},
    **{f"popnn::{one}": 122 for one in ("NonLinearity1D", "NonLinearityGrad1D")},
    **{f"ipuscope::{one}": 122 for one in ("Generic", "Series")},
}
_EXPONENT_STARTS = 218  # it sets up more than the other functions

# Times as many cycles an element in float16, where it is not half. By vertex, then by function.
_OF_VERTICES = {
    **{f"popops::{one}": STAYS for one in ("Select", "Cast1DSingleWorker", "Transpose2D")},
    "popops::EncodeOneHot": STAYS,
    # rows take most, not their elements
    **{f"popnn::{one}": STAYS for one in ("MaxPooling", "MaxPoolingGrad")},
    **{f"ipuscope::{one}": STAYS for one in ("Generic", "Series")},
    # a row of ten outputs: (3 + 34 + 4 * 7) / (3 + 45 + 8 * 7); shorter ones are less than halved
    "poplin::ConvPartialnx1": 0.625,
}
_OF_FUNCTIONS = {
    **dict.fromkeys(("REMAINDER", "ATAN2", "POWER", "SIN", "ASIN"), STAYS),
    "DIVIDE": (21 / 4) / (10 / 2),
    "EXPONENT": (4 / 4) / (6 / 2),
    "LOGARITHM": (4 / 4) / (12 / 2),
    "TANH": (4 / 4) / (12 / 2),
    "SIGMOID": (6 / 4) / (12 / 2),
    "SQRT": (23 / 4) / (10 / 2),
    "RSQRT": (19 / 4) / (8 / 2),
    "INVERSE": (15 / 4) / (6 / 2),
    "GELU_ERF": 16 / 22,
    "ERF": 13 / 41,
}
_OF_BOTH = {  # a function of a vertex
    ("popnn::NonLinearity1D", "GELU"): (8 / 4) / (21 / 2),
    ("popnn::NonLinearityGrad1D", "GELU"): (15 / 4) / (26 / 2),
}
_SUMS = ("popops::Reduce", "poplin::ReduceAdd")
_NO_SUMS = ("ReduceMax", "ReduceMin")
_PRODUCTS = "poplin::Conv"
_REARRANGES = "popops::Transpose2D"
_LOOK_UP = ("popops::MultiSlice", "popops::MultiUpdateAdd")


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


@cache
def of_vertex(name: str) -> VertexCost:
    """The cost of a vertex by its published name, "popops::UnaryOp1D<...EXPONENT,float>"."""
    kind, _, types = name.partition("<")
    words = types.replace("::", ",").replace(">", ",").split(",")
    function = next((word for word in words if word in _OF_FUNCTIONS), "")
    start = _EXPONENT_STARTS if function == "EXPONENT" else STARTS.get(kind, -1)
    in_half = _OF_FUNCTIONS.get(function, _OF_VERTICES.get(kind, HALVES))
    of_both = (_OF_BOTH[kind, word] for word in words if (kind, word) in _OF_BOTH)
    in_half = next(of_both, in_half)
    if types and "float" not in words:  # integers and truths are as long in any model
        in_half = STAYS
    sums = kind in _SUMS and not any(word in _NO_SUMS for word in words)
    product, rearranges = kind.startswith(_PRODUCTS), kind == _REARRANGES
    of_half = words[0] == "half"
    return VertexCost(start, in_half, sums, product, rearranges, kind in _LOOK_UP, of_half)


@dataclass(frozen=True)
class StepVertices:
    """`VertexCost` of steps as columns; steps without vertices have that of an unknown one."""

    start: np.ndarray
    in_half: np.ndarray
    sums: np.ndarray
    product: np.ndarray
    rearranges: np.ndarray
    looks_up: np.ndarray
    of_half: np.ndarray


def step_vertices(report: Report, steps: np.ndarray) -> StepVertices:
    """The vertices of steps by their ids, each by the first type of its compute set."""
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
    columns = (
        np.array([getattr(cost, one.name) for cost in costs], dtype=one.default.__class__)[which]
        for one in fields(VertexCost)
    )
    return StepVertices(*columns)
