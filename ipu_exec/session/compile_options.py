"""Translates PopTorch's ``Options`` into the compiler's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipu_exec.annotations import ExecutionStrategy, PhasedExecution, PipelinedExecution
from ipu_exec.base.replica_groups import Groupings
from ipu_exec.base.user_tracebacks import warn_once
from ipu_exec.compiler.options import (
    CompileOptions,
    Execution,
    Location,
    Locations,
    StageOptions,
    StrategyOptions,
)
from ipu_exec.enums import ConnectionType, Liveness, OutputMode
from ipu_exec.instances import hosts
from ipu_exec.machine import INFERENCE, TRAINING
from ipu_exec.option_groups.groups import BUFFERING_DEPTHS
from ipu_exec.option_groups.tensor_locations import TensorLocationOptions, TensorLocationSettings
from ipu_exec.options import Options
from ipu_exec.placement_file import StageChoice
from ipuscope.profiler.timeline.schedule_types import LEAST_BESIDE


def compile_options(
    options: Options, training: bool, micro_batch: int, groupings: Groupings
) -> CompileOptions:
    """The compiler's options; ``micro_batch``: samples, ``groupings``: weights by replica."""
    accumulation, iterations = options.Training.gradient_accumulation, options.device_iterations
    strategy = strategy_options(options.execution_strategy, options.placement_choices)
    phased = strategy.execution is Execution.PHASED
    instances = options.Distributed.numProcesses
    replicas = int(options.replication_factor) * instances
    popart = options._Popart
    micro_batches = int(accumulation if training else iterations)
    beside = _loads_beside(options.TensorLocations, strategy, micro_batches)
    usual = OutputMode.Final if training else OutputMode.All
    return CompileOptions(
        training=training,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        iterations=int(iterations) if training else 1,
        replicas=replicas,
        shards=options.tensor_sharding.shards,
        instances=instances,
        hosts=hosts(options),
        groupings=dict(sorted(groupings.items())),
        target=options.target_name,
        io_tiles=options.TensorLocations.num_io_tiles,
        # without a device to attach, or on the IPUModel, any number of IPUs is allowed
        auto_round_ipus=bool(options.auto_round_num_ipus or options.use_model)
        or options.connection_type is ConnectionType.Never,
        sync_pattern=options.sync_pattern,
        half_float_casting=options.Precision.half_float_casting,
        float_statistics=options.Precision.running_statistics_always_float,
        patterns=dict(sorted((getattr(popart, "patterns", None) or {}).items())),
        strategy=strategy,
        broadcast_buffers=bool(options.broadcast_buffers),
        locations=_locations(options.TensorLocations, replicas, phased, beside),
        recomputation=getattr(popart, "autoRecomputation", None),
        memory_proportions=dict(
            sorted({**options.available_memory_proportion, **options.placement_proportions}.items())
        ),
        block_proportions=dict(sorted(options.placement_block_proportions.items())),
        partials=options.Precision.partials_type,
        dithering=bool(options.Training.convolution_dithering),
        stable_norm=bool(options.stable_norm),
        ipu_model=bool(options.use_model),
        wide_loads=_kinds(popart.settings, "use128BitConvUnitLoad", "true"),
        half_partials=_kinds(popart.settings, "partialsType", "half"),
        fully_connected=_fully_connected(popart.settings, training),
        norm_group=int(options.Training.batch_norm_replicas) if training else 1,
        estimate_unknown=bool(options.estimate_unknown_operators),
        output_mode=usual if options.output_mode is OutputMode.Default else options.output_mode,
        host_io=not options.synthetic_data,
        buffering=_buffering(options),
        explicit_ir=bool(popart.settings.get("enableExplicitIR")),
    )


def _kinds(settings: Mapping[str, Any], option: str, value: str) -> tuple[str, ...]:
    """Kinds of operators whose table of poplibs' options has an option set to this value."""
    by_name = {"partialsType": settings.get("partialsTypeMatMuls", "")}  # PopART's, of products
    tables = {
        "convolution": settings.get("convolutionOptions") or {},
        "matmul": by_name | dict(settings.get("matmulOptions") or {}),
    }
    return tuple(kind for kind, has in tables.items() if str(has.get(option)).lower() == value)


def _fully_connected(settings: Mapping[str, Any], training: bool) -> str:
    """Whose passes products are, as PopART tells poplin: "training", "inference" or none."""
    if not settings.get("enableFullyConnectedPass", True):
        return ""
    asked = str((settings.get("matmulOptions") or {}).get("fullyConnectedPass", ""))
    if not asked:
        return TRAINING if training else INFERENCE
    return TRAINING if asked.startswith("TRAINING") else INFERENCE


def strategy_options(
    strategy: ExecutionStrategy, choices: Sequence[StageChoice] = ()
) -> StrategyOptions:
    """The stages that a strategy names, their schedule, and their memory ``choices``."""
    if isinstance(strategy, PipelinedExecution) and strategy.phases:
        return StrategyOptions(
            Execution.PHASED,
            strategy.auto_stage,
            _stages_of_phases(strategy),
            liveness=Liveness.OffChipAfterEachPhase,
            pipelined_phases=True,
        )
    if not isinstance(strategy, PhasedExecution):
        ways = tuple(choices) or (StageChoice(),) * len(strategy.stages)
        stages = tuple(
            StageOptions(
                stage.blocks,
                stage.ipu_id,
                index,
                recompute=way.recompute,
                state_off_chip=way.state_off_chip,
            )
            for index, (stage, way) in enumerate(zip(strategy.stages, ways, strict=True))
        )
        return StrategyOptions(Execution(strategy.kind), strategy.auto_stage, stages)
    return StrategyOptions(
        Execution.PHASED,
        strategy.auto_stage,
        _stages_of_phases(strategy),
        strategy.parallel,
        strategy.liveness,
        strategy.separate_backward_phase,
    )


def _stages_of_phases(strategy: PhasedExecution | PipelinedExecution) -> tuple[StageOptions, ...]:
    phases = strategy.phase_of_stages()
    return tuple(
        StageOptions(stage.blocks, stage.ipu_id, strategy.default_ipu(index), phases[index])
        for index, stage in enumerate(strategy.stages)
    )


def _buffering(options: Options) -> int:
    """How many micro-batches of a stream the host buffers."""
    settings = options._Popart.settings
    if not settings.get("enablePrefetchDatastreams", True):
        return 1
    return max(int(settings.get(name, 1)) for name in BUFFERING_DEPTHS)


def _loads_beside(
    options: TensorLocationOptions, strategy: StrategyOptions, micro_batches: int
) -> bool:
    """Whether I/O tiles can load and store beside computing; warns if not, and they are to."""
    asked = [
        f"TensorLocations.{setter}"
        for setter, settings in options.by_setter().items()
        if settings.io_tiles_to_load or settings.io_tiles_to_store
    ]
    if not asked:
        return False
    missing = ""
    if not strategy.pipelined_phases:
        missing = "I/O tiles do so in PipelinedExecution with Phases only"
    elif not options.num_io_tiles:
        missing = "there are no I/O tiles: set 32 to 192 aside with TensorLocations.numIOTiles(32)"
    elif micro_batches < LEAST_BESIDE:
        missing = (
            f"I/O tiles need at least {LEAST_BESIDE} micro-batches: see"
            " Training.gradientAccumulation (in inference deviceIterations)"
        )
    if missing:
        warn_once(
            f"{asked[0]}: useIOTilesToLoad and useIOTilesToStore are recorded in the profile, but"
            f" the tiles that compute load and store: {missing}"
        )
    elif "TensorLocations.setOptimizerLocation" in asked:
        warn_once(
            "TensorLocations.setOptimizerLocation: useIOTilesToLoad and useIOTilesToStore are"
            " recorded in the profile, but the weight update loads and stores optimiser state over"
            " the tiles that compute"
        )
    return not missing


def _locations(
    options: TensorLocationOptions, replicas: int, phased: bool, beside: bool
) -> Locations:
    """The tensor locations; in phased execution they are off the chip unless set otherwise.

    ``beside``: I/O tiles can load and store beside computing.
    """

    def location(settings: TensorLocationSettings) -> Location:
        off_chip, usual = settings.on_chip_storage, Location()
        off_least = settings.min_elements_for_off_chip
        shard_least = settings.min_elements_for_replicated_tensor_sharding
        return Location(
            phased if off_chip is None else not off_chip,
            settings.replicated_tensor_sharding is True,
            usual.least_off_chip if off_least is None else off_least,
            usual.least_sharded if shard_least is None else shard_least,
            beside and bool(settings.io_tiles_to_load),
            beside and bool(settings.io_tiles_to_store),
        )

    return Locations(
        location(options.location_weight),
        location(options.location_optimizer),
        location(options.location_accumulator),
        location(options.location_activation),
        replicas,
    )
