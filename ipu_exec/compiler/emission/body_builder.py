"""The builder with which emission writes a body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ipu_exec.compiler.emission.bodies import Body, ProgramStep, Use, spent
from ipu_exec.compiler.emission.loops import Loop


@dataclass(slots=True)
class BodyBuilder:
    """Collects the steps of a `Body` in order; `build` returns the finished body.

    Only emission uses builders: later passes see immutable bodies.
    """

    name: str
    ipu: int
    stage: int  # -1: none
    task: int  # one of `ipuscope.profiler.timeline.schedule_types.TASKS`
    steps: list[ProgramStep] = field(default_factory=list)
    temporaries: list[Use] = field(default_factory=list)
    touched: dict[int, tuple[int, int]] = field(default_factory=dict)  # storage -> first, last step

    loops: list[Loop] = field(default_factory=list)

    @property
    def cycles(self) -> int:
        """Cycles of the steps so far."""
        return spent(self.steps, self.loops)

    @property
    def last(self) -> int:
        """Position of the last step so far."""
        return len(self.steps) - 1

    def begin_with(self, steps: Sequence[ProgramStep]) -> None:
        """Insert steps before all others."""
        count = len(steps)
        self.steps[:0] = steps
        self.touched = {
            storage: (first + count, last + count)
            for storage, (first, last) in self.touched.items()
        }
        self.temporaries = [
            replace(use, first=use.first + count, last=use.last + count) for use in self.temporaries
        ]
        self.loops = [
            replace(loop, first=loop.first + count, stop=loop.stop + count) for loop in self.loops
        ]

    def touch(self, storage: int, first: int, last: int) -> None:
        """Record that steps ``first`` to ``last`` use a storage."""
        old = self.touched.get(storage, (first, last))
        self.touched[storage] = (min(old[0], first), max(old[1], last))

    def hold(self, use: Use) -> None:
        """Keep a variable in tile memory over the steps that ``use`` names."""
        self.temporaries.append(use)

    def assign(self, first: int, op: int) -> None:
        """Assign the steps from ``first`` on that have no operator to one, and so to its Block."""
        for position in range(first, len(self.steps)):
            if self.steps[position].op < 0:
                self.steps[position] = replace(self.steps[position], op=op)

    def build(self) -> Body:
        """The finished body."""
        return Body(
            self.name,
            self.ipu,
            self.stage,
            self.task,
            tuple(self.steps),
            tuple(self.temporaries),
            self.touched,
            tuple(self.loops),
        )
