"""The parts of Lightning that are needed, from the package that a script imports.

``lightning`` and ``pytorch_lightning`` are copies of the same code with unrelated classes:
everything is looked up in one of them, when a script uses it.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


# Lightning's own classes and functions, by the module of the package that has them.
_PLACES = {
    "accelerators": ("Accelerator", "AcceleratorRegistry"),
    "strategies": ("ParallelStrategy", "StrategyRegistry"),
    "plugins.precision": ("Precision",),
    "trainer.connectors.accelerator_connector": ("_AcceleratorConnector",),
    "trainer.connectors.logger_connector.result": ("_ResultCollection", "_ResultMetric"),
    "trainer.states": ("RunningStage", "TrainerFn"),
    "utilities.exceptions": ("MisconfigurationException",),
    "utilities.model_helpers": ("is_overridden",),
    "utilities.rank_zero": ("rank_zero_info", "rank_zero_warn"),
    "callbacks": ("ProgressBar", "TQDMProgressBar"),
}


class Library:
    """What `_PLACES` names, without a leading underscore; ``package``, and its ``module``."""

    package: str
    module: ModuleType

    def __init__(self, **own: Any) -> None:
        vars(self).update(own)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


@lru_cache
def library(package: str) -> Library:
    """Lightning from ``package``, one of `PACKAGES`."""
    own = {
        name.removeprefix("_"): getattr(importlib.import_module(f"{package}.{module}"), name)
        for module, names in _PLACES.items()
        for name in names
    }
    return Library(package=package, module=importlib.import_module(package), **own)


def installed() -> tuple[str, ...]:
    """Which of `PACKAGES` can be imported."""
    return tuple(package for package in PACKAGES if importlib.util.find_spec(package.split(".")[0]))
