"""Splits of tied weights that fit only where a stage comes back to the weight's IPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.mappings import Question, mapping_search
from ipuscope.planner.mappings.compile_search import plan
from ipuscope.planner.mappings.priced import Priced, places
from ipuscope.planner.predict.what_if import what_if
from ipuscope.planner.search.split_search import ALL_CHOICES
from tests.planner.rebalance.test_tied_memory import sharing, splits
from tests.planner.test_rebalanced import KEY, Given

APART = (0, 1)
BACK = (0, 1, 0)


def least(costs: Costs, ipus: tuple[int, ...]) -> int:
    """Bytes of the fullest tile of the split of these stages that needs least, saving all ways."""
    return min(max(what_if(costs, one).fullest) for one in splits(len(costs), ipus, ALL_CHOICES))


def test_what_only_fits_where_a_stage_comes_back_to_its_tied_weight_is_found() -> None:
    """Two IPUs with what a returning split just needs; one stage each needs three times as much."""
    random = np.random.default_rng(3)
    costs = sharing(random, 4, 2)
    assert costs.cuts.ties.blocks == ((0, 3),)
    memory, copy = costs.memory, 150_000
    large = {"copies": memory.copies + copy, "peak_of_copies": memory.peak_of_copies + copy}
    costs = replace(costs, memory=replace(memory, **large))
    limit = least(costs, BACK)
    assert limit < least(costs, APART)
    short = costs.with_tile_bytes(limit)
    fixed = {"r": 1, "p": 2}
    question = Question(2, costs.micro_batches * KEY.micro_batch, (KEY.micro_batch,), fixed=fixed)
    best = plan(question, Given(short, short), [KEY]).best
    assert tuple(stage.ipu for stage in best.mapping.stages) == BACK
    # whichever is looked into first: that one stage each is too much says nothing of the other
    priced = Priced(KEY, short)
    by_list = {place.ipus: place for place in places(priced, question)}
    too_few = mapping_search._TooFew(priced, question)
    too_few.add(by_list[APART])
    assert too_few.for_weights_of(by_list[APART])
    assert not too_few.for_weights_of(by_list[BACK])
