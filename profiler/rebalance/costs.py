"""What each Block costs, read off one profile.

The groups that `Costs` is made of are in a module each.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from profiler.enums import BodyTask, Direction, Purpose
from profiler.rebalance.block_cycles import BlockCycles, measured_cycles, recomputed, recomputes
from profiler.rebalance.block_memory import BlockMemory
from profiler.rebalance.cuts import Cuts, Ties
from profiler.rebalance.host_streams import HostStreams
from profiler.rebalance.machine_costs import MachineCosts
from profiler.rebalance.stash_costs import StashCosts
from profiler.rebalance.tile_memory import Choice, residuals
from profiler.report import Report, number

Index = int | np.ndarray
_REMOTE = (Purpose.REMOTE_LOAD, Purpose.REMOTE_STORE)


@dataclass(frozen=True)
class Costs:
    """Blocks in the order of the model, and how the profile ran them. Units: cycles, bytes.

    A stage that recomputes stashes what enters it and its checkpoints, one that does not what
    enters it and what its Blocks save.
    """

    names: tuple[str, ...]
    stage: np.ndarray  # of each Block, as profiled
    ipus: tuple[int, ...]  # of each stage, as profiled
    machine: MachineCosts
    cycles: BlockCycles
    memory: BlockMemory
    stash: StashCosts
    streams: HostStreams
    cuts: Cuts
    reduce: int  # cycles of a weight update that replicas exchange gradients and weights
    micro_batches: int
    samples: int  # a micro-batch, over all replicas
    training: bool
    pipelined: bool
    recompute: bool
    # one stage of all Blocks recomputes too: only where autoRecomputation says so
    recompute_alone: bool = True
    offload: bool = False  # optimiser state was profiled off the chip
    # how each stage saved memory as profiled (`Choice`); empty: all as the two above say
    choices: tuple[Choice, ...] = ()
    # the share of its memory that an IPU's products may use, where options say it
    proportions: tuple[tuple[str, float], ...] = ()
    # what the tiles held as profiled is known (`BlockMemory.residual`)
    measured: bool = False
    # Options.autoRoundNumIPUs: a number of IPUs that is not a power of two is rounded up
    rounds: bool = False

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def from_report(cls, report: Report) -> Costs:
        """ValueError where the profile has no Blocks, or was of phased execution.

        There is nothing to move.
        """
        blocks = report.blocks.sort_values("block")
        _check(report, len(blocks))
        options, training = report.options, report.meta["kind"] == "training"
        stage = blocks["stage"].to_numpy()
        machine, ties = MachineCosts.from_report(report), Ties.from_report(report)
        forward, backward = measured_cycles(report, stage)
        update = blocks["update_cycles"].to_numpy()
        inputs, copy = blocks["input_bytes"].to_numpy(), blocks["copy_bytes"].to_numpy()
        pipelined = _pipelined(report)
        accumulation = int(number(options, "Training.gradientAccumulation", 1)) or 1
        iterations = int(number(options, "deviceIterations", 1)) or 1
        automatic = options.get("_Popart.autoRecomputation")
        again = recomputes(report, pipelined and training)
        off_chip = options.get("TensorLocations.locationOptimizer.onChipStorage") is False
        choices = _choices(report, pipelined and training)
        if choices:
            again, off_chip = (any(each) for each in zip(*map(astuple, choices), strict=True))
        costs = cls(
            names=tuple(blocks["name"]),
            stage=stage,
            ipus=tuple(report.stages["ipu"].tolist()),
            machine=machine,
            cycles=BlockCycles(forward, backward, update, **recomputed(report, forward)),
            memory=BlockMemory.from_report(report, stage, ties),
            stash=StashCosts.from_report(
                report, stage, np.concatenate([inputs[:1], copy[:-1]]), machine
            ),
            streams=HostStreams.from_report(report, stage, inputs),
            cuts=Cuts(copy, blocks["copy_back_bytes"].to_numpy(), ties),
            reduce=_reduce_cycles(report),
            micro_batches=accumulation if training else iterations,
            samples=int(number(report.meta, "micro_batch", 0)) * report.target.num_replicas,
            training=training,
            pipelined=pipelined,
            recompute=again,
            recompute_alone=not pipelined or automatic is not None,
            offload=off_chip,
            choices=choices,
            proportions=_proportions(options),
            rounds=bool(options.get("autoRoundNumIpus", False)),
        )
        costs = costs._without_moves(report) if costs.offload else costs
        return costs._with_residual(report)

    def with_tile_bytes(self, nbytes: int) -> Costs:
        """The same on tiles of so many bytes."""
        return replace(self, machine=replace(self.machine, bytes_per_tile=nbytes))

    def _with_residual(self, report: Report) -> Costs:
        """With what the profile's tiles hold beyond what the Blocks' bytes say."""
        held = {
            ipu: report.ipu_variables(ipu).peaks(region=False).tile_peak
            for ipu in sorted(set(self.ipus))
        }
        residual, ran_by = residuals(self, held)
        memory = replace(self.memory, residual=residual, residual_of=ran_by)
        return replace(self, memory=memory, measured=bool(len(residual)))

    def _without_moves(self, report: Report) -> Costs:
        """Updates without `moves`.

        State that moves together with its weight or accumulator is in the operators' cycles too.
        """
        steps = report.program_steps()
        with_others = (
            (steps["direction"] == Direction.UPDATE)
            & steps["purpose"].isin(_REMOTE)
            & (steps["op"] >= 0)
        )
        of_block = steps[with_others].groupby("block")["cycles"].sum()
        moved = of_block.reindex(range(len(self)), fill_value=0).to_numpy()
        update = self.cycles.update - np.minimum(self.moves, moved)
        return replace(self, cycles=replace(self.cycles, update=update))

    def stash_cycles(self, first: Index, last: Index, recompute: bool) -> np.ndarray:
        """Cycles in which stages of Blocks ``first .. last`` fill their stash, and empty it.

        Ints or arrays that broadcast.
        """
        if not self.training:
            return np.zeros(np.broadcast(first, last).shape, dtype=np.int64)
        return self.stash.cycles(*self._stash(first, last, recompute))

    def stash_bytes(self, first: Index, last: Index, recompute: bool) -> np.ndarray:
        """Bytes a micro-batch of the same stages' stash, all tiles."""
        return self._stash(first, last, recompute)[0]

    def again_cycles(self, first: Index, last: Index) -> np.ndarray:
        """Forward cycles that stages of Blocks ``first .. last`` run again.

        They do so if other stages follow them.
        """
        total = np.concatenate([[0], np.cumsum(self.cycles.again)])
        cycles: np.ndarray = total[last] - total[first] + self.cycles.again_end[last]
        return cycles

    def again_at_once(self, first: Index, last: Index) -> np.ndarray:
        """The same of stages whose backward follows their forward at once.

        The last one's, and all in no pipeline.

        One stage of all Blocks is none: by default only pipelines recompute.
        """
        again = self.cycles.again_final if self.recompute else np.zeros(len(self), dtype=np.int64)
        total = np.concatenate([[0], np.cumsum(again)])
        cycles: np.ndarray = total[np.asarray(last) + 1] - total[first]
        if not self.recompute_alone:
            alone = (np.asarray(first) == 0) & (np.asarray(last) == len(self) - 1)
            cycles = np.where(alone, 0, cycles)
        return cycles

    def _stash(self, first: Index, last: Index, recompute: bool) -> tuple[np.ndarray, np.ndarray]:
        """(bytes, tensors) of stages' stash."""
        nbytes, tensors = (table[first, last] for table in self.stash.tables[not recompute])
        if recompute:
            return nbytes, tensors
        saved, number = (
            np.concatenate([[0], np.cumsum(each)])
            for each in (self.saved_bytes, self.memory.saved_tensors)
        )
        behind = np.asarray(last) + 1
        return nbytes + saved[behind] - saved[first], tensors + number[behind] - number[first]

    @cached_property
    def saved_bytes(self) -> np.ndarray:
        """What each Block saves for its backward, all tiles: int64[Block]."""
        nbytes: np.ndarray = self.memory.saved.sum(axis=1)
        return nbytes

    @cached_property
    def moves(self) -> np.ndarray:
        """Cycles of a weight update for each Block's optimiser state to come and go: int64[Block].

        Of state that is off the chip.
        """
        state = self.memory.state.sum(axis=1)
        cycles = self.machine.offload_cycles(state, self.memory.state_weights)
        return np.ceil(cycles).astype(np.int64)


def _check(report: Report, blocks: int) -> None:
    if not blocks:
        raise ValueError(
            f"{report.path} has no Blocks: there is nothing to move. Name parts of the model as"
            " Blocks"
        )
    if report.meta.get("strategy") == "phased":
        raise ValueError(
            f"{report.path} was phased: how Blocks share IPUs is predicted for pipelines and"
            " sharded execution only. Profile the model with PipelinedExecution"
        )


def _pipelined(report: Report) -> bool:
    """Whether stages are a pipeline. One stage is none, but more of them would be."""
    if len(report.stages) == 1:
        strategy = str(report.options.get("executionStrategy", "Pipelined"))
        return strategy.startswith(("Pipelined", "pipelined"))
    return bool(report.meta.get("strategy", "pipelined") == "pipelined")


def _choices(report: Report, pipelined_training: bool) -> tuple[Choice, ...]:
    """How each stage saved memory, where stages differ (a placement file said so); else empty.

    A profile from before has none, and a stranger's that makes no sense is as one from before.
    """
    said: Any = report.meta.get("choices")
    try:
        choices = tuple(
            Choice(bool(again) and pipelined_training, bool(off)) for again, off in said
        )
    except (TypeError, ValueError):
        return ()
    differ = len(set(choices)) > 1 and len(choices) == len(report.stages)
    return choices if differ else ()


def _proportions(options: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    """By IPU, a placement file's before the script's; empty where a stranger's make no sense."""
    found: dict[str, float] = {}
    for name in ("availableMemoryProportion", "placementProportions"):
        said = options.get(name)
        for ipu, share in said.items() if isinstance(said, dict) else ():
            if str(ipu).isdecimal() and isinstance(share, (int, float)):
                found[str(ipu)] = float(share)
    return tuple(sorted(found.items()))


def _reduce_cycles(report: Report) -> int:
    """Of the busiest IPU: gradients before the update, and weights behind one in parts."""
    bodies, steps = report.bodies, report.program_steps()
    reduces = bodies[bodies["task"] == BodyTask.REDUCE].groupby("ipu")["cycles"].sum()
    gathered = (
        (steps["purpose"] == Purpose.ALL_GATHER)
        & (steps["direction"] == Direction.UPDATE)
        & (steps["block"] < 0)
    )
    gathers = steps[gathered].groupby("ipu")["cycles"].sum()
    cycles = reduces.add(gathers, fill_value=0)
    return int(cycles.max()) if len(cycles) else 0
