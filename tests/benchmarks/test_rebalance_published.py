"""Published splits as rows of docs/rebalance.md."""

from __future__ import annotations

from benchmarks.rebalance.published import CASES, PUBLISHED, written
from profiler.rebalance import Assignment


def test_layers_an_ipu_become_stages() -> None:
    blocks = ["embedding", *(f"layer{k}" for k in range(12)), "head"]
    of_model = {case.model: case.assignment(blocks) for case in CASES if sum(case.layers) == 12}
    assert of_model["vit-b16"] == Assignment((0, 4, 7, 10), (0, 1, 2, 3))
    assert of_model["bert-base"] == Assignment((0, 1, 5, 9, 13), (0, 1, 2, 3, 0))


def test_a_row_is_made_anew_and_the_others_stay() -> None:
    first, second = (f"| {case.name} | 1 |" for case in CASES[:2])
    page = written("# What rebalancing gains\n\nwords\n", [second])
    both = written(page, [first])
    assert both.index(first) < both.index(second)
    newer = second.replace(" 1 ", " 2 ")
    assert newer in written(both, [newer]) and second not in written(both, [newer])
    assert both.count(PUBLISHED) == 1 and both.startswith("# What rebalancing gains\n\nwords\n")
    behind = both + "\n## Another\n\nmore\n"
    assert written(behind, [first]).endswith("## Another\n\nmore\n")
