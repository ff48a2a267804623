"""Costs of Blocks in phases that are pipelines, read off a compile with one Block a stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from math import ceil

import numpy as np

from ipu_exec.compiler.emission.bodies import Body, Move, ProgramStep
from ipu_exec.compiler.emission.transfers import stored_in_parts
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.placement.place import storage_bytes
from ipu_exec.compiler.placement.reads import read_values
from ipu_exec.compiler.placement.recompute import (
    block_of,
    made_by,
    run_again,
    run_again_alone,
    spent_by_block,
)
from ipu_exec.compiler.placement.residency import kinds_of_stages, stays_by_stage
from ipu_exec.compiler.rows.block_rows import update_blocks
from ipu_exec.compiler.rows.profile_header import cycle_error
from ipu_exec.graph import Graph
from ipu_exec.machine import EXTERNAL_SYNC_CYCLES, STREAM_STEP_CYCLES, Target, header
from ipu_exec.planning.phased_code import code_pieces
from ipuscope.planner.costs.machine_costs import MachineCosts
from ipuscope.planner.mappings import Key
from ipuscope.planner.mappings.phased_costs import (
    BACKWARD,
    ENTERS,
    FORWARD,
    LEAVES,
    RETURNS,
    TURNS,
    UPDATED,
    BlockTiles,
    Cut,
    PhasedCosts,
    Reads,
    transfers,
)
from ipuscope.profiler.confidence import Confidence
from ipuscope.profiler.enums import Direction, Purpose, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import schedule_types

_DIRECTIONS = {
    schedule_types.FORWARD: FORWARD,
    schedule_types.RECOMPUTE: BACKWARD,
    schedule_types.BACKWARD: BACKWARD,
}
# `BlockTiles.resident`'s passes: the tasks in which a stage computes, and those around them
_COMPUTES = {schedule_types.FORWARD: 0, schedule_types.RECOMPUTE: 1, schedule_types.BACKWARD: 2}
_RUNS = {**_COMPUTES, schedule_types.ENTER: 0, schedule_types.RETURN: 1, schedule_types.LEAVE: 2}
_PASSES = len(_COMPUTES)
_LOADS = (Purpose.REMOTE_LOAD, Purpose.COPY)
_REMOTE = (Purpose.REMOTE_LOAD, Purpose.REMOTE_STORE)
_EXCHANGES = (records.DO_EXCHANGE, records.GLOBAL_EXCHANGE, records.SYNC)
_ROUNDS = {Purpose.ALL_REDUCE: 2, Purpose.ALL_GATHER: 1, Purpose.REDUCE_SCATTER: 1}


def has_one_block_a_stage(executable: Executable) -> bool:
    """Whether costs of Blocks in phases can be read off it."""
    placement = executable.placement
    blocks = [stage.blocks for stage in placement.stages]
    named = [(block.name,) for block in executable.graph.blocks]
    return bool(placement.phases) and placement.pipelined and blocks == named


def phased_costs(executable: Executable, key: Key) -> PhasedCosts:
    """The costs. `has_one_block_a_stage` holds."""
    return _Reader(executable, key).read()


def machine_costs(target: Target, shards: int) -> MachineCosts:
    """The machine, as a profile of it would say."""
    return MachineCosts(
        **asdict(target.links),
        tiles=target.tiles,
        bytes_per_tile=target.bytes_per_tile,
        region0_bytes=target.region0_bytes,
        clock_hz=target.clock_hz,
        sync=EXTERNAL_SYNC_CYCLES,
        shards=shards,
        streaming_bytes_per_cycle=header(target)["streaming_bytes_per_cycle"],
        stream_step=STREAM_STEP_CYCLES,
    )


class _Reader:
    """Reads the costs off one executable."""

    def __init__(self, executable: Executable, key: Key) -> None:
        self.executable, self.key = executable, key
        self.graph, self.placement = executable.graph, executable.placement
        self.blocks = len(self.graph.blocks)
        self.machine = machine_costs(executable.target, key.shards)
        self.replicas = executable.options.replicas
        self.made = _made(self.graph)
        self.touched = _touched(self.graph, self.blocks)
        self.updates = update_blocks(self.graph)
        self.again, self.if_joined = _recomputation(executable)
        self.cut = Cut(tuple(range(self.blocks)), self.placement.phases)

    def read(self) -> PhasedCosts:
        options = self.executable.options
        locations, reads = options.locations, self._reads()
        work, again = self._cycles()
        costs = PhasedCosts(
            self.key,
            tuple(block.name for block in self.graph.blocks),
            self.machine,
            work,
            again,
            self.if_joined,
            reads,
            self._once(),
            self._updates(),
            max((b.cycles for b in self._bodies(schedule_types.REDUCE)), default=0),
            self._streamed(schedule_types.STREAM_IN),
            self._streamed(schedule_types.STREAM_OUT),
            options.outputs_once,
            self._tiles(),
            bool(locations.state.sharded and options.replicas > 1),
            bool(options.training and locations.state.off_chip),
            *self._shared(),
        )
        streamed, received = transfers(costs, self.cut)
        # what the rules of transfers do not say is the Block's own
        return replace(costs, work=work - streamed - received)

    def _bodies(self, *tasks: int) -> Iterator[Body]:
        return (body for body in self.executable.tree.bodies if body.task in tasks)

    def _cycles(self) -> tuple[np.ndarray, np.ndarray]:
        cycles = np.zeros((2, self.blocks), dtype=np.int64)
        again = np.zeros(self.blocks, dtype=np.int64)
        for body in self._bodies(*_DIRECTIONS):
            cycles[_DIRECTIONS[body.task], body.stage] += body.cycles
            if body.task == schedule_types.RECOMPUTE:
                again[body.stage] += body.cycles
        return cycles, again

    def _streamed(self, task: int) -> np.ndarray:
        cycles = np.zeros(self.blocks, dtype=np.int64)
        for body in self._bodies(task):
            cycles[body.stage] += body.cycles
        return cycles

    def _reads(self) -> Reads:
        """What bodies load and receive, once for each tensor, direction and Block."""
        sizes: dict[int, int] = {}
        reads: dict[tuple[int, int, int], None] = {}
        for body in self._bodies(*_DIRECTIONS):
            direction = _DIRECTIONS[body.task]
            for step in body.steps:
                for move in step.moves if step.purpose in (*_LOADS, *_REMOTE) else ():
                    if step.purpose in _REMOTE:
                        sizes[move.storage] = move.bytes
                    if step.purpose in _LOADS:
                        reads[move.storage, direction, body.stage] = None
        rows = []
        options = self.executable.options
        parted = stored_in_parts(self.graph, options)  # also where no body stores it
        for storage, direction, reader in reads:
            made_in, maker = self.made.get(storage, (FORWARD, reader))
            keeper = reader if storage in self.touched[reader] else maker
            whole = self._bytes(storage, maker)
            nbytes = sizes.get(storage, ceil(whole / (options.shards if storage in parted else 1)))
            again = storage in self.again and (made_in, direction) == (FORWARD, BACKWARD)
            rows.append((storage, made_in, maker, direction, reader, keeper, nbytes, whole, again))
        return Reads(*np.array(rows, dtype=np.int64).reshape(-1, 9).T)

    def _bytes(self, storage: int, block: int) -> int:
        layout = self.executable.tree.layouts.get((storage, block))
        return int(layout.bytes.sum()) if layout else storage_bytes(self.graph, storage)

    def _once(self) -> np.ndarray:
        """`PhasedCosts.once`."""
        once = np.zeros((5, self.blocks, 5), dtype=np.int64)
        by_task = {
            schedule_types.ENTER: ENTERS,
            schedule_types.RETURN: RETURNS,
            schedule_types.LEAVE: LEAVES,
        }
        for body in self._bodies(*by_task):
            for step in body.steps:
                self._add(once[by_task[body.task], body.stage], step, step.moves)
                if body.task == schedule_types.RETURN:
                    accumulators = self._moves_with(step, Role.ACCUMULATOR)
                    self._add(once[TURNS, body.stage], step, accumulators)
        # the last phase's weights are there: in another phase they would come once more
        last = np.array(self.placement.phases) == self.placement.phases[-1]
        once[RETURNS, last] = once[ENTERS, last] + once[TURNS, last]
        enters = last & (once[ENTERS, :, 0] > 0)
        once[RETURNS, enters, 0] = once[ENTERS, enters, 0]
        for body in self._bodies(schedule_types.UPDATE):
            for step in body.steps:
                block = self._updates_block(step)
                if block >= 0:
                    self._add(once[UPDATED, block], step, step.moves)
        return once

    def _moves_with(self, step: ProgramStep, role: Role) -> tuple[Move, ...]:
        storages = self.graph.storages
        return tuple(move for move in step.moves if storages[move.storage].role == role)

    def _add(self, row: np.ndarray, step: ProgramStep, moves: Sequence[Move]) -> None:
        """Add a transfer to `PhasedCosts.once`'s columns."""
        if step.purpose in _REMOTE:
            row[0] += bool(moves)
            for move in moves:
                in_parts = move.bytes < self._whole(move.storage)
                row[1 + in_parts] += move.bytes * (self.replicas if in_parts else 1)
        elif step.purpose in _ROUNDS and moves:
            rounds = _ROUNDS[step.purpose]
            row[3] += rounds
            row[4] += rounds * sum(move.bytes for move in moves)

    def _whole(self, storage: int) -> int:
        return storage_bytes(self.graph, storage)

    def _owner(self, storage: int) -> int:
        """The weight that a storage is, or belongs to."""
        owner = self.graph.storages[storage].parameter
        return owner if owner >= 0 else storage

    def _weight(self, step: ProgramStep) -> int:
        """The weight that a step of the update is about; -1: none, or several."""
        if step.op < 0:
            return self._owner(step.moves[0].storage) if step.moves else -1
        read = (self.graph.values[value].storage for value in self.graph.ops[step.op].inputs)
        owners = [self._owner(storage) for storage in read]
        weights = (one for one in owners if self.graph.storages[one].role == Role.WEIGHT)
        return next(weights, -1)

    def _updates_block(self, step: ProgramStep) -> int:
        """The Block that has the weight which a step updates; -1 for none."""
        if step.op >= 0:
            return self.updates[step.op]
        return self.placement.home.get(self._weight(step), -1)

    def _parted(self) -> set[int]:
        """Weights of which, or of whose state, each replica keeps its part."""
        bodies = self._bodies(schedule_types.ENTER, schedule_types.RETURN, schedule_types.UPDATE)
        moves = (m for b in bodies for s in b.steps if s.purpose in _REMOTE for m in s.moves)
        return {self._owner(m.storage) for m in moves if m.bytes < self._whole(m.storage)}

    def _updates(self) -> np.ndarray:
        """`PhasedCosts.update`."""
        cycles = np.zeros((2, self.blocks), dtype=np.int64)
        parted = self._parted()
        for body in self._bodies(schedule_types.UPDATE):
            for step, times in zip(body.steps, body.times.tolist(), strict=True):
                block = self._updates_block(step)
                if block < 0 or step.purpose in (*_REMOTE, *_ROUNDS):
                    continue
                in_parts = self._weight(step) in parted
                of_all = self.replicas if in_parts else 1
                cycles[int(in_parts), block] += step.cycles * times * of_all
        return cycles

    # -- memory ---

    def _tiles(self) -> BlockTiles:
        """What Blocks hold on the tiles, and the code of IPUs."""
        target = self.executable.target
        rows = _PASSES * self.blocks  # a pass' Blocks after another's
        peaks = np.zeros((2, rows, target.tiles), dtype=np.int64)
        around = np.zeros((2, rows, target.tiles), dtype=np.int64)
        update = np.zeros((self.blocks, 3, target.tiles), dtype=np.int64)
        always = np.zeros((self.blocks, target.tiles), dtype=np.int64)
        ipus = range(self.placement.num_ipus)
        code = np.zeros((len(ipus), target.tiles), dtype=np.int64)
        of_ipu: dict[int, list[records.Variable]] = {ipu: [] for ipu in ipus}
        for variable in self.executable.variables:
            if not variable.always_live:
                of_ipu[variable.ipu].append(variable)
            elif variable.role == Role.PROGRAM or variable.stage < 0:
                code[variable.ipu] += variable.tile_bytes
            else:
                always[variable.stage] += variable.tile_bytes
        for ipu, variables in of_ipu.items():
            row_at = self._rows(ipu, _RUNS)
            interleaved = [v for v in variables if v.interleaved]
            for some, most in zip((variables, interleaved), peaks, strict=True):
                _peaks_of_rows(some, row_at, most)
            self._around(variables, self._rows(ipu, _COMPUTES), around)
            _peaks_by_share(variables, self._update_at(ipu), update)
        by_pass = (_PASSES, self.blocks, target.tiles)
        return self._tiles_by_kind(
            around.reshape(2, *by_pass),
            peaks[0].reshape(by_pass),
            peaks[1].reshape(by_pass).max(axis=0),
            always,
            update,
            code,
        )

    def _rows(self, ipu: int, passes: Mapping[int, int]) -> np.ndarray:
        """What runs at each position of an IPU in ``passes``: pass x Blocks + Block; -1: none."""
        bodies = [body for body in self.executable.tree.bodies if body.ipu == ipu]
        rows = [
            passes[body.task] * self.blocks + body.stage if body.task in passes else -1
            for body in bodies
        ]
        return np.repeat(np.array(rows), [len(body.steps) for body in bodies])

    def _update_at(self, ipu: int) -> np.ndarray:
        """The Block whose weight is updated at each position of an IPU, -1 for none."""
        blocks: list[int] = []
        for body in self.executable.tree.bodies:
            if body.ipu == ipu and body.task == schedule_types.UPDATE:
                blocks += [self._updates_block(step) for step in body.steps]
            elif body.ipu == ipu:
                blocks += [-1] * len(body.steps)
        return np.array(blocks)

    def _around(
        self, variables: Sequence[records.Variable], row_at: np.ndarray, sums: np.ndarray
    ) -> None:
        """Add weights and accumulators at the beginning of each row, and behind it."""
        rows, first = np.unique(row_at, return_index=True)  # what runs again may do so in pieces
        last = len(row_at) - 1 - np.unique(row_at[::-1], return_index=True)[1]
        of_stage: dict[int, list[records.Variable]] = defaultdict(list)
        for variable in variables:
            if variable.role in (Role.WEIGHT, Role.ACCUMULATOR):
                of_stage[variable.stage].append(variable)
        for row, begin, end in zip(rows.tolist(), first.tolist(), last.tolist(), strict=True):
            for variable in of_stage[row % self.blocks] if row >= 0 else ():
                sums[0, row] += variable.tile_bytes * (variable.start <= begin < variable.stop)
                sums[1, row] += variable.tile_bytes * (variable.start <= end < variable.stop - 1)

    def _tiles_by_kind(
        self,
        around: np.ndarray,
        peak: np.ndarray,
        interleaved: np.ndarray,
        always: np.ndarray,
        update: np.ndarray,
        code: np.ndarray,
    ) -> BlockTiles:
        """Equal Blocks are one kind; arrays are over Blocks, as `BlockTiles`' are over kinds."""
        # `code` of the IPUs, int64[IPU, tile]
        kinds: dict[bytes, int] = {}
        kind = np.zeros(self.blocks, dtype=np.int64)
        first: list[int] = []
        for block in range(self.blocks):
            columns = [around[:, :, block], peak[:, block], interleaved[block], always[block]]
            columns.append(update[block])
            digest = b"".join(column.tobytes() for column in columns)
            if digest not in kinds:
                kinds[digest] = len(kinds)
                first.append(block)
            kind[block] = kinds[digest]
        program = self._programs()
        pieces = code_pieces(self.executable, program, self._updates_block, code)
        return BlockTiles(
            kind,
            around[:, :, first],
            peak[:, first],
            interleaved[first],
            always[first],
            update[first],
            self.replicas,
            program,
            pieces,
        )

    def _programs(self) -> np.ndarray:
        """A number for each Block, equal where their operators have the same plans."""
        plans: list[list[tuple[int, int]]] = [[] for _ in range(self.blocks)]
        for body in self._bodies(*_DIRECTIONS):
            of_block = plans[body.stage]
            of_block += [(id(s.plan), s.part) for s in body.steps if s.plan is not None]
        numbers: dict[tuple[tuple[int, int], ...], int] = {}
        return np.array([numbers.setdefault(tuple(one), len(numbers)) for one in plans])

    def _shared(self) -> tuple[float, int, str]:
        """The share of Blocks' cycles that tiles exchange, a micro-batch's flops, the doubt."""
        exchanged, total, flops = 0, 0, 0
        for body in self._bodies(*_DIRECTIONS):
            for step, times in zip(body.steps, body.times.tolist(), strict=True):
                if step.purpose in (*_REMOTE, Purpose.COPY, Purpose.GATHER_SHARDS):
                    continue
                total += step.cycles * times
                exchanged += step.cycles * times * (step.type in _EXCHANGES)
                flops += step.flops * times
        error = cycle_error(self.executable)
        doubt = Confidence(error["low"], error["high"]).words
        return exchanged / total if total else 0.0, flops, doubt


def _levels(
    variables: Iterable[records.Variable], row_at: np.ndarray, tiles: int
) -> Iterator[tuple[int, np.ndarray]]:
    """(row, bytes live by `_share`, int64[share, tile]) at each row's begin and each change."""
    changes: dict[int, list[tuple[int, int, np.ndarray]]] = {}
    for variable in variables:
        share = _share(variable)
        changes.setdefault(variable.start, []).append((share, 1, variable.tile_bytes))
        changes.setdefault(variable.stop, []).append((share, -1, variable.tile_bytes))
    begins = np.flatnonzero(np.diff(row_at, prepend=-2)).tolist()
    level = np.zeros((3, tiles), dtype=np.int64)
    for at in sorted({*changes, *begins}):
        for share, sign, nbytes in changes.get(at, ()):
            level[share] += sign * nbytes
        if at < len(row_at) and row_at[at] >= 0:
            yield int(row_at[at]), level


def _share(variable: records.Variable) -> int:
    """Of a variable in an update: 0 whole, 1 in parts if state is, 2 a part beside its whole."""
    if variable.role in (Role.WEIGHT, Role.ACCUMULATOR):
        return 0
    return 2 if variable.name.endswith("/accumulator/part") else 1


def _peaks_of_rows(
    variables: Iterable[records.Variable], row_at: np.ndarray, peaks: np.ndarray
) -> None:
    """The most bytes live on each tile while each row runs, into ``peaks``, [row, tile]."""
    for row, level in _levels(variables, row_at, peaks.shape[1]):
        np.maximum(peaks[row], level.sum(axis=0), out=peaks[row])


def _peaks_by_share(
    variables: Iterable[records.Variable], row_at: np.ndarray, peaks: np.ndarray
) -> None:
    """Where most is live while a row runs, how much of each share, into [row, share, tile]."""
    for row, level in _levels(variables, row_at, peaks.shape[2]):
        more = level.sum(axis=0) > peaks[row].sum(axis=0)
        peaks[row] = np.where(more, level, peaks[row])


def _recomputation(executable: Executable) -> tuple[set[int], np.ndarray]:
    """What runs again if all Blocks are one stage: storages, and cycles beyond a Block's alone."""
    graph, placement = executable.graph, executable.placement
    kinds = kinds_of_stages(placement, executable.options)
    left_alone = stays_by_stage(graph, placement, kinds)
    ops = [op for op in graph.ops if not graph.only_aliases(op)]
    forward = [op for op in ops if op.direction == Direction.FORWARD]
    backward = [op for op in ops if op.direction == Direction.BACKWARD]
    stays: set[int] = set()
    for op in forward:
        made, block = made_by(graph, op), block_of(op)
        stays |= made & left_alone[block] if kinds[block] else made
    joined = run_again(graph, forward, backward, stays)[0]
    alone = run_again_alone(graph, forward, backward, stays)
    cycles, blocks = executable.tree.op_cycles, len(graph.blocks)
    of_joined, of_alone = (np.array(spent_by_block(one, cycles, blocks)) for one in (joined, alone))
    return {storage for op in joined for storage in made_by(graph, op)}, of_joined - of_alone


def _made(graph: Graph) -> dict[int, tuple[int, int]]:
    """The direction and Block that make each storage first; inputs are their first reader's."""
    made: dict[int, tuple[int, int]] = {}
    for op in graph.ops:
        if op.direction == Direction.UPDATE or op.block < 0 or graph.only_aliases(op):
            continue
        direction = FORWARD if op.direction == Direction.FORWARD else BACKWARD
        for storage in graph.results(op):
            made.setdefault(storage, (direction, op.block))
    for op in graph.ops:
        for value in op.inputs if op.block >= 0 else ():
            made.setdefault(graph.values[value].storage, (FORWARD, op.block))
    return made


def _touched(graph: Graph, blocks: int) -> list[set[int]]:
    """The storages that the forward of each Block has on the chip."""
    touched: list[set[int]] = [set() for _ in range(blocks)]
    for op in graph.ops:
        if op.direction == Direction.FORWARD and op.block >= 0 and not graph.only_aliases(op):
            read = {graph.values[value].storage for value in read_values(op)}
            touched[op.block] |= made_by(graph, op) | read
    return touched
