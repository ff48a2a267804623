"""Recomputation: which activations stay for the backward, which forward operators run again, when.

PopART's rules ([POPART, willow/src/recompute.cpp], [POPART, willow/src/transforms/pipeline.cpp]):
the checkpoints depend on the kind of recomputation; a segment that the loss reaches without a
checkpoint never runs twice; the rest runs again as late as the backward allows, segment by
segment, so that only one segment's activations are live at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial
from itertools import pairwise
from math import ceil, sqrt
from typing import Any

from ipu_exec.compiler.placement.place import storage_bytes
from ipu_exec.compiler.placement.reads import read_values
from ipu_exec.errors import Error
from ipu_exec.graph import Graph, OpNode
from ipu_exec.lowering import info
from ipuscope.profiler.enums import Role

Ops = Sequence[OpNode]
# of storages: the Block that makes each, and the Blocks of the readers of each, each with the
# first Block whose backward makes the reader run
_Users = tuple[dict[int, int], dict[int, dict[int, int]]]


class Recomputation(IntEnum):
    """PopART's ``RecomputationType``, for ``_Popart.set("autoRecomputation", ...)``."""

    NONE = 0
    STANDARD = 1  # store the least live sets, farther apart at the beginning
    NORM_ONLY = 2  # run norms again
    PIPELINE = 3  # store what enters a stage, and explicit checkpoints
    RECOMPUTE_ALL = 4  # store explicit checkpoints


def asked_for(setting: object, pipelined: bool) -> Recomputation:
    """The kind that ``autoRecomputation`` asks for (None: a pipeline's). Error if unknown."""
    if setting is None:
        return Recomputation.PIPELINE if pipelined else Recomputation.NONE
    try:
        kind = Recomputation(int(setting))  # type: ignore[call-overload]
    except (TypeError, ValueError):
        names = ", ".join(f"{kind.value} ({kind.name})" for kind in Recomputation)
        raise Error(
            f"Options._Popart.set('autoRecomputation', {setting!r}): it takes one of {names}"
        ) from None
    return Recomputation.RECOMPUTE_ALL if kind is Recomputation.PIPELINE and not pipelined else kind


def made_by(graph: Graph, op: OpNode) -> set[int]:
    """Storages that an operator creates or changes."""
    return {graph.values[v].storage for v in (*op.outputs, *op.writes) if v is not None}


def read_by(graph: Graph, op: OpNode) -> set[int]:
    """Storages whose content an operator reads."""
    return {graph.values[v].storage for v in read_values(op)}


def never_recomputed(graph: Graph, forward: Ops, kind: Recomputation) -> set[int]:
    """Storages that are never recomputed. ``forward``: all forward operators, without views."""
    chosen = set(graph.checkpoints)
    if kind is Recomputation.NORM_ONLY:
        chosen |= {s for op in forward if not info(op.aten).norm for s in made_by(graph, op)}
    if kind is Recomputation.STANDARD:
        chosen |= _least_live(graph, forward)
    return chosen.union(*(made for op in forward if (made := made_by(graph, op)) & chosen))


def after_last_checkpoint(graph: Graph, forward: Ops, stays: set[int]) -> set[int]:
    """Storages between the last checkpoint and the loss, whose recomputation would gain nothing."""
    if graph.loss < 0:
        return set()
    reached, storages = {graph.values[graph.loss].storage}, set()
    for op in reversed(forward):
        makes = made_by(graph, op)
        if makes & (reached - stays):
            storages |= makes
            reached |= read_by(graph, op)
    return storages


def run_again(
    graph: Graph, forward: Ops, backward: Ops, stays: set[int]
) -> tuple[list[OpNode], set[int]]:
    """The forward operators that a stage runs again, and all that they and the backward read."""
    needed = {s for op in backward for s in read_by(graph, op)}
    again = []
    for op in reversed(forward):
        if (made_by(graph, op) & needed) - stays:
            again.append(op)
            needed |= read_by(graph, op)
    again.reverse()
    return again, needed


def run_again_alone(graph: Graph, forward: Ops, backward: Ops, stays: set[int]) -> list[OpNode]:
    """`run_again` where each Block is a stage of its own: one Block's after another's."""
    of_block: dict[int, tuple[list[OpNode], list[OpNode]]] = {}
    for at, ops in enumerate((forward, backward)):
        for op in ops:
            of_block.setdefault(block_of(op), ([], []))[at].append(op)
    return [op for runs in of_block.values() for op in run_again(graph, *runs, stays)[0]]


def block_of(op: OpNode) -> int:
    """The Block of an operator; what is before all of them counts as the first one's."""
    return max(0, op.block)


def spent_by_block(ops: Ops, cycles: Mapping[int, int], blocks: int) -> list[int]:
    """``cycles`` of the operators by id, summed for each Block."""
    total = [0] * blocks
    for op in ops:
        total[block_of(op)] += cycles.get(op.id, 0)
    return total


def sequence(
    graph: Graph, again: Ops, backward: Ops, stays: set[int]
) -> Iterator[tuple[OpNode, bool]]:
    """A stage's backward in order, each operator with whether it is (late) recomputation."""
    makers: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    before: list[set[int]] = []
    for index, op in enumerate(again):
        makes, reads = made_by(graph, op) - stays, read_by(graph, op)
        # in place: whoever read the storage before this one wrote to it must have run
        before.append(
            {i for s in reads for i in makers.get(s, ())}
            | {i for s in makes for i in readers.get(s, ())}
        )
        for table, storages in ((makers, makes), (readers, reads)):
            for storage in storages:
                table.setdefault(storage, []).append(index)
    done: set[int] = set()
    for op in backward:
        open_ = [i for s in read_by(graph, op) for i in makers.get(s, ())]
        wanted: set[int] = set()
        while open_:
            index = open_.pop()
            if index not in done and index not in wanted:
                wanted.add(index)
                open_ += before[index]
        for index in sorted(wanted):
            yield again[index], True
        done |= wanted
        yield op, False


def last_touch(graph: Graph, ops: Ops, storages: Sequence[int]) -> dict[int, int]:
    """The index of the operator, last writer or else first reader, after which to stash."""
    last_reads: dict[int, int] = {}
    wanted = set(storages)
    for index, op in enumerate(ops):
        for storage in {graph.values[v].storage for v in op.inputs} & wanted:
            last_reads.setdefault(storage, index)
        for storage in made_by(graph, op) & wanted:
            last_reads[storage] = index
    return last_reads


def _least_live(graph: Graph, forward: Ops) -> set[int]:
    """The live set at the cheapest point of each of the forward's `intervals`."""
    last_read: dict[int, int] = {}
    for index, op in enumerate(forward):
        for storage in read_by(graph, op):
            last_read[storage] = index
    live: set[int] = set()
    least: list[tuple[int, set[int]]] = []
    for index, op in enumerate(forward):
        live |= {s for s in made_by(graph, op) if graph.storages[s].role == Role.ACTIVATION}
        live = {s for s in live if last_read.get(s, index) > index or s in made_by(graph, op)}
        least.append((sum(storage_bytes(graph, s) for s in live), set(live)))
    needed: set[int] = set()
    for begin, end in intervals(len(forward)):
        needed |= min(least[begin:end], key=lambda place: place[0])[1]
    return needed


def intervals(count: int) -> list[tuple[int, int]]:
    """0..count cut into about sqrt(2 count) intervals, each a little shorter than the last."""
    pieces = max(1, ceil((sqrt(8 * count + 1) - 1) / 2))
    whole = pieces * (pieces + 1) // 2
    edges = [0]
    for length in range(pieces, 0, -1):
        edges.append(edges[-1] + length)
    cuts = sorted({edge * count // whole for edge in edges})
    return list(pairwise(cuts))


def by_block(
    graph: Graph,
    forward: Ops,
    backward: Ops,
    kind: Recomputation,
    cycles: Mapping[int, int],
    stash: Callable[[int], list[int]],
) -> dict[str, list[Any]]:
    """What recomputation would cost stages of any Blocks, for the prediction of other splits.

    Lists with an entry per Block, in ``cycles`` of the operators by id: ``again``, of the forward
    that runs again where the stage goes on behind the Block; ``again_end``, where it ends there;
    ``again_final``, in the last stage; ``closed``, whether its recomputation leaves that of the
    Blocks before it for later. ``again_far``: [Block, least, cycles] of what it runs again beside
    ``again`` in a stage that has Block ``least``, which is not the next one. ``stashes``
    (``stashes_kept`` without recomputation): [from, to, least, bytes, tensors, cycles, bytes of the
    fullest tile] of what a stage stashes if it begins with one of the Blocks ``from`` to ``to`` and
    has Block ``least``; bytes are 0 of what a Block saves itself. ``handed_on``: [home, least,
    bytes, ...] of a tensor that Block ``home`` makes and not its own backward reads, but those of
    Blocks from ``least`` on. ``stash``: cycles of a storage's way into its stash, and the bytes.
    """
    count = len(graph.blocks)
    spent = partial(spent_by_block, cycles=cycles, blocks=count)
    stays = never_recomputed(graph, forward, kind)
    again, _ = run_again(graph, forward, backward, stays)
    final, _ = run_again(
        graph, forward, backward, stays | after_last_checkpoint(graph, forward, stays)
    )
    kept, users = (_users(graph, forward, some, backward) for some in ([], again))
    row = partial(_row, graph, stash)
    near, far = [], Counter[tuple[int, int]]()
    for op in again:
        home, least = block_of(op), _first(graph, op, users)
        if least <= home + 1:
            near.append(op)
        else:
            far[home, least] += cycles.get(op.id, 0)
    return {
        "again": spent(near),
        "again_end": spent(run_again_alone(graph, forward, backward, stays)),
        "again_far": [[*between, spent_there] for between, spent_there in sorted(far.items())],
        "again_final": spent(final),
        "closed": _closed(graph, again, backward, stays, count),
        "stashes": _stashes(graph, users, stays, row),
        "stashes_kept": [*_stashes(graph, kept, set(), row), *_saved(kept, stash)],
        "handed_on": _handed_on(kept, row),
    }


def _closed(graph: Graph, again: Ops, backward: Ops, stays: set[int], count: int) -> list[int]:
    """1 for a Block whose backward needs less than half of the previous Block's recomputation."""
    recomputed, early = [0] * count, [0] * count
    waiting: list[OpNode] = []
    for op, is_again in sequence(graph, again, backward, stays):
        if is_again:
            waiting.append(op)
            continue
        for one in waiting:
            nbytes = sum(storage_bytes(graph, s) for s in made_by(graph, one) - stays)
            recomputed[block_of(one)] += nbytes
            early[block_of(one)] += nbytes * (block_of(one) < block_of(op))
        waiting = []
    return [
        int(number > 0 and 2 * early[number - 1] < recomputed[number - 1])
        for number in range(count)
    ]


def _row(graph: Graph, stash: Callable[[int], list[int]], storage: int, *blocks: int) -> list[int]:
    return [*blocks, storage_bytes(graph, storage), 1, *stash(storage)]


def _handed_on(users: _Users, row: Callable[..., list[int]]) -> list[list[int]]:
    makers, needed = users
    rows = []
    for storage, by in sorted(needed.items()):
        home = makers.get(storage, -1)
        least = min((one for one in by if one >= home), default=home)
        if 0 <= home < least:
            rows.append(row(storage, home, least))
    return rows


def _saved(users: _Users, stash: Callable[[int], list[int]]) -> list[list[int]]:
    makers, needed = users
    spent: dict[int, list[int]] = {}
    for storage, by in needed.items():
        home = makers.get(storage, -1)
        if home in by:
            spent.setdefault(home, []).append(stash(storage)[0])
    return [[0, home, home, 0, len(each), sum(each), 0] for home, each in sorted(spent.items())]


def _users(graph: Graph, forward: Ops, again: Ops, backward: Ops) -> _Users:
    """The Block that makes each storage, and those of the readers ``again`` and ``backward``."""
    makers: dict[int, int] = {}
    for op in forward:
        for storage in made_by(graph, op):
            makers.setdefault(storage, block_of(op))
    needed: dict[int, dict[int, int]] = {}

    def read(op: OpNode, first: int) -> None:
        for storage in read_by(graph, op):
            by = needed.setdefault(storage, {})
            by[block_of(op)] = min(first, by.get(block_of(op), first))

    for op in backward:
        read(op, block_of(op))
    for op in reversed(again):
        read(op, _first(graph, op, (makers, needed)))
    stashable = (Role.ACTIVATION, Role.INPUT)
    return makers, {s: by for s, by in needed.items() if graph.storages[s].role in stashable}


def _first(graph: Graph, op: OpNode, users: _Users) -> int:
    """The first Block whose backward makes an operator run again."""
    firsts = [one for s in made_by(graph, op) for one in users[1].get(s, {}).values()]
    return max(block_of(op), min(firsts, default=0))


def _stashes(
    graph: Graph, users: _Users, stays: set[int], row: Callable[..., list[int]]
) -> list[list[int]]:
    makers, needed = users
    stashes = []
    for storage, by in sorted(needed.items()):
        if storage not in makers and graph.storages[storage].role != Role.INPUT:
            continue  # the backward's own
        home = makers.get(storage, -1)
        ranges = _entered(home, by)
        if storage in stays and max(by) >= home >= 0:
            firsts = [first for block, first in by.items() if block >= home]
            ranges.append([0, home, min(firsts)])
        stashes += [row(storage, *one) for one in ranges]
    return stashes


def _entered(home: int, readers: dict[int, int]) -> list[list[int]]:
    """[from, to, least] of the stages a tensor enters, from behind its maker or last reader."""
    ranges: list[list[int]] = []
    before = home
    for block in sorted(readers):
        if block > before:
            least = min(first for other, first in readers.items() if other >= block)
            ranges.append([before + 1, block, least])
            before = block
    return ranges
