"""Placement files: which Blocks are a stage, and on which IPU.

Written by ``ipu-report rebalance -o``.

A file is JSON: ``{"format": "ipuscope placement", "version": 1, "stages": [{"ipu": 0, "blocks":
["B1"]}, ...]}``.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from ipu_exec.annotations import Stage
from ipu_exec.errors import Error

FORMAT, VERSION = "ipuscope placement", 1


def load_stages(path: str | os.PathLike[str]) -> tuple[Stage, ...]:
    """The stages of a placement file. Error where it is none, or has a Block twice."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
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
    if content.get("version") != VERSION:
        raise Error(
            f"placement {path} has version {content.get('version')!r}; this IPUscope reads"
            f" {VERSION}"
        )
    stages = content.get("stages")
    if not isinstance(stages, list) or not stages:
        raise Error(f"placement {path} has no stages")
    found = tuple(_stage(path, number, stage) for number, stage in enumerate(stages))
    seen: dict[str, int] = {}
    for number, stage in enumerate(found):
        for block in stage.blocks:
            if block in seen:
                raise Error(
                    f"placement {path} has Block {block!r} in stage {seen[block]} and in stage"
                    f" {number}: a Block is in one stage. Take it out of one of them"
                )
            seen[block] = number
    return found


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


@dataclass(frozen=True, slots=True)
class Proposal:
    """What ``ipu-run --num-ipus`` chose beside stages.

    ``modules`` begin a Block of their own name; none where the script has Blocks. A call is cut
    into at least ``micro_batches``.
    """

    modules: tuple[str, ...]
    micro_batches: int


def load_proposal(path: str | os.PathLike[str]) -> Proposal | None:
    """The proposal of a placement file that `load_stages` takes; None where it has none.

    Error where it is not one.
    """
    with open(path, encoding="utf-8") as file:
        proposal = json.load(file).get("proposed")
    if proposal is None:
        return None
    try:
        modules, micro_batches = proposal["modules"], int(proposal["micro_batches"])
    except (TypeError, KeyError, ValueError):
        raise Error(
            f"placement {path}: 'proposed' has 'modules', a list of names, and 'micro_batches', a"
            " number"
        ) from None
    return Proposal(tuple(str(name) for name in modules), micro_batches)
