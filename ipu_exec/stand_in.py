"""The vendor's module names answered by ours.

``poptorch`` is `ipu_exec`, ``popart`` the values of its options, ``pva`` `profiler.pva`.

``ipu-run`` asks for it in a script's process, and the environment in those that load its data.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

STAND_IN_VARIABLE = (
    "IPUSCOPE_STAND_IN"  # set by ipu-run: in processes of the script, too, poptorch is ipu_exec
)
_STANDS_FOR = {
    "poptorch": "ipu_exec",
    "popart": "ipu_exec.popart",
    "pva": "profiler.pva",
    "pva.pva_core": "profiler.pva.pva_core",
}


def stand_in() -> None:
    """Make our packages answer to the vendor's names.

    Each module is registered under both, so that its classes exist once.

    Processes that load data are told by the environment to do so too.
    """
    os.environ[STAND_IN_VARIABLE] = "1"
    for theirs, ours in _STANDS_FOR.items():
        if importlib.util.find_spec(ours) is None:
            continue
        importlib.import_module(ours)
        for name, module in list(sys.modules.items()):
            if name == ours or name.startswith(f"{ours}."):
                sys.modules[theirs + name[len(ours) :]] = module
