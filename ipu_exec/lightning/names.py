"""The classes that scripts name, built for the Lightning that they import and registered there."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ipu_exec.lightning.library import Library, library
from ipu_exec.lightning.precision import AcceleratorOnIpu, PrecisionOnIpu
from ipu_exec.lightning.strategy import StrategyOnIpu


@dataclass(frozen=True, eq=False)
class Names:
    """Lightning's IPU classes. They derive from those of the package they were built for."""

    IPUAccelerator: Any
    IPUPrecision: Any
    IPUStrategy: Any


def names(package: str) -> Names:
    """The classes for ``package`` (`ipu_exec.lightning.library.PACKAGES`), registered there."""
    importlib.import_module(package)  # first: whoever waits for that asks for the names too
    return _made(package)


@lru_cache
def _made(package: str) -> Names:
    lib = library(package)

    def joined(name: str, ours: type, theirs: Any) -> Any:
        about = {"lib": lib, "__doc__": ours.__doc__, "__module__": "ipu_exec.lightning"}
        return type(name, (ours, theirs), about)

    registered = Names(
        joined("IPUAccelerator", AcceleratorOnIpu, lib.Accelerator),
        joined("IPUPrecision", PrecisionOnIpu, lib.Precision),
        joined("IPUStrategy", StrategyOnIpu, lib.ParallelStrategy),
    )
    registered.IPUAccelerator.register_accelerators(lib.AcceleratorRegistry)
    registered.IPUStrategy.register_strategies(lib.StrategyRegistry)
    _connect(lib, registered)
    return registered


_Method = Callable[..., Any]


def _around(connector: Any, name: str) -> Callable[[_Method], None]:
    """Have ``connector``'s method be a function that is given itself, the method and the rest."""
    plain = getattr(connector, name)

    def put(instead: _Method) -> None:
        @functools.wraps(plain)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return instead(self, plain, *args, **kwargs)

        setattr(connector, name, method)

    return put


def _connect(lib: Library, made: Names) -> None:
    """Make a Trainer combine accelerator, strategy and precision.

    Lightning's connector only does so for its own accelerators; registries only have names.
    """
    connector = lib.AcceleratorConnector

    def on_ipu(self: Any) -> bool:
        return isinstance(self.accelerator, made.IPUAccelerator)

    @_around(connector, "_check_config_and_set_final_flags")
    def flags(self: Any, plain: _Method, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        _take_accelerator(self, lib, made)

    @_around(connector, "_choose_strategy")
    def strategy(self: Any, plain: _Method) -> Any:
        return made.IPUStrategy.strategy_name if on_ipu(self) else plain(self)

    @_around(connector, "_check_and_init_precision")
    def precision(self: Any, plain: _Method) -> Any:
        if not on_ipu(self):
            return plain(self)
        if not isinstance(self.strategy, made.IPUStrategy):
            raise lib.MisconfigurationException(
                f"accelerator='ipu' takes strategy='ipu_strategy' or an IPUStrategy(...), not"
                f" {type(self.strategy).__name__}: replicas and stages are its own"
            )
        if self._precision_plugin_flag is not None:
            return plain(self)
        return made.IPUPrecision(self._precision_flag)


def _take_accelerator(connector: Any, lib: Library, made: Names) -> None:
    """Let an IPUStrategy bring its accelerator. Error where the Trainer was given another."""
    strategy = connector._strategy_flag
    if not isinstance(strategy, made.IPUStrategy) and strategy != made.IPUStrategy.strategy_name:
        return
    if connector._accelerator_flag == "auto":
        connector._accelerator_flag = "ipu"
    asked = connector._accelerator_flag
    if asked != "ipu" and not isinstance(asked, made.IPUAccelerator):
        raise lib.MisconfigurationException(
            f"IPUStrategy runs on IPUs, and the Trainer has accelerator={asked!r}: say"
            " accelerator='ipu', or leave it out"
        )
