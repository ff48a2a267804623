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


def compiled(path: Path, optimiser: Optimiser, accumulation: int, off_chip: bool = False) -> Report:
    options = poptorch.Options().enableProfiling(str(path / str(accumulation)))
    options.outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(accumulation)
    if off_chip:
        there = poptorch.TensorLocationSettings().useOnChipStorage(False)
        options.TensorLocations.setAccumulatorLocation(there)
    model = Mlp([256] * 4, [0, 0, 0])
    step = poptorch.trainingModel(model, options, optimiser(model.parameters(), lr=0.1))
    samples = torch.randn(BATCH * accumulation, 256)
    step.compile(samples, samples)
    return open_report(path / str(accumulation) / "training")


@pytest.mark.parametrize("off_chip", [False, True])
@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_accumulators_are_foreseen(tmp_path: Path, optimiser: Optimiser, off_chip: bool) -> None:
    """Within 1% of a weight update, from one micro-batch on and back to one."""
    reports = {many: compiled(tmp_path, optimiser, many, off_chip) for many in (1, 4)}
    for before, after in (1, 4), (4, 1):
        costs = Costs.from_report(reports[before])
        assert what_if(costs, profiled(costs)).total == analysis.pace(reports[before]).cycles
        foreseen = what_if(costs.of_micro_batches(after), profiled(costs))
        obtained = analysis.pace(reports[after]).cycles
        assert foreseen.total == pytest.approx(obtained, rel=0.01)
        assert costs.accumulates_otherwise(after) and not costs.accumulates_otherwise(before)
        (memory,) = foreseen.memory
        if after > 1 and not off_chip:
            assert memory.nbytes >= int(analysis.fullest_tiles(reports[after]).max())
    # a plan compiles the script's four without accumulators, for mappings with one
    reports[1].options["Training.gradientAccumulation"] = 4
    assert not Costs._read(reports[1]).accumulates_otherwise(1)


def test_what_accumulation_gains_from_one_micro_batch_on_is_an_estimate(tmp_path: Path) -> None:
    before, after = (compiled(tmp_path, torch.optim.Adam, many) for many in (1, 4))
    found = advise(before, Allowed(False, 4 * BATCH)).single
    (advice,) = [one for one in found if one.levers.pulled == ("micro_batches",)]
    assert advice.estimate and advice.levers.micro_batches == 4
    rate = analysis.pace(after).samples_per_second
    assert advice.samples_per_second == pytest.approx(rate, abs=advice.doubt)
    (update,) = [one for one in insights(before) if one.title.startswith("the update phase")]
    assert update.estimate
    saved = analysis.pace(before).cycles - analysis.pace(after).cycles / 4
    assert update.gain_cycles == pytest.approx(saved, rel=0.15)
