"""A compile for the costs of Blocks or of one mapping: pure functions, so workers need no model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.options import CompileOptions, Execution, StageOptions, StrategyOptions
from ipu_exec.compiler.passes import compile_graph
from ipu_exec.compiler.placement.machines import USUAL_PROPORTION
from ipu_exec.compiler.placement.place import Placement, place_model
from ipu_exec.compiler.placement.recompute import Recomputation, asked_for
from ipu_exec.compiler.rows.profile_header import header
from ipu_exec.compiler.rows.profile_rows import rows
from ipu_exec.enums import Liveness
from ipu_exec.errors import Error
from ipu_exec.graph import Graph
from ipu_exec.planning.phased_costs import has_one_block_a_stage, phased_costs
from ipuscope.planner.mappings import Key, Obtained, StagePlan
from ipuscope.planner.mappings import Mapping as Mapped
from ipuscope.planner.mappings.phased_costs import Cut, PhasedCosts
from ipuscope.planner.mappings.priced import Priced
from ipuscope.profiler import ProfileWriter, open_report
from ipuscope.profiler.timeline import closed_forms
from ipuscope.profiler.timeline.tile_usage import what_it_needs

_AGAIN = "_Popart.autoRecomputation"


@dataclass(frozen=True)
class Compiled:
    """Costs of Blocks (``phased`` where phases are pipelines), and what the compile obtained."""

    priced: Priced | None
    obtained: Obtained
    phased: PhasedCosts | None = None


def compiled(
    graph: Graph, options: CompileOptions, key: Key, settings: Mapping[str, Any]
) -> Compiled:
    """Compile, and read the costs of Blocks off the profile. Errors are those of the compile.

    ``settings``: the user's options by dotted name, as the profile has them (`settings_of`).
    """
    executable = replace(compile_graph(graph, options), settings=settings)
    if options.strategy.pipelined_phases:
        costs = phased_costs(executable, key) if has_one_block_a_stage(executable) else None
        return Compiled(None, _obtained(executable), costs)
    with tempfile.TemporaryDirectory(prefix="ipu-plan-") as folder:
        path = Path(folder) / "profile.pop"
        write_profile(executable, path)
        with open_report(path) as report:
            priced = Priced.from_report(report, key)
    return Compiled(priced, _obtained(executable))


def write_profile(executable: Executable, path: Path) -> None:
    """Write the profile of a compile, without a run, to be read here and thrown away."""
    writer = ProfileWriter(path, plain_rows=False)
    writer.meta(**header(executable), model="", torch="", python="", instances=[], state="compiled")
    for batch in rows(executable):
        writer.add(batch)
    writer.publish()
    writer.close()


def _obtained(executable: Executable) -> Obtained:
    fullest = max(int(one.total.max()) for one in executable.tile_bytes)
    over = executable.overflow
    cycles = int(executable.timeline.trace.iteration_cycles)
    if over is None:
        return Obtained(cycles, fullest)
    needs = what_it_needs(over.bytes_over, over.limit, over.what)
    return Obtained(cycles, fullest, f"out of memory on IPU {over.ipu}, tile {over.tile}: {needs}")


# -- what is compiled ---


def options_of(options: CompileOptions, mapping: Mapped) -> CompileOptions:
    """The options with a mapping in place of their own."""
    stages = tuple(
        StageOptions(
            stage.blocks,
            stage.ipu,
            number,
            stage.phase,
            recompute=stage.recompute,
            state_off_chip=None if mapping.in_phases else stage.state_off_chip,
        )
        for number, stage in enumerate(mapping.stages)
    )
    locations = options.locations
    state = replace(locations.state, sharded=mapping.in_parts)
    return replace(
        options,
        strategy=_strategy(mapping, stages),
        recomputation=int(Recomputation.STANDARD) if mapping.again else options.recomputation,
        micro_batch=mapping.micro_batch,
        micro_batches=mapping.accumulation,
        replicas=mapping.replicas,
        shards=mapping.shards,
        locations=replace(locations, state=state, replicas=mapping.replicas),
        memory_proportions=mapping.proportions or options.memory_proportions,
        auto_round_ipus=True,
    )


def _strategy(mapping: Mapped, stages: tuple[StageOptions, ...]) -> StrategyOptions:
    if not mapping.in_phases:
        return StrategyOptions(Execution.PIPELINED, stages=stages)
    return StrategyOptions(
        Execution.PHASED,
        stages=stages,
        liveness=Liveness.OffChipAfterEachPhase,
        pipelined_phases=True,
    )


def own_mapping(graph: Graph, options: CompileOptions) -> Mapped | None:
    """The options' mapping; None if no plan's: sequential stages or phases, Blocks out of order."""
    strategy = options.strategy
    try:
        placement = place_model(graph, replace(options, auto_round_ipus=True))
    except Error:
        return None
    places = placement.stages
    pipelined = strategy.execution is Execution.PIPELINED or strategy.pipelined_phases
    if not pipelined and (placement.phases or len(places) > 1):
        return None
    in_order = [name for place in places for name in place.blocks]
    if in_order != [block.name for block in graph.blocks] or not all(one.blocks for one in places):
        return None
    usual = asked_for(options.recomputation, len(places) > 1) is not Recomputation.NONE
    stages = []
    phases = placement.phases or (0,) * len(places)
    if placement.phases and not _in_order(placement):
        return None
    for number, place in enumerate(places):
        if placement.phases:
            off = options.training and options.locations.state.off_chip
            stages.append(StagePlan(place.ipu, place.blocks, None, off, phases[number]))
            continue
        recompute = strategy.recomputes(place.blocks)
        if recompute is None and options.training and number < len(places) - 1:
            recompute = usual
        off_chip = strategy.keeps_state_off_chip(place.blocks)
        if off_chip is None:
            off_chip = options.training and options.locations.state.off_chip
        stages.append(StagePlan(place.ipu, place.blocks, recompute, off_chip))
    return Mapped(
        options.shards,
        options.replicas,
        tuple(stages),
        options.micro_batch,
        options.micro_batches,
        _proportion_of_all(options, max(place.ipu for place in places) + 1),
        options.locations.state.sharded and options.replicas > 1,
        max(phases, default=0) + 1,
    )


def _in_order(placement: Placement) -> bool:
    """Whether the stages of each phase are on IPUs 0, 1, 2 ..., as a plan's are."""
    cut = Cut(tuple(range(len(placement.stages))), placement.phases)
    return placement.ipus == tuple(cut.ipus.tolist())


def _proportion_of_all(options: CompileOptions, ipus: int) -> float:
    """The memory proportion of these IPUs; 0, as the options say, where they differ."""
    usual = options.memory_proportions
    every = {usual.get(ipu, USUAL_PROPORTION) for ipu in range(ipus)}
    return every.pop() if len(every) == 1 else 0.0


def settings_of(settings: Mapping[str, Any], mapping: Mapped) -> dict[str, Any]:
    """The user's options with the mapping's settings, to be stored in a profile."""
    # where optimiser state is off the chip in some stages, the profile's header says in which
    location = "TensorLocations.locationOptimizer"
    shares = {str(ipu): share for ipu, share in mapping.proportions.items()}
    if mapping.key.keeps:
        settings = {name: settings[name] for name in settings if name != _AGAIN}
    if mapping.again:
        settings = {**settings, _AGAIN: int(Recomputation.STANDARD)}
    return {
        **settings,
        "replicationFactor": mapping.replicas,
        f"{location}.onChipStorage": not all(stage.state_off_chip for stage in mapping.stages),
        f"{location}.replicatedTensorSharding": mapping.in_parts,
        **({"availableMemoryProportion": shares} if shares else {}),
    }


def basis(key: Key, blocks: tuple[str, ...], ipus: int, training: bool) -> Mapped:
    """A mapping to read costs off: as many Blocks a stage everywhere, and nothing saved."""
    # the more stages, the nearer each Block's memory is to what it holds alone
    most = max(1, ipus // (key.shards * max(1, key.in_parts)))
    count = min(len(blocks), most) if key.accumulates and not key.again else 1
    final = key.last_recomputes
    cuts = np.linspace(0, len(blocks), count + 1).round().astype(int).tolist()
    stages = tuple(
        StagePlan(number, blocks[first:last], False if training and number < count - 1 else final)
        for number, (first, last) in enumerate(pairwise(cuts))
    )
    least = closed_forms.pipeline_stages(count, training)
    accumulation = max(2, least) if key.accumulates else 1
    return key.mapping(max(1, key.in_parts), stages, accumulation, bool(key.in_parts))
