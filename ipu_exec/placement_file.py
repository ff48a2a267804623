"""Placement files: the Blocks of each stage, its IPU, and how it saves memory.

``ipu-report rebalance -o`` writes them, ``ipu-run --placement`` reads them. JSON: ``{"format":
"ipuscope placement", "version": 2, "stages": [{"ipu": 0, "blocks": ["B1"], "recompute": true,
"state_off_chip": false}, ...], "memory_proportion": {"0": 0.2}, "accumulation": 16, "promise":
{...}}``. The script's options replace settings that a stage leaves out. Blocks from an IPU with
another memory proportion keep theirs, as they were profiled: ``"memory_proportions": {"B1":
0.25}`` of a stage. The promise is the prediction, for ``ipu-report runs``. Version 1 had stages
with Blocks and IPUs only.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from typing import Any

from ipu_exec.annotations import ExecutionStrategy, Phase, PipelinedExecution, Stage
from ipu_exec.errors import Error
from ipuscope.profiler.file import from_json

FORMAT, VERSIONS = "ipuscope placement", (1, 2)
_BLOCK_SHARES = "memory_proportions"  # of a stage's Blocks


@dataclass(frozen=True, slots=True)
class StageChoice:
    """How a stage saves memory; None: as the options set for all."""

    recompute: bool | None = None
    state_off_chip: bool | None = None


@dataclass(frozen=True, slots=True)
class PlannedMapping:
    """The part of a plan (``ipu-run --plan ... --write``) besides stages.

    ``kind``: "training" or "inference"; ``shards`` t, ``replicas`` r, ``micro_batch`` samples,
    ``accumulation`` micro-batches of a weight update (device iterations in inference),
    ``state_in_parts`` on replicas; ``script_samples``: of a weight update without the plan.
    """

    kind: str
    shards: int
    replicas: int
    micro_batch: int
    accumulation: int
    state_in_parts: bool
    script_samples: int

    @property
    def samples(self) -> int:
        """Samples of a weight update (a device iteration in inference), over all replicas."""
        return self.micro_batch * self.accumulation * self.replicas

    def to_json(self) -> dict[str, Any]:
        """For the profile's options."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PlacementFile:
    """The content of a file. ``choices`` has one per stage."""

    stages: tuple[Stage, ...]
    choices: tuple[StageChoice, ...]
    proportions: dict[int, float]  # of an IPU's memory that a product may use
    block_proportions: dict[str, float]  # ... of Blocks with another than their IPU's
    accumulation: int | None  # micro-batches of a weight update; None: as the options say
    mapping: PlannedMapping | None = None  # of a plan
    phases: tuple[int, ...] = ()  # of each stage, where each phase is a pipeline

    @property
    def parts(self) -> tuple[Stage, ...] | tuple[Phase, ...]:
        """The stages, or the phases that have them, as a strategy takes them."""
        if not self.phases:
            return self.stages
        numbered = zip(self.phases, self.stages, strict=True)
        runs = groupby(numbered, key=lambda pair: pair[0])
        return tuple(Phase(*(stage for _, stage in run)) for _, run in runs)

    def strategy(self, of_script: type[ExecutionStrategy]) -> ExecutionStrategy:
        """The strategy with these parts: the script's, a pipeline where a plan is of several."""
        alone = len(self.stages) == 1 and of_script.kind == "sharded"
        kept = self.mapping is None or alone
        return (of_script if kept else PipelinedExecution)(*self.parts)


def load_stages(path: str | os.PathLike[str]) -> tuple[Stage, ...] | tuple[Phase, ...]:
    """The stages of a placement file, or its phases. Error if it is none, or has a Block twice."""
    return load(path).parts


def load(path: str | os.PathLike[str]) -> PlacementFile:
    """The whole content of a placement file. Error if it is not one, or has a Block twice."""
    content = _content(path)
    stages = content.get("stages")
    if not isinstance(stages, list) or not stages:
        raise Error(f"placement {path} has no stages")
    places = tuple(_stage(path, number, stage) for number, stage in enumerate(stages))
    _check_each_once(path, places)
    choices = tuple(_choice(path, number, stage) for number, stage in enumerate(stages))
    shares = _shares(path, "memory_proportion", content.get("memory_proportion", {}))
    stage_shares = [_shares(path, _BLOCK_SHARES, stage.get(_BLOCK_SHARES, {})) for stage in stages]
    return PlacementFile(
        places,
        choices,
        {_ipu(path, name): share for name, share in shares.items()},
        {block: share for one in stage_shares for block, share in one.items()},
        _accumulation(path, content.get("accumulation")),
        _mapping(path, content.get("mapping")),
        _phases(path, stages),
    )


def _phases(path: Any, stages: list[Any]) -> tuple[int, ...]:
    """The phase of each stage; empty where none says one. They count 0, 1, 2 ..."""
    phases = [stage.get("phase") for stage in stages]
    if all(phase is None for phase in phases):
        return ()
    numbers = [phase for phase in phases if type(phase) is int]
    steps = [after - before for before, after in pairwise(numbers)]
    if len(numbers) < len(phases) or numbers[0] != 0 or any(step not in (0, 1) for step in steps):
        raise Error(
            f"placement {path}: where stages are in phases, each has a 'phase', and these count 0,"
            " 1, 2 ... along the stages"
        )
    return tuple(numbers)


def _content(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            content = from_json.loads(file.read())
    except OSError as error:
        raise Error(f"placement {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Error(
            f"placement {path} is no JSON ({error}). Make one with: ipu-report rebalance PROFILE -o"
            " FILE"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise Error(
            f"{path} is not a placement file. Create one with: ipu-report rebalance PROFILE -o FILE"
        )
    if content.get("version") not in VERSIONS:
        raise Error(
            f"placement {path} has version {content.get('version')!r}; this IPUscope reads"
            f" {' and '.join(map(str, VERSIONS))}"
        )
    return content


def _check_each_once(path: Any, stages: tuple[Stage, ...]) -> None:
    seen: dict[str, int] = {}
    for number, stage in enumerate(stages):
        for block in stage.blocks:
            if block in seen:
                raise Error(
                    f"placement {path} has Block {block!r} in stage {seen[block]} and in stage"
                    f" {number}: a Block is in one stage. Take it out of one of them"
                )
            seen[block] = number


def _stage(path: Any, number: int, stage: Any) -> Stage:
    blocks = stage.get("blocks") if isinstance(stage, dict) else None
    if (
        not isinstance(blocks, list)
        or not blocks
        or not all(isinstance(name, str) for name in blocks)
    ):
        raise Error(
            f"placement {path}: stage {number} needs 'blocks', a list of names, and 'ipu', a number"
        )
    return Stage(*blocks).ipu(stage.get("ipu"))


def _choice(path: Any, number: int, stage: dict[str, Any]) -> StageChoice:
    values = [stage.get(name) for name in ("recompute", "state_off_chip")]
    for value in values:
        if value is not None and not isinstance(value, bool):
            raise Error(
                f"placement {path}: stage {number} has {value!r} where 'recompute' and"
                " 'state_off_chip' are true or false, or left out"
            )
    return StageChoice(*values)


def _shares(path: Any, name: str, given: Any) -> dict[str, float]:
    """Memory proportions by IPU or by Block."""
    try:
        shares = {str(key): float(share) for key, share in given.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise Error(
            f'placement {path}: {name!r} has a share for each, as {{"0": 0.2}}, not {given!r}'
        ) from error
    wrong = [share for share in shares.values() if not 0 <= share <= 1]
    if wrong:
        raise Error(f"placement {path}: a memory proportion is between 0 and 1, not {wrong[0]}")
    return shares


def _ipu(path: Any, name: str) -> int:
    if not name.isdecimal():
        raise Error(f"placement {path}: 'memory_proportion' is by number of IPU, not by {name!r}")
    return int(name)


def _accumulation(path: Any, given: Any) -> int | None:
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
        raise Error(f"placement {path}: 'accumulation' is a number of micro-batches, not {given!r}")
    return given


def _mapping(path: Any, given: Any) -> PlannedMapping | None:
    if given is None:
        return None
    names = ("shards", "replicas", "micro_batch", "accumulation", "script_samples")
    try:
        counts = {name: given[name] for name in names}
        kind, in_parts = given["kind"], given["state_in_parts"]
    except (TypeError, KeyError):
        counts, kind, in_parts = {"": 0}, "", None
    whole = all(type(count) is int and count > 0 for count in counts.values())
    if not whole or kind not in ("training", "inference") or not isinstance(in_parts, bool):
        raise Error(
            f"placement {path}: 'mapping' has a kind, {', '.join(names)}, numbers from 1 on, and"
            " state_in_parts, true or false. Make one with: ipu-run --plan 16 --write FILE SCRIPT"
        )
    return PlannedMapping(kind=kind, state_in_parts=in_parts, **counts)


def load_proposal(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The modules that begin Blocks of their names, of a file that `load_stages` accepts.

    Error if they are invalid.
    """
    modules = _content(path).get("proposed", {"modules": []})
    names = modules.get("modules") if isinstance(modules, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Error(f"placement {path}: 'proposed' has 'modules', a list of names")
    return tuple(names)
