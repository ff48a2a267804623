"""How the model of this process is being made, for the header of its profile."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from ipu_exec.option_groups.environment import (
    COMMAND_VARIABLE,
    LENIENT_VARIABLE,
    LEVERS_VARIABLE,
    PLACEMENT_VARIABLE,
    TARGET_VARIABLE,
)

_CANDIDATES = "plan"  # of a plan file: everything that was not chosen


def provenance() -> dict[str, Any]:
    """The command, the script, and each setting that came from outside of the script.

    `ipuscope.profiler.provenance` reads it back; its class says what each entry is.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    script = os.path.abspath(main) if main else ""
    told = json.loads(os.environ.get(COMMAND_VARIABLE, "{}"))
    return {
        "command": told.get("command", [os.path.basename(sys.executable), *sys.argv]),
        "script": script,
        "digest": _digest(script),
        "arguments": sys.argv[1:],
        "num_ipus": told.get("num_ipus", 0),
        "levers": os.environ.get(LEVERS_VARIABLE, ""),
        "target": os.environ.get(TARGET_VARIABLE, ""),
        "lenient": LENIENT_VARIABLE in os.environ,
        "placement": _placement(os.environ.get(PLACEMENT_VARIABLE, "")),
        "seed": torch.initial_seed(),
    }


def _digest(script: str) -> str:
    """SHA-256 of the script; "" where there is no file, as in a notebook."""
    try:
        return hashlib.sha256(Path(script).read_bytes()).hexdigest()
    except OSError:
        return ""


def _placement(path: str) -> dict[str, Any]:
    """The placement file that the stages come from: it may be gone when somebody compiles again."""
    if not path:
        return {}
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    return {name: value for name, value in content.items() if name != _CANDIDATES}
