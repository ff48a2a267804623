"""A model of any_model as somebody's script has it: no Blocks, its own batch loop.

ipu-run --compile-only benchmarks/plan/unannotated.py NAME [MICRO_BATCHES]
"""

from __future__ import annotations

import sys

import poptorch

from benchmarks.plan.more_models import any_model

name, micro_batches = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 16
example = any_model(name)
model = example.module.train()
options = poptorch.Options()
options.Training.gradientAccumulation(micro_batches)
optimiser = poptorch.optim.AdamW(model.parameters(), lr=1e-4)
training = poptorch.trainingModel(model, options, optimiser)
for _ in range(2):
    training(*example.inputs(example.micro_batch * micro_batches))
