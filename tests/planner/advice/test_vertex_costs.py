"""The advisor's table of vertices, held to the engine's formulas (docs/cycles.md)."""

from __future__ import annotations

import pytest

from ipu_exec.lowering.costs import KINDS, WORKERS, Cost
from ipuscope.planner.costs.vertex_costs import STARTS, of_vertex


@pytest.mark.parametrize("kind", [name for name in KINDS if name not in ("copy", "logical")])
def test_an_elementwise_vertex_costs_what_the_engine_says(kind: str) -> None:
    cost: Cost = KINDS[kind]
    known = of_vertex(cost.vertex_type("float32"))
    (cycles, elements), (half, halves) = cost.fp32, cost.fp16
    assert known.start == cost.base + WORKERS * cost.worker
    assert known.in_half == pytest.approx((half / halves) / (cycles / elements))
    assert of_vertex(cost.vertex_type("float16")).start == known.start


def test_a_vertex_that_is_not_known_halves_and_has_no_start() -> None:
    assert of_vertex("poplin::ConvPartialHorizontalMac<float,float,false>").in_half == 0.5
    assert of_vertex("somebody::Else<float>").start == -1


def test_integers_and_truths_stay() -> None:
    assert of_vertex("popops::BinaryOp1D<popops::expr::BinaryOpType::ADD,int>").in_half == 1
    assert of_vertex("popops::Fill<bool>").in_half == 1


def test_sums_are_told_from_maxima() -> None:
    assert of_vertex("popops::Reduce<popops::ReduceAdd,float,float>").sums
    assert of_vertex("popops::Reduce<popops::ReduceSquare_Add,float,float>").sums
    assert of_vertex("poplin::ReduceAdd<float,float>").sums
    assert not of_vertex("popops::Reduce<popops::ReduceMax,float,float>").sums
    assert of_vertex("poplin::ConvPartial1x1Out<float,float,true,false,16>").product


def test_each_start_is_of_a_vertex_by_its_name() -> None:
    assert all(of_vertex(f"{name}<float>").start == start for name, start in STARTS.items())
