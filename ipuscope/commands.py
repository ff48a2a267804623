"""`ipu-run` and `poprun`, behind the question whether PyTorch is there.

Reading a profile needs no PyTorch, so that the distribution brings it only as its extra ``engine``.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

WITHOUT_TORCH = (
    "{name} computes with PyTorch, which is not installed here: pip install 'ipuscope[engine]'."
    " Profiles open without it: ipu-report view PROFILE"
)


def ipu_run() -> int:
    """Run a script on modelled IPUs; the exit status."""
    if refused("ipu-run"):
        return 2
    from ipu_exec.commands.run import main

    return main()


def poprun() -> int:
    """Run the instances of a script on modelled IPUs; the exit status."""
    if refused("poprun"):
        return 2
    from ipu_exec.commands.poprun import main

    return main()


def refused(command: str) -> bool:
    """Whether a command cannot run for want of PyTorch, which is then said."""
    if find_spec("torch") is not None:
        return False
    print(f"{command}: error: {WITHOUT_TORCH.format(name=command)}", file=sys.stderr)
    return True
