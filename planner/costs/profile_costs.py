"""The cost of each Block, read from one profile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipuscope.planner.costs.accumulating import Accumulating
from ipuscope.planner.costs.all_reduce import gradient_bytes, reduced_alone, rings_of
from ipuscope.planner.costs.block_costs import BlockCosts
from ipuscope.planner.costs.block_cycles import BlockCycles, measured_cycles, recomputed, recomputes
from ipuscope.planner.costs.block_memory import BlockMemory
from ipuscope.planner.costs.cuts import Cuts, Ties
from ipuscope.planner.costs.host_streams import HostStreams
from ipuscope.planner.costs.machine_costs import MachineCosts
from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_columns import Variables, sum_by
from ipuscope.planner.costs.stash_costs import StashCosts
from ipuscope.planner.costs.tied_weights import TiedGradients, copies_of_ties
from ipuscope.planner.costs.tile_memory import residuals
from ipuscope.profiler import calibration
from ipuscope.profiler.enums import BodyTask, Direction, Purpose
from ipuscope.profiler.file import records
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report import Report, number

_REMOTE = (Purpose.REMOTE_LOAD, Purpose.REMOTE_STORE)


@dataclass(frozen=True)
class Costs(BlockCosts):
    """The cost of each Block, as in a profile."""

    @classmethod
    def from_report(cls, report: Report) -> Costs:
        """Costs from a profile; ValueError: no Blocks, or phases, which have nothing to move."""
        return report.file.once("costs of Blocks", lambda: cls._read(report))

    @classmethod
    def of_phases(cls, report: Report) -> Costs:
        """Costs of phased execution, whose stages are not moved; without what its tiles hold."""
        return report.file.once("costs of phases", lambda: cls._read_blocks(report, tiles=False))

    @classmethod
    def _read(cls, report: Report) -> Costs:
        check(report)
        return cls._read_blocks(report)._with_measured_stash(report)._with_residual(report)

    @classmethod
    def _read_blocks(cls, report: Report, tiles: bool = True) -> Costs:
        """``tiles``: with what they hold, and with moves of state, which follow from it."""
        blocks = report.blocks.sort_values("block")
        options, training = report.options, report.meta["kind"] == "training"
        stage = blocks["stage"].to_numpy()
        machine, ties = MachineCosts.from_report(report), Ties.from_report(report)
        tied = TiedGradients.from_report(report, ties)
        forward, backward = measured_cycles(report, stage)
        meeting, met = _meeting(report, machine, len(blocks))
        update = blocks["update_cycles"].to_numpy() - met
        inputs, copy = blocks["input_bytes"].to_numpy(), blocks["copy_bytes"].to_numpy()
        in_pipeline = pipelined(report)
        accumulation = int(number(options, "Training.gradientAccumulation", 1)) or 1
        iterations = int(number(options, "deviceIterations", 1)) or 1
        automatic = options.get("_Popart.autoRecomputation")
        again = recomputes(report, training, in_pipeline)
        off_chip = options.get("TensorLocations.locationOptimizer.onChipStorage") is False
        runs_again = recomputed(report, forward, stage)
        # the last stage of another split may, by its checkpoints, where the profile's has none
        choices = _choices(report, again or bool(runs_again["again_final"].any()))
        if choices:
            off_chip = any(choice.offload for choice in choices)
        if len(set(choices)) > 1:
            again = any(choice.recompute for choice in choices)
        memory, skips = BlockMemory.unknown(len(blocks)), Cuts.skips
        if tiles:
            memory = BlockMemory.from_report(report, stage, ties, tied)
            skips = memory.carried.skips(ties)
        costs = cls(
            names=tuple(blocks["name"]),
            stage=stage,
            ipus=tuple(report.stages["ipu"].tolist()),
            machine=machine,
            cycles=BlockCycles(forward, tied.at_home(backward), update, **runs_again),
            memory=memory,
            stash=StashCosts.from_report(
                report, stage, np.concatenate([inputs[:1], copy[:-1]]), machine, memory
            ),
            streams=HostStreams.from_report(report, stage, inputs),
            cuts=Cuts(
                copy, blocks["copy_back_bytes"].to_numpy(), ties, skips, _cut_tiles(report, copy)
            ),
            reduce=_reduce_cycles(report),
            gradients=gradient_bytes(report, len(blocks)),
            reduced_alone=reduced_alone(report, len(blocks)),
            micro_batches=accumulation if training else iterations,
            accumulating=Accumulating.from_report(report, len(blocks)) if tiles else None,
            samples=int(number(report.meta, "micro_batch", 0)) * report.target.num_replicas,
            replicas=report.target.num_replicas,
            training=training,
            pipelined=in_pipeline,
            recompute=again,
            recompute_alone=not in_pipeline or automatic is not None,
            alone_off_chip=in_pipeline
            and len(report.stages) > 1
            and options.get("TensorLocations.locationActivation.onChipStorage") is False,
            offload=off_chip,
            choices=choices if len(set(choices)) > 1 else (),
            proportions=_proportions(options),
            block_proportions=_block_proportions(options),
            rounds=bool(options.get("autoRoundNumIpus", False)),
            meeting=meeting,
            tied_gradients=tied,
        )
        costs = costs._without_moves(report) if costs.offload and tiles else costs
        return costs._calibrated(report)

    def _calibrated(self, report: Report) -> Costs:
        """With the factors of the user's calibration, if there is one, of operators in Blocks."""
        if (own := calibration.of(report)) is None:
            return self
        ops = report.ops[report.ops["block"] >= 0]
        more = ops["cycles"].to_numpy() * (own.factors(calibration.kinds_of(ops["aten"])) - 1)
        ways = (Direction.FORWARD, Direction.BACKWARD, Direction.UPDATE)
        by_way = np.zeros((len(ways), len(self)))
        for row, way in zip(by_way, ways, strict=True):
            here = (ops["direction"] == way).to_numpy()
            np.add.at(row, ops["block"].to_numpy()[here], more[here])
        return replace(self, cycles=self.cycles.plus(*by_way))

    def _with_measured_stash(self, report: Report) -> Costs:
        """With the cycles of the stages' stashes as they were profiled."""
        stages = np.arange(len(self.ipus))
        if not (self.pipelined and self.training) or not self.in_order:
            return self
        first, last = (np.searchsorted(self.stage, stages, side) for side in ("left", "right"))
        choices = self.choices_of(first.tolist())
        fitted = [
            int(self.stash_cycles(begin, end - 1, choice.recompute))
            for begin, end, choice in zip(first.tolist(), last.tolist(), choices, strict=True)
        ]
        return replace(self, stash=self.stash.measured(report, first, np.array(fitted)))

    @property
    def in_order(self) -> bool:
        """Whether the stages follow the order of the Blocks, each with some of them."""
        stage = self.stage.tolist()
        return stage == sorted(stage) and sorted(set(stage)) == list(range(len(self.ipus)))

    def _with_residual(self, report: Report) -> Costs:
        """With what the profile's tiles hold beyond what the Blocks' bytes say."""
        nothing = np.zeros(0, dtype=np.int64)
        measured = [self._used(report, nothing)]
        copied = nothing
        if len(self.cuts.ties):
            variables = Variables.of(report)
            copied = variables.id[copies_of_ties(variables, self.cuts.ties)]
        if len(copied):
            measured.append(self._used(report, copied))
        (residual, *at_home), ran_by = residuals(self, *measured)
        memory = replace(self.memory, residual=residual, residual_of=ran_by)
        if at_home:
            memory = replace(memory, residual_at_home=at_home[0])
        return replace(self, memory=memory, measured=bool(len(residual)))

    def _used(self, report: Report, without: np.ndarray) -> dict[int, np.ndarray]:
        """Peak bytes of each IPU's tiles, ``without`` the variables of these ids."""
        peaks = {}
        for ipu in sorted(set(self.ipus)):
            variables = report.usage.ipu_variables(ipu)
            chosen = ~np.isin(variables.id, without)
            peaks[ipu] = report.usage.peaks_of(ipu, chosen).tile_peak
        return peaks

    @cached_property
    def with_ties_at_home(self) -> Costs:
        """The costs of splits that read tied weights where they are: none travels."""
        at_home = self.memory.residual_at_home
        if not len(at_home):
            return self
        return replace(self, memory=replace(self.memory, residual=at_home))

    @cached_property
    def with_free_state(self) -> Costs:
        """The costs if optimiser state took neither time nor memory."""
        cycles = replace(self.cycles, update=np.zeros_like(self.cycles.update))
        memory = replace(self.memory, state=np.zeros_like(self.memory.state))
        return replace(self, cycles=cycles, memory=memory)

    def on_replicas(self, replicas: int, pipeline: int) -> Costs:
        """The costs with so many replicas of ``pipeline`` IPUs: `rings` goes before `reduce`."""
        several, shards = self.training and replicas > 1, self.machine.shards
        rings = rings_of(self.machine, shards, pipeline, replicas) if several else None
        cycles = self.cycles
        if len(self.reduced_alone) and self.reduced_alone[0].any() and self.micro_batches > 1:
            number, nbytes, as_profiled = self.reduced_alone
            each = number * rings.base.max() + nbytes * rings.rate.max() if rings else 0
            update = np.rint(cycles.update - as_profiled + each).astype(np.int64)
            cycles, rings = replace(cycles, update=update), None
        samples = self.samples // self.replicas * replicas
        return replace(
            self, cycles=cycles, samples=samples, replicas=replicas, reduce=0, rings=rings
        )

    def _without_moves(self, report: Report) -> Costs:
        """Updates without `moves`; state that moves with its weight or accumulator stays in."""
        op, block, ipu, cycles = map(
            report.sequence.steps_in_order, ("op", "block", "ipu", "cycles")
        )
        update = report.sequence.steps_with("direction", Direction.UPDATE)
        moving = update & report.sequence.steps_with("purpose", *_REMOTE)
        alone, with_others = moving & (op < 0), moving & (op >= 0)
        moved = np.minimum(self.moves, sum_by(block[with_others], cycles[with_others], len(self)))
        costs = replace(self, cycles=replace(self.cycles, update=self.cycles.update - moved))
        spent = sum_by(ipu[alone], cycles[alone], max(self.ipus) + 1)
        return replace(costs, moves_beyond=self._moves_beyond(spent, self.moves - moved))

    def _moves_beyond(self, spent: np.ndarray, estimated: np.ndarray) -> np.ndarray:
        """``spent``[IPU] beyond ``estimated``[Block] cycles, on an IPU's Block that moves most."""
        beyond = np.zeros(len(self), dtype=np.int64)
        if not self.in_order:
            return beyond
        starts = np.searchsorted(self.stage, np.arange(len(self.ipus))).tolist()
        offloads = np.array([one.offload for one in self.choices_of(starts)])
        estimated = np.where(offloads[self.stage], estimated, 0)
        where = np.array(self.ipus)[self.stage]
        for ipu in sorted(set(self.ipus)):
            here = np.where(where == ipu, estimated, 0)
            if here.any():
                beyond[here.argmax()] = spent[ipu] - here.sum()
        return beyond


def check(report: Report) -> None:
    """ValueError where a profile has no Blocks to move, or how they share IPUs is not known."""
    if report.imported and not (len(report.blocks) and len(report.runs)):
        lacks = (
            "no run, so that micro-batches are not in this profile"
            if len(report.blocks)
            else "no Blocks: debug.cbor states none, and no module paths of operators differ in a"
            " number (as encoder.layer.3 and .4), so that they are not in this profile"
        )
        raise ValueError(f"{report.path} was imported, and has {lacks}")
    if not len(report.blocks):
        raise ValueError(
            f"{report.path} has no Blocks to move. Let parts of the model begin one, before it is"
            ' wrapped: poptorch.BeginBlock(model.layers[0], "layer0", ipu_id=0); or let'
            " ipu-run --num-ipus 4 script.py choose them"
        )
    if report.meta.get("strategy") == "phased":
        raise ValueError(
            f"{report.path} was phased: splits are predicted for pipelines and sharded execution"
            " only. ipu-run --plan compiles and predicts other phases; for the levers that move no"
            f" Blocks: ipu-report advise {report.argument}"
        )
    empty = sorted(set(range(len(report.stages))) - set(report.blocks["stage"].tolist()))
    if empty:
        raise ValueError(f"{report.path} is inconsistent: stage {empty[0]} has no Blocks")


def pipelined(report: Report) -> bool:
    """Whether stages are a pipeline. One stage is none, but more of them would be."""
    if len(report.stages) == 1:
        strategy = str(report.options.get("executionStrategy", "Pipelined"))
        return strategy.startswith(("Pipelined", "pipelined"))
    if report.imported:
        return bool(report.meta.get("pipelined"))
    return bool(report.meta.get("strategy", "pipelined") == "pipelined")


def _choices(report: Report, again: bool) -> tuple[Choice, ...]:
    """How each stage saved memory, by the script's options or a placement file.

    ``again``: whether any ran its forward again, or may as the last one of another split.

    Empty where an imported profile does not record it, or its record is invalid.
    """
    written: Any = report.meta.get("choices")
    try:
        choices = tuple(Choice(bool(recompute) and again, bool(off)) for recompute, off in written)
    except (TypeError, ValueError):
        return ()
    return choices if len(choices) == len(report.stages) else ()


def _proportions(options: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    """Proportions by IPU, a placement file's before the script's; empty if they are invalid."""
    shares: dict[str, float] = {}
    for name in ("availableMemoryProportion", "placementProportions"):
        written = options.get(name)
        for ipu, share in written.items() if isinstance(written, dict) else ():
            if str(ipu).isdecimal() and isinstance(share, (int, float)):
                shares[str(ipu)] = float(share)
    return tuple(sorted(shares.items()))


def _block_proportions(options: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    """Proportions that a placement file gave Blocks; empty if an untrusted file's are invalid."""
    written = options.get("placementBlockProportions")
    shares = written.items() if isinstance(written, dict) else ()
    valid = [(str(name), float(one)) for name, one in shares if isinstance(one, (int, float))]
    return tuple(sorted(valid))


def _cut_tiles(report: Report, copy: np.ndarray) -> np.ndarray:
    """`Cuts.tiles`, where the profile has them."""
    try:
        cycles = np.array(report.meta["cut_tiles"], dtype=np.float64)
    except (KeyError, TypeError, ValueError):
        return np.zeros((2, 0))
    whole = cycles.shape == (2, len(copy)) and bool((cycles >= 0).all())
    return cycles if whole else np.zeros((2, 0))


def _meeting(
    report: Report, machine: MachineCosts, blocks: int
) -> tuple[int | None, np.ndarray | int]:
    """The cycles of `BlockCosts.meeting`, and those of it in each Block's update.

    Only where an operator joins numbers of several weights, as clipping by the norm of all does.
    One IPU exchanges nothing: there it is what the links would take.
    """
    ops = report.file.table(records.Op)
    joins = [name for name in ops.coded("aten")[1].tolist() if name.startswith("aten.stack.")]
    of_update = ops.equals("direction", Direction.UPDATE)
    if not any((of_update & ops.equals("aten", name)).any() for name in joins):
        return None, 0
    op, block, ipu, cycles = map(report.sequence.steps_in_order, ("op", "block", "ipu", "cycles"))
    updates = report.sequence.steps_with("direction", Direction.UPDATE)
    meets = report.sequence.steps_with("purpose", Purpose.COPY, Purpose.EXTERNAL_SYNC)
    meets = meets & updates & (op >= 0) & (block >= 0)
    if not meets.any():
        return 2 * (machine.sync + machine.link_latency), 0
    ipus = report.target.ipus_per_replica
    # of no Block: what comes from streaming memory, and goes there
    everything = updates & ~report.sequence.steps_with("purpose", Purpose.ALL_GATHER)
    whole, own = (
        int(sum_by(ipu[chosen], cycles[chosen], ipus).max())
        for chosen in (everything, everything & ~meets)
    )
    return whole - own, sum_by(block[meets], cycles[meets], blocks)


def _reduce_cycles(report: Report) -> int:
    """The busiest IPU's cycles for gradients before the update and weights after one in parts."""
    ipus = report.target.ipus_per_replica
    bodies = report.file.table(records.Body)
    reduces = bodies.equals("task", BodyTask.REDUCE)
    block, ipu, cycles = map(report.sequence.steps_in_order, ("block", "ipu", "cycles"))
    gathers = report.sequence.steps_with("purpose", Purpose.ALL_GATHER) & (block < 0)
    gathers &= report.sequence.steps_with("direction", Direction.UPDATE)
    spent = sum_by(bodies["ipu"][reduces], bodies["cycles"][reduces], ipus)
    spent += sum_by(ipu[gathers], cycles[gathers], ipus)
    return int(spent.max(initial=0))
