"""What another split would give: the engine's own schedule over the profile's costs. A prediction, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from profiler import schedules
from profiler.rebalance.costs import Costs
from profiler.schedules import Schedule, stash_depth


@dataclass(frozen=True)
class Assignment:
    """Contiguous stages: ``starts`` are the first Blocks of each, ``ipus`` where they run."""

    starts: tuple[int, ...]
    ipus: tuple[int, ...]

    @classmethod
    def of(cls, stage: Sequence[int], ipus: Sequence[int] | None = None) -> Assignment:
        """From each Block's stage, 0 ... in order. ValueError where a stage is skipped or comes back."""
        found = [int(k) for k in stage]
        stages = max(found, default=-1) + 1
        if found != sorted(found) or sorted(set(found)) != list(range(stages)):
            raise ValueError(f"stages must count 0, 1, 2 ... along the Blocks, not {found}")
        return cls(tuple(found.index(k) for k in range(stages)), tuple(ipus or range(stages)))

    def spans(self, blocks: int) -> list[tuple[int, int]]:
        """(first, last) Block of each stage."""
        return [(a, b - 1) for a, b in zip(self.starts, [*self.starts[1:], blocks], strict=True)]

    def stage_of(self, blocks: int) -> list[int]:
        """The stage of each Block."""
        return [k for k, (a, b) in enumerate(self.spans(blocks)) for _ in range(a, b + 1)]


@dataclass(frozen=True)
class Prediction:
    """What an assignment would give. Cycles; bytes; ``problems`` says why it would not compile (empty: it would),
    ``notes`` what to set for it."""

    assignment: Assignment
    schedule: Schedule
    total: int  # cycles a weight update (a device iteration in inference)
    pipeline_cycle: int  # in steady state
    forward: tuple[int, ...]  # of each stage
    backward: tuple[int, ...]  # recomputation included
    fullest: tuple[int, ...]  # bytes on the fullest tile of each IPU, gaps included
    samples_per_second: float
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def attached(self) -> int:
        """IPUs a replica that are taken: a power of two."""
        return 1 << (len(self.fullest) - 1).bit_length()

    @property
    def stage_cycles(self) -> np.ndarray:
        """Cycles a micro-batch of each stage: int64[stages]."""
        return np.array(self.forward) + np.array(self.backward or [0] * len(self.forward))


def what_if(costs: Costs, assignment: Assignment) -> Prediction:
    """Lay the schedule out for an assignment. ValueError where it does not name each Block once."""
    spans = assignment.spans(len(costs))
    if assignment.starts[:1] != (0,) or any(a > b for a, b in spans) or len(assignment.ipus) != len(spans):
        raise ValueError(f"an assignment gives each of the {len(costs)} Blocks one stage; this one starts them at "
                         f"{assignment.starts}")  # fmt: skip
    stages = len(spans)
    forward, backward = [], []
    for k, (first, last) in enumerate(spans):
        stash = costs.stash_cycles(first) if costs.pipelined and k < stages - 1 else 0
        own = int(costs.forward[first : last + 1].sum()) + stash
        again = max(0, own - costs.not_again) if costs.recompute and k < stages - 1 else 0
        forward.append(own)
        backward.append(int(costs.backward[first : last + 1].sum()) + again)
    legal = costs.micro_batches >= schedules.pipeline_stages(stages, costs.training)
    made = schedules.Costs(
        ipus=assignment.ipus,
        forward=tuple(forward),
        backward=tuple(backward) if costs.training else (),
        update=_per_ipu(costs.update, spans, assignment.ipus) if costs.training else (),
        reduce=tuple([costs.reduce] * (max(assignment.ipus) + 1)) if costs.reduce else (),
        stream_in=_streams(costs.stream_in, spans),
        stream_out=_streams(costs.stream_out, spans),
        stream_out_once=costs.stream_out_once,
        copies=_copies(costs, spans, assignment.ipus),
        sync=costs.sync,
    )
    run = schedules.pipelined if costs.pipelined else schedules.sharded
    schedule = run(made, costs.micro_batches if legal or not costs.pipelined else _least(stages, costs.training))
    fullest = _fullest(costs, spans, assignment.ipus)
    steady = [c for c, phase in enumerate(schedule.phases) if phase == "steady"]
    length = schedule.cycle_end - schedule.cycle_start
    pace = int(length[steady].max()) if steady else int(length.max(initial=0))
    rate = costs.samples * costs.micro_batches * costs.clock_hz / schedule.total if schedule.total and legal else 0.0
    return Prediction(
        assignment,
        schedule,
        schedule.total,
        pace,
        tuple(forward),
        tuple(backward) if costs.training else (),
        fullest,
        rate,
        tuple(_problems(costs, stages, fullest, legal)),
        tuple(_notes(costs, len(fullest))),
    )


def placement_file(costs: Costs, assignment: Assignment) -> dict[str, Any]:
    """What ``ipu-run --placement`` is to take: stages with their Blocks and IPUs, for `json.dump`."""
    stages = [
        {"ipu": ipu, "blocks": list(costs.names[first : last + 1])}
        for ipu, (first, last) in zip(assignment.ipus, assignment.spans(len(costs)), strict=True)
    ]
    return {"format": "ipuscope placement", "version": 1, "stages": stages}


def _least(stages: int, training: bool) -> int:
    return schedules.pipeline_stages(stages, training)


def _per_ipu(values: np.ndarray, spans: list[tuple[int, int]], ipus: tuple[int, ...]) -> tuple[int, ...]:
    total = [0] * (max(ipus) + 1)
    for ipu, (first, last) in zip(ipus, spans, strict=True):
        total[ipu] += int(values[first : last + 1].sum())
    return tuple(total)


def _streams(cycles: np.ndarray, spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found = [(k, int(cycles[first : last + 1].sum())) for k, (first, last) in enumerate(spans)]
    return tuple((k, c) for k, c in found if c)


def _copies(costs: Costs, spans: list[tuple[int, int]], ipus: tuple[int, ...]) -> tuple[int, ...]:
    """Cycles that each IPU's exchange with the others takes: latency, then the busier way of its link (facts: JIA)."""
    count = max(ipus) + 1
    sent, received = np.zeros(count), np.zeros(count)
    for k in range(len(spans) - 1):
        here, there, cut = ipus[k], ipus[k + 1], spans[k][1]
        if here != there:
            sent[here] += costs.copy[cut]
            received[there] += costs.copy[cut]
            sent[there] += costs.copy_back[cut]
            received[here] += costs.copy_back[cut]
    busiest = np.maximum(sent, received)
    cycles = np.where(busiest > 0, np.ceil(costs.link_latency + busiest / costs.link_bytes_per_cycle), 0)
    return tuple(int(c) for c in cycles) if cycles.any() else ()


def _fullest(costs: Costs, spans: list[tuple[int, int]], ipus: tuple[int, ...]) -> tuple[int, ...]:
    found = [0] * (max(ipus) + 1)
    stages = len(spans)
    for k, (first, last) in enumerate(spans):
        depth = stash_depth(stages, k) if costs.training and costs.pipelined else 0
        found[ipus[k]] += int(costs.tile_bytes(first, last, depth).max())
    return tuple(found)


def _notes(costs: Costs, ipus: int) -> list[str]:
    """IPUs are attached in powers of two (facts: poptorch.md, 'Placement')."""
    attached = 1 << (ipus - 1).bit_length()
    if attached == ipus:
        return []
    idle = f"{ipus} IPUs are no power of two: {attached} are attached, {attached - ipus} of them idle"
    return [idle if costs.rounds else f"{idle}, and only with autoRoundNumIPUs(True), which a placement file sets"]


def _problems(costs: Costs, stages: int, fullest: tuple[int, ...], legal: bool) -> list[str]:
    problems = []
    if costs.pipelined and not legal:
        what = "gradient accumulation" if costs.training else "device iterations"
        problems.append(
            f"{stages} stages need {what} of at least {_least(stages, costs.training)}; it is {costs.micro_batches}"
        )
    for ipu, size in enumerate(fullest):
        if size > costs.bytes_per_tile:
            over = size - costs.bytes_per_tile
            problems.append(f"IPU {ipu}: its fullest tile would hold {over:,} bytes more than it has")
    return problems
