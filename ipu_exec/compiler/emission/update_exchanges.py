"""Exchanges between the weight updates of different IPUs: norms of gradients, and their sum.

To clip by the norm of all gradients, each IPU takes the norms of its own. One IPU adds them up
and gives the others the factor, so that all wait for the IPU whose norms come last.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ipu_exec.compiler.emission import loops
from ipu_exec.compiler.emission.bodies import Move
from ipu_exec.compiler.emission.body_builder import BodyBuilder
from ipu_exec.compiler.placement.place import Placement, storage_bytes
from ipu_exec.compiler.placement.recompute import made_by, read_by
from ipu_exec.graph import Graph, OpNode
from ipuscope.profiler.enums import Direction, Purpose

Moves = tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class UpdateExchanges:
    """``received``: moves by the operator they precede. ``sent``: by the operator they follow."""

    received: Mapping[int, Moves]
    sent: Mapping[int, Moves]


def update_exchanges(graph: Graph, placement: Placement) -> UpdateExchanges:
    """The tensors that an update's operators read and another IPU's update wrote last.

    Each is sent once to each IPU, together with the others that the same operator waits for.
    """
    update = [
        op for op in graph.ops if op.direction == Direction.UPDATE and not graph.only_aliases(op)
    ]
    maker: dict[int, OpNode] = {}
    arrived: set[tuple[int, int, int]] = set()  # storage, its maker, IPU
    received: dict[int, Moves] = {}
    sent: dict[int, Moves] = {}

    def ipu_of(op: OpNode) -> int:
        return placement.ipus[placement.op_stage[op.id]]

    for op in update:
        last_of: dict[int, int] = {}  # IPU -> the last operator there that this one waits for
        moves: list[Move] = []
        for storage in sorted(read_by(graph, op)):
            last_writer = maker.get(storage)
            if last_writer is None or ipu_of(last_writer) == ipu_of(op):
                continue
            arrival = storage, last_writer.id, ipu_of(op)
            if arrival not in arrived:
                arrived.add(arrival)
                nbytes = storage_bytes(graph, storage)
                moves.append(Move(storage, nbytes, ipu_of(last_writer), ipu_of(op)))
                last_of[ipu_of(last_writer)] = max(
                    last_of.get(ipu_of(last_writer), -1), last_writer.id
                )
        if moves:
            received[op.id] = tuple(moves)
        for source, behind in last_of.items():
            from_there = tuple(move for move in moves if move.source == source)
            sent[behind] = (*sent.get(behind, ()), *from_there)
        for storage in made_by(graph, op):
            maker[storage] = op
    return UpdateExchanges(received, sent)


def wait_for_senders(updates: Sequence[BodyBuilder]) -> None:
    """Make the sync before a step that receives last until all its senders are there.

    ``updates``: the weight updates of all IPUs, which begin together; their steps change. If
    gradients are loaded weight by weight, IPUs would wait for each other: such a step does not
    wait, and the estimate is too short by that.
    """
    sent_at: dict[Move, deque[int]] = defaultdict(deque)  # when the sync before it began
    waived: set[Move] = set()
    running = [_until_sent(body, sent_at, waived) for body in updates]
    before: list[tuple[int, Moves]] = []
    while running:
        paused = [next(steps, None) for steps in running]
        running = [steps for steps, at in zip(running, paused, strict=True) if at is not None]
        missing = [at for at in paused if at is not None]
        if missing and missing == before:
            waived.update(missing[0][1])
        before = missing


def _until_sent(
    body: BodyBuilder, sent_at: dict[Move, deque[int]], waived: set[Move]
) -> Iterator[tuple[int, Moves]]:
    """Run a body, with a pause at each step that receives what is not sent yet: step and moves."""
    now = before = 0  # where this step begins, and where the one before it began
    times = loops.times(len(body.steps), body.loops).tolist()
    for index, step in enumerate(body.steps):
        moves = step.moves if step.purpose is Purpose.COPY else ()
        received = [move for move in moves if move.target == body.ipu]
        while missing := tuple(m for m in received if not sent_at[m] and m not in waived):
            yield index, missing
        came = max((sent_at[move].popleft() for move in received if sent_at[move]), default=0)
        wait = max(0, came - before)
        if wait:
            sync = body.steps[index - 1]
            body.steps[index - 1] = replace(sync, cycles=sync.cycles + wait)
        for move in moves:
            if move.source == body.ipu:
                sent_at[move].append(before)
        before, now = now + wait, now + wait + times[index] * step.cycles
