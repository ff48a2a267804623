"""How long a tensor lives: until the step, inside an operator, that reads it last."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import ipu_exec
from ipu_exec.compiler.emission.loops import Loop, emitted
from ipu_exec.lowering.plan import Compute, Plan
from ipu_exec.session.compilation import compile_step
from tests.models import model_of


def layers(self, x: torch.Tensor) -> torch.Tensor:
    with ipu_exec.Block("layers"):
        return torch.relu(self.second(torch.nn.functional.gelu(self.first(x))))


def test_a_tensor_that_a_product_gathers_is_free_before_the_product_is_added_up() -> None:
    model = model_of(layers, first=nn.Linear(256, 1024), second=nn.Linear(1024, 256))
    options = ipu_exec.Options().showCompilationProgressBar(False)
    with torch.no_grad():
        compiled = compile_step(model.eval(), (torch.zeros(64, 256),), {}, options, None, False)
    names = compiled.tree.step_names(0)
    plan = next(s.plan for b in compiled.tree.bodies for s in b.steps if "second/" in s.name)
    assert plan is not None
    reads = [step.name.partition("/")[2] for step in plan.steps]
    (last,) = {reads[step] for index, step in plan.last_reads if index == 1}
    gelu = next(v for v in compiled.variables if v.name == "gelu:0")
    assert names[gelu.stop - 1] == f"second/addmm/{last}"
    assert any(name.startswith("second/addmm/reduce") for name in names[gelu.stop :])


def test_what_a_loop_reads_it_reads_to_its_end() -> None:
    """The second of three equal turns is emitted with the first, as a loop."""
    steps = tuple(
        Compute(f"product/{name}/{turn}", np.ones(4, np.int64), ())
        for turn in range(1, 5)
        for name in ("slice", "convolve")
    )
    once = emitted(Plan(steps, last_reads=((0, 0), (1, 2), (2, 6))))
    assert once.loops == (Loop(0, 2, 3),)
    assert once.last_reads == {0: 1, 1: 1, 2: 2}
