"""Published splits as rows of docs/rebalance.md."""

from __future__ import annotations

import sys

import pytest

from benchmarks.rebalance import hugging_face, mini_dalle
from benchmarks.rebalance.published import CASES, PUBLISHED, written
from ipuscope.planner.predict.what_if import Assignment


def test_layers_an_ipu_become_stages() -> None:
    blocks = ["embedding", *(f"layer{k}" for k in range(12)), "head"]
    of_model = {case.model: case.assignment(blocks) for case in CASES if sum(case.layers) == 12}
    assert of_model["vit-b16"] == Assignment((0, 4, 7, 10), (0, 1, 2, 3))
    assert of_model["bert-base"] == Assignment((0, 1, 5, 9, 13), (0, 1, 2, 3, 0))


def test_models_of_other_libraries_begin_their_stages_at_named_blocks() -> None:
    of_model = {case.model: case for case in CASES}
    layers = [f"layer{k}" for k in range(16)]
    split = of_model["mini-dalle"].assignment(["codes", "embedding", *layers, "head"])
    assert split == Assignment((0, 2, 9, 16), (0, 1, 2, 3))
    coders = [f"{coder}{k}" for coder in ("encoder", "decoder") for k in range(8)]
    split = of_model["mt5-small, tied"].assignment(["embedding", *coders, "head"])
    assert split == Assignment((0, 1, 9, 13, 17), (0, 1, 2, 3, 0))
    assert len(of_model["perceiver-conv"].begins) == 26  # its accumulation of 51 is what they need


def test_who_lacks_a_library_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match="pip install 'transformers"):
        hugging_face.library()


def test_mini_dalle_trains() -> None:
    example = mini_dalle.example(tiny=True)
    _, loss = example.module(*example.inputs(1))
    loss.backward()
    without = {name for name, p in example.module.named_parameters() if p.grad is None}
    assert without and all(name.startswith("codes.") for name in without)


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
