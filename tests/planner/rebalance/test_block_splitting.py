"""A Block cut in two, compared with separate Blocks and with a second compile."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.search.block_splitting import best_block_cut, split_block
from ipuscope.planner.search.split_search import best_split
from ipuscope.profiler import Report
from tests.planner.rebalance.cases import deep


def test_a_cut_inside_a_block_is_what_blocks_of_their_own_give(tmp_path: Path, two: Report) -> None:
    """Two Blocks that are merged and cut in two again cost what they did before."""
    costs = Costs.from_report(two)
    halves = split_block(two, costs, 1, 1)
    assert halves.names == ("B1", "B2.1", "B2.2", "B3", "B4")
    for name in ("forward", "backward", "update"):
        assert getattr(halves.cycles, name).sum() == getattr(costs.cycles, name).sum()
    for name in ("always", "state", "saved"):
        np.testing.assert_array_equal(
            getattr(halves.memory, name).sum(axis=0), getattr(costs.memory, name).sum(axis=0)
        )
    runs, ran = (
        halves.memory.code_users[:, 1] | halves.memory.code_users[:, 2],
        costs.memory.code_users[:, 1],
    )
    np.testing.assert_array_equal(
        halves.memory.code[runs].sum(axis=0), costs.memory.code[ran].sum(axis=0)
    )
    assert (halves.memory.code_users[:, 1] & ~halves.memory.code_users[:, 2]).any()
    whole = what_if(costs, Assignment((0, 2), (0, 1)))
    again = what_if(halves, Assignment((0, 3), (0, 1)))
    assert again.total == pytest.approx(whole.total, rel=1e-3)


def test_the_longest_block_is_cut_where_a_second_compile_gains(tmp_path: Path) -> None:
    before = deep(tmp_path / "before", {"big": 6, "small": 1}, [("big",), ("small",)])
    costs = Costs.from_report(before)
    cut = best_block_cut(before, costs, 2)
    assert cut is not None
    assert costs.names[cut.block] == "big"
    assert cut.split.prediction.total < best_split(costs, 2).prediction.total
    assert cut.bytes_over == 16 * 256 * 4
    assert cut.split.prediction.assignment.starts == (0, 1)
    # The cut falls between layers, or between a layer's product and its ReLU, which costs next to
    # nothing: the model with its Block cut there gives what was predicted.
    number = re.search(r"\d+", cut.before)
    assert number is not None
    first = int(number[0]) + cut.before.startswith("relu")
    assert 0 < first < 6
    sizes = {"big.1": first, "big.2": 6 - first, "small": 1}
    after = deep(tmp_path / "after", sizes, [("big.1",), ("big.2", "small")])
    obtained = int(after.runs["cycles"].iloc[0] // after.runs["iterations"].iloc[0])
    assert cut.split.prediction.total == pytest.approx(obtained, rel=0.05)
