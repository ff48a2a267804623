"""Bytes of each Block by tile: always, while it runs, between its forward and its backward.

What a Block holds while it runs is read pass by pass (`passes`), and only of what it touches then:
a tensor that merely waits on the IPU for another Block is told apart (`carried`), as it waits
elsewhere, or not at all, in another split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from profiler import records
from profiler.enums import Direction, Role
from profiler.rebalance.carried import Carried
from profiler.rebalance.passes import Pass, Passes, touches
from profiler.report import Report

if TYPE_CHECKING:
    from profiler.rebalance.cuts import Ties

_AGAIN = (Direction.FORWARD, Direction.RECOMPUTE)  # in which a tensor is made


def _no_users() -> np.ndarray:
    return np.zeros((0, 0), dtype=bool)


def _no_code() -> np.ndarray:
    return np.zeros((0, 0), dtype=np.int64)


@dataclass(frozen=True)
class BlockMemory:
    """Bytes on each tile, int64[Block, tile]; numbers of tensors, int64[Block]."""

    always: np.ndarray  # whatever runs, without stash, optimiser state and ``code``
    # In region 0 while the Block runs, of what it touches: int64[`Pass`, Block, tile]. Of the
    # backward without what its own forward has saved, as a stage may save otherwise.
    peak: np.ndarray
    # ... with what was saved, as it comes and goes in stages that run a Block's forward again, or
    # do not, as the profile did (``ran_again``, bool[Block])
    peak_of_backward: np.ndarray
    ran_again: np.ndarray
    # by how much the backward's peak is more on an IPU to which the weights come that the Block
    # shares with an earlier one; and bytes of these weights, int64[tie, tile]
    peak_of_copies: np.ndarray
    copies: np.ndarray
    updating: np.ndarray  # that a Block's weight update leaves until the others' are through
    peak_interleaved: np.ndarray  # the most in region 1
    saved: np.ndarray  # that the Block's forward leaves for its backward
    saved_tensors: np.ndarray
    state: np.ndarray  # of optimiser state
    # of the weight with most: what an update holds of it where it is off the chip
    state_once: np.ndarray
    state_weights: np.ndarray  # how many weights have any
    # of no Block, an IPU: stack, control code (the largest IPU's): int64[tile]
    shared: np.ndarray
    # Code that Blocks share: an IPU has it once, whichever of them it runs. bool[piece, Block] and
    # int64[piece, tile]
    code_users: np.ndarray = field(default_factory=_no_users)
    code: np.ndarray = field(default_factory=_no_code)
    # What each IPU of the profile held beyond what all this says of it, int64[IPU, tile] (empty:
    # unknown), and which of these ran each Block, int64[Block]
    residual: np.ndarray = field(default_factory=_no_code)
    residual_of: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    carried: Carried = field(default_factory=Carried)

    @cached_property
    def any_saved(self) -> bool:
        """Whether a Block saves anything for its backward."""
        return bool(self.saved.any())

    @cached_property
    def any_updating(self) -> bool:
        """Whether a Block's weight update leaves anything."""
        return bool(self.updating.any())

    @classmethod
    def from_report(
        cls, report: Report, stage: np.ndarray, ties: Ties | None = None
    ) -> BlockMemory:
        """``stage``: of each Block, as profiled. What ``ties`` need is counted with them."""
        blocks, tiles = len(stage), report.target.tiles_per_ipu
        ipus = report.target.ipus_per_replica  # the other replicas' are the same
        variables = report.variables
        variables = variables[variables["role"] != Role.STASH]
        saved_ids = _saved(report, variables, stage)
        calls, pieces = code_of_blocks(report, blocks)
        memory = cls._empty(blocks, tiles, [piece[0] for piece in pieces])
        shared = np.zeros((ipus, tiles), dtype=np.int64)
        where = report.stages["ipu"].to_numpy()  # of each stage
        owners = _weight_owners(variables)
        copies = _copies_of_ties(variables, ties)
        uses = _uses(report)
        shared_weights = SharedWeight.all_of(report, variables, ties)
        every: Vectors = {}
        for ipu in range(ipus):
            here = variables[variables["ipu"] == ipu]
            vectors = {int(id): report.variable_tiles(int(id)) for id in here.index}
            every |= vectors
            _add_states(memory, here, vectors, owners)
            _add_always(memory, here, vectors, _piece_of(pieces), shared[ipu])
            _add_saved(memory, here, vectors, saved_ids)
            living = here[
                (here["always_live"] == 0)
                & (here["role"] != Role.OPTIMISER_STATE)
                & ~here.index.isin(copies)
            ]
            own = np.flatnonzero(where[stage] == ipu)
            steps = report.program_steps(ipu)
            mine = Living(living, vectors, uses, set(saved_ids), shared_weights)
            _add_peaks(memory, mine, steps, own)
        _move_calls(memory, shared, calls, where[stage] if len(where) else None)
        np.copyto(memory.shared, shared.max(axis=0))
        copied = [one.nbytes for one in shared_weights]
        return replace(
            memory,
            copies=np.array(copied, dtype=np.int64).reshape(-1, tiles),
            carried=_carried(report, variables, uses, every, memory),
        )

    @classmethod
    def _empty(cls, blocks: int, tiles: int, users: list[list[int]]) -> BlockMemory:
        """Zeros, and of each piece of code the Blocks that use it."""
        always, interleaved, saved, state, once, with_saved, copies, updating = np.zeros(
            (8, blocks, tiles), dtype=np.int64
        )
        tensors, weights = np.zeros((2, blocks), dtype=np.int64)
        uses = [np.isin(np.arange(blocks), mine) for mine in users]
        return cls(
            always=always,
            peak=np.zeros((len(Pass), blocks, tiles), dtype=np.int64),
            peak_of_backward=with_saved,
            ran_again=np.zeros(blocks, dtype=bool),
            peak_of_copies=copies,
            copies=np.zeros((0, tiles), dtype=np.int64),
            updating=updating,
            peak_interleaved=interleaved,
            saved=saved,
            saved_tensors=tensors,
            state=state,
            state_once=once,
            state_weights=weights,
            shared=np.zeros(tiles, dtype=np.int64),
            code_users=np.array(uses, dtype=bool).reshape(-1, blocks),
            code=np.zeros((len(users), tiles), dtype=np.int64),
        )


Vectors = dict[int, np.ndarray]  # of variables by id, over tiles
Pieces = list[tuple[list[int], list[int], list[int]]]


def _weight_owners(variables: pd.DataFrame) -> dict[tuple[int, int], tuple[int, int]]:
    """(IPU, tensor) of each weight -> its Block and operator."""
    weights = variables[variables["role"] == Role.WEIGHT]
    columns = (weights[name].tolist() for name in ("ipu", "tensor", "block", "op"))
    return {(ipu, tensor): (block, op) for ipu, tensor, block, op in zip(*columns, strict=True)}


def _copies_of_ties(variables: pd.DataFrame, ties: Ties | None) -> list[int]:
    """Ids of the copies of tied weights on stages that read one of another IPU's, or pass it on."""
    if ties is None:
        return []
    copies = variables[(variables["role"] == Role.WEIGHT) & (variables["always_live"] == 0)]
    ids: list[int] = copies.index[copies["tensor"].isin(ties.tensors)].tolist()
    return ids


def _uses(report: Report) -> pd.DataFrame:
    """Columns ``op`` and ``variable``; of format 1, that has none, what each operator made."""
    if report.format >= 2:
        columns = report.columns_of(records.Use)
        return pd.DataFrame({"op": columns["op"], "variable": columns["variable"]})
    made = report.variables["op"]
    return pd.DataFrame({"op": made.to_numpy(), "variable": made.index.to_numpy()})


def _carried(
    report: Report,
    variables: pd.DataFrame,
    uses: pd.DataFrame,
    vectors: Vectors,
    memory: BlockMemory,
) -> Carried:
    ops = report.ops[["direction", "block"]]
    living = variables.loc[variables["always_live"] == 0, ["tensor"]]
    used = uses.join(ops, on="op", how="inner").join(living, on="variable", how="inner")
    blocks, tiles = memory.always.shape
    return Carried.of(variables, used, vectors, blocks, tiles)


def _piece_of(pieces: Pieces) -> dict[int, int]:
    """Variables with code that Blocks share -> the number of the piece; -1: counted elsewhere."""
    number_of = {id: number for number, (_, once, _) in enumerate(pieces) for id in once}
    return number_of | {id: -1 for _, _, again in pieces for id in again}


def _add_states(
    memory: BlockMemory,
    here: pd.DataFrame,
    vectors: Vectors,
    owners: dict[tuple[int, int], tuple[int, int]],
) -> None:
    """Optimiser state of an IPU. One off the chip has no Block of its own: the weight's counts."""
    blocks = len(memory.state)
    states = here[here["role"] == Role.OPTIMISER_STATE].drop_duplicates("tensor")
    of_weight: dict[tuple[int, int], np.ndarray] = {}
    columns = (states[name].tolist() for name in ("ipu", "parameter", "block", "op"))
    for id, ipu, weight, block, op in zip(states.index.tolist(), *columns, strict=True):
        key = owners.get((ipu, weight), (block, op))
        if 0 <= key[0] < blocks:
            memory.state[key[0]] += vectors[id]
            of_weight[key] = of_weight.get(key, 0) + vectors[id]
    for (block, _), total in of_weight.items():
        memory.state_once[block] = np.maximum(memory.state_once[block], total)
        memory.state_weights[block] += 1


def _add_always(
    memory: BlockMemory,
    here: pd.DataFrame,
    vectors: Vectors,
    piece_of: dict[int, int],
    shared: np.ndarray,
) -> None:
    """What an IPU has all the time: a piece of code, its own, or a Block's."""
    rest = here[here["always_live"] != 0]
    for id, block, role in zip(rest.index, rest["block"], rest["role"], strict=True):
        if id in piece_of:
            if piece_of[id] >= 0:
                memory.code[piece_of[id]] += vectors[int(id)]
        elif not 0 <= block < len(memory.always):
            shared += vectors[int(id)]
        elif role != Role.OPTIMISER_STATE:
            memory.always[block] += vectors[int(id)]


def _add_saved(
    memory: BlockMemory, here: pd.DataFrame, vectors: Vectors, saved_ids: dict[int, bool]
) -> None:
    block_of = dict(zip(here.index.tolist(), here["block"].tolist(), strict=True))
    for id, is_first in saved_ids.items():
        if id in vectors and is_first:
            memory.saved[block_of[id]] += vectors[id]
            memory.saved_tensors[block_of[id]] += 1


@dataclass(frozen=True)
class Living:
    """Of an IPU: what is not always there, its bytes, who uses it, and what is saved."""

    variables: pd.DataFrame
    vectors: Vectors
    uses: pd.DataFrame
    saved: set[int]
    shared_weights: Sequence[SharedWeight]


@dataclass(frozen=True)
class SharedWeight:
    """A weight that Blocks share: the Blocks, its variables on all IPUs, its bytes by tile."""

    blocks: tuple[int, ...]
    variables: frozenset[int]
    nbytes: np.ndarray

    @classmethod
    def all_of(
        cls, report: Report, variables: pd.DataFrame, ties: Ties | None
    ) -> list[SharedWeight]:
        """Of a profile."""
        weights = variables[variables["role"] == Role.WEIGHT]
        found = []
        pairs = zip(ties.blocks, ties.tensors, strict=True) if ties is not None else ()
        for blocks, tensor in pairs:
            ids = weights.index[weights["tensor"] == tensor]
            largest = int(weights.loc[ids, "bytes"].idxmax())
            found.append(cls(blocks, frozenset(ids.tolist()), report.variable_tiles(largest)))
        return found


def _add_peaks(memory: BlockMemory, living: Living, steps: pd.DataFrame, own: np.ndarray) -> None:
    """Of an IPU, ``own`` are its Blocks."""
    blocks = len(memory.always)
    passes = Passes.of(steps, own, blocks)
    table = touches(passes, steps, living.variables, living.uses)
    groups = table.groupby("number")["variable"]
    touched: dict[Any, set[int]] = {number: set(ids.tolist()) for number, ids in groups}
    block_of = living.variables["block"]
    spots = passes.spots()
    for number, positions in spots.items():
        kind, block = divmod(number, blocks)
        mine = touched.get(number, set())
        if kind == Pass.AGAIN:
            memory.ran_again[block] = True
            mine = mine | touched.get(Pass.BACKWARD * blocks + block, set())
        some = living.variables[living.variables.index.isin(mine)]
        into = memory.peak_of_backward if kind == Pass.BACKWARD else memory.peak[kind]
        _peak_of(some, living.vectors, positions, into[block], memory.peak_interleaved[block])
        if kind == Pass.BACKWARD:
            made_here = living.saved & set(block_of.index[block_of == block])
            some = some[~some.index.isin(made_here)]
            none = np.zeros_like(into[block])
            _peak_of(some, living.vectors, positions, memory.peak[kind][block], none)
            _add_copies(memory, living, steps, mine, positions, block)
    _add_updating(memory, living, spots)


def _add_copies(
    memory: BlockMemory,
    living: Living,
    steps: pd.DataFrame,
    touched: set[int],
    positions: np.ndarray,
    block: int,
) -> None:
    """What a Block's backward holds with the weights that come from another IPU, till last read."""
    copies = [
        (number, weight)
        for number, weight in enumerate(living.shared_weights)
        if block in weight.blocks[1:]
    ]
    if not copies:
        return
    some = living.variables[living.variables.index.isin(touched)]
    vectors, rows = dict(living.vectors), {}
    for number, weight in copies:
        readers = living.uses.loc[living.uses["variable"].isin(weight.variables), "op"]
        reads = np.flatnonzero(steps["op"].isin(readers))
        last = int(reads[np.isin(reads, positions)].max(initial=-1))
        if last >= 0:
            vectors[-1 - number] = weight.nbytes
            rows[-1 - number] = {"start": int(positions.min()), "stop": last + 1, "interleaved": 0}
    if not rows:
        return
    arrived = pd.DataFrame.from_dict(rows, orient="index")
    with_copies = pd.concat([some[list(arrived.columns)], arrived])
    more = np.zeros_like(memory.peak_of_copies[block])
    _peak_of(with_copies, vectors, positions, more, np.zeros_like(more))
    memory.peak_of_copies[block] = np.maximum(0, more - memory.peak_of_backward[block])


def _add_updating(memory: BlockMemory, living: Living, spots: dict[int, np.ndarray]) -> None:
    """What a Block's weight update begins with and others' end with; it is no peak of its own."""
    blocks = len(memory.always)
    for block in range(blocks):
        positions = spots.get(Pass.UPDATE * blocks + block)
        if positions is None:
            continue
        start, stop = living.variables["start"], living.variables["stop"]
        begins = start.isin(positions) & (stop > positions.max() + 1)
        for id in living.variables.index[begins].tolist():
            memory.updating[block] += living.vectors[id]
            memory.peak[Pass.UPDATE][block] -= living.vectors[id]
    np.maximum(memory.peak, 0, out=memory.peak)


def _move_calls(
    memory: BlockMemory, shared: np.ndarray, calls: np.ndarray, ipu: np.ndarray | None
) -> None:
    """Give the calls of code to the Blocks that make them.

    Not where there are more than an IPU has (a stranger's profile). ``shared``: int64[IPU, tile],
    ``ipu`` of each Block.
    """
    if ipu is None or (np.bincount(ipu, calls, len(shared)) > shared.min(axis=1)).any():
        return
    np.subtract.at(shared, ipu, calls[:, None])
    memory.always[:] += calls[:, None]


def code_of_blocks(report: Report, blocks: int) -> tuple[np.ndarray, Pieces]:
    """What the compiler wrote of code that Blocks call and share (`ipu_exec.compiler.memory.Code`).

    Bytes of calls on each tile, int64[Block]; and code that Blocks have in common: which Blocks,
    the ids of its variables, of those with the same on further IPUs.

    An older profile has neither, nor has a stranger's that makes no sense: code then is the Block's
    that ran it first.
    """
    nothing = np.zeros(blocks, dtype=np.int64)
    variables = report.variables
    is_code = (variables["role"] == Role.PROGRAM) & (variables["always_live"] != 0)
    known = variables.index[is_code]
    said: Any = report.meta.get("code")
    try:
        calls = np.array(said["calls"], dtype=np.int64)
        pieces = [
            tuple([int(number) for number in numbers] for numbers in piece)
            for piece in said["shared"]
        ]
        named = [id for _, once, again in pieces for id in (*once, *again)]
        users = [block for mine, _, _ in pieces for block in mine]
    except (KeyError, TypeError, ValueError, OverflowError):
        return nothing, []
    ours = (
        len(set(named)) == len(named)
        and known.isin(named).sum() == len(named)
        and calls.shape == nothing.shape
    )
    if not ours or calls.min(initial=0) < 0 or not all(0 <= block < blocks for block in users):
        return nothing, []
    return calls, [(users, once, again) for users, once, again in pieces]


def _saved(report: Report, variables: pd.DataFrame, stage: np.ndarray) -> dict[int, bool]:
    """Ids of the variables that hold what a Block's forward leaves for its backward.

    Each with whether it is the one to count: a tensor that is stashed or recomputed lies twice, in
    the forward and before the backward.
    """
    rows = _made_by_own_forward(report, variables, stage)
    ends_in = _direction_of_last_step(report, rows)
    tensors = list(zip(rows["ipu"].tolist(), rows["tensor"].tolist(), strict=True))
    table = list(zip(rows.index.tolist(), tensors, ends_in, strict=True))
    read_back: set[tuple[int, int]] = set()
    saved: dict[int, bool] = {}
    for id, tensor, direction in table:
        if direction == Direction.BACKWARD:
            saved[id] = tensor not in read_back
            read_back.add(tensor)
    for id, tensor, direction in table:
        if tensor in read_back and direction in _AGAIN and id not in saved:
            saved[id] = False
    return saved


def _made_by_own_forward(
    report: Report, variables: pd.DataFrame, stage: np.ndarray
) -> pd.DataFrame:
    """Activations that a forward operator of a Block made, on the Block's own stage."""
    direction = report.ops["direction"].reindex(variables["op"].to_numpy()).fillna("").to_numpy()
    block = variables["block"].to_numpy()
    mine = (direction == Direction.FORWARD.value) & (block >= 0)
    mine &= (variables["always_live"] == 0).to_numpy()
    mine &= (variables["role"] == Role.ACTIVATION).to_numpy()
    mine[mine] = stage[block[mine]] == variables["stage"].to_numpy()[mine]
    return variables[mine]


def _direction_of_last_step(report: Report, variables: pd.DataFrame) -> list[str]:
    """Of the last step at which each variable is live."""
    steps = report.program_steps()
    at = zip(steps["ipu"], steps["position"], strict=True)
    of_step = dict(zip(at, steps["direction"], strict=True))
    ends = zip(variables["ipu"], variables["stop"], strict=True)
    return [of_step.get((ipu, stop - 1), "") for ipu, stop in ends]


def _peak_of(
    variables: pd.DataFrame,
    vectors: Vectors,
    spots: np.ndarray,
    peak: np.ndarray,
    interleaved: np.ndarray,
) -> None:
    """Raise ``peak`` and ``interleaved`` to the most that is live on each tile at ``spots``.

    ``peak`` is of region 0, ``interleaved`` of region 1.
    """
    changes: dict[int, list[tuple[int, int, bool]]] = {}
    low, high = int(spots.min()), int(spots.max())
    columns = (variables[name] for name in ("start", "stop", "interleaved"))
    for id, start, stop, region1 in zip(variables.index, *columns, strict=True):
        if stop > low and start <= high:
            changes.setdefault(max(int(start), low), []).append((int(id), 1, bool(region1)))
            changes.setdefault(int(stop), []).append((int(id), -1, bool(region1)))
    level, level1 = np.zeros_like(peak), np.zeros_like(peak)
    times = [at for at in sorted(changes) if at <= high]
    # Other Blocks run between this one's forward and backward: what only they hold is none of its
    # peak.
    spots = np.sort(spots)
    runs = np.searchsorted(spots, [*times[1:], high + 1]) > np.searchsorted(spots, times)
    for at, here in zip(times, runs.tolist(), strict=True):
        for id, sign, region1 in changes[at]:
            level += sign * vectors[id]
            if region1:
                level1 += sign * vectors[id]
        if here:
            np.maximum(peak, level - level1, out=peak)
            np.maximum(interleaved, level1, out=interleaved)
