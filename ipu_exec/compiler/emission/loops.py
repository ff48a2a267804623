"""Loops in plans: the turns of a serial split that do the same are emitted once.

The plan of a product in serial steps has all turns, numbered ("weights/1", "convolve/1", ...
"weights/2" ...). On the machine, and here, they are a loop (`poplar::program::Repeat`): the body
has the steps of one turn and runs them as often as there are turns. The last turn stays on its
own, since results that the loop makes in parts are the operator's from its last step on: what is
live at each step, and so every peak, is as with all turns written out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipu_exec.lowering.plan import Collective, Compute, Plan, Step, Temporary

_LEAST = 2  # turns of a loop, beside the last
_NUMBER = re.compile(r"/(\d+)(?=/|$)")


@dataclass(frozen=True, slots=True)
class Loop:
    """Steps ``first`` to ``stop`` (exclusive), which run ``times`` times one after the other."""

    first: int
    stop: int
    times: int


@dataclass(frozen=True, slots=True)
class Emitted:
    """The part of a plan that is emitted: ``steps`` are those of its ``plan.steps[part]``.

    Names of steps in a loop have no number. ``temporaries``, ``loops`` and ``last_reads`` (the
    last step that reads an operand) count by ``parts``.
    """

    parts: tuple[int, ...]
    names: tuple[str, ...]
    temporaries: tuple[Temporary, ...]
    loops: tuple[Loop, ...]
    last_reads: Mapping[int, int]  # by operand, those that are read no more before the last part

    @property
    def times(self) -> np.ndarray:
        """How often each part runs, int64[parts]."""
        return times(len(self.parts), self.loops)


def times(steps: int, loops: Sequence[Loop]) -> np.ndarray:
    """How often each of so many steps runs, int64[steps]."""
    runs = np.ones(steps, np.int64)
    for loop in loops:
        runs[loop.first : loop.stop] = loop.times
    return runs


def order(steps: int, loops: Sequence[Loop]) -> np.ndarray:
    """The steps in the order in which they run, each as often as it does: int64."""
    pieces, at = [], 0
    for loop in sorted(loops, key=lambda one: one.first):
        pieces.append(np.arange(at, loop.first))
        pieces.append(np.tile(np.arange(loop.first, loop.stop), loop.times))
        at = loop.stop
    pieces.append(np.arange(at, steps))
    return np.concatenate(pieces).astype(np.int64)


def emitted(plan: Plan) -> Emitted:
    """A plan with equal turns once."""
    size = len(plan.steps)
    stands_for = np.arange(size)  # the step that is emitted for each step
    splits: list[Loop] = []
    for loop in _loops_of(plan.steps):
        if _is_live_alike(plan.temporaries, loop):
            splits.append(loop)
            turn = loop.stop - loop.first
            inside = np.arange(loop.first, loop.first + turn * loop.times)
            stands_for[inside] = loop.first + (inside - loop.first) % turn
    is_emitted = stands_for == np.arange(size)
    place = (np.cumsum(is_emitted) - 1)[stands_for]  # among the emitted ones
    parts = np.flatnonzero(is_emitted).tolist()
    looped = {part for loop in splits for part in range(loop.first, loop.stop)}
    names = [plan.steps[part].name for part in parts]
    names = [
        _unnumbered(name) if part in looped else name
        for part, name in zip(parts, names, strict=True)
    ]
    loops = [Loop(int(place[one.first]), int(place[one.stop - 1]) + 1, one.times) for one in splits]
    temporaries = _temporaries(plan.temporaries, splits, place)
    # what a loop reads, it reads in every turn
    ends = place.copy()
    for loop in loops:
        ends[(place >= loop.first) & (place < loop.stop)] = loop.stop - 1
    last_reads = {index: int(ends[step]) for index, step in plan.last_reads}
    return Emitted(tuple(parts), tuple(names), tuple(temporaries), tuple(loops), last_reads)


def _temporaries(
    temporaries: Sequence[Temporary], loops: Sequence[Loop], place: np.ndarray
) -> Iterator[Temporary]:
    """The temporaries at the places of the steps that are emitted, those of a turn once."""
    for one in temporaries:
        of_turn = [_turn_of(one, loop) for loop in loops]
        if any(turn > 0 for turn in of_turn):
            continue
        name = _unnumbered(one.name) if 0 in of_turn else one.name
        yield replace(one, name=name, first=int(place[one.first]), last=int(place[one.last]))


def _turn_of(one: Temporary, loop: Loop) -> int:
    """The turn that a temporary is live in, and in no other; -1 if there is none."""
    length = loop.stop - loop.first
    first, last = (one.first - loop.first) // length, (one.last - loop.first) // length
    return first if first == last and 0 <= first < loop.times else -1


def _is_live_alike(temporaries: Sequence[Temporary], loop: Loop) -> bool:
    """Whether the same is live at a step in all turns, or the most of it in the first turn."""
    end = loop.first + (loop.stop - loop.first) * loop.times
    turns: list[list[Temporary]] = [[] for _ in range(loop.times)]
    for one in temporaries:
        turn = _turn_of(one, loop)
        outside = one.last < loop.first or one.first >= end
        around = one.first <= loop.first and one.last >= end - 1
        until_first = one.first < loop.first and one.last < loop.stop
        if turn >= 0:
            turns[turn].append(one)
        elif not (outside or around or until_first):
            return False
    return all(_same_temporaries(turns[0], other) for other in turns[1:])


def _same_temporaries(some: Sequence[Temporary], others: Sequence[Temporary]) -> bool:
    """Whether the temporaries of two turns are equal but for their turn."""
    if len(some) != len(others):
        return False
    shifts = {b.first - a.first for a, b in zip(some, others, strict=True)}
    shifts |= {b.last - a.last for a, b in zip(some, others, strict=True)}
    return len(shifts) <= 1 and all(
        _unnumbered(a.name) == _unnumbered(b.name)
        and a.interleaved == b.interleaved
        and _equal(a.bytes, b.bytes)
        for a, b in zip(some, others, strict=True)
    )


# -- finding turns ---


def _loops_of(steps: Sequence[Step]) -> Iterator[Loop]:
    """Runs of equal turns, each without its last turn."""
    turns: list[tuple[int, int]] = []  # first step and end of each, equal so far
    for number, first, stop in _numbered(steps):
        follows = bool(turns) and number > 1 and turns[-1][1] == first
        if not (follows and _same_steps(steps[slice(*turns[0])], steps[first:stop])):
            yield from _loop(turns)
            turns = []
        turns.append((first, stop))
    yield from _loop(turns)


def _loop(turns: Sequence[tuple[int, int]]) -> Iterator[Loop]:
    if len(turns) > _LEAST:
        yield Loop(*turns[0], len(turns) - 1)


def _numbered(steps: Sequence[Step]) -> Iterator[tuple[int, int, int]]:
    """The number, first step and end of each run of steps whose names have the same number."""
    number, first = -1, 0
    for at, step in enumerate(steps):
        numbers = _NUMBER.findall(step.name)
        mine = int(numbers[-1]) if numbers else -1
        if mine != number:
            if number >= 0:
                yield number, first, at
            number, first = mine, at
    if number >= 0:
        yield number, first, len(steps)


def _unnumbered(name: str) -> str:
    """``convolve/3`` without its number."""
    numbers = list(_NUMBER.finditer(name))
    return name[: numbers[-1].start()] + name[numbers[-1].end() :] if numbers else name


def _same_steps(some: Sequence[Step], others: Sequence[Step]) -> bool:
    return len(some) == len(others) and all(
        _unnumbered(a.name) == _unnumbered(b.name) and _same_step(a, b)
        for a, b in zip(some, others, strict=True)
    )


def _same_step(a: Step, b: Step) -> bool:
    """Whether two steps do the same on every tile."""
    if isinstance(a, Compute):
        return (
            isinstance(b, Compute)
            and a.flops == b.flops
            and _equal(a.cycles, b.cycles)
            and [one.type for one in a.vertices] == [one.type for one in b.vertices]
            and all(_equal(x.count, y.count) for x, y in zip(a.vertices, b.vertices, strict=True))
        )
    if isinstance(a, Collective):
        return (
            isinstance(b, Collective)
            and a.cycles == b.cycles
            and _equal(a.bytes_in, b.bytes_in)
            and _equal(a.bytes_out, b.bytes_out)
        )
    return (
        not isinstance(b, (Compute, Collective))
        and a.shared_bus == b.shared_bus
        and _equal(a.bytes_in, b.bytes_in)
        and _equal(a.bytes_out, b.bytes_out)
        and _equal(a.fragments, b.fragments)
    )


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a is b or np.array_equal(a, b)
