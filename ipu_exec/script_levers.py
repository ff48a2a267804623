"""Levers: changes that another compile makes to a script's settings, without editing the script.

``ipu-run --with half,micro-batch=8,outputs=loss train.py`` compiles as if they had been made, and
ends there. ``ipu-report advise --check`` compares its predictions with such compiles.
`ipuscope.planner.advice.code` expresses a lever in a script's own terms.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import reduce
from typing import Any

from ipu_exec.annotations import PipelinedExecution, ShardedExecution
from ipu_exec.base.user_tracebacks import warn_once
from ipu_exec.enums import OutputMode
from ipu_exec.errors import Error
from ipu_exec.option_groups.engine_options import LEVERS_VARIABLE
from ipu_exec.option_groups.tensor_locations import TensorLocationSettings
from ipu_exec.options import Options
from ipuscope.planner.levers.settings import IO_TILES, STATES, Levers

_LEVERS = (
    "half, float, micro-batch=N, micro-batches=N (of a weight update; device iterations in"
    " inference), replicas=N, recompute=yes|no, outputs=all|final|loss,"
    " state=on-chip|off-chip|in-parts, overlap (of host I/O), and options that take a number, as"
    " Training.gradientAccumulation=16"
)
_NUMBERS = ("micro-batch", "micro-batches", "replicas")
_OUTPUTS = ("all", "final", "loss")
_YES_NO = {"yes": True, "no": False}
_PIPELINE = 3  # PopART's RecomputationType; 0: None


def parse(text: str, option: str = "--with") -> Levers:
    """Levers as ``--with`` accepts them, separated by commas; Error (of ``option``) if unknown."""
    levers = Levers()
    for word in filter(None, (part.strip() for part in text.split(","))):
        pulled = _one(word, option)
        pulled["options"] = (*levers.options, *pulled.get("options", ()))
        levers = replace(levers, **pulled)
    if levers.overlap and levers.outputs == "final":
        raise Error(f"{option} outputs=final,overlap: what leaves once has nothing to run beside")
    return levers


def _is_option(name: str) -> bool:
    """Whether a dotted name is a method of the options, such as "Training.gradientAccumulation"."""
    place: Any = Options()
    for part in name.split("."):
        if part.startswith("_") or (not hasattr(type(place), part) and part not in vars(place)):
            return False
        place = getattr(place, part)
    return callable(place)


def _one(word: str, option: str) -> dict[str, Any]:
    name, _, value = word.partition("=")
    if word in ("half", "float"):
        return {"half": word == "half"}
    if word == "overlap":
        return {"overlap": True}
    if name in _NUMBERS and value.isdecimal() and int(value) > 0:
        return {name.replace("-", "_"): int(value)}
    if _is_option(name) and value.isdecimal():
        return {"options": ((name, int(value)),)}
    if name == "recompute" and value in _YES_NO:
        return {name: _YES_NO[value]}
    if value in {"outputs": _OUTPUTS, "state": STATES}.get(name, ()):
        return {name: value}
    raise Error(f"{option} {word!r} is not a lever. There are: {_LEVERS}")


def asked() -> Levers:
    """The levers of ``ipu-run --with`` for this process."""
    return parse(os.environ.get(LEVERS_VARIABLE, ""))


def changed_options(options: Options, levers: Levers, training: bool) -> Options:
    """A copy of the options, with the levers applied that are options."""
    options = options.clone()
    for name, value in levers.options:
        *groups, method = name.split(".")
        getattr(reduce(getattr, groups, options), method)(value)
    if levers.micro_batches and training:
        options.Training.gradientAccumulation(levers.micro_batches)
    elif levers.micro_batches:
        options.deviceIterations(levers.micro_batches)
    if levers.replicas:
        options.replicationFactor(levers.replicas)
    if levers.recompute is not None:
        options._Popart.set("autoRecomputation", _PIPELINE if levers.recompute else 0)
    if levers.outputs:
        once = levers.outputs != "all"
        options.outputMode(OutputMode.Final if once and training else OutputMode.All)
    if levers.overlap:
        _overlap(options, training)
    if levers.state == "in-parts" and int(options.replication_factor) == 1:
        warn_once(
            "--with state=in-parts changes nothing with one replica, which has all the state: set"
            " Options.replicationFactor in the script, or say state=off-chip"
        )
    if levers.state:
        options.TensorLocations.setOptimizerLocation(_location(levers.state))
    options._freeze()
    return options


def _overlap(options: Options, training: bool) -> None:
    """Set what PopTorch needs for inputs and outputs beside other iterations' compute."""
    strategy = options.execution_strategy
    if isinstance(strategy, PipelinedExecution) and not strategy.phases:
        options.setExecutionStrategy(ShardedExecution(*(strategy.stages or (strategy.auto_stage,))))
    if not options.TensorLocations.num_io_tiles:
        options.TensorLocations.numIOTiles(IO_TILES)
    options.outputMode(OutputMode.All)
    if training:
        options.deviceIterations(max(2, options.device_iterations))


def _location(state: str) -> TensorLocationSettings:
    settings = TensorLocationSettings().useOnChipStorage(state != "off-chip")
    return settings.useReplicatedTensorSharding(state == "in-parts")
