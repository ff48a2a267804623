"""The steps of operators in the bodies of a program, and the cycles that each operator takes."""

from __future__ import annotations

from dataclasses import replace

from ipu_exec.compiler.bodies import Use, program_steps, step_name
from ipu_exec.compiler.body_builder import BodyBuilder
from ipu_exec.compiler.reads import read_values
from ipu_exec.compiler.tile_mapping import TileMapping
from ipu_exec.graph import OpNode
from profiler.enums import Role


class OperatorSteps:
    """Appends operators to bodies as they were planned. ``cycles``: by operator."""

    def __init__(self, mapping: TileMapping) -> None:
        self.mapping = mapping
        self.cycles: dict[int, int] = {}

    def append(self, op: OpNode, body: BodyBuilder) -> None:
        """The operator's steps, with what it touches and holds meanwhile."""
        plan, target = self.mapping.plans[op.id], self.mapping.machine.target
        ends: list[int] = []  # position of the last step of each of the plan's
        begin = len(body.steps)
        for part, step in enumerate(plan.steps):
            body.steps += [
                replace(one, op=op.id, name=step_name(op.name, one.name), plan=plan, part=part)
                for one in program_steps(step, target.name)
            ]
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
