"""The questions that a plan accepts."""

from __future__ import annotations

import pytest

from ipuscope.planner.mappings.question import (
    QuestionError,
    parse_fixed,
    parse_seconds,
    shard_counts,
    usual_micro_batches,
)


def test_fixed_values_have_kinds() -> None:
    words = ["p=4", "recompute=no", "state=off-chip", "proportion=0.2"]
    assert parse_fixed(words) == {"p": 4, "recompute": False, "state": True, "proportion": 0.2}


@pytest.mark.parametrize("word", ["q=1", "p=x", "p=0", "recompute=maybe", "proportion=2", "state"])
def test_what_cannot_be_fixed_is_said(word: str) -> None:
    with pytest.raises(QuestionError, match="--fix"):
        parse_fixed([word])


def test_times() -> None:
    assert [parse_seconds(text) for text in ("90", "90s", "5m", "1h")] == [90, 90, 300, 3600]
    with pytest.raises(QuestionError, match="not a duration"):
        parse_seconds("soon")


def test_micro_batches_divide_the_samples_nearest_first() -> None:
    assert usual_micro_batches(4, 64) == (4, 2, 8, 1, 16, 32, 64)
    assert usual_micro_batches(6, 6) == (6, 3, 2, 1)
    assert usual_micro_batches(4, 6) == (3, 6, 2, 1)


def test_shards_are_powers_of_two_where_the_script_has_a_plan() -> None:
    assert shard_counts(1, planned=False, ipus=16, fixed=None) == (1,)
    assert shard_counts(2, planned=True, ipus=8, fixed=None) == (2, 1, 4, 8)
    assert shard_counts(2, planned=True, ipus=8, fixed=4) == (4,)
