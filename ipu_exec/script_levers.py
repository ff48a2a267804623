"""Levers: changes that another compile makes to a script's settings, without editing the script.

``ipu-run --with half,micro-batch=8,outputs=loss train.py`` compiles as if they had been made, and
ends there. ``ipu-report advise --check`` compares its predictions with such compiles.
`ipuscope.planner.advice.code` expresses a lever in a script's own terms.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from ipu_exec.enums import OutputMode
from ipu_exec.errors import Error, warn_once
from ipu_exec.option_groups.engine_options import LEVERS_VARIABLE
from ipu_exec.option_groups.tensor_locations import TensorLocationSettings
from ipu_exec.options import Options

_LEVERS = (
    "half, float, micro-batch=N, micro-batches=N (of a weight update; device iterations in"
    " inference), recompute=yes|no, outputs=all|final|loss, state=on-chip|off-chip|in-parts, and"
    " options that take a number, as Training.gradientAccumulation=16"
)
_OUTPUTS = ("all", "final", "loss")
_STATES = ("on-chip", "off-chip", "in-parts")
_RECOMPUTATION = {"yes": 3, "no": 0}  # PopART's RecomputationType: Pipeline, None


@dataclass(frozen=True, slots=True)
class Levers:
    """The changes; a default leaves the script's setting.

    ``precision`` "half" or "float"; ``micro_batch`` in samples; ``micro_batches`` per weight
    update (device iteration in inference); ``recompute`` "yes" or "no"; ``outputs`` and ``state``
    as `parse` accepts them.
    """

    precision: str = ""
    micro_batch: int = 0
    micro_batches: int = 0
    recompute: str = ""
    outputs: str = ""
    state: str = ""
    text: str = field(default="", compare=False)
    # options by dotted name, and the number each is set to
    options: tuple[tuple[str, int], ...] = ()

    def __bool__(self) -> bool:
        return self != Levers()


def parse(text: str, option: str = "--with") -> Levers:
    """Levers as ``--with`` accepts them, separated by commas; Error (of ``option``) if unknown."""
    levers = Levers(text=text)
    for word in filter(None, (part.strip() for part in text.split(","))):
        pulled = _one(word, option)
        pulled["options"] = (*levers.options, *pulled.get("options", ()))
        levers = replace(levers, **pulled)
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
        return {"precision": word}
    if name in ("micro-batch", "micro-batches") and value.isdecimal() and int(value) > 0:
        return {name.replace("-", "_"): int(value)}
    if _is_option(name) and value.isdecimal():
        return {"options": ((name, int(value)),)}
    choices = {"recompute": tuple(_RECOMPUTATION), "outputs": _OUTPUTS, "state": _STATES}
    if value in choices.get(name, ()):
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
    if levers.recompute:
        options._Popart.set("autoRecomputation", _RECOMPUTATION[levers.recompute])
    if levers.outputs:
        once = levers.outputs != "all"
        options.outputMode(OutputMode.Final if once and training else OutputMode.All)
    if levers.state == "in-parts" and int(options.replication_factor) == 1:
        warn_once(
            "--with state=in-parts changes nothing with one replica, which has all the state: set"
            " Options.replicationFactor in the script, or say state=off-chip"
        )
    if levers.state:
        options.TensorLocations.setOptimizerLocation(_location(levers.state))
    options._freeze()
    return options


def _location(state: str) -> TensorLocationSettings:
    settings = TensorLocationSettings().useOnChipStorage(state != "off-chip")
    return settings.useReplicatedTensorSharding(state == "in-parts")
