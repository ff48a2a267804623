"""Callbacks after a script's imports (of Lightning, which we do not import), and our modules."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

Contents = Callable[[str], Mapping[str, Any]]  # a module's name to what is in it


class _Answers(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of a package that is not installed, or is to be replaced."""

    def __init__(self, modules: Mapping[str, bool], contents: Contents) -> None:
        self.modules, self._contents = modules, contents

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.modules:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=self.modules[name])

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._contents(module.__name__))


class _Watches(importlib.abc.MetaPathFinder):
    """Finds a module as without this class, and calls back once it is imported."""

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self.name, self.then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        watches = [finder for finder in sys.meta_path if isinstance(finder, _Watches)]
        waiting = [finder.then for finder in reversed(watches) if finder.name == name]
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, waiting)
        return spec


class _Then(importlib.abc.Loader):
    """A module's own loader, and the callbacks that wait for it."""

    def __init__(self, loader: Any, waiting: Sequence[Callable[[], object]]) -> None:
        self._loader, self._waiting = loader, waiting

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        for then in self._waiting:
            then()


def answer(modules: Mapping[str, bool], contents: Contents) -> bool:
    """From now on provide these modules, whether or not others of the name are installed.

    ``modules``: name to whether it is a package. ``contents`` is called when one is imported.
    False if they were ours already.
    """
    finders = [finder for finder in sys.meta_path if isinstance(finder, _Answers)]
    if any(finder.modules == modules for finder in finders):
        return False
    sys.meta_path.insert(0, _Answers(modules, contents))
    return True


def after(name: str, then: Callable[[], object]) -> None:
    """Call ``then`` when the module has been imported, or at once if it was."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Watches(name, then))
