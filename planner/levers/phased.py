"""Advice for phased execution: the schedule of its phases over the cycles of its bodies.

Stages stay in their phases, so the prediction for a stage is read off its bodies. Only costs of
another precision or micro-batch are estimates, by the rules of `ipuscope.planner.costs.estimates`
and one more: a weight's traffic with streaming memory keeps its size whatever the samples, and
accumulators stay float32.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.planner.costs.estimates import (
    AS_PRODUCTS,
    AS_SAMPLES,
    STAYS,
    beyond_starting,
    estimated_streams,
    growing,
    growth_of_bytes,
    growth_of_code,
    growth_of_work,
    is_product,
    weight_operators,
)
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.levers.levers import Basis, Outlook, outputs_of, surely_fit
from ipuscope.planner.levers.settings import Levers
from ipuscope.planner.predict.memory_verdict import Answer, Verdict
from ipuscope.planner.predict.what_if import host_groups
from ipuscope.profiler.analysis.memory_hot_spots import most_code
from ipuscope.profiler.enums import BodyTask, Direction, Purpose, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report import Report
from ipuscope.profiler.report.frames import looked_up
from ipuscope.profiler.timeline import schedule_types
from ipuscope.profiler.timeline.phased_schedules import Phases, phased, pipelined_phases_total

if TYPE_CHECKING:
    import pandas as pd

_REMOTE = (Purpose.REMOTE_LOAD, Purpose.REMOTE_STORE)
_SINGLE_PRECISION = (Role.ACCUMULATOR, Role.OPTIMISER_STATE)
_POSITIONS = {task: number for number, task in enumerate(BodyTask)}
_ONCE = {
    schedule_types.ENTER: BodyTask.ENTER,
    schedule_types.RETURN: BodyTask.RETURN,
    schedule_types.LEAVE: BodyTask.LEAVE,
}
_OVER_IO_TILES = {
    number: tuple(BodyTask)[number]
    for number in (*schedule_types.LOADS_BESIDE.values(), *schedule_types.STORES_BESIDE.values())
}
_KINDS = {schedule_types.FORWARD: Direction.FORWARD, schedule_types.BACKWARD: Direction.BACKWARD}


@dataclass(frozen=True)
class _Work:
    """Steps of bodies, one entry each: cycles that stay, those that grow, and how.

    ``task`` (a position in `BodyTask`), ``stage``; ``growth``: of `estimates.GROWTHS`; ``halves``:
    in float16; ``busy``: share of tiles at work; ``remote``: loads or stores of streaming memory.
    """

    task: np.ndarray
    stage: np.ndarray
    fixed: np.ndarray
    beyond: np.ndarray
    growth: np.ndarray
    halves: np.ndarray
    busy: np.ndarray
    remote: np.ndarray
    _ratios: dict[Any, np.ndarray] = field(default_factory=dict, repr=False)
    _parts: dict[Any, tuple[_Work, np.ndarray]] = field(default_factory=dict, repr=False)

    @cached_property
    def _rows_of(self) -> list[np.ndarray]:
        """Rows of each task that belong to a stage, in their order."""
        order = np.argsort(self.task, kind="stable")
        order = order[self.stage[order] >= 0]
        edges = np.searchsorted(self.task[order], np.arange(len(_POSITIONS) + 1))
        return [order[begin:end] for begin, end in pairwise(edges)]

    def divided(self, chosen: np.ndarray, weights: np.ndarray, single: np.ndarray) -> _Work:
        """These steps, those ``chosen`` in up to three parts.

        ``weights`` and ``single`` are the shares of weights and of what always stays float32; the
        rest grows with the samples.
        """
        with_weights = np.flatnonzero(chosen & (weights != 0))
        with_single = np.flatnonzero(chosen & (single != 0))
        rest = np.where(chosen, 1 - weights - single, 1.0)
        share = np.concatenate([rest, weights[with_weights], single[with_single]])
        parts = np.concatenate([with_weights, with_single])

        def behind(values: np.ndarray) -> np.ndarray:  # to gather all takes longer
            return np.concatenate([values, values[parts]])

        return _Work(
            behind(self.task),
            behind(self.stage),
            behind(self.fixed) * share,
            behind(self.beyond) * share,
            np.append(self.growth, np.full(len(parts), STAYS)),
            np.arange(len(share)) < len(rest) + len(with_weights),
            behind(self.busy),
            behind(self.remote),
        )

    def ratio(
        self, stages: int, tasks: tuple[BodyTask, ...], half: bool, samples: float, remote: bool
    ) -> np.ndarray:
        """How many times as long these tasks (``remote``: their transfers) take: float64[stage]."""
        key = tasks, half, samples, remote
        if key not in self._ratios:
            self._ratios[key] = self._ratio(stages, *key)
        return self._ratios[key]

    def _ratio(
        self, stages: int, tasks: tuple[BodyTask, ...], half: bool, samples: float, remote: bool
    ) -> np.ndarray:
        if (tasks, remote) not in self._parts:
            part = self._part(tasks, remote)
            before = np.bincount(part.stage, part.fixed + part.beyond, stages)
            self._parts[tasks, remote] = part, before
        work, old = self._parts[tasks, remote]
        growth = growth_of_work(work.growth, work.busy, samples)
        rate = np.where(work.halves & half, 0.5, 1.0)
        new = np.bincount(work.stage, work.fixed + rate * growth * work.beyond, stages)
        return np.where(old > 0, new / np.maximum(1, old), 1.0)

    def _part(self, tasks: tuple[BodyTask, ...], remote: bool) -> _Work:
        """The steps of these tasks, in their order: sums round in it."""
        rows = np.sort(np.concatenate([self._rows_of[_POSITIONS[task]] for task in tasks]))
        rows = rows[self.remote[rows]] if remote else rows
        of_steps = (self.task, self.stage, self.fixed, self.beyond, self.growth)
        more = (self.halves, self.busy, self.remote)
        return _Work(*(values[rows] for values in (*of_steps, *more)))


@dataclass(frozen=True)
class PhasedBasis(Basis):
    """A profile of phased execution as the levers need it."""

    can_split = False

    @classmethod
    def of_phases(cls, report: Report) -> PhasedBasis:
        """ValueError if the profile does not say the phase of each stage."""
        phases = report.meta.get("phases")
        if not isinstance(phases, dict) or len(phases.get("of_stage", ())) != len(report.stages):
            raise ValueError(
                f"{report.path} does not say which phase each stage is of: compile it again for a"
                " profile that does"
            )
        return cls(report, Costs.of_phases(report))

    @property
    def keeps_state(self) -> bool:
        """Phases decide where state is."""
        return False

    @cached_property
    def _phases(self) -> dict[str, Any]:
        phases: dict[str, Any] = self.report.meta["phases"]
        return phases

    def bounds(self, levers: Levers) -> tuple[float, ...]:
        """Not known of phases."""
        return ()

    def costs_with(self, levers: Levers, bound: int = 0) -> Costs:
        """Samples, micro-batches and streams with the levers pulled; nothing else follows."""
        ratio = levers.micro_batch / self.micro_batch if levers.micro_batch else 1.0
        costs = self.costs
        if levers.half or ratio != 1:
            streams = estimated_streams(costs.streams, self.sizes, ratio, bool(levers.half))
            samples = round(costs.samples * ratio)
            costs = replace(costs, streams=streams, samples=samples, measured=False)
        if levers.micro_batches:
            costs = costs.of_micro_batches(levers.micro_batches)
        if levers.outputs:
            costs = replace(costs, streams=outputs_of(costs, levers.outputs, self.returned))
        return costs

    def cycles_with(self, levers: Levers) -> int:
        """Cycles of a weight update, by the schedule of the phases."""
        key = ("cycles", levers)
        if key not in self.costs.cache:
            self.costs.cache[key] = self._cycles(levers)
        return int(self.costs.cache[key])

    def _cycles(self, levers: Levers) -> int:
        costs = self.costs_with(levers)
        of_stages, phases = self._schedule_costs(levers, costs)
        if self._phases.get("pipelined") is True:
            return pipelined_phases_total(of_stages, costs.micro_batches, phases)
        return phased(of_stages, costs.micro_batches, phases).total

    def outlook(self, levers: Levers) -> Outlook:
        """The prediction with the levers pulled."""
        costs, cycles, memory = (
            self.costs_with(levers),
            self.cycles_with(levers),
            self.memory_with(levers),
        )
        samples = costs.samples * costs.micro_batches
        rate = samples * costs.machine.clock_hz / max(1, cycles)
        over = tuple(f"IPU {one.ipu} {one}" for one in memory if one.answer is Answer.OVER)
        return Outlook(cycles, rate, memory, over)

    # -- cycles ---

    def _schedule_costs(self, levers: Levers, costs: Costs) -> tuple[schedule_types.Costs, Phases]:
        """The input of the schedule: the bodies' own cycles, scaled by the levers."""
        ratio = levers.micro_batch / self.micro_batch if levers.micro_batch else 1.0
        half = bool(levers.half)
        stages, ipus = len(self.report.stages), tuple(self.report.stages["ipu"].tolist())

        def of_stage(*tasks: BodyTask) -> tuple[int, ...]:
            spent = self._spent("stage", stages, tasks)
            if levers.half or ratio != 1:
                spent = spent * self._work.ratio(stages, tasks, half, ratio, remote=False)
            return tuple(np.rint(spent).astype(int).tolist())

        def of_ipu(task: BodyTask) -> tuple[int, ...]:
            spent = self._spent("ipu", max(ipus) + 1, (task,))
            return tuple(spent.tolist()) if spent.any() else ()

        def moved(which: str) -> dict[int, tuple[int, ...]]:
            answers = {}
            for kind, direction in _KINDS.items():
                cycles = np.array(self._phases[which][direction], dtype=np.float64)
                if levers.half or ratio != 1:
                    tasks = _tasks_of(kind)
                    cycles *= self._work.ratio(stages, tasks, half, ratio, remote=True)
                answers[kind] = tuple(np.rint(cycles).astype(int).tolist())
            return answers

        streams = costs.streams
        of_stages = schedule_types.Costs(
            ipus=ipus,
            forward=of_stage(BodyTask.FORWARD),
            backward=of_stage(*_tasks_of(schedule_types.BACKWARD)) if costs.training else (),
            update=of_ipu(BodyTask.UPDATE),
            reduce=of_ipu(BodyTask.REDUCE),
            stream_in=self._streams(streams.stream_in, streams.latency),
            stream_out=self._streams(streams.stream_out, streams.latency),
            stream_out_once=streams.out_once,
            copies=of_ipu(BodyTask.COPY),
            sync=costs.machine.sync,
            load=self._streams(streams.load, streams.latency),
            unload=self._streams(streams.unload, streams.latency),
            across=streams.across,
            host_sync=host_groups(costs, max(ipus) + 1),
        )
        numbers = {direction: kind for kind, direction in _KINDS.items()}
        phases = Phases(
            tuple(self._phases["of_stage"]),
            moved("load"),
            moved("store"),
            frozenset((numbers[way], stage, other) for way, stage, other in self._phases["needs"]),
            self._phases.get("parallel") is True,
            {kind: of_stage(task) for kind, task in _ONCE.items()},
            {number: of_stage(task) for number, task in _OVER_IO_TILES.items()},
        )
        return of_stages, phases

    def _spent(self, column: str, count: int, tasks: tuple[BodyTask, ...]) -> np.ndarray:
        """Cycles of bodies by stage or IPU: int64[count]; the same for all levers."""
        key = "spent", column, count, tasks
        if key not in self.costs.cache:
            bodies = self.report.file.table(records.Body)
            chosen = np.isin(bodies["task"].astype(str), [str(task) for task in tasks])
            chosen &= bodies[column] >= 0
            cycles = np.bincount(bodies[column][chosen], bodies["cycles"][chosen], count)
            self.costs.cache[key] = cycles[:count].astype(np.int64)
        spent: np.ndarray = self.costs.cache[key]
        return spent

    def _streams(self, cycles: np.ndarray, latency: int) -> tuple[tuple[int, int], ...]:
        """(stage, cycles) of what Blocks exchange with the host."""
        if not len(cycles):
            return ()
        stage = self.costs.stage
        total = np.bincount(stage, cycles, int(stage.max()) + 1).astype(np.int64)
        return tuple((k, c + latency) for k, c in enumerate(total.tolist()) if c)

    @cached_property
    def _work(self) -> _Work:
        report, steps = self.report, self.report.sequence
        bodies, exchanges = steps.bodies_in_row, steps.steps_with("kind", "exchange")
        of_operator = steps.steps_with("purpose", Purpose.OPERATOR)
        remote = steps.steps_with("purpose", *_REMOTE)
        gathers = steps.steps_with("purpose", Purpose.ALL_GATHER)
        step, op = steps.steps_in_order("step"), steps.steps_in_order("op")
        ops = report.ops["aten"]
        product = looked_up(op, ops.index.to_numpy(), is_product(ops), False)
        of_weights = np.isin(op, weight_operators(report, self.sizes.variables)) & ~product
        middle = steps.steps_with("type", records.STREAM_COPY_MID)
        copied = (remote & middle) | gathers | steps.steps_with("purpose", Purpose.COPY)
        growth = np.select(
            [of_weights | gathers, of_operator & product & exchanges],
            [STAYS, AS_PRODUCTS],
            AS_SAMPLES,
        )
        active = report.program_steps()["active_tiles"]
        busy = np.where(of_operator, active / report.target.tiles_per_ipu, 1.0)
        moved = self._moved.reindex(step).fillna(0.0).to_numpy()
        body = np.repeat(np.arange(len(bodies.count)), bodies.count)
        stage, task = (report.bodies[name].to_numpy() for name in ("stage", "task"))
        own = np.flatnonzero((bodies.step >= 0) & (stage[body] >= 0))
        order = np.argsort(step, kind="stable")
        row, body = order[np.searchsorted(step[order], bodies.step[own])], body[own]
        cycles = steps.steps_in_order("cycles")[row]
        kinds = steps.steps_with("kind", "compute"), exchanges
        beyond = beyond_starting(cycles, *(of_kind[row] for of_kind in kinds))
        beyond = np.where(of_operator[row], beyond, 0)
        beyond = np.where(copied[row], cycles, beyond)
        work = _Work(
            np.array([_POSITIONS.get(one, -1) for one in task])[body],
            stage[body],
            cycles - beyond,
            beyond,
            growth[row],
            np.ones(len(row), dtype=bool),
            busy[row],
            remote[row],
        )
        return work.divided(remote[row], *(share[row] for share in moved.T))

    @cached_property
    def _moved(self) -> pd.DataFrame:
        """Of the bytes of steps that move tensors, the shares of weights and of float32's own."""
        with_tensor = self.report.usage.variables_with("tensor", "role")
        about = with_tensor.assign(like_weight=self.sizes.variables["like_weight"])
        about = about[about["tensor"] >= 0].drop_duplicates("tensor").set_index("tensor")
        moved = self.report.sequence.moved_tensors[["step", "tensor", "bytes"]].join(
            about, on="tensor"
        )
        single = moved["role"].isin(list(_SINGLE_PRECISION))
        weights = moved["like_weight"].fillna(False).astype(bool) & ~single
        bytes_of = moved[["step", "bytes"]].assign(
            weights=moved["bytes"].where(weights, 0), single=moved["bytes"].where(single, 0)
        )
        total = bytes_of.groupby("step").sum()
        return total[["weights", "single"]].div(total["bytes"].clip(lower=1), axis=0)

    # -- memory ---

    def memory_with(self, levers: Levers) -> tuple[Verdict, ...]:
        """Whether each IPU fits: as profiled or, in another size, by its fullest tile."""
        ratio = levers.micro_batch / self.micro_batch if levers.micro_batch else 1.0
        half = bool(levers.half)
        key = ("memory", half, ratio)
        if key not in self.costs.cache:
            self.costs.cache[key] = self._memory_of(half, ratio)
        answer: tuple[Verdict, ...] = self.costs.cache[key]
        return answer

    def fits(self, levers: Levers) -> bool:
        """Whether each IPU fits, or is too close to call."""
        answers = self.memory_with(levers)
        if self.surely:
            return surely_fit(answers, self.doubt_of_memory(levers))
        return all(one.answer is not Answer.OVER for one in answers)

    def _memory_of(self, half: bool, ratio: float) -> tuple[Verdict, ...]:
        target, growth = self.report.target, growth_of_code(half, ratio)
        limit, exact = target.bytes_per_tile, not half and ratio == 1
        answers = []
        for ipu, (tile, extent, live) in enumerate(self._fullest_tiles):
            after = live["bytes"] - (live["single"] / 2 if half else 0)
            grown = after * growth_of_bytes(live["grows"], ratio)
            by_role = grown.groupby(live["role"]).sum()
            nbytes = extent + round(float(grown.sum() - live["bytes"].sum()))
            largest = str(by_role.idxmax()) if len(by_role) else "nothing"
            most = int(by_role.max()) if len(by_role) else 0
            code = most_code(self.report, ipu)
            grows = not exact and code * growth > min(target.region0_bytes, code + limit - nbytes)
            answers.append(Verdict(ipu, tile, nbytes, limit, largest, most, exact, open_code=grows))
        return tuple(answers)

    @cached_property
    def _fullest_tiles(self) -> list[tuple[int, int, pd.DataFrame]]:
        """Of each IPU: its fullest tile, the tile's extent, and what is live when it is fullest."""
        variables = growing(self.report, self.sizes.variables)
        share = variables["single"] / variables["bytes"].clip(lower=1)
        rows = []
        for ipu in range(self.report.target.ipus_per_replica):
            tiles = self.report.usage.tile_columns(ipu)
            tile = int(tiles["total"].argmax())
            step = int(tiles["peak_step"][tile])
            live = self.report.live_variables(ipu, step, tile)[["variable", "role", "bytes"]]
            about = variables["grows"].reindex(live["variable"]).to_numpy()
            single = live["bytes"] * share.reindex(live["variable"]).to_numpy()
            live = live.assign(grows=about, single=single)
            rows.append((tile, int(tiles["total"][tile]), live))
        return rows


def basis_of(report: Report) -> Basis:
    """A profile as the levers need it; ValueError if it has no costs to predict from."""
    phased_execution = report.meta.get("strategy") == "phased"
    return PhasedBasis.of_phases(report) if phased_execution else Basis.of(report)


def _tasks_of(kind: int) -> tuple[BodyTask, ...]:
    if kind == schedule_types.FORWARD:
        return (BodyTask.FORWARD,)
    return BodyTask.RECOMPUTE, BodyTask.BACKWARD
