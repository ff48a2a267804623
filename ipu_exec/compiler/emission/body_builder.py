"""The builder with which emission writes a body."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ipu_exec.compiler.emission.bodies import Body, ProgramStep, Use, behind, program_steps, spent
from ipu_exec.compiler.emission.loops import Emitted, Loop, emitted
from ipu_exec.compiler.placement.reads import read_operands
from ipu_exec.compiler.tile_mapping import TileMapping
from ipu_exec.graph import OpNode
from ipu_exec.lowering.plan import Plan
from ipuscope.profiler.enums import Role


@dataclass(slots=True)
class BodyBuilder:
    """Collects the steps of a `Body` for emission; later passes only see what `build` returns."""

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

    def touch(
        self, storages: Iterable[int], first: int | None = None, last: int | None = None
    ) -> None:
        """Record that steps ``first`` to ``last`` use storages; by default the last step."""
        last = self.last if last is None else last
        first = last if first is None else first
        for storage in storages:
            old = self.touched.get(storage)
            span = (first, last) if old is None else (min(old[0], first), max(old[1], last))
            self.touched[storage] = span

    def hold(self, use: Use) -> None:
        """Keep a variable in tile memory over the steps that ``use`` names."""
        self.temporaries.append(use)

    def assign(self, first: int, op: int) -> None:
        """Assign the steps from ``first`` on that have no operator to one, and so to its Block."""
        for position, step in enumerate(self.steps[first:], first):
            if step.op < 0:
                self.steps[position] = step.in_operator(op, step.name, step.plan, step.part)

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


# -- The steps of operators in the bodies of a program, and the cycles that each operator takes ---


@dataclass(frozen=True)
class _Emission:
    """What is emitted of a plan: the program steps of each part, not yet an operator's."""

    of_plan: Emitted
    steps: list[list[ProgramStep]]
    cycles: int
    names: dict[str, list[list[str]]]  # of steps, behind an operator's, by the end of that


class OperatorSteps:
    """Appends operators to bodies as planned. ``cycles``: cycles by operator."""

    def __init__(self, mapping: TileMapping) -> None:
        self.mapping = mapping
        self.cycles: dict[int, int] = {}
        self._emissions: dict[int, _Emission] = {}  # by id: the mapping has the plans

    def append(self, op: OpNode, body: BodyBuilder) -> None:
        """Append the operator's steps and record the storages that it uses meanwhile."""
        plan = self.mapping.plans[op.id]
        emission = self._emission(plan)
        once = emission.of_plan
        starts: list[int] = []  # position of the first step of each part
        ends: list[int] = []  # and of the last
        short = op.name.rpartition("/")[2]
        ends_of_names = emission.names.get(short)
        if ends_of_names is None:
            ends_of_names = [[behind(short, one.name) for one in some] for some in emission.steps]
            emission.names[short] = ends_of_names
        for part, steps, names in zip(once.parts, emission.steps, ends_of_names, strict=True):
            starts.append(len(body.steps))
            body.steps += [
                one.in_operator(op.id, op.name + name, plan, part)
                for one, name in zip(steps, names, strict=True)
            ]
            ends.append(len(body.steps) - 1)
        body.loops += [
            Loop(starts[loop.first], ends[loop.stop - 1] + 1, loop.times) for loop in once.loops
        ]
        self.cycles[op.id] = emission.cycles
        if not ends:
            return
        for index in read_operands(op):
            last = ends[once.last_reads.get(index, -1)]
            body.touch([self.mapping.storage(op.inputs[index])], ends[0], last)
        body.touch(self.mapping.graph.results(op))
        for temporary in once.temporaries:
            name = op.name + behind(short, temporary.name)
            body.hold(
                Use(
                    name,
                    Role.TEMPORARY,
                    temporary.bytes,
                    ends[temporary.first],
                    ends[temporary.last],
                    op.id,
                    temporary.interleaved,
                    temporary.becomes_result,
                )
            )

    def _emission(self, plan: Plan) -> _Emission:
        if id(plan) not in self._emissions:
            of = self.mapping.machine.target.name, self.mapping.once
            once = emitted(plan)
            steps = [
                # a sync is named after the exchange that it precedes
                program_steps(replace(plan.steps[part], name=name), *of)
                for part, name in zip(once.parts, once.names, strict=True)
            ]
            cycles = [sum(step.cycles for step in some) for some in steps]
            self._emissions[id(plan)] = _Emission(once, steps, int(once.times @ cycles), {})
        return self._emissions[id(plan)]
