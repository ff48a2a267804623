"""Placement files: which Blocks are a stage, and on which IPU.

Written by ``ipu-report rebalance -o``.

A file is JSON: ``{"format": "ipuscope placement", "version": 1, "stages": [{"ipu": 0, "blocks":
["B1"]}, ...]}``.
"""

from __future__ import annotations

import json
import os
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
