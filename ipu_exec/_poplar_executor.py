"""PopTorch's module of this name: its executor, and libraries' replacements in models."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ipu_exec.base.context import substitutions
from ipu_exec.session.compile_hooks import registerPostCompileHook, registerPreCompileHook
from ipu_exec.session.executor import PoplarExecutor

__all__ = ["PoplarExecutor", "registerPostCompileHook", "registerPreCompileHook"]


class _OverwriteContextManager:
    """The replacements while a model runs as on an IPU. ``poptorch_geometric`` adds to it."""

    @staticmethod
    def registerSubsitutionManager(manager_type: type[AbstractContextManager[object]]) -> None:
        """Compile and run each model inside one of these (PopTorch spells it so)."""
        if manager_type not in substitutions:
            substitutions.append(manager_type)
