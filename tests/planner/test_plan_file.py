"""plan.json is read back as written; a stranger's file can do no more than that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ipu_exec import placement_file
from ipu_exec.errors import Error
from ipuscope.planner.mappings import (
    Candidate,
    Mapping,
    Obtained,
    Plan,
    PlanError,
    Question,
    StagePlan,
    load,
    save,
)
from ipuscope.planner.mappings.plan import SHARES
from ipuscope.planner.predict import split_text

BLOCKS = ("a", "b", "c")


def candidate(rate: float, obtained: Obtained | None = None, **more: Any) -> Candidate:
    stages = (StagePlan(0, ("a",), True, True), StagePlan(1, ("b", "c")))
    mapping = Mapping(1, 2, stages, 4, 8, **more)
    shares = dict.fromkeys(SHARES, 1 / len(SHARES))
    return Candidate(mapping, 1000, rate, 1e-3, 5000, 9000, "fits", shares, True, 0.0, obtained)


def plan() -> Plan:
    candidates = (candidate(10.0, Obtained(1010, 5100)), candidate(9.0, proportion=0.2))
    question = Question(4, 64, (4, 8), (0.6, 0.2), fixed={"p": 2})
    return Plan(question, candidates, BLOCKS, ("because",), model="Net", command="train.py")


def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    assert load(save(plan(), tmp_path / "plan.json")) == plan()


def test_what_was_compiled_counts_by_that() -> None:
    one = candidate(10.0, Obtained(2000, 5000))
    assert one.off == (-0.5, 0.0)
    assert one.rate == 5.0 and one.latency == 2e-3


def test_a_mapping_says_itself_in_words() -> None:
    mapping = candidate(1.0).mapping
    assert (mapping.split, mapping.recomputation, mapping.state) == ("1-2", "all", "off chip in 0")
    assert (mapping.pipeline, mapping.attached, mapping.samples) == (2, 4, 64)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda said: said.update(format="x"), "is not a plan"),
        (lambda said: said.pop("plan"), "holds no plan"),
        (lambda said: said["plan"].update(candidates=[]), "makes no sense"),
        (
            lambda said: said["plan"]["candidates"][0]["mapping"].update(replicas=0),
            "makes no sense",
        ),
        (
            lambda said: said["plan"]["candidates"][0]["mapping"]["stages"][0].update(
                blocks=[0, 1 << 40]
            ),
            "makes no sense",
        ),
    ],
)
def test_a_strangers_plan_is_refused(tmp_path: Path, change: Any, said: str) -> None:
    path = save(plan(), tmp_path / "plan.json")
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(PlanError, match=said):
        load(path)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("[" * 10_000)
    with pytest.raises(PlanError):
        load(path)
    with pytest.raises(PlanError, match="cannot be read"):
        load(tmp_path / "none.json")


@pytest.mark.parametrize("depth", [200, 100_000])
def test_a_placement_nested_deep_is_an_error_of_every_reader(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "placement.json"
    path.write_text('{"stages": ' + "[" * depth + "]" * depth + "}")
    with pytest.raises(PlanError, match="nested deeper"):
        load(path)
    with pytest.raises(Error, match=r"no JSON \(it is nested deeper .*ipu-report rebalance"):
        placement_file.load(path)
    with pytest.raises(ValueError, match=r"not a placement file \(it is nested"):
        split_text._load(["a"], str(path))
