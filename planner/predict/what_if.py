"""Prediction of another split in milliseconds: the engine's schedule over the profile's costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.tile_memory import (
    Part,
    ipu_bytes,
    passing_of,
    passing_through,
    stage_parts,
    stages_of,
)
from ipuscope.planner.predict.memory_verdict import Answer, Verdict, verdict_on, verdicts
from ipuscope.profiler.analysis.critical_path import chain, on_ipus
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline import closed_forms, schedule_types, schedules
from ipuscope.profiler.timeline.schedule_types import Schedule
from ipuscope.profiler.units import listed

_MOST_NAMED = 6  # IPUs through which a weight travels

# Micro-batches that are laid out one by one. Those beyond are alike and only multiplied, so that
# neither time nor memory follows a number that someone wrote.
MOST_LAID_OUT = 2048


@dataclass(frozen=True)
class Assignment:
    """Contiguous stages by first Blocks; ``ipus`` and ``choices`` of each (empty: as profiled)."""

    starts: tuple[int, ...]
    ipus: tuple[int, ...]
    choices: tuple[Choice, ...] = ()

    @classmethod
    def of(cls, stage: Sequence[int], ipus: Sequence[int] | None = None) -> Assignment:
        """From a stage for each Block, in order from 0; ValueError if one is skipped or returns."""
        stages_of = [int(k) for k in stage]
        stages = max(stages_of, default=-1) + 1
        if stages_of != sorted(stages_of) or sorted(set(stages_of)) != list(range(stages)):
            raise ValueError(f"stages must count 0, 1, 2 ... along the Blocks, not {stages_of}")
        return cls(tuple(stages_of.index(k) for k in range(stages)), tuple(ipus or range(stages)))

    def spans(self, blocks: int) -> list[tuple[int, int]]:
        """(first, last) Block of each stage."""
        return [(a, b - 1) for a, b in zip(self.starts, [*self.starts[1:], blocks], strict=True)]

    def neighbours(self, blocks: int) -> list[Assignment]:
        """The assignments that one cut, moved by one Block, leads to."""
        near = []
        for k in range(1, len(self.starts)):
            for step in (-1, 1):
                starts = (*self.starts[:k], self.starts[k] + step, *self.starts[k + 1 :])
                edges = (*starts, blocks)
                if edges[k - 1] < edges[k] < edges[k + 1]:
                    near.append(replace(self, starts=starts))
        return near

    def sizes(self, blocks: int) -> str:
        """Blocks of each stage, ``3-7-7-7``."""
        return "-".join(str(last - first + 1) for first, last in self.spans(blocks))

    def named(self, blocks: int) -> str:
        """`sizes`, with the stages' IPUs where these are not 0, 1, 2 and so on."""
        sizes = self.sizes(blocks)
        if self.ipus == tuple(range(len(self.ipus))):
            return sizes
        return f"{sizes} on IPUs {', '.join(map(str, self.ipus))}"

    def parts(self, costs: Costs) -> list[Part]:
        """Each stage with the properties that decide its memory."""
        return stage_parts(costs, self.starts, self.choices)

    def stage_of(self, blocks: int) -> list[int]:
        """The stage of each Block."""
        return [k for k, (a, b) in enumerate(self.spans(blocks)) for _ in range(a, b + 1)]


@dataclass(frozen=True)
class Prediction:
    """The predicted result of an assignment; memory and schedule are computed on first use.

    Cycles; bytes. ``ramps``: a weight update's ramp-up and ramp-down together; ``update``: after
    its last pipeline cycle. ``legal``: there are enough micro-batches for this many stages.
    """

    assignment: Assignment
    total: int  # cycles a weight update (a device iteration in inference)
    pipeline_cycle: int  # in steady state
    ramps: int
    update: int
    forward: tuple[int, ...]  # of each stage
    backward: tuple[int, ...]  # recomputation included
    samples_per_second: float
    legal: bool
    costs: Costs
    stage_costs: schedule_types.Costs
    given_memory: tuple[Verdict, ...] | None = None  # of each IPU, where the caller has it

    @cached_property
    def memory(self) -> tuple[Verdict, ...]:
        """The verdict on each IPU."""
        if self.given_memory is not None:
            return self.given_memory
        return memory_of(self.costs, self.assignment)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it would not compile; empty if it would, unless a note says too close to call."""
        return tuple(_problems(self.costs, len(self.forward), self.memory, self.legal))

    @property
    def notes(self) -> tuple[str, ...]:
        """Memory that is too close to call, and what to set for it."""
        return tuple(_notes(self.costs, self.memory, self.assignment))

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule of at most `MOST_LAID_OUT` micro-batches, or 4 per stage if that is more."""
        count = counted_micro_batches(self.costs, len(self.forward))
        return laid_out(self.stage_costs, count, self.costs.pipelined)[0]

    @property
    def fullest(self) -> tuple[int, ...]:
        """Bytes on the fullest tile of each IPU, gaps included."""
        return tuple(one.nbytes for one in self.memory)

    @property
    def attached(self) -> int:
        """IPUs attached for a replica: a power of two."""
        return 1 << (len(self.memory) - 1).bit_length()

    @property
    def bottleneck(self) -> int:
        """Cycles per micro-batch of the busiest IPU, all its stages together."""
        return int(np.bincount(self.assignment.ipus, weights=self.stage_cycles).max())

    @property
    def stage_cycles(self) -> np.ndarray:
        """Cycles per micro-batch of each stage: int64[stages]."""
        return np.array(self.forward) + np.array(self.backward or [0] * len(self.forward))


def memory_of(costs: Costs, assignment: Assignment) -> tuple[Verdict, ...]:
    """The verdict on each IPU of an assignment, without its schedule."""
    exact = _as_profiled(costs, assignment)
    return verdicts(costs, assignment.parts(costs), assignment.ipus, exact)


def memory_of_ipu(costs: Costs, assignment: Assignment, ipu: int) -> Verdict:
    """The verdict on one IPU of an assignment."""
    exact = _as_profiled(costs, assignment)
    parts, ipus = assignment.parts(costs), assignment.ipus
    here = [part for part, where in zip(parts, ipus, strict=True) if where == ipu]
    return verdict_on(costs, here, ipu, exact, passing_of(costs, parts, ipus, ipu))


def holds(costs: Costs, assignment: Assignment, ipus: Iterable[int] | None = None) -> bool:
    """Whether the tiles of these IPUs (default: of all) hold what `memory_of` says that they do."""
    parts, passing = assignment.parts(costs), None
    if len(costs.cuts.ties) or costs.memory.carried.is_tied.any():
        passing = passing_through(costs, parts, assignment.ipus)
    for ipu in set(assignment.ipus) if ipus is None else ipus:
        here = [k for k, where in enumerate(assignment.ipus) if where == ipu]
        own, through = [parts[k] for k in here], None
        if passing is not None:
            through = passing[here].sum(axis=0)
        fullest = int(ipu_bytes(costs, own, through).max())
        if fullest > costs.machine.bytes_per_tile or stages_of(own) in costs.too_full:
            return False
    return True


def what_if(costs: Costs, assignment: Assignment) -> Prediction:
    """Lay out the schedule of an assignment. Raises ValueError unless it names each Block once."""
    spans = assignment.spans(len(costs))
    if (
        assignment.starts[:1] != (0,)
        or any(a > b for a, b in spans)
        or len(assignment.ipus) != len(spans)
    ):
        raise ValueError(
            f"an assignment gives each of the {len(costs)} Blocks one stage; this one starts them"
            f" at {assignment.starts}"
        )
    stages = len(spans)
    if assignment.choices and len(assignment.choices) != stages:
        raise ValueError(
            f"{stages} stages take as many choices of recomputation, not {len(assignment.choices)}"
        )
    parts = assignment.parts(costs)
    forward, backward = zip(
        *(stage_cycles(costs, part, k == stages - 1) for k, part in enumerate(parts)), strict=True
    )
    backward = costs.tied_gradients.where_they_run(
        backward, assignment.stage_of(len(costs)), assignment.ipus
    )
    update = costs.cycles.update.copy()
    for part in parts:
        if part.choice.offload:
            update[part.first : part.last + 1] += costs.moves[part.first : part.last + 1]
    counted = counted_micro_batches(costs, stages)
    legal = counted <= costs.micro_batches
    # cycles in which replicas exchange gradients, for each IPU
    gradients = costs.gradients if len(costs.gradients) else np.zeros(len(costs), dtype=np.int64)
    reduce = costs.reduces(np.array(_per_ipu(gradients, spans, assignment.ipus)))
    stage_costs = schedule_types.Costs(
        ipus=assignment.ipus,
        forward=forward,
        backward=backward if costs.training else (),
        update=_per_ipu(update, spans, assignment.ipus) if costs.training else (),
        reduce=tuple(reduce.tolist()) if reduce.any() else (),
        stream_in=_streams(costs.streams.stream_in, spans, costs.streams.latency),
        stream_out=_streams(costs.streams.stream_out, spans, costs.streams.latency),
        stream_out_once=costs.streams.out_once,
        copies=_copies(costs, spans, assignment.ipus),
        sync=costs.machine.sync,
        load=_streams(costs.streams.load, spans, costs.streams.latency),
        unload=_streams(costs.streams.unload, spans, costs.streams.latency),
        across=costs.streams.across,
        host_sync=host_groups(costs, max(assignment.ipus) + 1),
    )
    length = _lengths(stage_costs, counted, costs.pipelined)
    samples = costs.samples * costs.micro_batches
    rate = samples * costs.machine.clock_hz / length.total if length.total and legal else 0.0
    return Prediction(
        assignment,
        length.total,
        length.steady,
        length.ramps,
        length.update,
        forward,
        backward if costs.training else (),
        rate,
        legal,
        costs,
        stage_costs,
    )


def counted_micro_batches(costs: Costs, stages: int) -> int:
    """The number of micro-batches considered: at least as many as the pipeline needs."""
    least = closed_forms.pipeline_stages(stages, costs.training) if costs.pipelined else 1
    return max(costs.micro_batches, least)


def _lengths(costs: schedule_types.Costs, micro_batches: int, pipelined: bool) -> schedules.Lengths:
    if pipelined:
        return schedules.lengths(costs, micro_batches)
    schedule, total = laid_out(costs, micro_batches, pipelined)
    return replace(schedules.lengths_of(schedule), total=total)


def laid_out(
    costs: schedule_types.Costs, micro_batches: int, pipelined: bool, most: int = MOST_LAID_OUT
) -> tuple[Schedule, int]:
    """The schedule of the first micro-batches, and the cycles of all of them.

    It has ``most``, or four for each stage if that is more. Cycles are exact: between ramp-up and
    ramp-down, pipeline cycles are alike.
    """
    run = schedules.pipelined if pipelined else schedules.sharded
    shown = min(micro_batches, max(most, 4 * len(costs.forward)))
    schedule = run(costs, shown)
    if shown == micro_batches:
        return schedule, schedule.total
    middle = len(schedule.phases) // 2
    each = int(schedule.cycle_end[middle] - schedule.cycle_start[middle])
    return schedule, schedule.total + (micro_batches - shown) * each


def stage_cycles(costs: Costs, part: Part, final: bool) -> tuple[int, int]:
    """Forward and backward cycles of a stage per micro-batch.

    The ``final`` stage stashes nothing, and recomputes only where its checkpoints ask for it.
    """
    some = slice(part.first, part.last + 1)
    forward, backward = (
        int(costs.cycles.forward[some].sum()),
        int(costs.cycles.backward[some].sum()),
    )
    if final or not costs.pipelined or not costs.training:
        alone = int(costs.alone_cycles(part.first, part.last))
        again = int(costs.again_at_once(part.first, part.last))
        return forward + alone, backward + alone + again
    stash = int(costs.stash_cycles(part.first, part.last, part.choice.recompute))
    again = int(costs.again_cycles(part.first, part.last)) if part.choice.recompute else 0
    return forward + stash, backward + stash + again


def placement_file(
    costs: Costs, assignment: Assignment, sets_accumulation: bool = True
) -> dict[str, Any]:
    """The placement for ``ipu-run --placement``, for `json.dump`.

    Stages with Blocks and IPUs, how each saves memory, and the predicted cycles, which ``ipu-report
    runs`` shows beside the compiled ones. ``sets_accumulation``: it goes before the script's;
    without, a script may still be asked for another.
    """
    stages = [
        _stage_of_file(costs, part, ipu, k == len(assignment.starts) - 1)
        for k, (part, ipu) in enumerate(zip(assignment.parts(costs), assignment.ipus, strict=True))
    ]
    return {
        "format": "ipuscope placement",
        "version": 2,
        "stages": stages,
        **({"memory_proportion": dict(costs.proportions)} if costs.proportions else {}),
        **({"accumulation": costs.micro_batches} if costs.training and sets_accumulation else {}),
        "promise": {"cycles": what_if(costs, assignment).total},
    }


def _stage_of_file(costs: Costs, part: Part, ipu: int, final: bool) -> dict[str, Any]:
    """The last stage of a pipeline recomputes what checkpoints ask for, as predicted of any."""
    stage: dict[str, Any] = {"ipu": ipu, "blocks": list(costs.names[part.first : part.last + 1])}
    proportions = keeping_their_proportion(costs, part, ipu)
    if proportions:
        stage["memory_proportions"] = proportions
    if not costs.training:
        return stage
    recompute = costs.recompute if final or not costs.pipelined else part.choice.recompute
    return {**stage, "recompute": recompute, "state_off_chip": part.choice.offload}


def keeping_their_proportion(costs: Costs, part: Part, ipu: int) -> dict[str, float]:
    """Blocks of a stage that were profiled with another memory proportion than its IPU's.

    The placement file gives them, so plans, cycles and bytes stay as predicted.
    """
    here = dict(costs.proportions).get(str(ipu), costs.usual_proportion)
    blocks = range(part.first, part.last + 1)
    shares = {costs.names[block]: costs.block_proportion(block) for block in blocks}
    return {name: share for name, share in shares.items() if share != here}


def host_groups(costs: Costs, ipus: int) -> tuple[int, ...]:
    """The IPUs that wait for the host together, as `schedule_types.Costs` takes them."""
    if costs.streams.sync == "alone":
        return tuple(range(ipus))
    return tuple(ipu % 2 for ipu in range(ipus)) if costs.streams.sync == "sides" else ()


def _per_ipu(
    values: np.ndarray, spans: list[tuple[int, int]], ipus: tuple[int, ...]
) -> tuple[int, ...]:
    total = [0] * (max(ipus) + 1)
    for ipu, (first, last) in zip(ipus, spans, strict=True):
        total[ipu] += int(values[first : last + 1].sum())
    return tuple(total)


def _streams(
    cycles: np.ndarray, spans: list[tuple[int, int]], latency: int
) -> tuple[tuple[int, int], ...]:
    of_stage = [(k, int(cycles[first : last + 1].sum())) for k, (first, last) in enumerate(spans)]
    return tuple((k, c + latency) for k, c in of_stage if c)


def _copies(costs: Costs, spans: list[tuple[int, int]], ipus: tuple[int, ...]) -> tuple[int, ...]:
    """Cycles of each IPU's exchange; () where nothing is exchanged."""
    starts = np.array([[first for first, _ in spans]])
    cuts, behind = costs.cuts, starts[:, 1:] - 1
    cycles = cuts.exchange(costs.machine, ipus, behind, cuts.over(starts, ipus, behind))[0]
    return tuple(cycles.tolist()) if cycles.any() else ()


def _as_profiled(costs: Costs, assignment: Assignment) -> bool:
    """Whether it is the profile's own assignment, whose memory is known and not predicted."""
    return (
        costs.measured
        and assignment.ipus == costs.ipus
        and assignment.stage_of(len(costs)) == costs.stage.tolist()
        and assignment.parts(costs) == replace(assignment, choices=()).parts(costs)
    )


def _passed_on(costs: Costs, assignment: Assignment) -> list[str]:
    """Tied weights that stages only pass on, with gradients (`passing_through`), and tile bytes."""
    ties, stage = costs.cuts.ties, assignment.stage_of(len(costs))
    passed = []
    weights = zip(ties.names, ties.blocks, costs.tied_bytes, strict=True)
    for name, (home, *readers), nbytes in weights:
        own = assignment.ipus[stage[home]]
        away = [stage[one] for one in readers if assignment.ipus[stage[one]] != own]
        between = range(stage[home] + 1, max(away, default=0))
        ipus = sorted({assignment.ipus[k] for k in between if k not in away} - {own})
        if ipus:
            most = (2 if costs.training else 1) * int(nbytes.max()) / 1024
            through = f"IPU{'s' * (len(ipus) > 1)} {listed(list(map(str, ipus)), _MOST_NAMED)}"
            passed.append(
                f"{name} travels through {through}: up to {most:,.1f} KiB of a tile there while"
                " IPUs exchange. It does not travel if the Blocks that read it are on one IPU"
                " (--together tied)"
            )
    return passed


def _notes(costs: Costs, memory: tuple[Verdict, ...], assignment: Assignment) -> list[str]:
    """What is close or not predicted: nearly full tiles, exchanged norms, IPUs that idle.

    IPUs are attached in powers of two (docs/poptorch-semantics.md#placement).
    """
    notes = [
        f"IPU {one.ipu}: {one} ({one.nbytes:,} of {one.limit:,} bytes on tile {one.tile})"
        for one in memory
        if one.answer is Answer.CLOSE
    ]
    parts = assignment.parts(costs)
    moved = [
        f"{name} ({share:g})"
        for part, ipu in zip(parts, assignment.ipus, strict=True)
        for name, share in keeping_their_proportion(costs, part, ipu).items()
    ]
    if moved:
        notes.append(
            "Blocks are predicted with the memory proportion that they were profiled with, which a"
            f" placement file keeps: {', '.join(moved)}"
        )
    if not _as_profiled(costs, assignment):
        notes += _passed_on(costs, assignment)
    if costs.meeting is not None and len(memory) > 1 and not _as_profiled(costs, assignment):
        notes.append(
            "clipping by the norm of all gradients makes every IPU wait for the slowest one's"
            f" norms in the weight update: {costs.meeting:,} cycles, as profiled, whatever the"
            " split"
        )
    ipus = len(memory)
    attached = 1 << (ipus - 1).bit_length()
    if attached == ipus:
        return notes
    idle = (
        f"{ipus} IPUs are not a power of two: {attached} are attached, {attached - ipus} of them"
        " idle"
    )
    by_hand = f"{idle}, which needs autoRoundNumIPUs(True): a placement file sets it"
    return [*notes, idle if costs.rounds else by_hand]


def _problems(costs: Costs, stages: int, memory: tuple[Verdict, ...], legal: bool) -> list[str]:
    problems = []
    if not legal:
        what = "gradient accumulation" if costs.training else "device iterations"
        problems.append(
            f"{stages} stages need {what} of at least {counted_micro_batches(costs, stages)}; it is"
            f" {costs.micro_batches}"
        )
    if stages == 1 and costs.alone_off_chip:
        problems.append(
            "one stage alone keeps activations off the chip, as setActivationLocation says: its"
            " cycles are unknown"
        )
    problems += [f"IPU {one.ipu} {one}" for one in memory if one.answer is Answer.OVER]
    return problems


def profiled_split(report: Report) -> Prediction:
    """`what_if` of the profiled split; ValueError: no costs, or stages not in order of Blocks."""
    costs = Costs.from_report(report)
    return what_if(costs, Assignment.of(costs.stage.tolist(), costs.ipus))


def predicted_path(report: Report) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """IPU, start and end of pieces of the predicted critical path, like `path_on_ipus`."""
    schedule = profiled_split(report).schedule
    rank = np.isin(schedule.kind, schedule_types.BESIDE) + 2 * (
        schedule.kind == schedule_types.IDLE
    )
    total = int(schedule.end.max(initial=0))
    path = chain(schedule.ipu, schedule.start, schedule.end, rank, total)
    return on_ipus(schedule.ipu, path)
