"""Schedules by name: who runs what, in which order.

If `torch.distributed.pipelining` has the schedule, a test compares ours with it. Ranks count from 0
to ``ranks - 1``; ``chunks`` stages are on each.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ipuscope.planner.schedules.actions import (
    BACKWARD,
    FORWARD,
    INPUTS,
    MOST_ACTIONS,
    WEIGHTS,
    Action,
    ActionSchedule,
)
from ipuscope.profiler.timeline.closed_forms import pipeline_stages

Ranks = tuple[tuple[Action, ...], ...]
Work = Sequence[tuple[int, int]]  # stage, micro-batch


def alternating(forwards: Work, backwards: Work, warm: int, lag: int | None = None) -> list[Action]:
    """``warm`` forwards, then a forward and a backward in turn, then the remaining backwards.

    ``lag``: gradients of weights come that many backwards after those of inputs; None: together.
    """
    actions = [Action(stage, FORWARD, number) for stage, number in forwards[:warm]]
    later = forwards[warm:]
    for at, (stage, number) in enumerate(backwards):
        if at < len(later):
            actions.append(Action(later[at][0], FORWARD, later[at][1]))
        actions.append(Action(stage, BACKWARD if lag is None else INPUTS, number))
        if lag is not None and at >= lag:
            actions.append(Action(backwards[at - lag][0], WEIGHTS, backwards[at - lag][1]))
    if lag is not None:
        left = backwards[max(0, len(backwards) - lag) :]
        actions += [Action(stage, WEIGHTS, number) for stage, number in left]
    return actions


def _gpipe(ranks: int, count: int, chunks: int) -> Ranks:
    every = range(count)
    return tuple(
        tuple(Action(k, work, m) for work in (FORWARD, BACKWARD) for m in every)
        for k in range(ranks)
    )


def _breadth_first(ranks: int, count: int, chunks: int) -> Ranks:
    """All micro-batches of a stage, then of the next [BFS]; the backwards in reverse."""
    of_rank = []
    for rank in range(ranks):
        own = [(rank + ranks * chunk, m) for chunk in range(chunks) for m in range(count)]
        forwards = [Action(stage, FORWARD, m) for stage, m in own]
        of_rank.append((*forwards, *(Action(stage, BACKWARD, m) for stage, m in own[::-1])))
    return tuple(of_rank)


def _one_by_one(ahead: int, lag: int | None) -> Callable[[int, int, int], Ranks]:
    """1F1B with a stage a rank: ``ahead`` more forwards for each rank that follows.

    ``lag``: of gradients of weights, for each rank before.
    """

    def ranks_of(ranks: int, count: int, chunks: int) -> Ranks:
        return tuple(
            tuple(
                alternating(
                    [(k, m) for m in range(count)],
                    [(k, m) for m in range(count)],
                    min(ahead * (ranks - 1 - k), count),
                    None if lag is None else lag * k,
                )
            )
            for k in range(ranks)
        )

    return ranks_of


def _interleaved(ahead: int, lag: int | None) -> Callable[[int, int, int], Ranks]:
    """Stages that return to a rank, a round of micro-batches on each before the next [MEGATRON]."""

    def ranks_of(ranks: int, count: int, chunks: int) -> Ranks:
        rounds = max(1, count // ranks)
        if count % rounds:
            raise ValueError(
                f"{count} micro-batches are not a multiple of {rounds} rounds (a round is"
                f" {ranks} micro-batches or some more)"
            )
        each = count // rounds
        turns = [
            (chunk, turn * each + m)
            for turn in range(rounds)
            for chunk in range(chunks)
            for m in range(each)
        ]
        of_rank = []
        for rank in range(ranks):
            forwards = [(chunk * ranks + rank, m) for chunk, m in turns]
            backwards = [((chunks - 1 - chunk) * ranks + rank, m) for chunk, m in turns]
            warm = min((chunks - 1) * each + ahead * (ranks - 1 - rank), len(turns))
            of_rank.append(
                tuple(alternating(forwards, backwards, warm, None if lag is None else rank))
            )
        return tuple(of_rank)

    return ranks_of


class _Tape:
    """Actions of a rank with two stages, written as words: ``F0 I1 W``.

    A word is a letter and the stage's index; micro-batches count up. ``F0+B1`` overlap; ``W`` alone
    is the oldest gradient of weights that is due.
    """

    def __init__(self, first: int, second: int) -> None:
        self.stages = first, second
        self.actions: list[Action] = []
        self._count: Counter[tuple[str, int]] = Counter()
        self._due: deque[tuple[int, int]] = deque()

    def run(self, words: str, times: int = 1) -> None:
        for word in words.split() * times:
            parts = word.split("+")
            for place, part in enumerate(parts):
                self._add(part, place + 1 < len(parts))

    def _add(self, word: str, overlaps: bool) -> None:
        if word == WEIGHTS:
            if self._due:
                self.actions.append(Action(self._due[0][0], WEIGHTS, self._due.popleft()[1]))
            return
        work, stage = word[0], self.stages[int(word[1])]
        counted = BACKWARD if work == INPUTS else work
        number = self._count[counted, stage]
        self._count[counted, stage] += 1
        if work == INPUTS:
            self._due.append((stage, number))
        elif work == WEIGHTS:
            self._due.remove((stage, number))
        self.actions.append(Action(stage, work, number, overlaps))


def _zero_bubble_v(ranks: int, count: int, chunks: int) -> Ranks:
    """ZB-V [ZB, section 6]: two stages a rank, the second half of them in reverse order."""
    whole, of_rank = max(2 * ranks - 1, count), []  # a shorter one is a longer one's beginning
    for rank in range(ranks):
        tape, after = _Tape(rank, 2 * ranks - 1 - rank), ranks - rank
        tape.run("F0", 2 * after - 1)
        tape.run("F1 F0", rank)
        tape.run("F1 I1 W1", after)
        tape.run("F0 I0 W0 F1 I1 W1", whole - 2 * ranks + 1 + rank)
        tape.run("I0 W0 F1 I1 W1", after - 1)
        # the gradients of weights of each stage wait in order: behind all of the first's inputs
        tape.run("I0 I1", rank)
        tape.run("I0 W0", after)
        tape.run("W1", rank)
        tape.run("W0", rank)
        of_rank.append(tuple(one for one in tape.actions if one.micro_batch < count))
    return tuple(of_rank)


def _dual_pipe_v(ranks: int, count: int, chunks: int) -> Ranks:
    """DualPipe [DSV3, section 3.2.1] cut in half: two stages a rank, one direction."""
    if count < 2 * ranks:
        raise ValueError(f"{2 * ranks} stages need as many micro-batches; there are {count}")
    of_rank = []
    for rank in range(ranks):
        tape, after = _Tape(rank, 2 * ranks - 1 - rank), ranks - 1 - rank
        tape.run("F0", 2 * after)
        tape.run("F0 F1", rank + 1)
        tape.run("I1 W F1", after)
        both, main = "F0+B1 F1+B0", count - 2 * ranks + rank + 1
        if not after:
            tape.run("F0 B1 F1+B0")
        tape.run(both, main if after else main - 1)
        tape.run("B1 F1+B0", after)
        ends = [f"{'B' if at <= rank else 'I'}{1 - at % 2}" for at in range(2 * (rank + 1))]
        tape.run(" ".join(ends))
        tape.run("W I0", after)
        tape.run("W", rank + 1)
        of_rank.append(tuple(tape.actions))
    return tuple(of_rank)


@dataclass(frozen=True)
class Kind:
    """A schedule that has a name.

    ``chunks``: stages a rank, 0: the caller says; ``turns``: the stages come back in reverse order.
    ``step``: if PopART or TensorFlow define what runs together, the step of a stage's forward and
    of its backward, from (stage, stages, micro-batch).
    """

    name: str
    words: str
    ranks_of: Callable[[int, int, int], Ranks]
    chunks: int = 1
    turns: bool = False
    step: Callable[[int, int, int], tuple[int, int]] | None = None

    def ipus(self, ranks: int, chunks: int) -> tuple[int, ...]:
        """The rank of each stage."""
        there = tuple(range(ranks))
        back = there[::-1] if self.turns else there
        return tuple(rank for chunk in range(chunks) for rank in (back if chunk % 2 else there))

    def make(self, ranks: int, micro_batches: int, chunks: int = 2) -> ActionSchedule:
        """The schedule. ValueError if it does not take these numbers, or would be too long."""
        chunks = self.chunks or chunks
        if ranks * chunks * micro_batches * 3 > MOST_ACTIONS:
            raise ValueError(
                f"{ranks * chunks} stages with {micro_batches:,} micro-batches are more than"
                f" {MOST_ACTIONS:,} actions: ask for fewer (--micro-batches)"
            )
        rows = self.ranks_of(ranks, micro_batches, chunks)
        steps: tuple[tuple[int, ...], ...] = ()
        if self.step:
            steps = tuple(
                tuple(
                    self.step(one.stage, ranks, one.micro_batch)[one.work != FORWARD] for one in row
                )
                for row in rows
            )
        return ActionSchedule(self.name, rows, steps)


def _as_popart(stage: int, stages: int, number: int) -> tuple[int, int]:
    return stage + number, pipeline_stages(stages, True) - 1 - stage + number


def _as_grouped(stage: int, stages: int, number: int) -> tuple[int, int]:
    forward, backward = _as_popart(stage, stages, number)
    return 2 * forward, 2 * backward + 1


def _as_sequential(stage: int, stages: int, number: int) -> tuple[int, int]:
    begin = pipeline_stages(stages, True) * number
    return begin + stage, begin + pipeline_stages(stages, True) - 1 - stage


def _sequential(ranks: int, count: int, chunks: int) -> Ranks:
    return tuple(
        tuple(Action(k, work, m) for m in range(count) for work in (FORWARD, BACKWARD))
        for k in range(ranks)
    )


KINDS = {
    kind.name: kind
    for kind in (
        Kind("poptorch", "grouped 1F1B: what PopTorch runs", _one_by_one(2, None), step=_as_popart),
        Kind("tf-grouped", "TensorFlow, grouped", _one_by_one(2, None), step=_as_grouped),
        Kind("tf-interleaved", "TensorFlow, interleaved: 1F1B", _one_by_one(1, None)),
        Kind("tf-sequential", "TensorFlow, sequential", _sequential, step=_as_sequential),
        Kind("gpipe", "all forwards, then all backwards", _gpipe),
        Kind("1f1b", "a forward and a backward in turn", _one_by_one(1, None)),
        Kind("interleaved", "1F1B with virtual stages", _interleaved(2, None), 0),
        Kind("breadth-first", "virtual stages, breadth first", _breadth_first, 0),
        Kind("zb-h1", "zero bubble H1", _one_by_one(1, 1)),
        Kind("zb-h2", "zero bubble H2", _one_by_one(2, 2)),
        Kind("interleaved-zb", "zero bubble with virtual stages", _interleaved(1, 1), 0),
        Kind("zb-v", "zero bubble V", _zero_bubble_v, 2, turns=True),
        Kind("dualpipe-v", "DualPipe-V", _dual_pipe_v, 2, turns=True),
    )
}
