"""Code that equal Blocks share is in memory once per IPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ipuscope.planner.costs.block_memory import code_of_blocks
from ipuscope.planner.costs.code_memory import CodeMemory
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.profiler import Report
from tests.planner.rebalance.cases import deep
from tests.planner.rebalance.test_what_if import profiled

EQUAL = {f"B{k}": 1 for k in range(8)}
SPLITS = ((0,), (0, 3), (0, 1, 3, 5), tuple(range(8)))


@pytest.fixture(scope="module")
def equal_layers(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    """Profiles of the same model in each of the splits."""
    names = list(EQUAL)
    return [
        deep(
            tmp_path_factory.mktemp("equal"),
            EQUAL,
            [tuple(names[a:b]) for a, b in zip(starts, (*starts[1:], 8), strict=True)],
        )
        for starts in SPLITS
    ]


def of_blocks_alone(costs: Costs) -> Costs:
    """The costs without gaps, and without what the profiled IPUs hold besides their Blocks."""
    nothing = np.zeros((0, 0), dtype=np.int64)
    memory = replace(costs.memory, residual=nothing, region0=CodeMemory.unknown(len(costs)))
    return replace(costs, memory=memory, machine=replace(costs.machine, region0_bytes=0))


@pytest.mark.parametrize("profiled", range(len(SPLITS)))
def test_code_that_equal_blocks_share_is_counted_once_an_ipu(
    equal_layers: list[Report], profiled: int
) -> None:
    """From any split, the memory predicted for any other is that of the other's own profile.

    Gaps are left out: in a model this small they would hide the shared code.
    """
    costs = of_blocks_alone(Costs.from_report(equal_layers[profiled]))
    assert (costs.memory.code_users.sum(axis=1) >= 6).any()
    for starts, report in zip(SPLITS, equal_layers, strict=True):
        split = Assignment(starts, tuple(range(len(starts))))
        own = of_blocks_alone(Costs.from_report(report))
        assert what_if(costs, split).fullest == pytest.approx(
            what_if(own, split).fullest, rel=0.025
        )


def test_what_a_stranger_says_of_code_is_checked(equal_layers: list[Report]) -> None:
    report = equal_layers[1]
    header = report.meta
    said = header["code"]
    assert len(said["calls"]) == 8 and said["shared"]
    first = said["shared"][0]
    strange = (
        [],
        7,
        {},
        {**said, "calls": [1]},
        {**said, "calls": [-1] * 8},
        {**said, "calls": [1 << 40] * 8},
        {**said, "shared": [[[99], *first[1:]]]},
        {**said, "shared": [[first[0], [1 << 70], []]]},
        {**said, "shared": [first, first]},
        {**said, "shared": [[first[0], first[1]]]},
    )
    for wrong in strange:
        report.__dict__["meta"] = {**header, "code": wrong}
        costs = Costs.from_report(report)
        assert what_if(costs, Assignment((0, 3), (0, 1))).fullest[0] > 0
        assert costs.memory.always.min() >= 0 and costs.memory.shared.min() >= 0
    report.__dict__["meta"] = header


def control_of_pieces(report: Report) -> dict[tuple[int, ...], int]:
    """Bytes of control code that exactly these Blocks run, on an IPU that has any of them."""
    control = report.variables.query("category == 'controlCode'")["bytes"]
    _, pieces = code_of_blocks(report, len(report.blocks))
    found = {tuple(users): int(control.reindex(once).sum()) for users, once, _ in pieces}
    return {users: nbytes for users, nbytes in found.items() if nbytes}


def test_control_code_is_said_by_block(tmp_path: Path) -> None:
    """It is the same however Blocks are split: IPUs with other Blocks are predicted by it."""
    apart = control_of_pieces(profiled(tmp_path / "apart", (0, 1, 2, 3)))
    together = control_of_pieces(profiled(tmp_path / "together", (0, 2)))
    assert {(0,), (1,), (2,), (3,)} <= apart.keys()
    assert together == apart
