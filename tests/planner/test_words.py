"""A plan's sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipuscope.planner.mappings import Plan, StagePlan
from ipuscope.planner.mappings.plan_words import by_reason, why
from tests.planner.test_plan_file import candidate, plan


def against(**of_another: object) -> str:
    """What is said of another mapping that is slower, beside one of 2 IPUs and 2 replicas."""
    best, other = plan().candidates
    best = replace(best, mapping=replace(best.mapping, shards=2, replicas=2, proportion=0.2))
    mapping = replace(best.mapping, **of_another)  # type: ignore[arg-type]
    (said,) = (
        line
        for line in why(replace(plan(), candidates=(best, replace(other, mapping=mapping))))
        if line.startswith("with ")
    )
    return said


@pytest.mark.parametrize(
    ("another", "said"),
    [
        ({"replicas": 1}, "with 1 replica the best is "),
        ({"replicas": 4}, "with 4 replicas the best is "),
        ({"stages": (StagePlan(0, ("a", "b", "c")),)}, "with pipelines of 1 IPU the best is "),
        ({"micro_batch": 8}, "with a micro-batch of 8 the best is "),
        ({"proportion": 0.6}, "with a memory proportion of 0.6 the best is "),
        ({"proportion": 0.0}, "with the script's memory proportion the best is "),
        ({"shards": 4}, "with tensors shared by 4 IPUs the best is "),
        ({"shards": 1}, "with tensors whole on an IPU the best is "),
    ],
)
def test_another_mapping_is_named_by_what_differs(another: dict[str, object], said: str) -> None:
    assert against(**another).startswith(said)


def test_one_is_no_plural() -> None:
    alone = (StagePlan(0, ("a", "b", "c")),)
    one = replace(candidate(10.0), mapping=replace(candidate(10.0).mapping, stages=alone))
    one = replace(one, mapping=replace(one.mapping, replicas=1))
    question = replace(plan().question, ipus=2, fixed={})
    lines = list(why(Plan(question, (one,), ("a", "b", "c"), compiles=1)))
    assert lines[0].startswith("1 IPU as t=1 x p=1 x r=1 (t to a stage, p in")
    assert "1 of the 2 IPUs is better left free: no mapping onto more of them is better" in lines
    assert lines[-1].startswith("exact for the costs of 1 compile: ")


@pytest.mark.parametrize(("kept", "reason"), [(True, "is slower"), (False, "does not fit")])
def test_recomputation_has_its_true_reason(kept: bool, reason: str) -> None:
    """A recurrent model recomputed because it was quicker, 'since what it kept did not fit'."""
    best = candidate(10.0)
    ends = StagePlan(0, ("a",), recompute=True), StagePlan(1, ("b", "c"))
    best = replace(best, mapping=replace(best.mapping, stages=ends))
    keeping = replace(ends[0], recompute=False), ends[1]
    if not kept:  # others keep all, but in another split
        keeping = StagePlan(0, ("a", "b"), recompute=False), StagePlan(1, ("c",))
    other = replace(candidate(9.0), mapping=replace(best.mapping, stages=keeping))
    question = replace(plan().question, fixed={})
    lines = why(Plan(question, (best, other), ("a", "b", "c"), compiles=1))
    assert f"all stages recompute: to keep everything {reason}" in lines


def test_what_was_not_looked_into_has_a_line_a_reason() -> None:
    lines = ["a: slow", "b does not divide 32", "c: slow", "d: too large: by 3", "e: slow"]
    assert by_reason(lines) == ("a and 2 more: slow", "b does not divide 32", "d: too large: by 3")
