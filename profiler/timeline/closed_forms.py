"""Cycles of schedules without laying them out: formulas of docs/pipeline-schedules.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def pipeline_stages(stages: int, training: bool) -> int:
    """Number of pipeline stages S: 2K - 1 in training, K in inference."""
    return 2 * stages - 1 if training else stages


def pipeline_cycles(stages: int, micro_batches: int, training: bool) -> int:
    """Pipeline cycles per weight update: G + S - 1."""
    return micro_batches + pipeline_stages(stages, training) - 1


def stash_depth(stages: int, stage: int) -> int:
    """Micro-batches stashed for a stage's backward: 2(K - 1 - k) + 1; none for the last."""
    return 0 if stage == stages - 1 else 2 * (stages - 1 - stage) + 1


def slot_bubble(stages: int, micro_batches: int, training: bool = True) -> float:
    """Share of a stage's slots (pipeline cycles) that are empty: (S - 1) / (G + S - 1)."""
    return (pipeline_stages(stages, training) - 1) / pipeline_cycles(
        stages, micro_batches, training
    )


def time_bubble(stages: int, micro_batches: int) -> float:
    """Time bubble of a balanced pipeline without overheads, (K - 1) / (G + K - 1)."""
    return (stages - 1) / (micro_batches + stages - 1)


def training_cycles(
    forward: Sequence[int], backward: Sequence[int], micro_batches: int, overhead: int = 0
) -> int:
    """Exact cycles of an update: a stage per IPU, G >= 2K - 1, ``overhead`` per pipeline cycle."""
    stages = len(forward)
    f, b = np.asarray(forward), np.asarray(backward)
    both = f + b
    main = (micro_batches - 2 * stages + 2) * both.max()
    fill = np.maximum.accumulate(f)[: stages - 1].sum()
    flush = np.maximum.accumulate(b)[: stages - 1].sum()
    from_stage = np.maximum.accumulate(both[::-1])[::-1][1:]
    mixed = (np.maximum(f.max(), from_stage) + np.maximum(b.max(), from_stage)).sum()
    return int(main + fill + flush + mixed + (micro_batches + 2 * stages - 2) * overhead)
