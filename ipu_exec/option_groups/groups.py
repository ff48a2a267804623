"""Groups of options: Training, Precision, Distributed, Jit and _Popart."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch

from ipu_exec.enums import HalfFloatCastingBehavior, MeanReductionStrategy, ReductionType
from ipu_exec.errors import UsageError
from ipu_exec.option_groups.engine_options import popart_names, warn_of_unknown
from ipu_exec.option_groups.group import Group

# PopART's name, and the one before
BUFFERING_DEPTHS = ("defaultBufferingDepth", "defaultPrefetchBufferingDepth")


class TrainingOptions(Group):
    """``opts.Training``: options for training only."""

    def __init__(self, root: Any) -> None:
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
        """Micro-batches per weight update. A placement file's accumulation takes precedence."""
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
        """Adapt the loss scale, at first the optimiser's ``loss_scaling``, to float16 gradients.

        See `ipu_exec.numerics.precision.LossScaler`. The counting is not in the profile.
        """
        return self._flag("Training.setAutomaticLossScaling", automatic_loss_scaling=enabled)

    def setConvolutionDithering(self, enabled: bool) -> Self:
        """Start convolutions at different tiles, so that small ones are not all on the first."""
        return self._flag("Training.setConvolutionDithering", convolution_dithering=enabled)

    def distributedBatchNormReplicaGroupSize(self, replicas: int) -> Self:
        """Let batch norms compute their statistics over groups of that many replicas.

        Groups are consecutive over all instances. The name is TensorFlow's for IPUs.
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


class PrecisionOptions(Group):
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

        An IPU rounds every float16 result that way. Here the update is computed in float32 and
        rounded at its end; all else, and float32 models, are as in PyTorch.
        """
        return self._flag("Precision.enableStochasticRounding", stochastic_rounding=enabled)

    def setPartialsType(self, dtype: torch.dtype) -> Self:
        """Type of partial sums of products and convolutions: ``torch.float`` or ``torch.half``.

        With float16 operands, float partials use half of the multiply-accumulate units of an MK2.
        The default is float, as the vendor's (docs/cycles.md#planner).
        """
        if dtype not in (torch.float32, torch.float16):
            raise UsageError(
                f"Precision.setPartialsType takes torch.float or torch.half, not {dtype!r}"
            )
        return self._set(partials_type=str(dtype).removeprefix("torch."))

    def enableFloatingPointExceptions(self, enabled: bool) -> Self:
        """Raise an Error that names an operator that divides by zero, overflows or makes NaN.

        Comparing NaN is one too. See `ipu_exec.numerics.floating_point`; it takes time.
        """
        return self._flag(
            "Precision.enableFloatingPointExceptions", floating_point_exceptions=enabled
        )

    def runningStatisticsAlwaysFloat(self, value: bool) -> Self:
        """Whether batch norms of float16 inputs compute running statistics in float32.

        If the model's buffers are float16, they hold the rounded values.
        """
        return self._flag(
            "Precision.runningStatisticsAlwaysFloat", running_statistics_always_float=value
        )

    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> Self:
        """How operands of float16 and float32 combine: cast to float16, or PyTorch's promotion.

        PyTorch's rule is the default, as in PopTorch since 3.0. In place, the written dtype
        counts.
        """
        return self._enum(
            "Precision.halfFloatCasting",
            HalfFloatCastingBehavior,
            half_float_casting=half_float_casting,
        )


class DistributedOptions(Group):
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


class JitOptions(Group):
    """``opts.Jit``: for PopTorch's scripts; models are captured by running them."""

    def __init__(self) -> None:
        super().__init__(trace_model=True)

    def traceModel(self, trace_model: bool) -> Self:
        """Recorded."""
        return self._flag("Jit.traceModel", trace_model=trace_model)


class PopartOptions(Group):
    """``opts._Popart``: PopTorch's backend settings; docs/compatibility.md lists effective ones."""

    _OF_PRECISION: ClassVar = {
        "enableStochasticRounding": "stochastic_rounding",
        "enableFloatingPointChecks": "floating_point_exceptions",
    }

    def __init__(self, precision: PrecisionOptions) -> None:
        super().__init__(engineOptions={})
        self._precision = precision  # has what PopTorch's Precision sets here

    def set(self, key: str, value: Any) -> Self:
        """Record one setting. ``engineOptions`` takes a dict of ``autoReport.*`` and the like."""
        if key == "engineOptions" and not isinstance(value, Mapping):
            raise UsageError(
                f"_Popart.set('engineOptions', ...) takes a dict of names and values, not {value!r}"
            )
        if key in BUFFERING_DEPTHS:
            return self._count(f"_Popart.set({key!r}, ...)", **{key: value})
        if key in self._OF_PRECISION:
            self._precision._flag(f"_Popart.set({key!r}, ...)", **{self._OF_PRECISION[key]: value})
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
        """Set PopART's patterns; some have effects (`ipu_exec.capture.rewrites.patterns`)."""
        if not isinstance(patterns, Mapping):
            raise UsageError(
                "_Popart.setPatterns takes a dict of names and whether they are on, not"
                f" {patterns!r}"
            )
        warn_of_unknown("pattern of PopART", patterns, popart_names()["patterns"])
        return self._set(patterns=dict(patterns), patterns_level=level)
