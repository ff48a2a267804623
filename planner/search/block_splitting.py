"""Splitting a Block that is the longest stage: the operator behind which it should become two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.planner.costs.block_cycles import BlockCycles
from ipuscope.planner.costs.block_memory import BlockMemory, code_of_blocks
from ipuscope.planner.costs.carried_tensors import Carried
from ipuscope.planner.costs.host_streams import HostStreams
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.search.split_search import Split, best_split
from ipuscope.profiler.enums import Direction, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class BlockCut:
    """``block``, cut after the forward operator ``after`` (its id; ``name``), before ``before``."""

    block: int
    after: int
    name: str
    before: str
    bytes_over: int  # a micro-batch, forward, over the new cut
    costs: Costs  # with the Block as two, named "block.1" and "block.2"
    split: Split


def best_block_cut(
    report: Report, costs: Costs, stages: int, block: int | None = None
) -> BlockCut | None:
    """The cut inside a Block (default: the longest) that makes the best split shortest.

    None where none does so.

    A cut is between two forward operators of the Block; the backward of each goes with it. Cycles,
    weights and what is saved are those of the operators themselves; both halves are taken to peak
    as high as the whole did, and what crosses the cut to go back as many bytes as forward (both are
    estimates).
    """
    if block is None:
        block = int((costs.cycles.work).argmax())
    forward_ops, _ = _operators(report, block)
    try:
        limit: int | None = best_split(costs, stages).prediction.total
    except ValueError:
        limit = None  # nothing fits: any cut that does is better
    best: BlockCut | None = None
    for number in range(1, len(forward_ops)):
        halves = split_block(report, costs, block, number)
        if not halves.cycles.forward[block] or not halves.cycles.forward[block + 1]:
            continue
        try:
            split = best_split(halves, stages)
        except ValueError:
            continue
        if split.prediction.problems or (limit is not None and split.prediction.total >= limit):
            continue
        limit = split.prediction.total
        names = report.ops["name"]
        after, before = forward_ops[number - 1], forward_ops[number]
        best = BlockCut(
            block,
            after,
            str(names.at[after]),
            str(names.at[before]),
            int(halves.cuts.ahead[block]),
            halves,
            split,
        )
    return best


def _operators(report: Report, block: int) -> tuple[list[int], dict[int, int]]:
    """The Block's forward operators in the order in which they run.

    Second, for each operator of the Block (forward, backward or derived from one), the number of
    its forward operator.
    """
    ops = report.ops
    operators = ops[ops["block"] == block]
    steps = report.program_steps()
    ran = steps[
        (steps["direction"] == Direction.FORWARD)
        & steps["op"].isin(operators.index[operators["direction"] == Direction.FORWARD])
    ]
    order = list(dict.fromkeys(ran["op"].tolist()))
    number = {op: at for at, op in enumerate(order)}
    owner = dict(number)
    for op, forward in zip(operators.index.tolist(), operators["forward_op"].tolist(), strict=True):
        if op not in owner:
            owner[op] = number.get(forward, 0)
    return order, owner


@dataclass(frozen=True)
class _Halves:
    """Puts two entries where an array over Blocks has one."""

    block: int

    def two(self, values: np.ndarray, one: Any, other: Any) -> np.ndarray:
        """``one`` and ``other`` instead of the Block's entry."""
        before, behind = values[: self.block], values[self.block + 1 :]
        return np.concatenate([before, np.array([one]), np.array([other]), behind])

    def both(self, values: np.ndarray) -> np.ndarray:
        """The Block's entry for both halves."""
        return self.two(values, values[self.block], values[self.block])

    def rest(self, values: np.ndarray, one: Any) -> np.ndarray:
        """``one`` for the first half, the rest for the second."""
        return self.two(values, one, values[self.block] - one)


def split_block(report: Report, costs: Costs, block: int, number: int) -> Costs:
    """The costs with a Block as two: its first ``number`` forward operators, and the rest."""
    _, owner = _operators(report, block)
    first = {op for op, at in owner.items() if at < number}
    halves = _Halves(block)
    memory, saved_share, weight_share = _memory_in_two(report, costs, halves, first)
    over = _over(report, costs, block, first)
    name = costs.names[block]
    return replace(
        costs,
        measured=False,
        names=(*costs.names[:block], f"{name}.1", f"{name}.2", *costs.names[block + 1 :]),
        stage=halves.both(costs.stage),
        cycles=_cycles_in_two(report, costs, halves, first, weight_share),
        memory=replace(
            memory,
            saved_tensors=halves.rest(
                memory.saved_tensors, round(memory.saved_tensors[block] * saved_share)
            ),
            state_weights=halves.rest(
                memory.state_weights, round(memory.state_weights[block] * weight_share)
            ),
        ),
        stash=replace(
            costs.stash,
            blocks=costs.stash.blocks + 1,
            recomputing=_renumbered(costs.stash.recomputing, block, over),
            keeping=_renumbered(costs.stash.keeping, block, over),
            beyond=_at_the_first_half(costs.stash.beyond, block),
        ),
        streams=_streams_in_two(costs.streams, halves),
        moves_beyond=_at_the_first_half(costs.moves_beyond, block),
        cuts=replace(
            costs.cuts,
            ahead=halves.two(costs.cuts.ahead, over, costs.cuts.ahead[block]),
            back=halves.two(costs.cuts.back, over, costs.cuts.back[block]),
        ),
    )


def _cycles_in_two(
    report: Report, costs: Costs, halves: _Halves, first: set[int], weight_share: float
) -> BlockCycles:
    """Cycles of both halves: the first has its operators', and the update by share of weights."""
    cycles, block = costs.cycles, halves.block
    steps = report.steps_as_run()
    own_steps = steps[(steps["block"] == block) & (steps["stage"] == costs.stage[block])]
    in_first = own_steps["op"].isin(first)

    def spent(direction: Direction, whole: np.ndarray) -> int:
        here = own_steps.loc[in_first & (own_steps["direction"] == direction), "cycles"]
        return min(int(here.sum()), int(whole[block]))

    forward = spent(Direction.FORWARD, cycles.forward)
    again = round(int(cycles.again[block]) * _part(int(cycles.forward[block]), forward))
    again_end = max(0, int(cycles.again_end[block]) - again)
    again_final = min(again, int(cycles.again_final[block]))
    return BlockCycles(
        forward=halves.rest(cycles.forward, forward),
        backward=halves.rest(cycles.backward, spent(Direction.BACKWARD, cycles.backward)),
        update=halves.rest(cycles.update, round(cycles.update[block] * weight_share)),
        again=halves.rest(cycles.again, again),
        again_end=halves.two(cycles.again_end, again, again_end),
        again_final=halves.rest(cycles.again_final, again_final),
        closed=halves.two(cycles.closed, cycles.closed[block], False),
    )


def _memory_in_two(
    report: Report, costs: Costs, halves: _Halves, first: set[int]
) -> tuple[BlockMemory, float, float]:
    """Memory of both halves without tensor counts, and the first half's shares.

    The shares, from 0 to 1, are those of saved tensors and of weights.
    """
    memory, block = costs.memory, halves.block
    variables = report.variables
    ipu = costs.ipus[int(costs.stage[block])]
    of_block = variables[(variables["block"] == block) & (variables["ipu"] == ipu)]

    def share(rows: pd.DataFrame, whole: np.ndarray) -> np.ndarray:
        """What the first operators have of ``whole`` [tile]."""
        some = _each_tensor_once(rows[rows["op"].isin(first)])
        total = sum((report.variable_tiles(int(id)) for id in some.index), np.zeros_like(whole))
        return np.minimum(total, whole)

    elsewhere = of_block["role"].isin([Role.OPTIMISER_STATE, Role.STASH])
    always_live = of_block[(of_block["always_live"] != 0) & ~elsewhere]
    _, pieces = code_of_blocks(report, len(costs))
    in_pieces = always_live.index.isin([id for _, ids, more in pieces for id in (*ids, *more)])
    always = share(always_live[~in_pieces], memory.always[block])
    # of code that other Blocks run too, both halves are taken to run all (an estimate)
    users = np.insert(memory.code_users, block, memory.code_users[:, block], axis=1)
    code = memory.code
    for number, (sharing, ids, _) in enumerate(pieces):
        if sharing == [block]:
            some = share(always_live[always_live.index.isin(ids)], code[number])
            users[number, block + 1] = False
            users = np.concatenate([users, np.arange(users.shape[1])[None] == block + 1])
            code = np.concatenate([code, [code[number] - some]])
            code[number] = some
    state = share(of_block[of_block["role"] == Role.OPTIMISER_STATE], memory.state[block])
    live = of_block[(of_block["role"] == Role.ACTIVATION) & (of_block["always_live"] == 0)]
    in_first = int(live.loc[live["op"].isin(first), "bytes"].sum())
    saved_share = _part(int(live["bytes"].sum()), in_first)
    whole = int(memory.state[block].sum() or memory.always[block].sum())
    once = memory.state_once[block]
    in_two = replace(
        memory,
        always=halves.rest(memory.always, always),
        peak=np.insert(memory.peak, block, memory.peak[:, block], axis=1),
        peak_of_backward=halves.both(memory.peak_of_backward),
        peak_if_again=halves.both(memory.peak_if_again)
        if len(memory.peak_if_again)
        else memory.peak_if_again,
        ran_again=halves.both(memory.ran_again),
        peak_of_copies=halves.both(memory.peak_of_copies),
        updating=halves.rest(memory.updating, memory.updating[block] // 2),
        carried=_carried_in_two(memory.carried, block),
        peak_interleaved=halves.both(memory.peak_interleaved),
        residual_of=halves.both(memory.residual_of) if len(memory.residual) else memory.residual_of,
        saved=halves.rest(memory.saved, (memory.saved[block] * saved_share).astype(np.int64)),
        state=halves.rest(memory.state, state),
        state_once=halves.two(
            memory.state_once,
            np.minimum(once, state),
            np.minimum(once, memory.state[block] - state),
        ),
        code_users=users,
        code=code,
    )
    return in_two, saved_share, _part(whole, int(state.sum() or always.sum()))


def _carried_in_two(carried: Carried, block: int) -> Carried:
    """Carried tensors of both halves: inputs belong to the first, outputs to the second.

    Gradients run the other way: they enter the second half and leave from the first.
    """
    if not len(carried):
        return carried
    touched = np.insert(carried.touched, block, False, axis=1)
    touching, made_here = carried.touched[:, block], carried.maker == block
    in_second = touching & (made_here != carried.back)
    touched[:, block], touched[:, block + 1] = touching & ~in_second, in_second
    maker = carried.maker + ((carried.maker > block) | (made_here & in_second))
    return replace(carried, maker=maker, touched=touched)


def _each_tensor_once(variables: pd.DataFrame) -> pd.DataFrame:
    """One variable for each tensor; those that hold no tensor of the model are all kept."""
    again = variables["tensor"].duplicated() & (variables["tensor"] >= 0)
    return variables[~again]


def _streams_in_two(streams: HostStreams, halves: _Halves) -> HostStreams:
    """What comes is the first half's, what leaves the second's."""

    def first(values: np.ndarray) -> np.ndarray:
        return halves.two(values, values[halves.block], 0) if len(values) else values

    def second(values: np.ndarray) -> np.ndarray:
        return halves.two(values, 0, values[halves.block]) if len(values) else values

    return replace(
        streams,
        input_bytes=first(streams.input_bytes),
        stream_in=first(streams.stream_in),
        stream_out=second(streams.stream_out),
        load=first(streams.load),
        unload=second(streams.unload),
    )


def _at_the_first_half(beyond: np.ndarray, block: int) -> np.ndarray:
    """What a profile took beyond its estimates, by Block, with a Block cut in two."""
    return np.insert(beyond, block + 1, 0) if len(beyond) else beyond


def _renumbered(stashes: np.ndarray, block: int, over: int) -> np.ndarray:
    """What stages stash, with a Block cut in two.

    What enters it does so before its first half, what it keeps is made in the second, and ``over``
    bytes enter a stage that begins between them.
    """
    begin, end, least, nbytes = stashes.T
    enters = (end == block) & (least == block)
    moved = np.stack(
        [
            begin + (begin > block),
            end + ((end >= block) & ~enters),
            least + (least > block),
            nbytes,
        ],
        axis=1,
    )
    return np.concatenate([moved, [[block + 1, block + 1, block + 1, over]]])


def _read_by(report: Report, ops: set[int]) -> list[int]:
    """Ids of the variables that operators use."""
    if report.format < 2:
        return []
    uses = report.columns_of(records.Use)
    variables: list[int] = uses["variable"][np.isin(uses["op"], list(ops))].tolist()
    return variables


def _part(whole: int, some: int) -> float:
    return some / whole if whole else 0.5


def _over(report: Report, costs: Costs, block: int, first: set[int]) -> int:
    """Bytes that are live at a cut behind the first forward operators of a Block.

    They make these bytes, and later operators read them.

    What lives on there only to be stashed is none of them (nor what is read besides: an estimate).
    """
    ipu, stage = costs.ipus[int(costs.stage[block])], int(costs.stage[block])
    steps = report.program_steps(ipu)
    forward = steps[
        (steps["direction"] == Direction.FORWARD)
        & (steps["stage"] == stage)
        & (steps["block"] == block)
    ]
    later = forward[~forward["op"].isin(first)]
    cut = int(later["position"].min()) if len(later) else 0
    variables = report.variables
    # one that the next operator overwrites in place ends where that begins (profiles of format 1
    # have none)
    overwritten = variables.index.isin(
        _read_by(report, set(later.loc[later["position"] == cut, "op"].tolist()))
    )
    live = variables[
        (variables["ipu"] == ipu)
        & (variables["always_live"] == 0)
        & (variables["start"] < cut)
        & ((variables["stop"] > cut) | ((variables["stop"] == cut) & overwritten))
        & variables["role"].isin([Role.ACTIVATION, Role.INPUT])
    ]
    here = variables["stage"] == stage
    stashed = variables.loc[(variables["role"] == Role.STASH) & here, "tensor"]
    live = live[~live["tensor"].isin(stashed)]
    return int(_each_tensor_once(live)["bytes"].sum())
