"""The steps of operators in the bodies of a program, and the cycles that each operator takes."""

from __future__ import annotations

from ipu_exec.compiler.bodies import ProgramStep, Use, program_steps, step_name
from ipu_exec.compiler.body_builder import BodyBuilder
from ipu_exec.compiler.reads import read_values
from ipu_exec.compiler.tile_mapping import TileMapping
from ipu_exec.graph import OpNode
from ipu_exec.lowering.plan import Plan
from profiler.enums import Role


class OperatorSteps:
    """Appends operators to bodies as planned. ``cycles``: cycles by operator."""

    def __init__(self, mapping: TileMapping) -> None:
        self.mapping = mapping
        self.cycles: dict[int, int] = {}
        self._steps: dict[int, list[list[ProgramStep]]] = {}  # by id: plans live on

    def append(self, op: OpNode, body: BodyBuilder) -> None:
        """Append the operator's steps and record the storages that it uses meanwhile."""
        plan = self.mapping.plans[op.id]
        ends: list[int] = []  # position of the last step of each of the plan's
        begin = len(body.steps)
        for part, steps in enumerate(self._steps_of(plan)):
            for one in steps:
                name = step_name(op.name, one.name)
                body.steps.append(one.in_operator(op.id, name, plan, part))
            ends.append(body.last)
        self.cycles[op.id] = sum(step.cycles for step in body.steps[begin:])
        if not ends:
            return
        for value in read_values(op):
            body.touch(self.mapping.storage(value), ends[0], ends[-1])
        for output in op.outputs:
            if output is not None:
                body.touch(self.mapping.storage(output), ends[-1], ends[-1])
        for temporary in plan.temporaries:
            body.hold(
                Use(
                    step_name(op.name, temporary.name),
                    Role.TEMPORARY,
                    temporary.bytes,
                    ends[temporary.first],
                    ends[temporary.last],
                    op.id,
                    interleaved=temporary.interleaved,
                )
            )

    def _steps_of(self, plan: Plan) -> list[list[ProgramStep]]:
        """The program steps of each step of the plan, not assigned to an operator yet."""
        if id(plan) not in self._steps:
            target = self.mapping.machine.target.name
            self._steps[id(plan)] = [program_steps(step, target) for step in plan.steps]
        return self._steps[id(plan)]
