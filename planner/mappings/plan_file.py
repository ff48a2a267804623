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

from ipuscope.planner.mappings.mapping import StagePlan
from ipuscope.planner.mappings.plan import SHARES, Candidate, Plan

FORMAT, VERSION = "ipuscope placement", 2
MOST_BYTES = 64 << 20
MAX_IPUS = 256


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
        **({"proposed": {"modules": list(plan.modules)}} if plan.modules else {}),
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
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PlanError(path, f"is broken: its plan makes no sense ({error!r})") from error


def _plan(content: dict[str, Any]) -> Plan:
    """The plan; ValueError, TypeError or KeyError where it is none."""
    import msgspec  # which --help goes without

    blocks = content["blocks"]
    for candidate in content["candidates"]:
        for stage in candidate["mapping"]["stages"]:
            first, count = stage["blocks"]
            stage["blocks"] = blocks[first : first + count]
    plan = msgspec.convert(content, Plan)
    if not plan.candidates:
        raise ValueError("there are no candidates")
    for candidate in plan.candidates:
        _check(candidate, plan.blocks)
    return plan


def _check(candidate: Candidate, blocks: tuple[str, ...]) -> None:
    """ValueError for numbers that no mapping has."""
    mapping = candidate.mapping
    if tuple(name for stage in mapping.stages for name in stage.blocks) != blocks:
        raise ValueError("its stages do not have every Block once")
    if not set(SHARES) <= set(candidate.shares):
        raise ValueError(f"its shares are not {', '.join(SHARES)}")
    counts = (mapping.shards, mapping.replicas, mapping.micro_batch, mapping.accumulation)
    if min(*counts, mapping.phases) < 1:
        raise ValueError(f"{mapping} has numbers below 1")
    for stage in mapping.stages:
        if not (0 <= stage.ipu < MAX_IPUS and 0 <= stage.phase < len(blocks)):
            raise ValueError(f"a stage is on IPU {stage.ipu} in phase {stage.phase}")
