"""Cutting inside a Block.

Where one Block is the longest stage, the operator behind which it should become two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from profiler import records
from profiler.rebalance.costs import Costs, code_of_blocks
from profiler.rebalance.split import Split, best_split
from profiler.report import Report


@dataclass(frozen=True)
class Inside:
    """``block`` cut behind the forward operator ``after`` (by id, ``name``), before ``before``."""

    block: int
    after: int
    name: str
    before: str
    bytes_over: int  # a micro-batch, forward, over the new cut
    costs: Costs  # with the Block as two, named "block.1" and "block.2"
    split: Split


def best_cut_inside(
    report: Report, costs: Costs, stages: int, block: int | None = None
) -> Inside | None:
    """The cut inside a Block (default: the longest) that makes the best split shortest.

    None where none does so.

    A cut is between two forward operators of the Block; the backward of each goes with it. Cycles,
    weights and what is saved are those of the operators themselves; both halves are taken to peak
    as high as the whole did, and what crosses the cut to go back as many bytes as forward (both are
    estimates).
    """
    if block is None:
        block = int((costs.forward + costs.backward).argmax())
    forward_ops, _ = _operators(report, block)
    try:
        limit: int | None = best_split(costs, stages).prediction.total
    except ValueError:
        limit = None  # nothing fits: any cut that does is better
    best: Inside | None = None
    for number in range(1, len(forward_ops)):
        halves = split_block(report, costs, block, number)
        if not halves.forward[block] or not halves.forward[block + 1]:
            continue
        try:
            found = best_split(halves, stages)
        except ValueError:
            continue
        if found.prediction.problems or (limit is not None and found.prediction.total >= limit):
            continue
        limit = found.prediction.total
        names = report.ops["name"]
        after, before = forward_ops[number - 1], forward_ops[number]
        best = Inside(
            block,
            after,
            str(names.at[after]),
            str(names.at[before]),
            int(halves.copy[block]),
            halves,
            found,
        )
    return best


def _operators(report: Report, block: int) -> tuple[list[int], dict[int, int]]:
    """The Block's forward operators in the order in which they run.

    Second, for each operator of the Block (forward, backward or derived from one), the number of
    its forward operator.
    """
    ops = report.ops
    mine = ops[ops["block"] == block]
    steps = report.program_steps()
    ran = steps[
        (steps["direction"] == "forward")
        & steps["op"].isin(mine.index[mine["direction"] == "forward"])
    ]
    order = list(dict.fromkeys(ran["op"].tolist()))
    number = {op: at for at, op in enumerate(order)}
    owner = dict(number)
    for op, forward in zip(mine.index.tolist(), mine["forward_op"].tolist(), strict=True):
        if op not in owner:
            owner[op] = number.get(forward, 0)
    return order, owner


def split_block(report: Report, costs: Costs, block: int, number: int) -> Costs:
    """The costs with a Block as two: its first ``number`` forward operators, and the rest."""
    _, owner = _operators(report, block)
    first = {op for op, at in owner.items() if at < number}
    steps = report.program_steps()
    mine = steps[(steps["block"] == block) & (steps["stage"] == costs.stage[block])]
    in_first = mine["op"].isin(first)
    spent = {
        direction: int(mine.loc[in_first & (mine["direction"] == direction), "cycles"].sum())
        for direction in ("forward", "backward")
    }
    spent = {
        direction: min(spent[direction], int(getattr(costs, direction)[block]))
        for direction in spent
    }
    variables = report.variables
    kept = variables[
        (variables["block"] == block) & (variables["ipu"] == costs.ipus[int(costs.stage[block])])
    ]

    def share(rows: Any, whole: np.ndarray) -> np.ndarray:
        """What the first operators have of ``whole`` [tile]."""
        some = rows[rows["op"].isin(first)].drop_duplicates("name")
        total = sum((report.variable_tiles(int(id)) for id in some.index), np.zeros_like(whole))
        return np.minimum(total, whole)

    _, pieces = code_of_blocks(report, len(costs))
    in_pieces = [id for _, ids, more in pieces for id in (*ids, *more)]
    forever = kept[(kept["always_live"] != 0) & ~kept["role"].isin(["optimiser state", "stash"])]
    always = share(forever[~forever.index.isin(in_pieces)], costs.always[block])
    # of code that other Blocks run too, both halves are taken to run all (an estimate)
    users, code = np.insert(costs.code_users, block, costs.code_users[:, block], axis=1), costs.code
    for number, (sharing, ids, _) in enumerate(pieces):
        if sharing == [block]:
            some = share(forever[forever.index.isin(ids)], code[number])
            users[number, block + 1] = False
            users = np.concatenate([users, np.arange(users.shape[1])[None] == block + 1])
            code = np.concatenate([code, [code[number] - some]])
            code[number] = some
    state = share(kept[kept["role"] == "optimiser state"], costs.state[block])
    live = kept[(kept["role"] == "activation") & (kept["always_live"] == 0)]
    part = _part(int(live["bytes"].sum()), int(live.loc[live["op"].isin(first), "bytes"].sum()))
    saved = (costs.saved[block] * part).astype(np.int64)
    over = _over(report, costs, block, first)
    weights = _part(
        int(costs.state[block].sum() or costs.always[block].sum()), int(state.sum() or always.sum())
    )
    update, tensors = round(costs.update[block] * weights), round(costs.saved_tensors[block] * part)
    moved = round(costs.state_weights[block] * weights)
    once = (
        np.minimum(costs.state_once[block], state),
        np.minimum(costs.state_once[block], costs.state[block] - state),
    )

    def two(values: np.ndarray, one: Any, other: Any) -> np.ndarray:
        return np.concatenate(
            [values[:block], np.array([one]), np.array([other]), values[block + 1 :]]
        )

    def both(values: np.ndarray) -> np.ndarray:
        return two(values, values[block], values[block])

    def rest(values: np.ndarray, one: Any) -> np.ndarray:
        return two(values, one, values[block] - one)

    again = round(int(costs.again[block]) * _part(int(costs.forward[block]), int(spent["forward"])))
    name = costs.names[block]
    zero = np.zeros_like(costs.inputs[block])
    return replace(
        costs,
        names=(*costs.names[:block], f"{name}.1", f"{name}.2", *costs.names[block + 1 :]),
        stage=both(costs.stage),
        forward=rest(costs.forward, spent["forward"]),
        backward=rest(costs.backward, spent["backward"]),
        update=rest(costs.update, update),
        inputs=two(costs.inputs, costs.inputs[block], zero),
        copy=two(costs.copy, over, costs.copy[block]),
        copy_back=two(costs.copy_back, over, costs.copy_back[block]),
        again=rest(costs.again, again),
        again_end=two(costs.again_end, again, max(0, int(costs.again_end[block]) - again)),
        again_final=rest(costs.again_final, min(again, int(costs.again_final[block]))),
        closed=two(costs.closed, costs.closed[block], False),
        stashes=_renumbered(costs.stashes, block, over),
        stashes_kept=_renumbered(costs.stashes_kept, block, over),
        stream_in=two(costs.stream_in, costs.stream_in[block], zero),
        stream_out=two(costs.stream_out, zero, costs.stream_out[block]),
        load=two(costs.load, costs.load[block], zero) if len(costs.load) else costs.load,
        unload=two(costs.unload, zero, costs.unload[block]) if len(costs.unload) else costs.unload,
        always=rest(costs.always, always),
        code_users=users,
        code=code,
        peak=both(costs.peak),
        peak_interleaved=both(costs.peak_interleaved),
        saved=rest(costs.saved, saved),
        saved_tensors=rest(costs.saved_tensors, tensors),
        state=rest(costs.state, state),
        state_once=two(costs.state_once, *once),
        state_weights=rest(costs.state_weights, moved),
    )


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
    found: list[int] = uses["variable"][np.isin(uses["op"], list(ops))].tolist()
    return found


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
        (steps["direction"] == "forward") & (steps["stage"] == stage) & (steps["block"] == block)
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
        & variables["role"].isin(["activation", "input"])
    ]
    stashed = variables.loc[(variables["role"] == "stash") & (variables["stage"] == stage), "name"]
    live = live[~live["name"].isin(stashed.str.removesuffix("/stash"))]
    return int(live.drop_duplicates("name")["bytes"].sum())
