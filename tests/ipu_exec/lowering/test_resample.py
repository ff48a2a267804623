"""Interpolation and sampled grids, compared with arithmetic done by hand."""

from __future__ import annotations

import math

import pytest

from ipu_exec.lowering import lower
from ipu_exec.lowering.operators.resample import taps_of
from tests.ipu_exec.lowering.test_plans import check
from tests.operands import MK2, computes, exchanges, op, tensor


@pytest.mark.parametrize(
    ("name", "source", "result", "taps"),
    [
        ("upsample_nearest2d", (1, 2, 8, 8), (1, 2, 16, 16), [1, 1]),
        ("upsample_linear1d", (1, 2, 8), (1, 2, 16), [2]),
        ("upsample_bilinear2d", (1, 2, 8, 8), (1, 2, 16, 8), [2]),
        ("upsample_trilinear3d", (1, 2, 4, 4, 4), (1, 2, 8, 8, 8), [2, 2, 2]),
        ("upsample_bicubic2d", (1, 2, 8, 8), (1, 2, 16, 16), [4, 4]),
        ("_upsample_bilinear2d_aa", (1, 2, 16, 16), (1, 2, 4, 8), [8, 4]),
    ],
)
def test_interpolation_adds_up_its_neighbours_a_dimension_at_a_time(
    name: str, source: tuple[int, ...], result: tuple[int, ...], taps: list[int]
) -> None:
    assert taps_of(name, source, result) == taps
    spec = op(f"aten.{name}.default", (tensor(*source), result[2:], None), tensor(*result))
    plan = lower(spec, MK2)
    check(plan, spec)
    weighed = sum(step.flops for step in computes(plan).values())
    # a scaled addition is two flops; nearest only copies
    assert weighed == (2 * sum(taps) * math.prod(result) if max(taps) > 1 else 0)
    back = op(
        f"aten.{name}_backward.default",
        (tensor(*result), result[2:], source, None),
        tensor(*source),
    )
    plan = lower(back, MK2)
    check(plan, back)
    assert sum(step.flops for step in computes(plan).values()) == 2 * sum(taps) * math.prod(result)
    received = sum(int(step.bytes_in.sum()) for step in exchanges(plan).values())
    assert received >= math.prod(result) * 4  # every gradient reaches a neighbour


def test_a_sampled_grid_picks_four_corners_of_all_channels() -> None:
    source, grid, out = tensor(2, 4, 8, 8), tensor(2, 5, 5, 2), tensor(2, 4, 5, 5)
    for mode, corners in ((0, 4), (1, 1), (2, 16)):
        spec = op("aten.grid_sampler_2d.default", (source, grid, mode, 0, False), out)
        plan = lower(spec, MK2)
        check(plan, spec)
        assert int(exchanges(plan)["corners"].bytes_in.sum()) == out.nbytes * corners
        assert computes(plan)["weigh"].flops == 2 * out.elements * corners
    back = op(
        "aten.grid_sampler_2d_backward.default",
        (out, source, grid, 0, 0, False, (True, True)),
        source,
        grid,
    )
    plan = lower(back, MK2)
    check(plan, back)
    assert computes(plan)["add"].flops == out.elements * 4
