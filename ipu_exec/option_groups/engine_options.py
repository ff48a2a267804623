"""Poplar's engine options, and names of PopART's: which are known, which are not honoured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ipu_exec.base.user_tracebacks import warn_once
from ipu_exec.errors import UsageError
from ipuscope.profiler.file import from_json
from ipuscope.words import did_you_mean

DEFAULT_RUN_COUNT = 2  # runs stored in a profile (docs/libpva.md#engine-options)
_NAMES = Path(__file__).with_name("popart_names.json")
_TARGET = "opt.internalExchangeOptimisationTarget"
_REPORTS = """
    all directory executionProfileProgramRunCount outputArchive outputDebugInfo streamAtEachRun
    outputExecutionProfile outputGraphProfile outputLoweredVars outputSerializedGraph
"""


@dataclass(frozen=True, slots=True)
class Profiling:
    """The autoReport settings: whether to write a profile, where, and how many runs it contains."""

    enabled: bool
    directory: Path
    execution: bool  # runs too, not only what was compiled
    run_count: int
    debug_info: bool = False  # debug.cbor beside it


def engine_options_of(environment: Mapping[str, str]) -> dict[str, Any]:
    """Poplar's engine options in an environment. UsageError where they are no JSON object."""
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


@cache
def popart_names() -> Mapping[str, Sequence[str]]:
    """PopART's settings by the kind of their values, and ``patterns``, of SDK 3.4.

    [POPART, willow/include/popart/sessionoptions.hpp, willow/src/patterns]; SparseAccumulate is of
    older ones.
    """
    names: Mapping[str, Sequence[str]] = from_json.loads(_NAMES.read_text(encoding="utf-8"))
    return names


def warn_of_unknown(kind: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Warn of each name that is none of the ``known`` ones."""
    for name in sorted(set(names).difference(known)):
        near = did_you_mean(name, known)
        warn_once(f"there is no {kind} {name!r}, so it has no effect{near}")


def warn_of_engine_options(engine: Mapping[str, Any]) -> None:
    """Warn of each option that is set to what is not modelled, and of reports that are unknown."""
    reports = [name for name in engine if name.lower().startswith("autoreport.")]
    warn_of_unknown("engine option", reports, [f"autoReport.{name}" for name in _REPORTS.split()])
    if str(engine.get(_TARGET, "cycles")).lower() != "cycles":
        warn_once(
            f"the engine option {_TARGET} is recorded in the profile, but not honoured: exchanges"
            " take the fewest cycles, so the code of exchanges may be larger here"
        )


def engine_flag(engine: Mapping[str, Any], name: str, default: bool) -> bool:
    """An engine option that is "true" or "false". UsageError for anything else."""
    value = str(engine.get(name, default)).lower()
    if value not in ("true", "false"):
        raise UsageError(f'{name} is "true" or "false", not {value!r}')
    return value == "true"


# -- Environment variables by which `ipu-run` and users set options of a script ---


ENGINE_OPTIONS_VARIABLE = "POPLAR_ENGINE_OPTIONS"
PLACEMENT_VARIABLE = "IPUSCOPE_PLACEMENT"  # a placement file for all options
KEEP_VARIABLE = "IPUSCOPE_NUM_IPUS"  # of a plan for --num-ipus: "alone", or "instances"
COMPILE_ONLY_VARIABLE = "IPUSCOPE_COMPILE_ONLY"  # end the script when its training is compiled
LEVERS_VARIABLE = "IPUSCOPE_LEVERS"  # what a compile changes of the script
COMMAND_VARIABLE = "IPUSCOPE_COMMAND"  # JSON: the words of ipu-run, for the profile
NO_SOURCE_VARIABLE = "IPUSCOPE_NO_SOURCE"  # leave the user's files out of profiles
LENIENT_VARIABLE = "IPUSCOPE_LENIENT"  # let pass what only hardware forbids
DEFAULTS_VARIABLE = "POPTORCH_DEFAULT_OPTIONS"  # JSON that all options begin from
TARGET_VARIABLE = "IPUSCOPE_TARGET"  # the machine that options without a target of their own model
