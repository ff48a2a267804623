"""Random costs of synthetic models, to test and time the rebalancer with."""

from __future__ import annotations

import numpy as np

from ipuscope.planner.costs.block_cycles import BlockCycles
from ipuscope.planner.costs.block_memory import BlockMemory
from ipuscope.planner.costs.cuts import Cuts
from ipuscope.planner.costs.host_streams import HostStreams
from ipuscope.planner.costs.machine_costs import MachineCosts
from ipuscope.planner.costs.passes import Pass
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.stash_costs import StashCosts

_AT_ONCE = 1_000  # Blocks whose bytes are drawn together


def random_costs(
    random: np.random.Generator,
    blocks: int,
    tiles: int = 16,
    *,
    stages: int = 4,
    full: float = 0.0,
    micro_batches: int | None = None,
    most: int = 30_000,
    recompute: bool = True,
    kind: type[np.integer] = np.int64,
) -> Costs:
    """Blocks with cycles up to ``most`` and bytes on each tile.

    ``full``: how many times what a tile needs for an even share of the bytes over ``stages`` it
    has; 0: it has enough. ``kind``: of the bytes by tile.
    """

    def cycles(high: int) -> np.ndarray:
        return random.integers(1, high + 1, blocks)

    def nbytes(high: int) -> np.ndarray:
        table = np.empty((blocks, tiles), dtype=kind)
        for some in range(0, blocks, _AT_ONCE):
            rows = table[some : some + _AT_ONCE]
            rows[:] = random.integers(0, high + 1, rows.shape)
        return table

    nothing = np.zeros((blocks, tiles), dtype=kind)  # of which no page is ever written
    always, state, saved = nbytes(4_000), nbytes(4_000), nbytes(1_000)
    peak = np.zeros((len(Pass), blocks, tiles), dtype=kind)
    peak[2] = largest = nbytes(20_000)
    for into, by, quarters in ((0, 1, 3), (1, 2, 3), (3, 3, 2)):
        peak[into] = np.roll(largest, by, axis=1) * quarters // 4
    largest_of_all = largest.max()
    del largest
    pieces = 3 if blocks > 1 else 0  # of code, each of about half of the Blocks
    code_users = random.random((pieces, blocks)) < 0.5
    code = random.integers(0, 3_000, (pieces, tiles))
    copy = random.integers(1, 136 * tiles, blocks)
    inputs = np.zeros(blocks, dtype=np.int64)
    inputs[0] = 34 * tiles
    shared = random.integers(0, 5_000, tiles)
    depth = 2 * stages - 1
    stashed = 136 * tiles + (0 if recompute else int(saved.sum()) // stages)
    block = np.arange(blocks)
    enters = np.concatenate([inputs[:1], copy[:-1]])
    spent = np.rint(100 + 0.002 * enters).astype(np.int64)
    one, nil = np.ones_like(block), np.zeros_like(block)
    entering = np.stack([block, block, block, enters, one, spent, -(-enters // tiles)], axis=1)
    saving = np.rint(100 + 0.002 * saved.sum(axis=1)).astype(np.int64)
    own = np.stack([nil, block, block, nil, one, saving, nil], axis=1)
    forward = cycles(most)
    share = (
        (always + state + saved).sum(axis=0).max() / stages
        + largest_of_all
        + shared.max()
        + depth * stashed // tiles
    )
    share += code.sum(axis=0).max(initial=0)
    return Costs(
        names=tuple(f"B{b}" for b in range(blocks)),
        stage=np.minimum(np.arange(blocks) * stages // blocks, stages - 1),
        ipus=tuple(range(stages)),
        machine=MachineCosts(
            tiles=tiles,
            bytes_per_tile=int(full * share) if full else 1 << 40,
            region0_bytes=int(full * share / 3) if full else 1000,
            clock_hz=1.33e9,
            sync=600,
            link_latency=700,
            link_bytes_per_cycle=41.0,
            link_hop_latency=0.16e-6 * 1.33e9,
            streaming_bytes_per_cycle=5e9 / 1.33e9,
            stream_step=257,
        ),
        cycles=BlockCycles(
            forward=forward,
            backward=cycles(2 * most),
            update=cycles(most // 10 + 1),
            again=forward,
            again_end=np.maximum(0, forward - int(random.integers(0, most // 10 + 1))),
            again_final=np.zeros(blocks, dtype=np.int64),
            closed=np.zeros(blocks, dtype=bool),
        ),
        cuts=Cuts(copy, random.integers(1, 136 * tiles, blocks)),
        stash=StashCosts(blocks, 100.0, entering, np.concatenate([entering, own])),
        streams=HostStreams(
            input_bytes=inputs,
            stream_in=np.where(np.arange(blocks) == 0, 500, 0),
            stream_out=np.where(np.arange(blocks) == blocks - 1, 300, 0),
            out_once=True,
        ),
        memory=BlockMemory(
            always=always,
            code_users=code_users,
            code=code,
            peak=peak,
            peak_of_backward=peak[Pass.BACKWARD] + saved // 2,
            ran_again=np.full(blocks, recompute),
            peak_of_copies=nothing,
            copies=np.zeros((0, tiles), dtype=np.int64),
            updating=nothing,
            peak_interleaved=nbytes(6_000) * (random.random((blocks, 1)) < 0.3),
            saved=saved,
            saved_tensors=random.integers(0, 4, blocks),
            state=state,
            state_once=state // 2,
            state_weights=random.integers(1, 4, blocks),
            shared=shared,
        ),
        reduce=0,
        micro_batches=micro_batches or 4 * stages,
        samples=1,
        training=True,
        pipelined=True,
        recompute=recompute,
    )
