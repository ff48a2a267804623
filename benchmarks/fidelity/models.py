"""Whole published trainings, in their real configuration."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

import ipu_exec
from benchmarks.fidelity.cases import CannotRun, Compiled, Row, options_for


def find(case: str) -> Callable[[Row], Compiled] | None:
    """Who builds this case."""
    return next((build for word, build in MODELS.items() if word in case), None)


def number(case: str, pattern: str) -> int:
    found = re.search(pattern, case)
    if found is None:
        raise CannotRun(f"{case!r} does not say {pattern}")
    return int(found.group(1))


def module(name: str) -> Any:
    try:
        return import_module(f"examples.models.{name}")
    except ImportError as error:
        raise CannotRun(f"the model is not there: {error}") from None


def half_training(row: Row, replicas: int, accumulation: int) -> ipu_exec.Options:
    options = options_for(row)
    options.replicationFactor(replicas).Training.gradientAccumulation(accumulation)
    return options


MODELS: dict[str, Callable[[Row], Compiled]] = {}

