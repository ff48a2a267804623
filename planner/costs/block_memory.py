"""Bytes of each Block by tile: always, while it runs, between its forward and its backward.

What a Block holds while it runs is read pass by pass (`passes`), and only of what it touches: a
tensor that waits for another Block (`carried`) waits elsewhere, or not at all, in another split.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.planner.costs.carried_tensors import Carried
from ipuscope.planner.costs.code_memory import CodeMemory
from ipuscope.planner.costs.pass_memory import PassMemory, Touched, memory_of_passes
from ipuscope.planner.costs.passes import Pass, Passes, touches
from ipuscope.planner.costs.profile_columns import Steps, Variables, no_rows, none
from ipuscope.planner.costs.tied_weights import SharedWeight, TiedGradients, copies_of_ties
from ipuscope.profiler.enums import Direction, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline import liveness

if TYPE_CHECKING:
    from ipuscope.planner.costs.cuts import Ties

_AGAIN = (Direction.FORWARD, Direction.RECOMPUTE)  # in which a tensor is made


class Kept(list[tuple[list[Any], dict[object, Any]]]):
    """Tables that follow from bytes, each with the costs that they follow from, too.

    Another process makes its own.
    """

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()


@dataclass(frozen=True)
class BlockMemory:
    """Bytes on each tile, int64[Block, tile]; numbers of tensors, int64[Block]."""

    always: np.ndarray  # whatever runs, without stash, optimiser state and ``code``
    # While the Block runs, of what it touches: int64[`Pass`, Block, tile]; the backward without
    # what its own forward saved, as a stage may save otherwise.
    peak: np.ndarray
    # ... with what was saved, as in stages that recompute or do not, as profiled (``ran_again``)
    peak_of_backward: np.ndarray
    ran_again: np.ndarray
    # by how much the backward's peak grows where the Block's tied weights or their gradients travel
    # between IPUs; and bytes of these weights, int64[tie, tile]
    peak_of_copies: np.ndarray
    copies: np.ndarray
    updating: np.ndarray  # that a Block's weight update leaves until the others' are through
    peak_interleaved: np.ndarray  # the most of that in region 1
    saved: np.ndarray  # that the Block's forward leaves for its backward
    saved_tensors: np.ndarray
    state: np.ndarray  # of optimiser state
    # of the weight with most: what an update holds of it where it is off the chip
    state_once: np.ndarray
    state_weights: np.ndarray  # how many weights have any
    # of no Block, an IPU: stack, transfers' control code (the largest IPU's): int64[tile]
    shared: np.ndarray
    # Code that Blocks share, once an IPU: bool[piece, Block] and int64[piece, tile]
    code_users: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))
    code: np.ndarray = field(default_factory=no_rows)
    region0: CodeMemory = field(default_factory=lambda: CodeMemory.unknown(0))  # of all that: code
    # What each IPU of the profile held beyond these estimates, int64[IPU, tile] (empty: unknown),
    # and which of them ran each Block, int64[Block]
    residual: np.ndarray = field(default_factory=no_rows)
    residual_of: np.ndarray = field(default_factory=none)
    # the same without copies of tied weights on their way; empty if none travels
    residual_at_home: np.ndarray = field(default_factory=no_rows)
    carried: Carried = field(default_factory=Carried)
    # the backward's peak right after a recomputed forward, with all that is saved live until its
    # last use: int64[Block, tile]; empty: unknown
    peak_if_again: np.ndarray = field(default_factory=no_rows)

    @cached_property
    def kept(self) -> Kept:
        """`ipuscope.planner.costs.block_costs.BlockCosts.tables`."""
        return Kept()

    @cached_property
    def without_code(self) -> BlockMemory:
        """The same where code has room in any region."""
        return replace(self, region0=CodeMemory.unknown(len(self.saved)))

    @cached_property
    def any_saved(self) -> bool:
        """Whether a Block saves anything for its backward."""
        return bool(self.saved.any())

    @cached_property
    def residual_as_float(self) -> np.ndarray:
        """``residual``, float64[IPU, tile]: what a matrix product takes at once."""
        return self.residual.astype(np.float64)

    @property
    def least_residual(self) -> np.ndarray:
        """No IPU holds less beyond what all this says of it: int64[tile], 0 or less."""
        if not len(self.residual):
            return np.zeros(self.saved.shape[1], dtype=np.int64)
        return np.minimum(0, self.residual.min(axis=0))

    @cached_property
    def any_updating(self) -> bool:
        """Whether any Block's weight update leaves anything behind."""
        return bool(self.updating.any())

    @classmethod
    def unknown(cls, blocks: int) -> BlockMemory:
        """Of Blocks whose memory nobody asks for: no tiles."""
        nothing = np.zeros((blocks, 0), dtype=np.int64)
        none, never = np.zeros(blocks, dtype=np.int64), np.zeros(blocks, dtype=bool)
        return cls(
            always=nothing,
            peak=np.zeros((len(Pass), blocks, 0), dtype=np.int64),
            peak_of_backward=nothing,
            ran_again=never,
            peak_of_copies=nothing,
            copies=no_rows(),
            updating=nothing,
            peak_interleaved=nothing,
            saved=nothing,
            saved_tensors=none,
            state=nothing,
            state_once=nothing,
            state_weights=none,
            shared=np.zeros(0, dtype=np.int64),
            region0=CodeMemory.unknown(blocks),
        )

    @classmethod
    def from_report(
        cls,
        report: Report,
        stage: np.ndarray,
        ties: Ties | None = None,
        tied: TiedGradients | None = None,
    ) -> BlockMemory:
        """``stage``: that of each Block, as profiled. What ``ties`` need is counted with them."""
        blocks, tiles = len(stage), report.target.tiles_per_ipu
        variables, steps, uses = Variables.of(report), Steps.of(report), uses_of(report)
        ipu_of = report.stages["ipu"].to_numpy()[stage]
        saves, counted = _saved(report, variables, steps, stage)
        saved = variables.where(counted)
        weights = SharedWeight.all_of(variables, ties)
        living = ~variables.always & (variables.role != Role.OPTIMISER_STATE)
        living &= ~copies_of_ties(variables, ties)
        tied = tied or TiedGradients()
        living &= ~tied.elsewhere(variables, ipu_of)
        transient, passes = variables.where(living), Passes.of(steps, ipu_of)
        by = touches(passes, steps, transient, uses)
        while_running = memory_of_passes(
            Touched(
                tied.added_at_once(transient), saves[living], steps, passes, by, uses, weights, tied
            ),
            tiles,
        )
        copied = [one.nbytes for one in weights]
        code_of = code_of_blocks(report, blocks)
        every, code = (
            _always(report, some, ipu_of, *code_of)
            for some in (variables, variables.where(variables.code))
        )
        return cls(
            **{**every, "shared": every["shared"].max(axis=0)},
            region0=CodeMemory(
                code["always"],
                code["code_users"],
                code["code"],
                code["shared"],
                np.arange(len(code["shared"]))[:, None] == ipu_of,
            ),
            **{one.name: getattr(while_running, one.name) for one in fields(PassMemory)},
            **_states(variables, blocks),
            copies=np.array(copied, dtype=np.int64).reshape(-1, tiles),
            saved=saved.bytes_by(saved.block.clip(0), blocks),
            saved_tensors=np.bincount(saved.block.clip(0), minlength=blocks),
            carried=_carried(report, variables, uses, blocks, tied),
        )


Pieces = list[tuple[list[int], list[int], list[int]]]


def uses_of(report: Report) -> tuple[np.ndarray, np.ndarray]:
    """Operators, and the ids of variables that each uses."""
    columns = report.file.table(records.Use)
    return columns["op"], columns["variable"]


def _carried(
    report: Report,
    variables: Variables,
    uses: tuple[np.ndarray, np.ndarray],
    blocks: int,
    tied: TiedGradients,
) -> Carried:
    """The tensors that Blocks pass on, among the variables that come and go."""
    table = report.file.table(records.Op)
    row, op = variables.rows_of(uses[1]), rows_of(uses[0], table["id"])
    is_listed = (row >= 0) & (op >= 0)
    row, op = row[is_listed], op[is_listed]
    living = ~variables.always[row]
    used = variables.tensor[row[living]], table["direction"][op[living]], table["block"][op[living]]
    return Carried.of(variables, used, blocks, tied)


def _states(variables: Variables, blocks: int) -> dict[str, np.ndarray]:
    """``state``, ``state_once`` and ``state_weights``; off-chip state is of its weight's Block."""
    states = variables.where(variables.role == Role.OPTIMISER_STATE)
    key = _pairs(states.ipu, states.tensor)
    states = states.where(np.sort(np.unique(key, return_index=True)[1]))
    block, op = _owners(variables, states)
    is_listed = (block >= 0) & (block < blocks)
    states, block, op = states.where(is_listed), block[is_listed], op[is_listed]
    weights, weight = np.unique(
        np.stack([states.ipu, block, op], axis=1), axis=0, return_inverse=True
    )
    once = np.zeros((blocks, variables.vectors.shape[1]), dtype=np.int64)
    for of_block, vectors in {*_vectors_of(states, weight.ravel(), weights[:, 1])}:
        np.maximum(
            once[of_block], liveness.total(states.vectors, np.array(vectors)), out=once[of_block]
        )
    return {
        "state": states.bytes_by(block, blocks),
        "state_once": once,
        "state_weights": np.bincount(weights[:, 1], minlength=blocks),
    }


def _vectors_of(
    states: Variables, weight: np.ndarray, block: np.ndarray
) -> list[tuple[int, tuple[int, ...]]]:
    """The Block of each weight, and the vectors of its states."""
    order = np.lexsort((states.vector, weight))
    pieces = np.split(states.vector[order], np.flatnonzero(np.diff(weight[order])) + 1)
    return [
        (of_block, tuple(piece.tolist()))
        for of_block, piece in zip(block.tolist(), pieces, strict=False)
    ]


def _owners(variables: Variables, states: Variables) -> tuple[np.ndarray, np.ndarray]:
    """Block and operator of each state's weight, or the state's own where it has none."""
    weights = variables.where(variables.role == Role.WEIGHT)
    keys = _pairs(
        np.concatenate([weights.ipu, states.ipu]),
        np.concatenate([weights.tensor, states.parameter]),
    )
    weight_keys, wanted = keys[: len(weights)][::-1], keys[len(weights) :]
    unique, last = np.unique(weight_keys, return_index=True)  # of several the last one counts
    row = rows_of(wanted, unique)
    latest = len(weights) - 1 - last[row] if len(unique) else row
    block, op = (
        np.where(row >= 0, theirs[latest], own) if len(weights) else own
        for theirs, own in ((weights.block, states.block), (weights.op, states.op))
    )
    return block, op


def _pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """One number for each pair of numbers."""
    _, first_kind = np.unique(first, return_inverse=True)
    kinds, second_kind = np.unique(second, return_inverse=True)
    numbers: np.ndarray = first_kind * max(1, len(kinds)) + second_kind
    return numbers


def _always(
    report: Report, variables: Variables, ipu_of: np.ndarray, calls: np.ndarray, pieces: Pieces
) -> dict[str, np.ndarray]:
    """What is always live: ``always``, ``code_users``, ``code``, and ``shared`` of each IPU.

    ``calls``, ``pieces``: of `code_of_blocks`.
    """
    blocks = len(ipu_of)
    rest = variables.where(variables.always)
    in_piece = _piece_of(rest.id, pieces)
    code = rest.where(in_piece >= 0).bytes_by(in_piece[in_piece >= 0], len(pieces))
    rest = rest.where(in_piece == _NO_PIECE)
    of_block = (rest.block >= 0) & (rest.block < blocks)
    of_ipu, of_block = rest.where(~of_block), of_block & (rest.role != Role.OPTIMISER_STATE)
    block_variables = rest.where(of_block)
    always = block_variables.bytes_by(block_variables.block, blocks)
    shared = of_ipu.bytes_by(of_ipu.ipu, report.target.ipus_per_replica)
    # Calls of code are the calling Blocks', except where a stranger's profile has more than an IPU
    # has.
    if blocks and (np.bincount(ipu_of, calls, len(shared)) <= shared.min(axis=1)).all():
        np.subtract.at(shared, ipu_of, calls[:, None])
        always += calls[:, None]
    users = [np.isin(np.arange(blocks), members) for members, _, _ in pieces]
    return {
        "always": always,
        "shared": shared,
        "code_users": np.array(users, dtype=bool).reshape(-1, blocks),
        "code": code,
    }


_NO_PIECE, _COUNTED = -2, -1  # elsewhere


def _piece_of(ids: np.ndarray, pieces: Pieces) -> np.ndarray:
    """For each variable, the piece of shared code to which it belongs."""
    number = np.full(len(ids), _NO_PIECE)
    for named, chosen in ((1, True), (2, False)):
        id_lists = [one[named] for one in pieces]
        every = np.array([id for some in id_lists for id in some], dtype=np.int64)
        piece = np.repeat(np.arange(len(pieces)), [len(some) for some in id_lists])
        row = rows_of(every, ids)
        number[row[row >= 0]] = piece[row >= 0] if chosen else _COUNTED
    return number


def code_of_blocks(report: Report, blocks: int) -> tuple[np.ndarray, Pieces]:
    """Code that Blocks call and share, from the compiler (`compiler.memory.tile_memory.Code`).

    Bytes of calls on each tile, int64[Block]; and shared code: its Blocks, the ids of its
    variables, and those of the same code on further IPUs. If an imported profile has neither, or a
    stranger's is invalid, code belongs to the Block that ran it first.
    """
    nothing = np.zeros(blocks, dtype=np.int64)
    variables = report.file.table(records.Variable)
    is_code = (variables["role"] == Role.PROGRAM) & (variables["always_live"] != 0)
    ids = variables["id"][is_code]
    written: Any = report.meta.get("code")
    try:
        calls = np.array(written["calls"], dtype=np.int64)
        pieces = [
            tuple([int(number) for number in numbers] for numbers in piece)
            for piece in written["shared"]
        ]
        named = [id for _, once, again in pieces for id in (*once, *again)]
        users = [block for sharers, _, _ in pieces for block in sharers]
    except (KeyError, TypeError, ValueError, OverflowError):
        return nothing, []
    ours = (
        len(set(named)) == len(named)
        and int(np.isin(ids, named).sum()) == len(named)
        and calls.shape == nothing.shape
    )
    if not ours or calls.min(initial=0) < 0 or not all(0 <= block < blocks for block in users):
        return nothing, []
    return calls, [(users, once, again) for users, once, again in pieces]


def _saved(
    report: Report, variables: Variables, steps: Steps, stage: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Which variables a forward leaves for its backward, and which to count: bool[variable].

    A tensor that is stashed or recomputed exists twice: in the forward and before the backward.
    """
    activations = _made_by_own_forward(report, variables, stage)
    end = steps.at(variables.ipu[activations], variables.stop[activations] - 1)
    direction = np.where(end >= 0, steps.direction[end], "")
    tensor = _pairs(variables.ipu[activations], variables.tensor[activations])
    back = direction == Direction.BACKWARD
    read_back, first = np.unique(tensor[back], return_index=True)
    again = np.logical_or.reduce([direction == one for one in _AGAIN]) & np.isin(tensor, read_back)
    saved, counted = np.zeros((2, len(variables)), dtype=bool)
    saved[activations[back | again]] = True
    counted[activations[np.flatnonzero(back)[first]]] = True
    return saved, counted


def _made_by_own_forward(report: Report, variables: Variables, stage: np.ndarray) -> np.ndarray:
    """Rows of activations that a forward operator of a Block made, on the Block's own stage.

    Operators before the first Block count as its own.
    """
    table = report.file.table(records.Op)
    forward = table["id"][table["direction"] == Direction.FORWARD]
    activations = ~variables.always & (variables.role == Role.ACTIVATION)
    activations &= np.isin(variables.op, forward)
    rows = np.flatnonzero(activations)
    return rows[stage[variables.block[rows].clip(0)] == variables.stage[rows]]
