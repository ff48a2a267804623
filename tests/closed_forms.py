"""Cycles of phased and overlapped schedules by formula: what the laid-out ones are compared with.

docs/pipeline-schedules.md#phased-execution and docs/host-io.md derive them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipuscope.profiler.timeline.schedule_types import LEAST_BESIDE


def phase_cycles(stages: int, micro_batches: int) -> int:
    """Pipeline cycles of one phase in one direction: M + p - 1."""
    return micro_batches + stages - 1


def pipelined_phases_cycles(
    stages: int,
    phases: int,
    micro_batches: int,
    forward: int,
    backward: int = 0,
    enter: int = 0,
    back: int = 0,
    leave: int = 0,
) -> int:
    """Exact cycles of Q phases that are pipelines of p equal stages, without update and host.

    ``forward``, ``backward``: cycles per stage and micro-batch, including all overheads of a
    pipeline cycle. ``enter``, ``back``, ``leave``: per stage, the cycles that precede its forward
    and its backward in a phase (``back`` also in the last phase), and those that follow its
    backward. Between two phases an IPU has p - 1 pipeline cycles in which the others ramp down and
    up, so its transfers cost only what exceeds that. T = e + Q (M + p - 1) (f + b) + (Q - 1)
    (max(0, e - (p - 1) f) + max(0, l + r - (p - 1) b)) + r + l; in inference only the terms in e
    and f.
    """
    run, shadow = phase_cycles(stages, micro_batches), stages - 1
    total = enter + phases * run * forward + (phases - 1) * max(0, enter - shadow * forward)
    if not backward:
        return total
    between = max(0, leave + back - shadow * backward)
    return total + back + phases * run * backward + (phases - 1) * between + leave


@dataclass(frozen=True, slots=True)
class OverIoTiles:
    """Cycles of one stage's transfers over I/O tiles, for phases that are pipelines.

    Each micro-batch has ``load_forward``, ``store_forward``, ``load_backward`` and
    ``store_backward``; ``enter``, ``back`` and ``leave`` are once for all of a phase's.
    """

    load_forward: int = 0
    store_forward: int = 0
    load_backward: int = 0
    store_backward: int = 0
    enter: int = 0
    back: int = 0
    leave: int = 0


def phases_over_io_tiles_cycles(
    stages: int,
    phases: int,
    micro_batches: int,
    forward: int,
    backward: int,
    once: tuple[int, int, int],
    over: OverIoTiles,
) -> int:
    """Exact cycles as `pipelined_phases_cycles`, with transfers ``over`` I/O tiles beside them.

    ``once``: what remains of enter, back and leave on the tiles that compute. There are at least
    as many micro-batches as stages, and `LEAST_BESIDE`. A pipeline cycle lasts as long as its work
    w or the transfers beside it: loads a of the next micro-batch, stores u of the last. A run of
    M + p - 1 pipeline cycles takes

        max(w, before) + (M + p - 3) max(w, a + u) + max(w, after)

    where ``before`` and ``after`` are what the runs on either side still store, or load already:
    u' and a'' of different IPUs, except where a run turns from forward to backward, or has up to
    two stages. What is loaded once for the next phase, and stored once of the phase before, goes
    beside the pipeline cycle in which the last stage begins. The first loads and the last stores
    have nothing beside them.
    """
    if micro_batches < max(stages, LEAST_BESIDE):
        raise ValueError(f"{micro_batches} micro-batches are fewer than {stages} stages, or 3")
    enter, back, leave = once
    forwards = _RunOver(forward, over.load_forward, over.store_forward, 0, enter, over.enter, 0)
    runs = [forwards] * phases
    if backward:
        turned = _RunOver(
            *(backward, over.load_backward, over.store_backward),
            *(leave, back, over.back, over.leave),
        )
        runs += [turned] * phases
    first, last = runs[0], runs[-1]
    total = first.once_load + first.load + first.enter
    lengths = [
        _run_lengths(runs, number, stages, micro_batches, phases) for number in range(len(runs))
    ]
    total += sum(int(length.sum()) for length in lengths)
    for number in range(1, len(runs)):
        turns = number == phases
        free = _free_between(lengths[number - 1], lengths[number], stages, turns)
        moves = runs[number].enter + runs[number - 1].leave
        total += max(0, moves - int(free.min()))
    return total + last.leave + last.store + last.once_store


@dataclass(frozen=True, slots=True)
class _RunOver:
    """One direction of a phase, per stage: cycles on the tiles that compute, and over I/O tiles."""

    work: int
    load: int
    store: int
    leave: int
    enter: int
    once_load: int
    once_store: int


def _run_lengths(
    runs: Sequence[_RunOver], number: int, stages: int, micro_batches: int, turn: int
) -> np.ndarray:
    """Cycles of each pipeline cycle of a run; ``turn``: the first run of the backward."""
    run, none = runs[number], _RunOver(0, 0, 0, 0, 0, 0, 0)
    before = runs[number - 1] if number else none
    after = runs[number + 1] if number + 1 < len(runs) else none

    def together(store: int, load: int, turns: bool) -> int:
        return store + load if turns or stages <= 2 else max(store, load)

    beside = np.full(phase_cycles(stages, micro_batches), run.load + run.store)
    beside[0] = together(before.store, run.load, number == turn)
    beside[-1] = together(run.store, after.load, number + 1 == turn)
    beside[stages - 1] += after.once_load + before.once_store
    return np.maximum(beside, run.work)


def _free_between(one: np.ndarray, other: np.ndarray, stages: int, turns: bool) -> np.ndarray:
    """Cycles between an IPU's last micro-batch of a run and its first of the next, by its place."""
    places = np.arange(stages)
    left = np.append(0, np.cumsum(one[::-1]))[places if turns else stages - 1 - places]
    return left + np.append(0, np.cumsum(other))[places]


def overlapped_cycles(work: int, load: int, unload: int, micro_batches: int) -> int:
    """Exact cycles of ``micro_batches`` whose I/O overlaps with ``work`` cycles each.

    The first load and the last unload are not overlapped, nor is the part of any transfer that is
    longer than the work beside it.
    """
    if micro_batches == 1:
        return load + work + unload
    middle = (micro_batches - 2) * max(work, load + unload)
    return load + max(work, load) + middle + max(work, unload) + unload
