"""The profile's rows of the program: its tree, the steps at the leaves, compute sets, vertices."""

from __future__ import annotations

from typing import Any

from ipu_exec.compiler.emission.bodies import Body, ProgramStep
from ipu_exec.compiler.executable import Executable
from ipu_exec.lowering import vertex_info
from ipu_exec.lowering.vertices import STATE_BYTES
from ipuscope.profiler.enums import PipelinePhase
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import schedule_types


def program_rows(executable: Executable) -> list[Any]:
    """The program tree, its leaves' steps, and the compute sets with their vertices."""
    return _Rows(executable).rows()


class _Rows:
    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self.nodes = _Nodes()
        self.steps: list[Any] = []
        self.vertex_types: dict[str, int] = {}
        self.compute_sets: dict[int, int] = {}  # by the first step that runs their code
        self.positions = dict.fromkeys(range(executable.placement.num_ipus), 0)

    def rows(self) -> list[Any]:
        executable, nodes = self.executable, self.nodes
        timeline = executable.timeline
        root = nodes.add(-1, records.SEQUENCE, "main")
        iteration = nodes.add(root, records.REPEAT, "device iterations", timeline.trace.iterations)
        cycles = sum(phase != PipelinePhase.UPDATE for phase in timeline.schedule.phases)
        name = "pipeline cycles" if executable.placement.pipelined else "micro-batches"
        loop = nodes.add(iteration, records.REPEAT, name, cycles)
        update = -1
        if executable.options.training:
            update = nodes.add(iteration, records.SEQUENCE, "weight update")
        for index, body in enumerate(executable.tree.bodies):
            once = body.task in (schedule_types.UPDATE, schedule_types.REDUCE)
            self._body(index, body, update if once else loop)
        types = [
            records.VertexType(kind, name, vertex_info(name)[0], STATE_BYTES)
            for name, kind in self.vertex_types.items()
        ]
        return [*nodes.rows, *self.steps, *types]

    def _body(self, index: int, body: Body, parent: int) -> None:
        """A sequence for the body, one in it for each operator, and their steps.

        Steps of a loop are in a Repeat of their operator.
        """
        node = self.nodes.add(parent, records.SEQUENCE, body.name)
        group, group_op = node, -1
        loops = {loop.first: loop for loop in body.loops}
        turn, end_of_turn = -1, -1
        ids = self.executable.tree.step_ids[index]
        for position, (step, step_id) in enumerate(zip(body.steps, ids, strict=True)):
            if step.op != group_op:
                group_op = step.op
                group = node
                if group_op >= 0:
                    name = self.executable.graph.ops[group_op].name
                    group = self.nodes.add(node, records.SEQUENCE, name)
            if position in loops:
                loop = loops[position]
                turn = self.nodes.add(group, records.REPEAT, "serial steps", loop.times)
                end_of_turn = loop.stop
            leaf = self.nodes.add(turn if position < end_of_turn else group, step.type, step.name)
            code = self.executable.memory.code.first.get(step_id, step_id)
            compute_set = self._compute_set(step, code, body.ipu)
            self.steps.append(
                records.Step(
                    step_id,
                    body.ipu,
                    self.positions[body.ipu],
                    leaf,
                    index,
                    step.op,
                    step.type,
                    step.name,
                    step.cycles,
                    compute_set,
                    step.tile_cycles,
                    step.bytes_in,
                    step.bytes_out,
                    step.purpose,
                    step.tensor,
                    code,
                )
            )
            self.positions[body.ipu] += 1
            storages = self.executable.graph.storages
            self.steps += [
                records.MovedTensor(
                    step_id,
                    move.storage,
                    storages[move.storage].name,
                    move.source,
                    move.target,
                    move.bytes,
                )
                for move in step.moves
            ]

    def _compute_set(self, step: ProgramStep, code: int, ipu: int) -> int:
        """The id of the step's compute set, -1 where it has none.

        Steps with the same ``code`` (the first step that runs it) share theirs.
        """
        if step.type != records.ON_TILE_EXECUTE:
            return -1
        if code in self.compute_sets:
            return self.compute_sets[code]
        number = self.compute_sets[code] = len(self.compute_sets)
        self.steps.append(records.ComputeSet(number, step.name, ipu, step.op, step.flops))
        for vertices in step.vertices:
            kind = self.vertex_types.setdefault(vertices.type, len(self.vertex_types))
            self.steps.append(records.VertexUse(number, kind, vertices.count))
        return number


class _Nodes:
    """Program nodes in the making: ids in order of creation, positions among siblings."""

    def __init__(self) -> None:
        self.rows: list[records.Program] = []
        self._children: dict[int, int] = {}

    def add(self, parent: int, kind: str, name: str, repeat: int = 1) -> int:
        position = self._children.get(parent, 0)
        self._children[parent] = position + 1
        self.rows.append(records.Program(len(self.rows), parent, position, kind, name, repeat))
        return len(self.rows) - 1
