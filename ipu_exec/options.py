"""``Options``: everything a user sets before compiling, by PopTorch's names.

PopTorch's methods return the object and can be chained; values are attributes in snake case
(``opts.device_iterations``, ``opts.Training.gradient_accumulation``). An executor or a data
loader freezes its options; ``clone()`` returns a copy that can change.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Self

from ipu_exec import machine
from ipu_exec.annotations import ExecutionStrategy, PipelinedExecution

# PopTorch's module of this name has these too
from ipu_exec.annotations import ParallelPhasedExecution as ParallelPhasedExecution
from ipu_exec.annotations import Phase as Phase
from ipu_exec.annotations import SerialPhasedExecution as SerialPhasedExecution
from ipu_exec.annotations import ShardedExecution as ShardedExecution
from ipu_exec.annotations import Stage as Stage
from ipu_exec.base.checks import check_proportion
from ipu_exec.base.sharding_plan import TensorSharding, checked
from ipu_exec.enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from ipu_exec.errors import UsageError
from ipu_exec.option_groups.engine_options import (
    DEFAULT_RUN_COUNT,
    DEFAULTS_VARIABLE,
    LENIENT_VARIABLE,
    PLACEMENT_VARIABLE,
    TARGET_VARIABLE,
    Profiling,
    engine_flag,
    engine_options_of,
    warn_of_engine_options,
)
from ipu_exec.option_groups.group import Group, as_json
from ipu_exec.option_groups.groups import (
    DistributedOptions,
    JitOptions,
    PopartOptions,
    PrecisionOptions,
    TrainingOptions,
)
from ipu_exec.option_groups.options_from_text import (
    ConfigFileError,
    call_line,
    member_of,
    method_of,
)
from ipu_exec.option_groups.tensor_locations import TensorLocationOptions
from ipu_exec.option_groups.tensor_locations import TensorLocationSettings as TensorLocationSettings
from ipu_exec.placement_file import load
from ipuscope.profiler.file import from_json

_DistributedOptions = DistributedOptions


_GROUPS = ("Training", "Precision", "TensorLocations", "Distributed", "Jit", "_Popart")

_NO_PLACEMENT: dict[str, Any] = {  # `Options.loadPlacement` fills these
    "placement": "",
    "placement_choices": (),
    "placement_proportions": {},
    "placement_block_proportions": {},
    "placement_accumulation": None,
    "placement_mapping": None,
}


class Options(Group):
    """How a model is compiled and run.

    ``Options(profile_dir="demo")`` requests a profile in that directory; so do PopTorch's
    ``enableProfiling("demo")`` and ``autoreport=True, autoreport_dir="demo"``.
    """

    def __init__(
        self,
        *,
        profile_dir: str | os.PathLike[str] | None = None,
        autoreport: bool = False,
        autoreport_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            device_iterations=1,
            replication_factor=1,
            input_group_size=1,
            input_group_type=CommGroupType.Consecutive,
            output_mode=OutputMode.Default,
            output_return_period=1,
            execution_strategy=PipelinedExecution(),
            **_NO_PLACEMENT,
            outputs_as_one_replica=False,
            estimate_unknown_operators=False,
            lenient=bool(os.environ.get(LENIENT_VARIABLE)),
            auto_round_num_ipus=False,
            tensor_sharding=TensorSharding(),
            available_memory_proportion={},
            target_name="mk2",
            random_seed=None,
            profiling_enabled=False,
            profiling_directory=".",
            model_name="",
            log_dir=".",
            anchored_tensors={},
            connection_type=ConnectionType.Always,
            sync_pattern=SyncPattern.Full,
            ipu_id=None,
            use_model=None,
            executable_cache="",
            synthetic_data=False,
            stable_norm=False,
            log_cycle_count=False,
            broadcast_buffers=True,
            updatable_named_buffers=[],
            relax_optimizer_checks=False,
            compilation_progress_bar=True,
            source_location_excludes=[],
            module_namescope=True,
            max_repeat_logs=4,
        )
        self.Training = TrainingOptions(self)
        self.Precision = PrecisionOptions()
        self.TensorLocations = TensorLocationOptions()
        self.Distributed = DistributedOptions()
        self.Jit = JitOptions()
        self._Popart = PopartOptions(self.Precision)
        if os.environ.get("POPTORCH_CACHE_DIR"):
            self.enableExecutableCaching(os.environ["POPTORCH_CACHE_DIR"])
        if os.environ.get("POPTORCH_IPU_MODEL", "0") not in ("", "0"):
            self.useIpuModel(True)
        if os.environ.get(TARGET_VARIABLE):
            self.target(os.environ[TARGET_VARIABLE])
        if os.environ.get(PLACEMENT_VARIABLE):
            self.loadPlacement(os.environ[PLACEMENT_VARIABLE])
        self.autoreport = autoreport
        if autoreport_dir is not None:
            self.autoreport_dir = autoreport_dir
        if profile_dir is not None:
            self.profile_dir = profile_dir
        if os.environ.get(DEFAULTS_VARIABLE):
            self.from_json(os.environ[DEFAULTS_VARIABLE])

    # -- batches ---

    def deviceIterations(self, device_iterations: int) -> Self:
        """Iterations per call: weight updates in training, micro-batches in inference."""
        return self._count("deviceIterations", device_iterations=device_iterations)

    def replicationFactor(self, replication_factor: int) -> Self:
        """Copies of the model, each with its own IPUs and micro-batches."""
        return self._count("replicationFactor", replication_factor=replication_factor)

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: CommGroupType) -> Self:
        """Replicas in groups of this size get equal input. Error for ``CommGroupType.All``."""
        if input_group_type is CommGroupType.All:
            raise UsageError(
                "inputReplicaGrouping takes CommGroupType.Consecutive or Orthogonal, not All: where"
                " all replicas take the same input, they are one group"
            )
        alone = input_group_type is CommGroupType.NoGrouping  # each replica is a group of its own
        self._count("inputReplicaGrouping", input_group_size=1 if alone else input_group_size)
        return self._enum("inputReplicaGrouping", CommGroupType, input_group_type=input_group_type)

    @property
    def input_replicas(self) -> int:
        """Replicas that get different input. Error if the groups do not divide the replicas."""
        replicas, group = int(self.replication_factor), int(self.input_group_size)
        if replicas % group:
            raise UsageError(
                f"inputReplicaGrouping({group}, ...): replicationFactor {replicas} is not a"
                " multiple of the group size"
            )
        return replicas // group

    @property
    def batch_factor(self) -> int:
        """Micro-batches of a call: deviceIterations x gradientAccumulation x `input_replicas`."""
        accumulation = int(self.Training.gradient_accumulation)
        return int(self.device_iterations) * accumulation * self.input_replicas

    def combined_batch(self, batch_size: int) -> int:
        """Samples of one call, for a script whose micro-batches have ``batch_size`` samples.

        A plan (``ipu-run --plan ... --write``) splits them its own way. If its calls have another
        number of samples than the script's, this is the largest whole number of its calls.
        """
        combined = batch_size * self.batch_factor
        plan = self.placement_mapping
        if plan is None:
            return combined
        by_plan = plan.script_samples != plan.samples
        calls, rest = divmod(combined, plan.script_samples)
        return calls * plan.samples if by_plan and calls and not rest else combined

    def follow_plan(self, kind: str) -> None:
        """Apply the loaded plan's replicas, accumulation and sharding, if it is of ``kind``.

        ``kind``: "training" or "inference". Call it on a model's own copy of the options: the
        script's data loader continues to count as the script does. A second call changes nothing.
        """
        plan = self.placement_mapping
        if plan is None or plan.kind != kind:
            return
        values: dict[str, Any] = {"replication_factor": plan.replicas}
        values["outputs_as_one_replica"] = (
            self.outputs_as_one_replica or self.replication_factor == 1
        )
        if kind == "training":
            self.Training._set(gradient_accumulation=plan.accumulation)
            state = copy.deepcopy(self.TensorLocations.location_optimizer)
            state._set(replicated_tensor_sharding=plan.state_in_parts)
            self.TensorLocations._set(location_optimizer=state)
            if len(self.placement_choices) == 1 and self.placement_choices[0].recompute:
                self._Popart.set("autoRecomputation", 1)  # of one stage: Standard
        else:
            values["device_iterations"] = plan.accumulation
        sharding = dataclasses.replace(self.tensor_sharding, shards=plan.shards)
        self._set(tensor_sharding=sharding, **values)

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> Self:
        """Which micro-batches' outputs a call returns; EveryN needs ``output_return_period``."""
        if output_mode is OutputMode.EveryN and output_return_period is None:
            raise UsageError(
                "outputMode(OutputMode.EveryN) needs output_return_period:"
                " outputMode(OutputMode.EveryN, 10)"
            )
        self._enum("outputMode", OutputMode, output_mode=output_mode)
        every = output_return_period if output_mode is OutputMode.EveryN else 1
        return self._count("outputMode: output_return_period", output_return_period=every)

    anchorMode = outputMode  # PopTorch's old name

    def defaultOutputMode(self) -> bool:
        """True if `outputMode` was not called: Final in training, All in inference."""
        return self.output_mode is OutputMode.Default

    # -- placement and machine ---

    def setExecutionStrategy(self, strategy: ExecutionStrategy) -> Self:
        """Pipelined, sharded or phased execution: an instance of an `ExecutionStrategy`."""
        if not isinstance(strategy, ExecutionStrategy):
            raise UsageError(
                "setExecutionStrategy takes PipelinedExecution() or ShardedExecution(), not"
                f" {strategy!r}"
            )
        if self.placement:  # the stages of the placement stay
            strategy = load(self.placement).strategy(type(strategy))
        return self._set(execution_strategy=strategy)

    def loadPlacement(self, path: str | os.PathLike[str]) -> Self:
        """Use the stages of a file that ``ipu-report rebalance`` wrote.

        They replace the script's stages. The file's memory choices per stage, memory proportions
        and number of micro-batches per weight update, if it has them, take precedence over the
        options. The number of IPUs is rounded up to a power of two. Error if the file is not a
        placement; the compile checks that it has each Block of the model once.
        """
        file = load(path)
        if file.accumulation is not None and self.Training.gradient_accumulation != 1:
            self.Training._set(gradient_accumulation=file.accumulation)
        return self._set(
            placement=os.fspath(path),
            placement_choices=file.choices,
            placement_proportions=file.proportions,
            placement_block_proportions=file.block_proportions,
            placement_accumulation=file.accumulation,
            placement_mapping=file.mapping,
            execution_strategy=file.strategy(type(self.execution_strategy)),
            auto_round_num_ipus=True,
        )

    def _without_placement(self) -> None:
        """Undo `loadPlacement`, for a model that it is not of."""
        self._set(**_NO_PLACEMENT, execution_strategy=type(self.execution_strategy)())

    def lenient(self, enabled: bool = True) -> Self:
        """Allow, with a warning, operations that PopTorch refuses but that can run here.

        These are losses computed from several, ``one_hot`` without a number of classes, and
        tensors that a forward has on the CPU. ``ipu-run --lenient`` sets it for all options.
        """
        return self._flag("lenient", lenient=enabled)

    def estimateUnknownOperators(self, enabled: bool = True) -> Self:
        """Estimate an operator without a lowering instead of stopping; the profile marks it."""
        return self._flag("estimateUnknownOperators", estimate_unknown_operators=enabled)

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Self:
        """Round the model's number of IPUs up to a power of two."""
        return self._flag("autoRoundNumIPUs", auto_round_num_ipus=auto_round_num_ipus)

    def tensorSharding(self, shards: int, plan: Mapping[str, Any] | str = "auto") -> Self:
        """Share the tensors of each stage among ``shards`` IPUs, a power of two.

        ``plan``: names of modules ("layers.*.mlp.up"), each with a style of
        ``torch.distributed.tensor.parallel`` or one of Hugging Face's words ("colwise", "rowwise"
        ...); "auto" for a model with a ``tp_plan``. Numbers are the unsharded model's
        (docs/pods.md#numbers). Error for an invalid number or style; the compile checks that the
        plan fits the model.
        """
        return self._set(tensor_sharding=checked(shards, plan))

    def setAvailableMemoryProportion(
        self, available_memory_proportion: Mapping[str, float]
    ) -> Self:
        """Share of tile memory that a product or convolution may use: ``{"IPU0": 0.2}``."""
        proportions = {}
        for key, proportion in available_memory_proportion.items():
            match = re.fullmatch(r"IPU(\d+)", key) if isinstance(key, str) else None
            if match is None:
                raise UsageError(
                    f"setAvailableMemoryProportion: {key!r} is no IPU; keys are 'IPU0', 'IPU1', ..."
                )
            proportions[int(match[1])] = check_proportion(
                f"setAvailableMemoryProportion: {key}", proportion
            )
        return self._set(available_memory_proportion=proportions)

    def target(self, name: str) -> Self:
        """The machine to model: "mk1", "mk2", "c600", "bow"."""
        try:
            return self._set(target_name=machine.target(name).name)
        except (ValueError, AttributeError):
            raise UsageError(
                f"target: unknown machine {name!r}; known: {', '.join(machine.TARGETS)}"
            ) from None

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Self:
        """Model a Mk1 or Mk2 IPU, and compile only: a call is an error."""
        if ipu_version not in (1, 2):
            raise UsageError(f"useOfflineIpuTarget takes 1 (mk1) or 2 (mk2), not {ipu_version!r}")
        return self.target(f"mk{ipu_version}").connectionType(ConnectionType.Never)

    def useIpuModel(self, use_model: bool) -> Self:
        """Products take the cycles of the vendor's IPUModel, not those of hardware."""
        return self._flag("useIpuModel", use_model=use_model)

    def useIpuId(self, ipu_id: int) -> Self:
        """Recorded."""
        return self._count("useIpuId", 0, ipu_id=ipu_id)

    def connectionType(self, connection_type: ConnectionType) -> Self:
        """``ConnectionType.Never`` compiles but does not run."""
        return self._enum("connectionType", ConnectionType, connection_type=connection_type)

    def syncPattern(self, sync_pattern: SyncPattern) -> Self:
        """Which IPUs wait for the host: all (Full), each alone (SinglePipeline), or every other."""
        return self._enum("syncPattern", SyncPattern, sync_pattern=sync_pattern)

    # -- running ---

    def randomSeed(self, random_seed: int) -> Self:
        """Seed of PyTorch's generator, set when the model first runs."""
        return self._count("randomSeed", 0, random_seed=random_seed)

    def enableSyntheticData(self, enabled: bool | int) -> Self:
        """Model no transfer of inputs and outputs: the performance if the host cost nothing.

        Numbers are computed from the real data. An int is a PopART SyntheticDataMode (0: off).
        """
        return self._flag(
            "enableSyntheticData",
            synthetic_data=bool(enabled) if isinstance(enabled, int) else enabled,
        )

    def enableExecutableCaching(self, path: str | None) -> Self:
        """Store compiled models in that directory and load them from there; "" or None: do not.

        A file is named by the captured model, inputs, options and compiler's sources. Loading
        runs no pickled code (see `ipu_exec.session.files.executable_file`).
        """
        return self._set(executable_cache=os.fspath(path or ""))

    def enableStableNorm(self, enabled: bool) -> Self:
        """Model norms that subtract the mean before squaring: slower, but numbers are the same."""
        return self._flag("enableStableNorm", stable_norm=enabled)

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Self:
        """Whether buffers are the same in every replica.

        A model that writes one needs False, otherwise it is an Error, as in PopTorch. If replicas
        differ (running statistics always do), replica 0's buffers are the model's.
        """
        return self._flag("broadcastBuffers", broadcast_buffers=broadcast_buffers)

    def updatableNamedBuffers(self, buffers: list[str]) -> Self:
        """Recorded; buffers are the model's and can always be changed."""
        return self._set(updatable_named_buffers=list(buffers))

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: OutputMode | None = None,
        output_return_period: int | None = 1,
    ) -> Self:
        """Let ``getAnchoredTensor(short_name)`` return the model's tensor ``long_name``.

        ``long_name``: one of ``getTensorNames()`` (`ipu_exec.numerics.anchors`). Without a mode
        it covers the micro-batches whose outputs are returned.
        """
        if not isinstance(short_name, str) or not isinstance(long_name, str):
            raise UsageError(f"anchorTensor takes two names, not {short_name!r} and {long_name!r}")
        if output_mode is not None and not isinstance(output_mode, OutputMode):
            raise UsageError(
                f"anchorTensor: output_mode is an OutputMode or None, not {output_mode!r}"
            )
        if output_mode is OutputMode.EveryN and (
            not isinstance(output_return_period, int) or output_return_period < 1
        ):
            raise UsageError(
                "anchorTensor with OutputMode.EveryN needs output_return_period, a whole number"
                " above 0"
            )
        anchor = {"name": long_name, "mode": output_mode, "period": output_return_period or 1}
        return self._set(anchored_tensors={**self.anchored_tensors, short_name: anchor})

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Self:
        """Recorded."""
        return self._flag("relaxOptimizerAttributesChecks", relax_optimizer_checks=relax)

    # -- reports and logs ---

    def enableProfiling(self, profile_dir: str | os.PathLike[str] | None = None) -> Self:
        """Write a profile there (default: ``.``). ``POPLAR_ENGINE_OPTIONS`` takes precedence."""
        return self._set(profiling_enabled=True, profiling_directory=os.fspath(profile_dir or "."))

    @property
    def profile_dir(self) -> str | None:
        """Directory for the profile, None if these options request none; may be set."""
        return str(self.profiling_directory) if self.profiling_enabled else None

    @profile_dir.setter
    def profile_dir(self, directory: str | os.PathLike[str] | None) -> None:
        if directory is None:
            self._set(profiling_enabled=False)
        else:
            self.enableProfiling(directory)

    @property
    def autoreport(self) -> bool:
        """Whether these options request a profile; ``profiling()`` also reads the environment."""
        return bool(self.profiling_enabled)

    @autoreport.setter
    def autoreport(self, enabled: bool) -> None:
        self._flag("autoreport", profiling_enabled=enabled)

    @property
    def autoreport_dir(self) -> str:
        """Directory for the profile."""
        return str(self.profiling_directory)

    @autoreport_dir.setter
    def autoreport_dir(self, directory: str | os.PathLike[str]) -> None:
        self._set(profiling_directory=os.fspath(directory))

    def profiling(self, environment: Mapping[str, str] | None = None) -> Profiling:
        """What to write into a profile.

        ``POPLAR_ENGINE_OPTIONS`` overrides ``_Popart``'s engine options, which override these
        options. Error if the variable is not a JSON object or a value is invalid.
        """
        engine: dict[str, Any] = {"autoReport.directory": self.profiling_directory}
        if self.profiling_enabled:
            engine["autoReport.all"] = "true"
        overrides = dict(self._Popart.engineOptions)
        overrides |= engine_options_of(os.environ if environment is None else environment)
        warn_of_engine_options(overrides)
        engine |= overrides
        everything = engine_flag(engine, "autoReport.all", False)
        graph = engine_flag(engine, "autoReport.outputGraphProfile", everything)
        execution = engine_flag(engine, "autoReport.outputExecutionProfile", everything)
        count = str(engine.get("autoReport.executionProfileProgramRunCount", DEFAULT_RUN_COUNT))
        if not count.isdecimal():
            raise UsageError(
                "autoReport.executionProfileProgramRunCount is a whole number of runs, not"
                f" {count!r}"
            )
        # Only where the engine's own options ask for it: ``autoreport`` alone writes one file.
        all_given = engine_flag(overrides, "autoReport.all", False)
        return Profiling(
            graph or execution,
            Path(engine["autoReport.directory"]),
            execution,
            int(count),
            engine_flag(overrides, "autoReport.outputDebugInfo", all_given),
        )

    def modelName(self, name: str) -> Self:
        """A name for the model, stored in the profile."""
        return self._set(model_name=str(name))

    def logDir(self, log_dir: str) -> Self:
        """Recorded."""
        return self._set(log_dir=os.fspath(log_dir))

    def logCycleCount(self, log_cycle_count: bool) -> Self:
        """Log the modelled cycles of each call."""
        return self._flag("logCycleCount", log_cycle_count=log_cycle_count)

    def showCompilationProgressBar(self, show: bool = True) -> Self:
        """Show 'Graph compilation' while compiling."""
        return self._flag("showCompilationProgressBar", compilation_progress_bar=show)

    def sourceLocationExcludes(self, excludes: list[str]) -> Self:
        """Recorded."""
        return self._set(source_location_excludes=list(excludes))

    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """Recorded."""
        return self._set(source_location_excludes=[*self.source_location_excludes, *excludes])

    def disableModuleNamescope(self) -> Self:
        """Recorded."""
        return self._set(module_namescope=False)

    def maxRepeatLogs(self, max_lines: int | None) -> Self:
        """Recorded."""
        return self._set(max_repeat_logs=max_lines)

    # -- the whole ---

    def loadFromFile(self, filepath: str | os.PathLike[str]) -> Self:
        """Set options from a file: one call a line, without ``options.``.

        For example ``Training.gradientAccumulation(4)``. Errors name the line.
        """
        try:
            lines = Path(filepath).read_text().splitlines()
        except UnicodeDecodeError as error:
            raise ConfigFileError(f"{filepath} is not text ({error})") from None
        for number, line in enumerate(lines, 1):
            if line.split("#")[0].strip():
                place = f"line {number} of {Path(filepath).name}"
                call_line(self, line.split("#")[0].strip(), place)
        return self

    def from_json(self, string: str) -> Self:
        """Set options from a JSON object of methods and their arguments.

        For example ``{"Precision.enableFloatingPointExceptions": true, "_Popart.set": ["a", 1]}``:
        a list contains several arguments, and a member of an enumeration is named as in a script
        ("ConnectionType.Never"). Error if there is no such method.
        """
        try:
            calls = from_json.loads(string)
        except ValueError as error:
            raise UsageError(f"options are not JSON ({error}): {string!r}") from None
        if not isinstance(calls, dict):
            raise UsageError(f"options are a JSON object of methods, not {string[:60]!r}")
        for name, value in calls.items():
            arguments = value if isinstance(value, list) else [value]
            method_of(self, name)(*(member_of(argument) for argument in arguments))
        return self

    def clone(self) -> Self:
        """A copy that can be changed."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        groups = ", ".join(f"{name}={getattr(self, name)!r}" for name in _GROUPS)
        return f"{super().__repr__()[:-1]}, {groups})"

    def flat(self) -> dict[str, Any]:
        """Every option by dotted name ("Training.gradientAccumulation"); values fit into JSON."""
        settings = dict(self._flat())
        for name in _GROUPS:
            settings |= dict(getattr(self, name)._flat(f"{name}."))
        return settings

    def toDict(self) -> dict[str, Any]:
        """`flat`, plus PopTorch's names ("replication_factor"), for Lightning's IPUStrategy."""
        named = {**self._values, **self.Training._values}
        numbers = {
            name: value.value if isinstance(value, Enum) else as_json(value)
            for name, value in named.items()
        }
        popart = {f"_Popart.{name}": value for name, value in self._Popart.settings.items()}
        return {**self.flat(), **popart, **numbers}

    def _freeze(self, frozen: bool = True) -> None:
        for group in (self, *(getattr(self, name) for name in _GROUPS)):
            group._frozen = frozen
            for value in group._values.values():
                if isinstance(value, Group):
                    value._frozen = frozen
