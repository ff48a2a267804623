"""How a profile was made: the command, the script, and each setting made outside the script."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipuscope.profiler.report import Report

META = "made"  # the entry of a profile's header
LIGHTNING = "lightning"


@dataclass(frozen=True)
class Provenance:
    """``command``: words of the shell; ``script``: a path, and its ``arguments``.

    ``digest``: SHA-256 of the script. ``levers``: as ``ipu-run --with`` takes them. ``num_ipus``:
    of ``ipu-run --num-ipus``, 0 without. ``target``: of ``--target``, "" without. ``placement``:
    the placement file's JSON, empty without. ``seed``: torch's, of the compile. ``trainer``:
    whose loop runs the model, `LIGHTNING`, or "" for the script's own.

    A profile is a stranger's file: nothing here is run or opened unless the user names it.
    """

    command: tuple[str, ...] = ()
    script: str = ""
    digest: str = ""
    arguments: tuple[str, ...] = ()
    levers: str = ""
    num_ipus: int = 0
    target: str = ""
    lenient: bool = False
    placement: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    trainer: str = ""

    @classmethod
    def of(cls, report: Report) -> Provenance:
        """From a profile's header; empty if it has no (valid) entry."""
        content = report.meta.get(META)
        if not isinstance(content, dict):
            return cls()
        values: dict[str, Any] = {}
        for name, kind in _KINDS.items():
            value = content.get(name)
            if type(value) is not kind:
                continue
            values[name] = tuple(map(str, value)) if isinstance(value, list) else value
        return cls(**values)

    @property
    def command_line(self) -> str:
        """The command as a shell takes it; "" if the profile does not say."""
        return shlex.join(self.command)

    @property
    def program(self) -> tuple[str, ...]:
        """The script and its arguments as `ipu-run` takes them; ("SCRIPT",) if unknown."""
        if not self.script:
            return ("SCRIPT",)
        before = self.command[: len(self.command) - len(self.arguments)]
        is_module = before[-2:-1] == ("-m",)
        return (*(before[-2:] if is_module else (self.script,)), *self.arguments)

    def differences(self, script: str, arguments: Sequence[str]) -> list[str]:
        """Sentences on how a script that is to be compiled again differs from the profile's."""
        differ = []
        if self.digest and self.digest != digest_of(script):
            differ.append(f"{script} is not the script that the profile was made with")
        if self.script and tuple(arguments) != self.arguments:
            ours, theirs = shlex.join(arguments), shlex.join(self.arguments)
            differ.append(
                f"the profile was made with the arguments {theirs!r}, this compile has {ours!r}"
            )
        return differ


_KINDS = {
    "command": list,
    "script": str,
    "digest": str,
    "arguments": list,
    "levers": str,
    "num_ipus": int,
    "target": str,
    "lenient": bool,
    "placement": dict,
    "seed": int,
    "trainer": str,
}


def digest_of(script: str) -> str:
    """SHA-256 of the script; "" where there is no file, as in a notebook."""
    try:
        return hashlib.sha256(Path(script).read_bytes()).hexdigest()
    except OSError:
        return ""
