"""The program that `ipu-run` runs: a Python file, or a module that ``python -m`` can find."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import linecache
import os
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ipu_exec.base.user_tracebacks import users_frame
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
        # for good: what runs at exit, and pickles, look for it there
        sys.modules["__main__"] = main
        return main


def read(words: list[str]) -> Program:
    """The program that ``words`` name: ["train.py"], or ["-m", "package.train"].

    OSError if a file cannot be read, UsageError for a notebook or if there is no such module.
    """
    if words[0].endswith(".ipynb"):
        raise UsageError(
            f"{words[0]} is a notebook: jupyter nbconvert --to script {words[0]} makes a script of"
            " it, which runs here once its lines with ! and % are gone"
        )
    if words[0] != "-m":
        with io.open_code(os.path.abspath(words[0])) as file:
            return Program(words[0], file.read())
    name = words[1]
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where ``python -m`` looks first
    spec = _spec_of(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _spec_of(f"{name}.__main__")
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UsageError(
            f"there is no module {name!r} to run: -m takes a module's dotted name, without .py,"
            " that Python finds from here (or a package with a __main__.py)"
        )
    with io.open_code(spec.origin) as file:
        return Program(spec.origin, file.read(), name, spec)


def _spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):
        return None


# -- Scripts that wrap no model: they are told as they begin to train, not when they have ---


NOTHING_WRAPPED = """wrapped no model, so nothing ran on IPUs and there is no profile. Write
    import poptorch
    model = poptorch.trainingModel(module, poptorch.Options(), optimizer)
    output, loss = model(inputs, labels)
where module returns its loss last, in place of zero_grad, backward and step. Then ipu-run
--num-ipus 4 puts its layers on 4 IPUs"""
WARNING = "ipu-run: warning: "


def anything_wrapped() -> bool:
    """Whether the script wrapped a model yet."""
    executor = sys.modules.get("ipu_exec.session.executor")
    return executor is not None and executor.PoplarExecutor.any_wrapped


def at_the_first_step_of_training(program: str) -> None:
    """Once, if PyTorch's backward or an optimiser's step comes before any wrapped model, say so."""
    backward = torch.autograd.backward
    hooks: list[RemovableHandle] = []

    def tell(*_: object, **__: object) -> None:
        torch.autograd.backward = backward
        if hooks and not anything_wrapped():
            words = f"{_where()} runs on the host: so far {program} {NOTHING_WRAPPED}"
            print(f"{WARNING}{words}", file=sys.stderr)
        while hooks:
            hooks.pop().remove()

    def told(*args: Any, **kwargs: Any) -> None:
        tell()
        backward(*args, **kwargs)

    hooks.append(register_optimizer_step_pre_hook(tell))
    torch.autograd.backward = told


def _where() -> str:
    frame = users_frame()
    if frame is None:
        return "training"
    path, line = frame.f_code.co_filename, frame.f_lineno
    return f"{path}:{line}: {linecache.getline(path, line).strip() or 'a backward'}"
