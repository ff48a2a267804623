"""A body while emission writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ipu_exec.compiler.bodies import Body, ProgramStep, Use


@dataclass(slots=True)
class BodyBuilder:
    """Takes the steps of a `Body` one after another; `build` gives the finished one.

    Only emission has builders: later passes see bodies, which do not change.
    """

    name: str
    ipu: int
    stage: int  # -1: none
    task: int  # one of `profiler.schedules.TASKS`
    steps: list[ProgramStep] = field(default_factory=list)
    temporaries: list[Use] = field(default_factory=list)
    touched: dict[int, tuple[int, int]] = field(default_factory=dict)  # storage -> first, last step

    @property
    def cycles(self) -> int:
        """Cycles of the steps so far."""
        return sum(step.cycles for step in self.steps)

    @property
    def last(self) -> int:
        """Position of the last step so far."""
        return len(self.steps) - 1

    def begin_with(self, steps: Sequence[ProgramStep]) -> None:
        """Put steps before all others."""
        count = len(steps)
        self.steps[:0] = steps
        self.touched = {
            storage: (first + count, last + count)
            for storage, (first, last) in self.touched.items()
        }
        self.temporaries = [
            replace(use, first=use.first + count, last=use.last + count) for use in self.temporaries
        ]

    def touch(self, storage: int, first: int, last: int) -> None:
        """Note that steps ``first`` to ``last`` use a storage."""
        old = self.touched.get(storage, (first, last))
        self.touched[storage] = (min(old[0], first), max(old[1], last))

    def hold(self, use: Use) -> None:
        """Keep something in tile memory from step to step, as ``use`` says."""
        self.temporaries.append(use)

    def assign(self, first: int, op: int) -> None:
        """Count steps from ``first`` on that are no operator's to one: its Block's cycles do."""
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
        )
