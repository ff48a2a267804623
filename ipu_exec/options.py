"""``Options``: everything a user sets before compiling, by PopTorch's names.

Methods are PopTorch's and return the object, so that they can be chained; values are read as
attributes in snake case (``opts.device_iterations``, ``opts.Training.gradient_accumulation``). An
executor or a data loader freezes its options, because they are part of what is compiled.
``clone()`` returns a copy that can be changed.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Self

import torch

from ipu_exec import enums, machine
from ipu_exec.annotations import (
    ExecutionStrategy,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from ipu_exec.base.checks import check_proportion
from ipu_exec.base.sharding_plan import TensorSharding, checked
from ipu_exec.enums import (
    CommGroupType,
    ConnectionType,
    HalfFloatCastingBehavior,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
    SyncPattern,
)
from ipu_exec.errors import Error, FrozenError, UsageError
from ipu_exec.placement_file import load, load_stages
from ipuscope.profiler.file import from_json
from ipuscope.words import did_you_mean

ENGINE_OPTIONS_VARIABLE = "POPLAR_ENGINE_OPTIONS"
PLACEMENT_VARIABLE = "IPUSCOPE_PLACEMENT"  # a placement file for all options
PROPOSE_VARIABLE = "IPUSCOPE_STAGES"  # how many a model without Blocks is to be cut for
COMPILE_ONLY_VARIABLE = "IPUSCOPE_COMPILE_ONLY"  # end the script when its first model is compiled
LEVERS_VARIABLE = "IPUSCOPE_LEVERS"  # what a compile is to have otherwise than the script
COMMAND_VARIABLE = "IPUSCOPE_COMMAND"  # JSON: the words of ipu-run, for the profile
NO_SOURCE_VARIABLE = "IPUSCOPE_NO_SOURCE"  # leave the user's files out of profiles
LENIENT_VARIABLE = "IPUSCOPE_LENIENT"  # let pass what only hardware forbids
DEFAULTS_VARIABLE = "POPTORCH_DEFAULT_OPTIONS"  # JSON that all options begin from
TARGET_VARIABLE = "IPUSCOPE_TARGET"  # the machine that options without a target of their own model
BUFFERING_DEPTHS = (
    "defaultBufferingDepth",
    "defaultPrefetchBufferingDepth",
)  # PopART's name, and the one before
DEFAULT_RUN_COUNT = 2  # runs kept in a profile (docs/libpva.md#engine-options)
# Settings that change nothing here though they would on a machine: setting one warns, and says what
# happens instead.
_NOT_HONOURED = {
    "groupNormStridedChannelGrouping": (
        "_Popart's groupNormStridedChannelGrouping",
        "groups are of neighbouring channels, as PyTorch has them, and cost what those cost",
    ),
}
# The same for Poplar's engine options: the value that is modelled, and what happens instead.
_ENGINE_NOT_HONOURED = {
    "opt.internalExchangeOptimisationTarget": (
        "cycles",
        "exchanges are those that take the fewest cycles, so code of exchanges may be more here",
    ),
}
_GROUPS = ("Training", "Precision", "TensorLocations", "Distributed", "Jit", "_Popart")


@dataclass(frozen=True, slots=True)
class Profiling:
    """The autoReport settings: whether to write a profile, where, and how many runs it contains."""

    enabled: bool
    directory: Path
    execution: bool  # runs too, not only what was compiled
    run_count: int
    debug_info: bool = False  # debug.cbor beside it


class ConfigFileError(UsageError):
    """A line of a file of options cannot be set."""


class _Group:
    """Named values as in PopTorch: set by methods, read as attributes, frozen once in use."""

    def __init__(self, **defaults: Any) -> None:
        self._values: dict[str, Any] = defaults
        self._frozen = False

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        name = (
            name.removeprefix("_") if name == "_execution_strategy" else name
        )  # as PopTorch has it
        if name in values:
            return values[name]
        snake = re.sub(
            r"([A-Z])", lambda match: f"_{match[1].lower()}", name
        )  # some of PopTorch's are in camel case
        if snake in values:
            return values[snake]
        known = [*values, *(other for other in dir(type(self)) if not other.startswith("_"))]
        near = "" if name.startswith("_") else did_you_mean(name, known)
        raise AttributeError(
            f"{type(self).__name__.strip('_')} has no option {name!r}"
            + (near or f"; it has {', '.join(values)}")
        )

    def checkIsFrozen(self, option: str | None = None) -> None:
        """FrozenError if these options are in use; ``option`` is the one that was to be changed."""
        if self._frozen:
            what = f": {option}" if option else ""
            raise FrozenError(
                f"Can't modify frozen Options{what}. They are in use by a compiled model or a data"
                " loader. Set options first, or change a copy: options.clone()"
            )

    def _set(self, **values: Any) -> Self:
        self.checkIsFrozen(", ".join(values))
        for name, value in values.items():
            before = self._values.get(name)
            if name in _NOT_HONOURED and value != before and (before is not None or value):
                option, instead = _NOT_HONOURED[name]
                warnings.warn(
                    f"{option} is recorded in the profile, but not honoured: {instead}",
                    stacklevel=4,
                )
        self._values.update(values)
        return self

    def _count(self, method: str, least: int = 1, /, **value: Any) -> Self:
        ((name, number),) = value.items()
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise UsageError(f"{method} takes a whole number, at least {least}, not {number!r}")
        return self._set(**{name: number})

    def _flag(self, method: str, /, **value: Any) -> Self:
        ((name, flag),) = value.items()
        if not isinstance(flag, bool):
            raise UsageError(f"{method} takes True or False, not {flag!r}")
        return self._set(**{name: flag})

    def _enum(self, method: str, kind: type[Enum], /, **value: Any) -> Self:
        ((name, member),) = value.items()
        if not isinstance(member, kind):
            known = ", ".join(f"{kind.__name__}.{item.name}" for item in kind)
            raise UsageError(f"{method} takes one of {known}, not {member!r}")
        return self._set(**{name: member})

    def toDict(self) -> dict[str, Any]:
        """The values by name, unconverted."""
        return dict(self._values)

    def _flat(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        for name, value in self._values.items():
            if isinstance(value, _Group):
                yield from value._flat(f"{prefix}{_camel(name)}.")
            else:
                yield prefix + _camel(name), _json(value)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        return f"{type(self).__name__.strip('_')}({values})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy that can be changed, even of options that are in use."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        for name, value in vars(self).items():
            copied.__dict__[name] = copy.deepcopy(value, memo)
        copied._frozen = False
        return copied


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


def _json(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, ExecutionStrategy):
        return repr(value)
    if isinstance(value, TensorSharding):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_json(item) for item in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


class TrainingOptions(_Group):
    """``opts.Training``: options for training only."""

    def __init__(self, root: Options) -> None:
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            mean_accumulation_and_replication_reduction_strategy=MeanReductionStrategy.Post,
            automatic_loss_scaling=False,
            convolution_dithering=False,
            batch_norm_replicas=1,
        )
        self._root = root

    def gradientAccumulation(self, gradient_accumulation: int) -> Self:
        """Micro-batches whose gradients are added up before a weight update.

        In training, a placement file's accumulation takes precedence.
        """
        if self._root.placement_accumulation is not None and gradient_accumulation != 1:
            gradient_accumulation = self._root.placement_accumulation
        return self._count(
            "Training.gradientAccumulation", gradient_accumulation=gradient_accumulation
        )

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> Self:
        """Mean or Sum, over the micro-batches and replicas of a weight update."""
        name = "Training.accumulationAndReplicationReductionType"
        if reduction_type is ReductionType.NoReduction:
            raise UsageError(
                f"{name} takes ReductionType.Mean or ReductionType.Sum: a weight update needs one"
                " gradient"
            )
        return self._enum(
            name, ReductionType, accumulation_and_replication_reduction_type=reduction_type
        )

    accumulationReductionType = accumulationAndReplicationReductionType  # PopTorch's old name

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> Self:
        """When a Mean divides."""
        return self._enum(
            "Training.setMeanAccumulationAndReplicationReductionStrategy",
            MeanReductionStrategy,
            mean_accumulation_and_replication_reduction_strategy=mean_reduction_strategy,
        )

    def setAutomaticLossScaling(self, enabled: bool) -> Self:
        """Adapt the loss scale to the float16 gradients.

        It starts from the optimiser's ``loss_scaling``.

        See `ipu_exec.numerics.precision.LossScaler`. The counting is not in the profile.
        """
        return self._flag("Training.setAutomaticLossScaling", automatic_loss_scaling=enabled)

    def setConvolutionDithering(self, enabled: bool) -> Self:
        """Let different convolutions begin at different tiles.

        Small ones are then not all on the first tiles.
        """
        return self._flag("Training.setConvolutionDithering", convolution_dithering=enabled)

    def distributedBatchNormReplicaGroupSize(self, replicas: int) -> Self:
        """Let batch norms compute their statistics over groups of that many replicas.

        Groups are consecutive among the replicas of all instances. 1: each replica's own, as in
        PopTorch, which has no such option; it is named after the one in TensorFlow for IPUs.
        """
        name = "Training.distributedBatchNormReplicaGroupSize"
        return self._count(name, batch_norm_replicas=replicas)

    @property
    def autoreport(self) -> bool:
        """The same as ``opts.autoreport``."""
        return self._root.autoreport

    @autoreport.setter
    def autoreport(self, enabled: bool) -> None:
        self._root.autoreport = enabled

    @property
    def autoreport_dir(self) -> str:
        """The same as ``opts.autoreport_dir``."""
        return self._root.autoreport_dir

    @autoreport_dir.setter
    def autoreport_dir(self, directory: str | os.PathLike[str]) -> None:
        self._root.autoreport_dir = directory


class PrecisionOptions(_Group):
    """``opts.Precision``: data types inside operators."""

    def __init__(self) -> None:
        super().__init__(
            stochastic_rounding=False,
            partials_type="",  # "float32", "float16"; "": float32, the vendor's default
            floating_point_exceptions=False,
            running_statistics_always_float=None,  # as the model has them
            half_float_casting=HalfFloatCastingBehavior.Default,
        )

    def enableStochasticRounding(self, enabled: bool) -> Self:
        """Round float16 weights stochastically at each weight update, seeded by ``randomSeed``.

        An IPU rounds every float16 result that way; here the update is computed in float32 and
        rounded at its end, and activations and gradients are rounded as in PyTorch. Float32 models
        are not changed.
        """
        return self._flag("Precision.enableStochasticRounding", stochastic_rounding=enabled)

    def setPartialsType(self, dtype: torch.dtype) -> Self:
        """Data type of partial sums of matrix products and convolutions.

        ``torch.float`` or ``torch.half``.

        With float16 operands, float partials use half of the multiply-accumulate units of an MK2.
        If it is not set, products and convolutions keep float partials, as the vendor's do
        (docs/cycles.md#planner).
        """
        if dtype not in (torch.float32, torch.float16):
            raise UsageError(
                f"Precision.setPartialsType takes torch.float or torch.half, not {dtype!r}"
            )
        return self._set(partials_type=str(dtype).removeprefix("torch."))

    def enableFloatingPointExceptions(self, enabled: bool) -> Self:
        """Raise an Error if an operator divides by zero, overflows, or creates or compares NaN.

        It names the operator.

        See `ipu_exec.numerics.floating_point`. Every result is checked, which takes time.
        """
        return self._flag(
            "Precision.enableFloatingPointExceptions", floating_point_exceptions=enabled
        )

    def runningStatisticsAlwaysFloat(self, value: bool) -> Self:
        """Whether batch norms of float16 inputs keep running statistics in float32.

        In float32 also where the model's buffers are float16: those are then what it rounds to.
        """
        return self._flag(
            "Precision.runningStatisticsAlwaysFloat", running_statistics_always_float=value
        )

    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> Self:
        """How operands of float16 and float32 are combined.

        All are cast to float16, or promoted as in PyTorch.

        In place it is the dtype of the tensor that is written. The default is PyTorch's rule, as in
        PopTorch since 3.0.
        """
        return self._enum(
            "Precision.halfFloatCasting",
            HalfFloatCastingBehavior,
            half_float_casting=half_float_casting,
        )


class TensorLocationSettings(_Group):
    """The location of one kind of tensor. Values not set are None."""

    def __init__(self) -> None:
        super().__init__(
            on_chip_storage=None,
            replicated_tensor_sharding=None,
            min_elements_for_off_chip=None,
            min_elements_for_replicated_tensor_sharding=None,
            io_tiles_to_load=None,
            io_tiles_to_store=None,
        )

    def useOnChipStorage(self, use: bool | None = True) -> Self:
        """False: in streaming memory, loaded when needed. None: the execution strategy decides."""
        if use is None:
            return self._set(on_chip_storage=None)
        return self._flag("useOnChipStorage", on_chip_storage=use)

    def useReplicatedTensorSharding(self, use: bool = True) -> Self:
        """Each replica keeps only its part.

        Of weights, optimiser states and accumulators. Of activations only where phases are
        pipelines: those that all IPUs which share a stage's tensors (`tensorSharding`) have alike
        wait off the chip in parts on these.
        """
        return self._flag("useReplicatedTensorSharding", replicated_tensor_sharding=use)

    def minElementsForOffChip(self, min_elements: int) -> Self:
        """Smaller tensors stay on the chip; by default those of one element, as in PopART."""
        return self._count("minElementsForOffChip", 0, min_elements_for_off_chip=min_elements)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> Self:
        """Smaller tensors are not sharded.

        By default those of fewer than 8,192 elements, as in PopART.
        """
        return self._count(
            "minElementsForReplicatedTensorSharding",
            0,
            min_elements_for_replicated_tensor_sharding=min_elements,
        )

    def useIOTilesToLoad(self, use: bool = True) -> Self:
        """Load through I/O tiles, beside what the others compute.

        In `PipelinedExecution` with Phases, where `TensorLocations.numIOTiles` sets tiles aside;
        otherwise compiling warns that the tiles that compute load it.
        """
        return self._flag("useIOTilesToLoad", io_tiles_to_load=use)

    def useIOTilesToStore(self, use: bool = True) -> Self:
        """Store through I/O tiles: as `useIOTilesToLoad`."""
        return self._flag("useIOTilesToStore", io_tiles_to_store=use)

    def named(self) -> dict[str, int]:
        """The values that are set, by PopTorch's names."""
        return {
            theirs: int(self._values[own])
            for theirs, own in _LOCATION_NAMES.items()
            if self._values[own] is not None
        }

    def __getitem__(self, name: str) -> int:
        """By PopTorch's name, such as "onChip". KeyError if it is not set."""
        return self.named()[name]

    @property
    def off_chip(self) -> bool:
        """True after ``useOnChipStorage(False)``."""
        return self._values["on_chip_storage"] is False


_LOCATION_NAMES = {
    "minElementsForOffChip": "min_elements_for_off_chip",
    "minElementsForReplicatedTensorSharding": "min_elements_for_replicated_tensor_sharding",
    "onChip": "on_chip_storage",
    "useReplicatedTensorSharding": "replicated_tensor_sharding",
    "useIOTilesToLoad": "io_tiles_to_load",
    "useIOTilesToStore": "io_tiles_to_store",
}


class TensorLocationOptions(_Group):
    """``opts.TensorLocations``: where weights, optimiser states and other tensors are stored."""

    def __init__(self) -> None:
        super().__init__(
            location_activation=TensorLocationSettings(),
            location_weight=TensorLocationSettings(),
            location_optimizer=TensorLocationSettings(),
            location_accumulator=TensorLocationSettings(),
            num_io_tiles=0,
        )

    def _location(self, method: str, /, **value: Any) -> Self:
        ((name, settings),) = value.items()
        if not isinstance(settings, TensorLocationSettings):
            raise UsageError(
                f"TensorLocations.{method} takes a TensorLocationSettings(), not {settings!r}"
            )
        return self._set(**{name: copy.deepcopy(settings)})

    def by_setter(self) -> dict[str, TensorLocationSettings]:
        """The location of each kind of tensor, by the method that sets it."""
        return {
            "setActivationLocation": self.location_activation,
            "setWeightLocation": self.location_weight,
            "setOptimizerLocation": self.location_optimizer,
            "setAccumulatorLocation": self.location_accumulator,
        }

    def setActivationLocation(self, location: TensorLocationSettings) -> Self:
        """Where activations are kept until the backward pass.

        A pipeline keeps its stash on the chip: compiling it warns.
        """
        return self._location("setActivationLocation", location_activation=location)

    def setWeightLocation(self, location: TensorLocationSettings) -> Self:
        """Where weights are stored.

        Those off the chip are loaded before they are used, in forward, backward and update. In
        phased execution they are loaded and stored with their phase by default.
        """
        return self._location("setWeightLocation", location_weight=location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> Self:
        """Where optimiser states are stored."""
        return self._location("setOptimizerLocation", location_optimizer=location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> Self:
        """Where gradient accumulators are stored."""
        return self._location("setAccumulatorLocation", location_accumulator=location)

    def numIOTiles(self, num_tiles: int) -> Self:
        """Tiles of each IPU set aside for I/O: even, 32 to 192.

        The others compute, while the tensors that `set_overlap_for_input` and
        `set_overlap_for_output` name are transferred.
        """
        if (
            isinstance(num_tiles, bool)
            or not isinstance(num_tiles, int)
            or not 32 <= num_tiles <= 192
            or num_tiles % 2
        ):
            raise UsageError(
                "TensorLocations.numIOTiles must be an even number between 32 and 192."
                f" It is {num_tiles!r}"
            )
        return self._set(num_io_tiles=num_tiles)


class DistributedOptions(_Group):
    """``opts.Distributed``: which process of how many this is."""

    def __init__(self) -> None:
        super().__init__(process_id=0, num_processes=1)
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """This is process ``process_id`` (from 0) of ``num_processes``."""
        self._count("Distributed.configureProcessId: num_processes", num_processes=num_processes)
        if not 0 <= process_id < num_processes:
            raise UsageError(
                f"Distributed.configureProcessId: process {process_id} of {num_processes} does not"
                " exist"
            )
        return self._set(process_id=process_id)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Read both from environment variables; one process if they are not set."""
        values = [os.environ.get(var_process_id, "0"), os.environ.get(var_num_processes, "1")]
        if not all(value.isdecimal() for value in values):
            raise UsageError(
                f"{var_process_id}={values[0]!r}, {var_num_processes}={values[1]!r}: both are whole"
                " numbers"
            )
        return self.configureProcessId(int(values[0]), int(values[1]))

    def disable(self) -> Self:
        """One process, whatever the environment contains."""
        return self._set(process_id=0, num_processes=1)

    @property
    def processId(self) -> int:
        """This process's number, from 0."""
        return int(self._values["process_id"])

    @property
    def numProcesses(self) -> int:
        """The number of processes that run the model."""
        return int(self._values["num_processes"])

    distributed_process_id = processId
    num_distributed_processes = numProcesses


_DistributedOptions = DistributedOptions  # PopTorch's name


class JitOptions(_Group):
    """``opts.Jit``: kept for PopTorch's scripts; models are captured by running them."""

    def __init__(self) -> None:
        super().__init__(trace_model=True)

    def traceModel(self, trace_model: bool) -> Self:
        """Recorded."""
        return self._flag("Jit.traceModel", trace_model=trace_model)


class PopartOptions(_Group):
    """``opts._Popart``: free-form settings of PopTorch's backend.

    docs/compatibility.md says which ones have an effect.
    """

    def __init__(self) -> None:
        super().__init__(engineOptions={})

    def set(self, key: str, value: Any) -> Self:
        """Record one setting. ``engineOptions`` takes a dict of ``autoReport.*`` and the like."""
        if key == "engineOptions" and not isinstance(value, Mapping):
            raise UsageError(
                f"_Popart.set('engineOptions', ...) takes a dict of names and values, not {value!r}"
            )
        if key in BUFFERING_DEPTHS:
            return self._count(f"_Popart.set({key!r}, ...)", **{key: value})
        return self._set(**{key: value})

    @property
    def settings(self) -> Mapping[str, Any]:
        """All values that were set, by PopART's names."""
        return self._values

    options = settings  # PopTorch's name

    def setEngineOptions(self, engine_options: Mapping[str, str]) -> Self:
        """Settings that ``POPLAR_ENGINE_OPTIONS`` accepts too; the environment takes precedence."""
        return self.set("engineOptions", dict(engine_options))

    def setPatterns(self, patterns: Mapping[str, bool], level: int = 2) -> Self:
        """Enable or disable PopART's patterns by name.

        ``SparseAccumulate`` and ``TiedGatherAccumulate`` have an effect
        (`ipu_exec.capture.rewrites.patterns`), the others are recorded.
        """
        if not isinstance(patterns, Mapping):
            raise UsageError(
                "_Popart.setPatterns takes a dict of names and whether they are on, not"
                f" {patterns!r}"
            )
        return self._set(patterns=dict(patterns), patterns_level=level)


class Options(_Group):
    """How a model is compiled and run.

    ``Options(profile_dir="demo")`` requests a profile below that directory; so do PopTorch's
    ``enableProfiling("demo")`` and, after the vendor's engine option, ``autoreport=True,
    autoreport_dir="demo"``.
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
            placement="",
            placement_choices=(),
            placement_proportions={},
            placement_block_proportions={},
            placement_accumulation=None,
            placement_promise={},
            placement_mapping=None,
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
        self._Popart = PopartOptions()
        if os.environ.get("POPTORCH_CACHE_DIR"):
            self.enableExecutableCaching(os.environ["POPTORCH_CACHE_DIR"])
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
        """Replicas of a group of that size get the same input.

        Error for ``CommGroupType.All``, as in PopTorch.
        """
        if input_group_type is CommGroupType.All:
            raise UsageError(
                "inputReplicaGrouping takes CommGroupType.Consecutive or Orthogonal, not All: where"
                " all replicas take the same input, they are one group"
            )
        alone = (
            input_group_type is CommGroupType.NoGrouping
        )  # each replica is a group, whatever the size says
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
        """Micro-batches of one call.

        That is deviceIterations x gradientAccumulation x replicas that get different input.
        """
        return (
            int(self.device_iterations)
            * int(self.Training.gradient_accumulation)
            * self.input_replicas
        )

    def combined_batch(self, batch_size: int) -> int:
        """Samples of one call, where a script makes micro-batches of so many.

        A plan (``ipu-run --plan ... --write``) cuts them in its own way, and where it is of other
        samples than the script's, has as many.
        """
        combined = batch_size * self.batch_factor
        plan = self.placement_mapping
        if plan is None:
            return combined
        by_plan = plan.script_samples != plan.samples
        calls, rest = divmod(combined, plan.script_samples)
        return calls * plan.samples if by_plan and calls and not rest else combined

    def follow_plan(self, kind: str) -> None:
        """Take t, r, accumulation and rts of the plan that was loaded, if it is of this kind.

        ``kind``: "training" or "inference". For a model's own copy of the options: a script's
        loader goes on counting as the script says.
        """
        plan = self.placement_mapping
        if plan is None or plan.kind != kind:
            return
        values: dict[str, Any] = {"replication_factor": plan.replicas}
        if kind == "training":
            self.Training._set(gradient_accumulation=plan.accumulation)
            state = copy.deepcopy(self.TensorLocations.location_optimizer)
            state._set(replicated_tensor_sharding=plan.state_in_parts)
            self.TensorLocations._set(location_optimizer=state)
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
        """Pipelined, sharded or phased execution, as an instance of its class.

        These are PipelinedExecution, ShardedExecution, SerialPhasedExecution and
        ParallelPhasedExecution.
        """
        if not isinstance(strategy, ExecutionStrategy):
            raise UsageError(
                "setExecutionStrategy takes PipelinedExecution() or ShardedExecution(), not"
                f" {strategy!r}"
            )
        if self.placement:  # its stages stay, in the order of execution that was asked for
            strategy = type(strategy)(*load_stages(self.placement))
        return self._set(execution_strategy=strategy)

    def loadPlacement(self, path: str | os.PathLike[str]) -> Self:
        """Use the stages of a file that ``ipu-report rebalance`` wrote.

        They replace any stages that the script sets. If the file also sets how a stage saves
        memory, the share of memory that an IPU's products may use, or the number of micro-batches
        of a weight update, that takes precedence over the options.

        A number of IPUs that is not a power of two is rounded up. Error if the file is not a
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
            placement_promise=file.promise,
            placement_mapping=file.mapping,
            execution_strategy=type(self.execution_strategy)(*file.parts),
            auto_round_num_ipus=True,
        )

    def lenient(self, enabled: bool = True) -> Self:
        """Allow, with a warning, operations that PopTorch refuses but that can run here.

        Losses computed from several, ``one_hot`` without a number of classes, tensors that a
        forward has on the CPU. ``ipu-run --lenient`` does so for all options.
        """
        return self._flag("lenient", lenient=enabled)

    def estimateUnknownOperators(self, enabled: bool = True) -> Self:
        """Estimate the cost of an operator without a lowering, rather than stop.

        The profile marks it as estimated.
        """
        return self._flag("estimateUnknownOperators", estimate_unknown_operators=enabled)

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Self:
        """Round the model's number of IPUs up to a power of two."""
        return self._flag("autoRoundNumIPUs", auto_round_num_ipus=auto_round_num_ipus)

    def tensorSharding(self, shards: int, plan: Mapping[str, Any] | str = "auto") -> Self:
        """Share the tensors of each stage among ``shards`` IPUs, a power of two.

        ``plan``: names of modules ("layers.*.mlp.up"), each with a style of
        ``torch.distributed.tensor.parallel`` or one of Hugging Face's words ("colwise", "rowwise"
        ...); "auto" for a model with a ``tp_plan``. Numbers are the unsharded model's
        (docs/pods.md#numbers). Error for a number or style that cannot be; whether the plan fits
        the model is said by the compile.
        """
        return self._set(tensor_sharding=checked(shards, plan))

    def setAvailableMemoryProportion(
        self, available_memory_proportion: Mapping[str, float]
    ) -> Self:
        """Share of tile memory that a product or convolution may use: ``{"IPU0": 0.2}``.

        Stored as a dict of IPU number to proportion.
        """
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
        """Recorded; everything is modelled."""
        return self._flag("useIpuModel", use_model=use_model)

    def useIpuId(self, ipu_id: int) -> Self:
        """Recorded."""
        return self._count("useIpuId", 0, ipu_id=ipu_id)

    def connectionType(self, connection_type: ConnectionType) -> Self:
        """``ConnectionType.Never`` compiles but does not run."""
        return self._enum("connectionType", ConnectionType, connection_type=connection_type)

    def syncPattern(self, sync_pattern: SyncPattern) -> Self:
        """Which IPUs wait for the host together.

        All (Full), each alone (SinglePipeline), or every other one.
        """
        return self._enum("syncPattern", SyncPattern, sync_pattern=sync_pattern)

    # -- running ---

    def randomSeed(self, random_seed: int) -> Self:
        """Seed of PyTorch's generator, set when the model first runs."""
        return self._count("randomSeed", 0, random_seed=random_seed)

    def enableSyntheticData(self, enabled: bool | int) -> Self:
        """Model no transfer of inputs and outputs.

        This shows the machine's performance if the host cost nothing.

        The numbers are still computed from the real data. A number is one of PopART's
        SyntheticDataMode (0: off).
        """
        return self._flag(
            "enableSyntheticData",
            synthetic_data=bool(enabled) if isinstance(enabled, int) else enabled,
        )

    def enableExecutableCaching(self, path: str | None) -> Self:
        """Keep compiled models in that directory and load them from there; "" or None: do not.

        The file name depends on everything that determines the result of compiling: the captured
        model, the inputs, these options, the compiler's sources. Nothing in it is unpickled that
        could run code (see `ipu_exec.session.files.executable_file`).
        """
        return self._set(executable_cache=os.fspath(path or ""))

    def enableStableNorm(self, enabled: bool) -> Self:
        """Model norms that subtract the mean before squaring, which takes longer.

        Numbers are PyTorch's, which are stable either way.
        """
        return self._flag("enableStableNorm", stable_norm=enabled)

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Self:
        """Whether buffers are the same in every replica.

        A model that writes one needs False: as in PopTorch, keeping them equal is not supported and
        an Error.

        If they differ (running statistics always do), replica 0's are the model's.
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
        """Keep the tensor ``long_name`` of the model in each call.

        The executor's ``getAnchoredTensor(short_name)``.

        ``long_name`` is one of the executor's ``getTensorNames()``; see
        `ipu_exec.numerics.anchors`. Without a mode it is kept for the micro-batches whose outputs
        are.
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
        """Write a profile to that directory (by default the working directory).

        ``POPLAR_ENGINE_OPTIONS`` takes precedence.
        """
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
        """Whether these options request a profile.

        ``profiling()`` returns the setting after the environment is applied.
        """
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

        These options come first, then ``_Popart``'s engine options, then ``POPLAR_ENGINE_OPTIONS``.

        Later ones win. Error where the variable is no JSON object or a value makes no sense.
        """
        engine: dict[str, Any] = {"autoReport.directory": self.profiling_directory}
        if self.profiling_enabled:
            engine["autoReport.all"] = "true"
        overrides = dict(self._Popart.engineOptions)
        overrides |= _engine_options_of(os.environ if environment is None else environment)
        _warn_of_engine_options(overrides)
        engine |= overrides
        everything = _engine_flag(engine, "autoReport.all", False)
        graph = _engine_flag(engine, "autoReport.outputGraphProfile", everything)
        execution = _engine_flag(engine, "autoReport.outputExecutionProfile", everything)
        count = str(engine.get("autoReport.executionProfileProgramRunCount", DEFAULT_RUN_COUNT))
        if not count.isdecimal():
            raise UsageError(
                "autoReport.executionProfileProgramRunCount is a whole number of runs, not"
                f" {count!r}"
            )
        # Only where the engine's own options ask for it: ``autoreport`` alone writes one file.
        all_given = _engine_flag(overrides, "autoReport.all", False)
        return Profiling(
            graph or execution,
            Path(engine["autoReport.directory"]),
            execution,
            int(count),
            _engine_flag(overrides, "autoReport.outputDebugInfo", all_given),
        )

    def modelName(self, name: str) -> Self:
        """A name for the model, kept in the profile."""
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
        """Set options from a file, a line each, as in a script but without ``options.``.

        For example ``Training.gradientAccumulation(4)`` or ``outputMode(OutputMode.All)``. Error
        names the line.
        """
        try:
            lines = Path(filepath).read_text().splitlines()
        except UnicodeDecodeError as error:
            raise ConfigFileError(f"{filepath} is no text ({error})") from None
        for number, line in enumerate(lines, 1):
            if line.split("#")[0].strip():
                place = f"line {number} of {Path(filepath).name}"
                _call(self, line.split("#")[0].strip(), place)
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
            raise UsageError(f"options are no JSON ({error}): {string!r}") from None
        if not isinstance(calls, dict):
            raise UsageError(f"options are a JSON object of methods, not {string[:60]!r}")
        for name, value in calls.items():
            arguments = value if isinstance(value, list) else [value]
            _method(self, name)(*(_member(argument) for argument in arguments))
        return self

    def clone(self) -> Self:
        """A copy that can be changed."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        groups = ", ".join(f"{name}={getattr(self, name)!r}" for name in _GROUPS)
        return f"{super().__repr__()[:-1]}, {groups})"

    def flat(self) -> dict[str, Any]:
        """Every option by dotted name ("Training.gradientAccumulation").

        Values can be written as JSON.
        """
        settings = dict(self._flat())
        for name in _GROUPS:
            settings |= dict(getattr(self, name)._flat(f"{name}."))
        return settings

    def toDict(self) -> dict[str, Any]:
        """`flat`, with the options also under PopTorch's names ("replication_factor").

        Enumerations are given as numbers. Lightning's IPUStrategy reads these.
        """
        named = {**self._values, **self.Training._values}
        numbers = {
            name: value.value if isinstance(value, Enum) else _json(value)
            for name, value in named.items()
        }
        popart = {f"_Popart.{name}": value for name, value in self._Popart.settings.items()}
        return {**self.flat(), **popart, **numbers}

    def _freeze(self, frozen: bool = True) -> None:
        for group in (self, *(getattr(self, name) for name in _GROUPS)):
            group._frozen = frozen
            for value in group._values.values():
                if isinstance(value, _Group):
                    value._frozen = frozen


def _engine_options_of(environment: Mapping[str, str]) -> dict[str, Any]:
    text = environment.get(ENGINE_OPTIONS_VARIABLE, "").strip()
    try:
        options = from_json.loads(text or "{}")
    except ValueError as error:
        raise UsageError(f"{ENGINE_OPTIONS_VARIABLE} is not JSON ({error}): {text!r}") from None
    if not isinstance(options, dict):
        raise UsageError(
            f'{ENGINE_OPTIONS_VARIABLE} is a JSON object such as {{"autoReport.all": "true"}}, not'
            f" {text!r}"
        )
    return options


def _warn_of_engine_options(engine: Mapping[str, Any]) -> None:
    for name, (modelled, instead) in _ENGINE_NOT_HONOURED.items():
        if str(engine.get(name, modelled)).lower() != modelled:
            warnings.warn(
                f"the engine option {name} is recorded in the profile, but not honoured: {instead}",
                stacklevel=2,  # said once, whoever asks for the options
            )


def _engine_flag(engine: Mapping[str, Any], name: str, default: bool) -> bool:
    value = str(engine.get(name, default)).lower()
    if value not in ("true", "false"):
        raise UsageError(f'{name} is "true" or "false", not {value!r}')
    return value == "true"


def _call(options: Options, line: str, place: str) -> None:
    """Run ``Group.method(arguments)`` on ``options``.

    Arguments are literals and members of our enums.
    """
    try:
        call = ast.parse(line, mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError("it is not a call")
        method = _method(options, ast.unparse(call.func).removeprefix("options."))
        arguments = [_argument(node) for node in call.args]
        named = {str(keyword.arg): _argument(keyword.value) for keyword in call.keywords}
        method(*arguments, **named)
    except _OF_FILES as error:
        raise ConfigFileError(
            f"{type(error).__name__} at {place}: {error}\n> {line[:200]}"
        ) from None


# What a file's line may raise: one that is nested too deep for Python's parser is one of them.
_OF_FILES = (
    *(SyntaxError, ValueError, AttributeError, TypeError, LookupError, Error),
    *(RecursionError, MemoryError),
)


def _method(options: Options, path: str) -> Callable[..., Any]:
    """A method of the options by its dotted name: nothing that Python has beside it."""
    method: Any = options
    for name in path.split("."):
        if name.startswith("_") and name != "_Popart":
            raise AttributeError(f"{path} is no option")
        method = getattr(method, name)
    found: Callable[..., Any] = method
    return found


def _argument(node: ast.expr) -> Any:
    """A literal, a member of an enumeration, or the result of a constructor of PopTorch's."""
    if isinstance(node, ast.Attribute):
        kind, member = ast.unparse(node).removeprefix("poptorch.").split(".")
        if kind == "torch":
            return getattr(torch, member)
        return getattr(enums, kind)[member]
    if isinstance(node, ast.Call):
        return _made(node)
    return ast.literal_eval(node)


def _made(call: ast.Call) -> Any:
    *before, name = ast.unparse(call.func).removeprefix("poptorch.").split(".", 1)
    arguments = [_argument(node) for node in call.args]
    named = {str(keyword.arg): _argument(keyword.value) for keyword in call.keywords}
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        return getattr(_made(call.func.value), call.func.attr)(*arguments, **named)
    known = {kind.__name__: kind for kind in _CONSTRUCTORS}
    if before or name not in known:
        raise ValueError(f"{ast.unparse(call.func)} is none of {', '.join(known)}")
    return known[name](*arguments, **named)


_CONSTRUCTORS = (
    PipelinedExecution,
    ShardedExecution,
    SerialPhasedExecution,
    ParallelPhasedExecution,
    Phase,
    Stage,
    TensorLocationSettings,
)


def _member(value: Any) -> Any:
    """The member of an enumeration that a string names; other values as they are."""
    kind, _, member = value.partition(".") if isinstance(value, str) else ("", "", "")
    enum = getattr(enums, kind, None) if member else None
    return enum[member] if isinstance(enum, type) and issubclass(enum, Enum) else value
