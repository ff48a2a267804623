"""Cycles of each Block's forward, backward, weight update, and of what recomputation runs again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ipuscope.planner.costs.profile_columns import sum_by
from ipuscope.profiler.enums import Direction, Purpose
from ipuscope.profiler.file import records
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.report import Report

_STASHING = (Purpose.STASH, Purpose.RESTORE)
RUN_AGAIN = ("again", "again_end", "again_final")
# tables that the compiler writes: columns of Blocks, and others
_TABLES = {
    "stashes": (3, 4),
    "stashes_kept": (3, 4),
    "handed_on": (2, 4),
    "again_far": (2, 1),
}
_FOR_BOTH = ("host I/O", "global exchange")  # kinds of steps that bring a weight to the chip


@dataclass(frozen=True)
class BlockCycles:
    """int64[Block], a micro-batch's but for ``update``.

    A stage that recomputes runs ``again`` of each Block but the last, of which it runs
    ``again_end``: without what only the next stage needs. The last stage runs ``again_final``
    (nothing without checkpoints). ``closed``, bool[Block]: what earlier Blocks save is made again
    only after the Block's backward. ``again_far``, int64[row, 3]: a Block, another one, and what
    the first runs again beside ``again`` where its stage has both.
    """

    forward: np.ndarray
    backward: np.ndarray  # without recomputation
    update: np.ndarray
    again: np.ndarray
    again_end: np.ndarray
    again_final: np.ndarray
    closed: np.ndarray
    again_far: np.ndarray = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))

    @property
    def work(self) -> np.ndarray:
        """Forward and backward together."""
        total: np.ndarray = self.forward + self.backward
        return total

    def plus(self, forward: np.ndarray, backward: np.ndarray, update: np.ndarray) -> BlockCycles:
        """With so many cycles more (or fewer), float64[Block], but none below 0.

        What runs again grows as the forward does.
        """
        more = 1 + forward / np.maximum(1, self.forward)

        def least(cycles: np.ndarray) -> np.ndarray:
            return np.maximum(0, np.rint(cycles)).astype(np.int64)

        return replace(
            self,
            forward=least(self.forward + forward),
            backward=least(self.backward + backward),
            update=least(self.update + update),
            **{name: least(getattr(self, name) * more) for name in RUN_AGAIN},
        )

    def scaled(
        self, factor: np.ndarray, rounded: Callable[[np.ndarray], np.ndarray] = np.rint
    ) -> BlockCycles:
        """With what a micro-batch costs times ``factor``, float64[Block]."""

        def times(cycles: np.ndarray) -> np.ndarray:
            return rounded(cycles * factor).astype(np.int64)

        names = "forward", "backward", *RUN_AGAIN
        return replace(self, **{name: times(getattr(self, name)) for name in names})


def measured_cycles(report: Report, stage: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Forward and backward cycles of each Block on its ``stage``, int64[Block], without the stash.

    Operators of no Block, as those before the first, are the first Block's of their stage. A weight
    from off the chip or the replicas comes once for recomputation and backward: it is the
    backward's, if that reads it.
    """
    block, where, cycles = map(report.sequence.steps_in_order, ("block", "stage", "spent"))
    first = np.array([np.argmax(stage == one) for one in range(stage.max(initial=0) + 1)])
    alone = (block < 0) & (where >= 0) & report.sequence.steps_with("purpose", Purpose.OPERATOR)
    block = np.where(alone, first[where.clip(0, len(first) - 1)], block)
    own_steps = (block >= 0) & (where == stage[block.clip(0)])
    own_steps &= ~report.sequence.steps_with("purpose", *_STASHING)
    brought = _brought(report)[1]

    def of(chosen: np.ndarray) -> np.ndarray:
        return sum_by(block[own_steps & chosen], cycles[own_steps & chosen], len(stage))

    again = report.sequence.steps_with("direction", Direction.RECOMPUTE)
    backward = report.sequence.steps_with("direction", Direction.BACKWARD) | (again & brought)
    return of(report.sequence.steps_with("direction", Direction.FORWARD)), of(backward)


def _brought(report: Report) -> tuple[np.ndarray, np.ndarray]:
    """Masks of steps that bring a weight, and of those whose stage's backward reads it.

    A collective of shards is part of its operator.
    """
    uses, ops = report.file.table(records.Use), report.file.table(records.Op)
    variables, steps = report.file.table(records.Variable), report.sequence
    tensor, op, stage = map(steps.steps_in_order, ("tensor", "op", "stage"))
    stage_of = np.full(int(ops["id"].max(initial=-1)) + 1, -1)
    stage_of[op[(op >= 0) & (stage >= 0)]] = stage[(op >= 0) & (stage >= 0)]
    back = np.isin(uses["op"], ops["id"][ops.equals("direction", Direction.BACKWARD)])
    read = variables["tensor"][rows_of(uses["variable"][back], variables["id"])]
    stages = int(stage.max(initial=0)) + 2
    keys = read * stages + stage_of[uses["op"][back]]
    brought = steps.steps_with("kind", *_FOR_BOTH)
    brought = brought & ~steps.steps_with("purpose", Purpose.OPERATOR)
    return brought, brought & np.isin(tensor * stages + stage, keys) & (tensor >= 0)


def _brought_again(report: Report, stage: np.ndarray) -> np.ndarray:
    """Cycles of what a Block's recomputation brings beside what its backward reads: int64[Block].

    Of stages that do not recompute it is what the forward brings so.
    """
    steps, (brought, is_read) = report.sequence, _brought(report)
    block, where, cycles = map(steps.steps_in_order, ("block", "stage", "spent"))
    again = steps.steps_with("direction", Direction.RECOMPUTE)
    once = steps.steps_with("direction", Direction.FORWARD) & ~np.isin(where, where[again])
    chosen = brought & ~is_read & (again | once) & (block >= 0) & (where == stage[block.clip(0)])
    return sum_by(block[chosen], cycles[chosen], len(stage))


def recomputes(report: Report, training: bool, pipelined: bool) -> bool:
    """Whether stages run their forward again: as profiled, or for one stage, by the options."""
    if len(report.stages) == 1:
        return training and bool(report.options.get("_Popart.autoRecomputation", pipelined))
    return bool((report.stages["recompute_cycles"] > 0).any())


def recomputed(report: Report, forward: np.ndarray, stage: np.ndarray) -> dict[str, np.ndarray]:
    """What runs again and ``closed`` of `BlockCycles`, by name; ``stage``: of each Block.

    As the compiler wrote them (`ipu_exec.compiler.placement.recompute.by_block`); of profiles
    without that what their Blocks ran again, as in those that did not: all. A final stage that ran
    anything again has checkpoints.
    """
    written = written_recomputation(report, len(forward))
    if written is not None:
        brought = _brought_again(report, stage)
        runs = {name: written[name] + brought * (written[name] > 0) for name in RUN_AGAIN}
        far = written["again_far"]
        return {**runs, "closed": written["closed"] > 0, "again_far": far}
    block, cycles_of = map(report.sequence.steps_in_order, ("block", "spent"))
    ran = report.sequence.steps_with("direction", Direction.RECOMPUTE)
    ran &= ~report.sequence.steps_with("purpose", *_STASHING)
    measured = sum_by(block[ran], cycles_of[ran], len(forward))
    of_final = stage == stage.max(initial=0)
    final = bool(measured[of_final].any())
    again = np.where(measured > 0, measured, forward)
    return {
        "again": again,
        "again_end": again,
        "again_final": np.where(of_final, measured, again * final),
        "closed": np.full(len(forward), final),
    }


def written_recomputation(report: Report, blocks: int) -> dict[str, np.ndarray] | None:
    """What the compiler recorded of recomputation, by name; None: not there, or it is invalid."""
    written: Any = report.meta.get("recomputation")
    try:
        of_blocks = {
            name: np.array(written[name], dtype=np.int64) for name in (*RUN_AGAIN, "closed")
        }
        tables = {
            name: _with_tiles(np.array(written.get(name, []), dtype=np.int64), ends + others)
            for name, (ends, others) in _TABLES.items()
        }
        named = np.concatenate([one[:, : _TABLES[name][0]].ravel() for name, one in tables.items()])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    whole = all(each.shape == (blocks,) for each in of_blocks.values())
    are_blocks = np.isin(named, np.arange(blocks)).all()
    return {**of_blocks, **tables} if whole and are_blocks else None


def _with_tiles(rows: np.ndarray, width: int) -> np.ndarray:
    """Rows so wide: all but the bytes are -1 where a profile of before lacks them."""
    if rows.ndim == 2 and rows.shape[1] == width - 3:
        return np.pad(rows, ((0, 0), (0, 3)), constant_values=-1)
    return rows.reshape(-1, width)
