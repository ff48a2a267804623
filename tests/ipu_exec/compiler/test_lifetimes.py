"""How long a tensor lives: until the step, inside an operator, that reads it last."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import nn

import ipu_exec
from ipu_exec.compiler.emission.bodies import ProgramTree
from ipu_exec.compiler.emission.loops import Loop, emitted
from ipu_exec.compiler.memory.lifetimes import Lifetimes, Span
from ipu_exec.compiler.placement.place import Placement, Transfer
from ipu_exec.lowering.plan import Compute, Plan
from ipu_exec.session.compilation import compile_step
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.timeline import schedule_types
from tests.ipu_exec.compiler.programs import body, placement, tree, with_bodies_at
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


# -- lives of tensors of bodies written by hand ---

TENSOR = 5


def lives(
    where: Placement, program: ProgramTree, ipu: int, stage: int, weights: Collection[int] = ()
) -> list[Span]:
    return Lifetimes(where, program, with_bodies_at(program, ipu), weights).of(TENSOR, stage)


def trained(**fields: Any) -> ProgramTree:
    """A stage's forward at steps 0 to 3, backward at 4 to 6 and update at 7 and 8."""
    return tree(
        body(schedule_types.FORWARD, 0, 0, 1, 1, 1, 1, touched={TENSOR: (1, 2)}),
        body(schedule_types.BACKWARD, 0, 0, 1, 1, 1, touched={TENSOR: (0, 1)}),
        body(schedule_types.UPDATE, 0, -1, 1, 1),
        **fields,
    )


def test_a_tensor_lives_from_its_first_step_to_its_last() -> None:
    assert lives(placement(0), trained(), 0, 0) == [(1, 5)]
    assert lives(placement(0), tree(body(schedule_types.FORWARD, 0, 0, 1)), 0, 0) == []


def test_a_stashed_or_recomputed_tensor_is_away_between_forward_and_backward() -> None:
    assert lives(placement(0), trained(stashed={0: [TENSOR]}), 0, 0) == [(1, 2), (4, 5)]
    assert lives(placement(0), trained(recomputed={0: {TENSOR}}), 0, 0) == [(1, 2), (4, 5)]
    assert lives(placement(0), trained(stashed={1: [TENSOR]}), 0, 0) == [(1, 5)]  # another stage's


def copying(**fields: Any) -> ProgramTree:
    """The same on IPU 0 with a copy at step 7, and on IPU 1 at step 3."""
    return tree(
        body(schedule_types.FORWARD, 0, 0, 1, 1, 1, 1, touched={TENSOR: (1, 2)}),
        body(schedule_types.BACKWARD, 0, 0, 1, 1, 1, touched={TENSOR: (0, 1)}),
        body(schedule_types.COPY, 0, -1, 1, touched={TENSOR: (0, 0)}),
        body(schedule_types.FORWARD, 1, 1, 1, 1, touched={TENSOR: (1, 1)}),
        body(schedule_types.BACKWARD, 1, 1, 1),
        body(schedule_types.COPY, 1, -1, 1, touched={TENSOR: (0, 0)}),
        **fields,
    )


def moved(direction: Direction, source: int, target: int) -> Placement:
    return placement(0, 1, transfers=(Transfer(TENSOR, direction, source, target, target),))


def test_a_tensor_that_leaves_lives_until_it_is_copied() -> None:
    forward = moved(Direction.FORWARD, 0, 1)
    assert lives(forward, copying(), 0, 0) == [(1, 7)]
    stashed = copying(stashed={0: [TENSOR]})
    assert lives(forward, stashed, 0, 0) == [(1, 7), (4, 5)]  # the forward's result is sent
    assert lives(moved(Direction.BACKWARD, 0, 1), stashed, 0, 0) == [(1, 2), (4, 7)]


def test_a_tensor_that_arrives_lives_from_the_first_step_on_and_at_the_copy() -> None:
    assert lives(moved(Direction.FORWARD, 0, 1), copying(), 1, 1) == [(0, 1), (3, 3)]
    assert lives(moved(Direction.BACKWARD, 1, 0), copying(), 0, 0) == [(0, 5), (7, 7)]
    # one that is only passed on
    passed = tree(body(schedule_types.COPY, 0, -1, 1, 1, touched={TENSOR: (1, 1)}))
    assert lives(moved(Direction.FORWARD, 0, 1), passed, 0, 0) == [(1, 1)]


def test_a_tensor_off_the_chip_is_there_for_each_part_of_the_run() -> None:
    program = tree(
        body(schedule_types.STREAM_IN, 0, 0, 1, touched={TENSOR: (0, 0)}),
        body(schedule_types.FORWARD, 0, 0, 1, 1, touched={TENSOR: (0, 1)}),
        body(schedule_types.RECOMPUTE, 0, 0, 1, touched={TENSOR: (0, 0)}),
        body(schedule_types.BACKWARD, 0, 0, 1, 1, touched={TENSOR: (1, 1)}),
        body(schedule_types.REDUCE, 0, -1, 1, touched={TENSOR: (0, 0)}),
        body(schedule_types.UPDATE, 0, -1, 1, touched={TENSOR: (0, 0)}),
        body(schedule_types.UPDATE, 0, 1, 1, touched={TENSOR: (0, 0)}),  # another stage's
        moving={TENSOR: False},
    )
    assert lives(placement(0, 0), program, 0, 0) == [(0, 2), (3, 5), (6, 7)]


def two_phases(**fields: Any) -> ProgramTree:
    return tree(
        body(schedule_types.FORWARD, 0, 0, 1, 1, touched={TENSOR: (0, 1)}),
        body(schedule_types.BACKWARD, 0, 0, 1, touched={TENSOR: (0, 0)}),
        body(schedule_types.UPDATE, 0, 0, 1, touched={TENSOR: (0, 0)}),
        **fields,
    )


def test_a_phase_loads_and_stores_a_tensor_for_each_body() -> None:
    where = placement(0, pipelined=False, phases=(0,))
    each = [(0, 1), (2, 2), (3, 3)]
    assert lives(where, two_phases(moving={TENSOR: True}), 0, 0) == each
    turned = two_phases(moving={TENSOR: True}, turning=frozenset({0}))
    assert lives(where, turned, 0, 0) == [(0, 2), (3, 3)]  # forward and backward are one stay
    # of what leaves after the forward and after the backward only, by part
    assert lives(where, two_phases(moving={TENSOR: False}), 0, 0) == each


def test_the_last_pipelined_phase_keeps_its_weights_for_the_backward() -> None:
    where = placement(0, phases=(0,))
    last = two_phases(moving={TENSOR: True}, turning=frozenset({0}))
    assert lives(where, last, 0, 0, weights={TENSOR}) == [(0, 2), (3, 3)]
    assert lives(where, last, 0, 0) == [(0, 1), (2, 2), (3, 3)]
    earlier = two_phases(moving={TENSOR: True})
    assert lives(where, earlier, 0, 0, weights={TENSOR}) == [(0, 1), (2, 2), (3, 3)]
