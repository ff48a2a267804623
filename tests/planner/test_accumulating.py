"""Accumulators that a profile does not have: what they would add, against a second compile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ipu_exec as poptorch
from ipuscope.planner.advice import Allowed, advise
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights import insights
from ipuscope.planner.predict.split_text import profiled
from ipuscope.planner.predict.what_if import what_if
from ipuscope.profiler import Report, analysis, open_report
from tests.models import Mlp

BATCH = 8
Optimiser = type[torch.optim.Optimizer]


def compiled(path: Path, optimiser: Optimiser, accumulation: int) -> Report:
    options = poptorch.Options().enableProfiling(str(path / str(accumulation)))
    options.outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(accumulation)
    model = Mlp([256] * 4, [0, 0, 0])
    step = poptorch.trainingModel(model, options, optimiser(model.parameters(), lr=0.1))
    samples = torch.randn(BATCH * accumulation, 256)
    step.compile(samples, samples)
    return open_report(path / str(accumulation) / "training")


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_accumulators_are_foreseen(tmp_path: Path, optimiser: Optimiser) -> None:
    """Within 2% of a weight update, on its slow side, where outputs move with each micro-batch."""
    before, after = (compiled(tmp_path, optimiser, many) for many in (1, 4))
    costs, obtained = Costs.from_report(before), analysis.pace(after).cycles
    assert not costs.streams.out_once and Costs.from_report(after).accumulating is None
    foreseen = what_if(costs.of_micro_batches(4), profiled(costs))
    assert what_if(costs, profiled(costs)).total == analysis.pace(before).cycles
    assert obtained <= foreseen.total < 1.02 * obtained
    (memory,) = foreseen.memory
    assert memory.nbytes >= int(analysis.fullest_tiles(after).max())


def test_what_accumulation_gains_from_one_micro_batch_on_is_an_estimate(tmp_path: Path) -> None:
    before, after = (compiled(tmp_path, torch.optim.Adam, many) for many in (1, 4))
    found = advise(before, Allowed(False, 4 * BATCH)).single
    (advice,) = [one for one in found if one.levers.pulled == ("micro_batches",)]
    assert advice.estimate and advice.levers.micro_batches == 4
    rate = analysis.pace(after).samples_per_second
    assert advice.samples_per_second == pytest.approx(rate, abs=advice.doubt)
    (update,) = [one for one in insights(before) if one.title.startswith("the weight update")]
    assert update.estimate
    saved = analysis.pace(before).cycles - analysis.pace(after).cycles / 4
    assert update.gain_cycles == pytest.approx(saved, rel=0.15)
