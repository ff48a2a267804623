"""Parsing splits as people write them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment
from ipuscope.profiler.file import from_json

_FORMS = (
    "a stage for each Block (0,0,1,2), Blocks a stage (2-1-1), names (A,B/C@1/D), or a placement"
    " file"
)


def profiled(costs: Costs) -> Assignment:
    """The split that was profiled. ValueError if its stages do not follow the Blocks' order."""
    assignment = Assignment.of(costs.stage.tolist(), costs.ipus)
    return replace(assignment, choices=costs.choices)


def parse_assignment(
    names: Sequence[str], words: str, ipus: Sequence[int] | None = None, costs: Costs | None = None
) -> Assignment:
    """A split from words, over Blocks of these names in the order of the model.

    A stage for each Block ("0,0,1,2"), how many Blocks each stage has ("2-1-1"), names with stages
    parted by "/" and an IPU behind "@" ("A,B/C@1/D@0"; default: as the stages count), or the path
    of a placement file, whose choices count with the profile's ``costs``. ``ipus`` replaces any
    IPUs. ValueError says what is wrong.
    """
    words, listed = words.strip(), None if ipus is None else list(ipus)
    in_file: list[dict[str, Any]] = []
    if os.path.isfile(words):
        stages, own, in_file = _load(names, words)
    elif re.fullmatch(r"\d+(\s*,\s*\d+)*", words) and not (
        words.isdecimal() and int(words) == len(names) > 1
    ):
        stages, own = [int(part) for part in words.split(",")], None
        if len(stages) != len(names):
            raise ValueError(
                f"{words!r} has {len(stages)} stages for {len(names)} Blocks ({', '.join(names)}): "
                "give one for each Block"
            )
    elif re.fullmatch(r"\d+(-\d+)*", words):
        sizes = [int(part) for part in words.split("-")]
        if sum(sizes) != len(names) or 0 in sizes:
            raise ValueError(
                f"{words!r} gives {sum(sizes)} Blocks to stages, but there are {len(names)}, and"
                " each stage has at least one"
            )
        stages, own = [k for k, size in enumerate(sizes) for _ in range(size)], None
    else:
        stages, own = _from_names(names, words)
    assignment = Assignment.of(stages, listed or own)
    if len(assignment.ipus) != len(assignment.starts):
        raise ValueError(
            f"{len(assignment.starts)} stages need as many IPUs, not {len(assignment.ipus)}: "
            f"{','.join(map(str, assignment.ipus))}"
        )
    return assignment if costs is None else replace(assignment, choices=_choices(costs, in_file))


def _choices(costs: Costs, stages: Sequence[dict[str, Any]]) -> tuple[Choice, ...]:
    """How the stages of a placement file save memory; empty where all do as profiled."""
    usual = costs.own_choice

    def value(stage: dict[str, Any], name: str, otherwise: bool) -> bool:
        return otherwise if stage.get(name) is None else bool(stage[name])

    chosen = tuple(
        Choice(
            value(stage, "recompute", usual.recompute),
            value(stage, "state_off_chip", usual.offload),
        )
        for stage in stages
    )
    return costs.named_choices(chosen)


def _from_names(names: Sequence[str], words: str) -> tuple[list[int], list[int]]:
    stage: dict[str, int] = {}
    ipus = []
    for k, part in enumerate(words.split("/")):
        listed, _, ipu = part.partition("@")
        if ipu and not ipu.strip().isdecimal():
            raise ValueError(f"{ipu!r} is not an IPU; a split is {_FORMS}")
        ipus.append(int(ipu) if ipu else k)
        for name in (name.strip() for name in listed.split(",")):
            if name not in names:
                raise ValueError(
                    f"{name!r} is not a Block; they are {', '.join(names)}. A split is {_FORMS}"
                )
            if name in stage:
                raise ValueError(
                    f"Block {name!r} is in stage {stage[name]} and in stage {k}: it can be in one"
                )
            stage[name] = k
    return _all(names, stage, words), ipus


def _load(names: Sequence[str], path: str) -> tuple[list[int], list[int], list[dict[str, Any]]]:
    try:
        with open(path, encoding="utf-8") as file:
            content = from_json.loads(file.read())
        stages = content["stages"]
        stage = {str(name): k for k, one in enumerate(stages) for name in one["blocks"]}
        ipus = [int(one["ipu"]) for one in stages]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a placement file ({error}): create one with"
            " ipu-report rebalance PROFILE -o FILE"
        ) from error
    return _all(names, stage, path), ipus, stages


def _all(names: Sequence[str], stage: dict[str, int], words: str) -> list[int]:
    missing = [name for name in names if name not in stage]
    if missing or len(stage) > len(names):
        unknown = [name for name in stage if name not in names]
        what = (
            f"leaves out {', '.join(missing)}"
            if missing
            else f"names {', '.join(unknown)}, which the model does not have"
        )
        raise ValueError(f"{words} {what}")
    return [stage[name] for name in names]


def in_address(assignment: Assignment) -> str:
    """A split as written in the viewer's address: ``0,3,5``, or ``0,3,5@0,1,0`` with its IPUs."""
    starts = ",".join(map(str, assignment.starts))
    if assignment.ipus == tuple(range(len(assignment.ipus))):
        return starts
    return f"{starts}@{','.join(map(str, assignment.ipus))}"
