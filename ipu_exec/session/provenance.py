"""How the model of this process is being made, for the header of its profile."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from ipu_exec.graph import Graph
from ipu_exec.option_groups.engine_options import (
    COMMAND_VARIABLE,
    LENIENT_VARIABLE,
    LEVERS_VARIABLE,
    NO_SOURCE_VARIABLE,
    PLACEMENT_VARIABLE,
    TARGET_VARIABLE,
)
from ipuscope.profiler.provenance import digest

_CANDIDATES = "plan"  # of a plan file: everything that was not chosen


def provenance() -> dict[str, Any]:
    """The command, the script, and each setting from outside (`ipuscope.profiler.provenance`)."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    script = os.path.abspath(main) if main else ""
    told = json.loads(os.environ.get(COMMAND_VARIABLE, "{}"))
    return {
        "command": told.get("command", [os.path.basename(sys.executable), *sys.argv]),
        "script": script,
        "digest": digest(script),
        "arguments": sys.argv[1:],
        "num_ipus": told.get("num_ipus", 0),
        "levers": os.environ.get(LEVERS_VARIABLE, ""),
        "target": os.environ.get(TARGET_VARIABLE, ""),
        "lenient": LENIENT_VARIABLE in os.environ,
        "placement": _placement(os.environ.get(PLACEMENT_VARIABLE, "")),
        "seed": torch.initial_seed(),
    }


def _placement(path: str) -> dict[str, Any]:
    """The placement file that the stages come from: it may be gone when somebody compiles again."""
    if not path:
        return {}
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    return {name: value for name, value in content.items() if name != _CANDIDATES}


# -- The text of the user's files that operators come from, for the profile's header ---


MOST_BYTES = 512 << 10  # of all files together
MOST_OF_ONE = 256 << 10


def source_text(graph: Graph) -> dict[str, str]:
    """Text by file, those with the most operators first, as far as there is room.

    Without files that cannot be read (a notebook's cells); none with ``ipu-run --no-source``.
    """
    if os.environ.get(NO_SOURCE_VARIABLE):
        return {}
    texts, room = {}, MOST_BYTES
    for file, _ in Counter(op.file for op in graph.ops if op.file).most_common():
        try:
            if os.path.getsize(file) > min(room, MOST_OF_ONE):
                continue
            text = Path(file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        texts[file] = text
        room -= len(text.encode())
    return texts
