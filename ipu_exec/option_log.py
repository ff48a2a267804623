"""Options in the debug log, in PopTorch's format, and checks of PopART's settings.

PopTorch logs each option that it passes to PopART [POPTORCH,
popart_compiler/source/SessionOptions.cpp]: "poptorch.Options set NAME to value V".
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from ipu_exec.annotations import PhasedExecution, ShardedExecution
from ipu_exec.errors import Error
from ipu_exec.option_groups.engine_options import popart_names
from ipu_exec.options import Options

logger = logging.getLogger("ipu_exec")


_SCALING = "automaticLossScalingSettings."
# of PopART's SessionOptions, those that PopTorch has, by the kind of value that they take
_KINDS = {
    "bool": ("flags",),
    "uint64": ("numbers", "flags"),
    "floating point": ("fractions", "numbers"),
    "string": ("texts",),
    "set / vector": ("lists",),
    "map": ("tables",),
}
_OWN = ("patterns", "patterns_level", "patternsLevel")  # set by `Options._Popart.setPatterns`
_PHASED, _SHARDED, _PIPELINED = 2, 1, 0


def log_options(options: Options) -> None:
    """Log every option in the debug log. Error for a setting that PopART does not have."""
    settings = check_popart(options._Popart.settings)
    if options.use_model is not None:
        state = "Enabled" if options.use_model else "Disabled"
        logger.info("From the user configuration: Ipu model: %s", state)
    if not logger.isEnabledFor(logging.DEBUG):
        return
    for name, value in {**dict(_named(options)), **settings}.items():
        _log(name, value)
    for tensors, location in options.TensorLocations.toDict().items():
        for name, value in location.named().items() if tensors != "num_io_tiles" else ():
            logger.debug("Setting %s to %d for location %s", name, value, tensors)


def validate(named: Mapping[str, Any]) -> None:
    """Check and log the result of `Options.toDict`."""
    prefix = "_Popart."
    settings = {
        name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)
    }
    for name, value in check_popart(settings).items():
        _log(name, value)
    for name, value in named.items():
        if "." not in name and isinstance(value, (bool, int, str)):
            _log(name, value)


def check_popart(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check PopART's settings. Error for an unknown name or a value of the wrong kind."""
    checked = {name: value for name, value in settings.items() if name not in _OWN}
    for name, value in checked.items():
        kind = _kind(name, value)
        if not any(name in popart_names()[group] for group in _KINDS[kind]):
            raise Error(f"Unknown {kind} option {name}: PopART has no such setting")
    return checked


def _kind(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, Enum)):
        return "uint64"
    if isinstance(value, float):
        return "floating point"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (set, frozenset, list, tuple)):
        return "set / vector"
    if isinstance(value, Mapping):
        return "map"
    raise Error(f"Unknown value type {type(value).__name__} for option {name}")


def _log(name: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            logger.debug("poptorch.Options set %s[%s] to %s", name, key, item)
    elif isinstance(value, (set, frozenset, list, tuple)):
        for item in value:
            logger.debug("poptorch.Options added %s to %s", item, name)
    else:
        shown = str(value).lower() if isinstance(value, bool) else value
        shown = shown.value if isinstance(shown, Enum) else shown
        logger.debug("poptorch.Options set %s to value %s", name, shown)


def _named(options: Options) -> Iterator[tuple[str, Any]]:
    """The settings, by the names under which PopTorch passes them on."""
    names = (
        "replication_factor device_iterations output_mode output_return_period connection_type"
        " sync_pattern auto_round_num_ipus input_group_size broadcast_buffers log_dir"
    )
    for name in names.split():
        yield name, options.toDict()[name]
    yield "input_cgt", options.input_group_type.value
    for name in ("random_seed", "ipu_id", "max_repeat_logs"):
        if getattr(options, name) is not None:
            yield name, getattr(options, name)
    if options.use_model is not None:
        yield "use_model", options.use_model
    if options.model_name:
        yield "model_name", options.model_name
    yield from _strategy(options)
    training = options.Training
    yield "gradient_accumulation", training.gradient_accumulation
    reduction = training.accumulation_and_replication_reduction_type
    yield "accumulation_and_replication_reduction_type", reduction
    strategy = training.mean_accumulation_and_replication_reduction_strategy
    yield "meanAccumulationAndReplicationReductionStrategy", strategy
    yield _SCALING + "enabled", training.automatic_loss_scaling
    yield "num_distributed_processes", options.Distributed.numProcesses
    yield "distributed_process_id", options.Distributed.processId
    precision = options.Precision
    yield "enableStochasticRounding", precision.stochastic_rounding
    yield "enableFloatingPointChecks", precision.floating_point_exceptions
    if precision.partials_type:
        partials = {"float32": "float", "float16": "half"}[precision.partials_type]
        yield "partialsTypeMatMuls", partials
        yield "convolutionOptions", {"partialsType": partials}
    yield from _on_and_off(options)


def _strategy(options: Options) -> Iterator[tuple[str, Any]]:
    strategy = options.execution_strategy
    if isinstance(strategy, PhasedExecution):
        yield "execution_mode", _PHASED
        yield "serial_phases_execution", not strategy.parallel
        yield "separate_backward_phase", strategy.separate_backward_phase
        yield "tensors_liveness", strategy.liveness
    else:
        yield "execution_mode", _SHARDED if isinstance(strategy, ShardedExecution) else _PIPELINED


def _on_and_off(options: Options) -> Iterator[tuple[str, Any]]:
    if options.synthetic_data:
        yield "syntheticDataMode", 2
    if options.executable_cache:
        yield "cachePath", options.executable_cache
    yield "enableEngineCaching", bool(options.executable_cache)
    if options.stable_norm:
        yield "enableStableNorm", True
    if options.log_cycle_count:
        yield "instrumentWithHardwareCycleCounter", True
    if options.TensorLocations.num_io_tiles:
        yield "numIOTiles", options.TensorLocations.num_io_tiles
    if options.updatable_named_buffers:
        yield "updatableNamedBuffers", options.updatable_named_buffers
