"""The program that `ipu-run` runs: a Python file, or a module that ``python -m`` can find."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import sys
from dataclasses import dataclass
from types import ModuleType

from ipu_exec.errors import UsageError


@dataclass(frozen=True)
class Program:
    """A script, or a module of the name ``module``. ``file``: the path of its source."""

    file: str
    source: bytes
    module: str = ""
    spec: importlib.machinery.ModuleSpec | None = None

    @property
    def words(self) -> list[str]:
        """The words that name it on a command line."""
        return ["-m", self.module] if self.module else [self.file]

    def __str__(self) -> str:
        return self.module or self.file

    def enter(self, arguments: list[str]) -> ModuleType:
        """Make this process the program's: ``__main__``, ``sys.argv`` and ``sys.path``."""
        main = ModuleType("__main__")
        main.__dict__.update(__file__=self.file, __builtins__=builtins, __cached__=None)
        sys.argv = [self.file, *arguments]
        if self.spec is None:
            sys.path[0] = os.path.dirname(os.path.abspath(self.file))
        else:
            main.__dict__.update(__spec__=self.spec, __package__=self.spec.parent)
            sys.path[0] = os.getcwd()
        sys.modules["__main__"] = (
            main  # for good: what runs at exit, and pickles, look for it there
        )
        return main


def read(words: list[str]) -> Program:
    """The program that ``words`` name: ["train.py"], or ["-m", "package.train"].

    OSError if a file cannot be read, UsageError if there is no such module.
    """
    if words[0] != "-m":
        with io.open_code(os.path.abspath(words[0])) as file:
            return Program(words[0], file.read())
    name = words[1]
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where ``python -m`` looks first
    spec = _found(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _found(f"{name}.__main__")
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UsageError(
            f"there is no module {name!r} to run: -m takes a module's dotted name, without .py,"
            " that Python finds from here (or a package with a __main__.py)"
        )
    with io.open_code(spec.origin) as file:
        return Program(spec.origin, file.read(), name, spec)


def _found(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):
        return None
