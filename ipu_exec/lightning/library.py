"""The parts of Lightning that are needed, from the package that a script imports.

``lightning`` and ``pytorch_lightning`` are copies of the same code with unrelated classes:
everything is looked up in one of them, when a script uses it.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


@dataclass(frozen=True, eq=False)
class Library:
    """Lightning's own classes and functions by the names they have there."""

    package: str
    module: ModuleType
    Accelerator: Any
    AcceleratorRegistry: Any
    ParallelStrategy: Any
    StrategyRegistry: Any
    Precision: Any
    AcceleratorConnector: Any
    MisconfigurationException: Any
    RunningStage: Any
    TrainerFn: Any
    is_overridden: Any
    ResultCollection: Any
    ResultMetric: Any
    rank_zero_info: Any
    rank_zero_warn: Any
    ProgressBar: Any
    TQDMProgressBar: Any


@lru_cache
def library(package: str) -> Library:
    """Lightning from ``package``, one of `PACKAGES`."""

    def of(module: str, name: str) -> Any:
        return getattr(importlib.import_module(f"{package}.{module}"), name)

    return Library(
        package,
        importlib.import_module(package),
        Accelerator=of("accelerators", "Accelerator"),
        AcceleratorRegistry=of("accelerators", "AcceleratorRegistry"),
        ParallelStrategy=of("strategies", "ParallelStrategy"),
        StrategyRegistry=of("strategies", "StrategyRegistry"),
        Precision=of("plugins.precision", "Precision"),
        AcceleratorConnector=of(
            "trainer.connectors.accelerator_connector", "_AcceleratorConnector"
        ),
        MisconfigurationException=of("utilities.exceptions", "MisconfigurationException"),
        RunningStage=of("trainer.states", "RunningStage"),
        TrainerFn=of("trainer.states", "TrainerFn"),
        is_overridden=of("utilities.model_helpers", "is_overridden"),
        ResultCollection=of("trainer.connectors.logger_connector.result", "_ResultCollection"),
        ResultMetric=of("trainer.connectors.logger_connector.result", "_ResultMetric"),
        rank_zero_info=of("utilities.rank_zero", "rank_zero_info"),
        rank_zero_warn=of("utilities.rank_zero", "rank_zero_warn"),
        ProgressBar=of("callbacks", "ProgressBar"),
        TQDMProgressBar=of("callbacks", "TQDMProgressBar"),
    )


def installed() -> tuple[str, ...]:
    """Which of `PACKAGES` can be imported."""
    return tuple(package for package in PACKAGES if importlib.util.find_spec(package.split(".")[0]))
