"""plan.json: a plan to keep, to look at, and to run scripts with; checked here, once.

It is a placement file of its best mapping (``ipu-run --placement plan.json train.py``), with all
candidates for the viewer.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ipuscope.planner.mappings.mapping import Mapping, StagePlan
from ipuscope.planner.mappings.plan import SHARES, Candidate, Obtained, Plan
from ipuscope.planner.mappings.question import Question

FORMAT, VERSION = "ipuscope placement", 2
MOST_BYTES = 64 << 20


class PlanError(Exception):
    """A file that is not a plan: says which file, what is wrong and how to fix it."""

    def __init__(self, path: str | os.PathLike[str], problem: str) -> None:
        super().__init__(
            f"{os.fspath(path)} {problem}. Make one with:"
            " ipu-run --plan 16 --write plan.json SCRIPT"
        )


def content(plan: Plan) -> dict[str, Any]:
    """The file's JSON."""
    return {**placement(plan, plan.best), "plan": _plan_content(plan)}


def placement(plan: Plan, candidate: Candidate) -> dict[str, Any]:
    """A candidate as ``ipu-run --placement`` takes it."""
    mapping = candidate.mapping
    shares = {str(ipu): share for ipu, share in sorted(mapping.proportions.items())}
    promise = {
        "cycles": candidate.cycles,
        "fullest": candidate.fullest,
        "micro_batches": mapping.accumulation,
        "samples": mapping.samples,
    }
    proposed = {"modules": list(plan.modules), "micro_batches": mapping.accumulation}
    return {
        "format": FORMAT,
        "version": VERSION,
        "stages": [_stage(stage, mapping.in_phases) for stage in mapping.stages],
        **({"memory_proportion": shares} if shares else {}),
        "mapping": {
            "kind": "training" if plan.question.training else "inference",
            "shards": mapping.shards,
            "replicas": mapping.replicas,
            "micro_batch": mapping.micro_batch,
            "accumulation": mapping.accumulation,
            "state_in_parts": mapping.in_parts,
            "script_samples": plan.script_samples or mapping.samples,
        },
        **({"proposed": proposed} if plan.modules else {}),
        **({"levers": plan.levers} if plan.levers else {}),
        "planned": promise,
    }


def _stage(stage: StagePlan, in_phases: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"ipu": stage.ipu, "blocks": list(stage.blocks)}
    if stage.recompute is not None:
        content["recompute"] = stage.recompute
    if in_phases:
        return {**content, "phase": stage.phase}
    return {**content, "state_off_chip": stage.state_off_chip}


def _plan_content(plan: Plan) -> dict[str, Any]:
    content = asdict(plan)
    content["question"]["fixed"] = dict(plan.question.fixed)
    index = {name: number for number, name in enumerate(plan.blocks)}
    for candidate in content["candidates"]:  # a stage's Blocks by where they begin and how many
        for stage in candidate["mapping"]["stages"]:
            blocks = stage["blocks"]
            stage["blocks"] = [index[blocks[0]], len(blocks)]
    return content


def save(plan: Plan, path: str | os.PathLike[str]) -> Path:
    """Write the plan atomically: a reader sees the old file or the new one."""
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(content(plan), indent=1), encoding="utf-8")
    os.replace(partial, target)
    return target


def load(path: str | os.PathLike[str]) -> Plan:
    """The plan in a file. PlanError where it is not one."""
    from ipuscope.profiler.file import from_json  # with numpy, which --help goes without

    try:
        if os.path.getsize(path) > MOST_BYTES:
            raise PlanError(path, f"has over {MOST_BYTES >> 20} MiB: no plan is as large")
        content = from_json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(path, f"is not JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise PlanError(path, "is not a plan")
    if not isinstance(content.get("plan"), dict):
        raise PlanError(path, "is a placement file, and holds no plan beside it")
    try:
        return _plan(content["plan"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise PlanError(path, f"is broken: its plan makes no sense ({error!r})") from error


def _plan(content: dict[str, Any]) -> Plan:
    blocks = _strings(content["blocks"])
    candidates = tuple(_candidate(one, blocks) for one in content["candidates"])
    if not candidates:
        raise ValueError("there are no candidates")
    return Plan(
        _question(content["question"]),
        candidates,
        blocks,
        _strings(content["why"]),
        _number(content["gap"]),
        _strings(content["left_out"]),
        str(content["stopped"]),
        _strings(content["modules"]),
        str(content["model"]),
        str(content["command"]),
        str(content.get("levers", "")),
        int(content["compiles"]),
        int(content["cached"]),
        _number(content["seconds"]),
        _number(content["clock_hz"]),
        _strings(content["notes"]),
        int(content["script_samples"]),
    )


def _question(content: dict[str, Any]) -> Question:
    return Question(
        int(content["ipus"]),
        int(content["global_batch"]),
        tuple(int(one) for one in content["micro_batches"]),
        tuple(_number(one) for one in content["proportions"]),
        tuple(int(one) for one in content["shards"]),
        {str(name): value for name, value in content["fixed"].items()},
        str(content["objective"]),
        _number(content["budget"]),
        bool(content["training"]),
        _strings(list(content.get("suggested", ()))),
        tuple(one is True for one in content.get("keeps", [False])),
    )


def _candidate(content: dict[str, Any], blocks: tuple[str, ...]) -> Candidate:
    came = content["obtained"]
    return Candidate(
        _mapping(content["mapping"], blocks),
        int(content["cycles"]),
        _number(content["samples_per_second"]),
        _number(content["seconds"]),
        int(content["fullest"]),
        int(content["limit"]),
        str(content["memory"]),
        {name: _number(content["shares"][name]) for name in SHARES},
        bool(content["proven"]),
        _number(content["gap"]),
        None
        if came is None
        else Obtained(int(came["cycles"]), int(came["fullest"]), str(came["problem"])),
        _number(content.get("error", 0.0)),
        content.get("own") is True,
    )


def _mapping(content: dict[str, Any], blocks: tuple[str, ...]) -> Mapping:
    stages = tuple(_stage_plan(stage, blocks) for stage in content["stages"])
    if sum(len(stage.blocks) for stage in stages) != len(blocks):
        raise ValueError("its stages do not have every Block once")
    return Mapping(
        _positive(content["shards"]),
        _positive(content["replicas"]),
        stages,
        _positive(content["micro_batch"]),
        _positive(content["accumulation"]),
        _number(content["proportion"]),
        bool(content["in_parts"]),
        _positive(content["phases"]),
    )


def _stage_plan(content: dict[str, Any], blocks: tuple[str, ...]) -> StagePlan:
    first, count = (int(one) for one in content["blocks"])
    stage_blocks = blocks[first : first + count]
    if first < 0 or count < 1 or len(stage_blocks) != count:
        raise ValueError(f"Blocks {first} to {first + count} of {len(blocks)}")
    recompute = content["recompute"]
    if recompute is not None and not isinstance(recompute, bool):
        raise ValueError(f"recompute is {recompute!r}")
    ipu = int(content["ipu"])
    if not 0 <= ipu < 256:
        raise ValueError(f"IPU {ipu}")
    phase = int(content.get("phase", 0))
    if not 0 <= phase < len(blocks):
        raise ValueError(f"phase {phase}")
    off_chip, proportion = bool(content["state_off_chip"]), _number(content.get("proportion", 0.0))
    return StagePlan(ipu, stage_blocks, recompute, off_chip, phase, proportion)


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, not {value!r}")
    return tuple(str(one) for one in value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"expected a number, not {value!r}")
    return float(value)


def _positive(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"expected a positive integer, not {value!r}")
    return value
