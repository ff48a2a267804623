"""The classes that scripts name, made for the Lightning that they import, and registered there."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ipu_exec.lightning.accelerator import AcceleratorOnIpu
from ipu_exec.lightning.library import Library, library
from ipu_exec.lightning.precision import PrecisionOnIpu
from ipu_exec.lightning.strategy import StrategyOnIpu


@dataclass(frozen=True, eq=False)
class Names:
    """Lightning's IPU classes. They derive from those of the package they were made for."""

    IPUAccelerator: Any
    IPUPrecision: Any
    IPUStrategy: Any


def names(package: str) -> Names:
    """For ``package``, one of `ipu_exec.lightning.library.PACKAGES`: made once, and registered."""
    importlib.import_module(package)  # first: whoever waits for that asks for the names too
    return _made(package)


@lru_cache
def _made(package: str) -> Names:
    lib = library(package)

    def joined(name: str, ours: type, theirs: Any) -> Any:
        about = {"lib": lib, "__doc__": ours.__doc__, "__module__": "ipu_exec.lightning"}
        return type(name, (ours, theirs), about)

    made = Names(
        joined("IPUAccelerator", AcceleratorOnIpu, lib.Accelerator),
        joined("IPUPrecision", PrecisionOnIpu, lib.Precision),
        joined("IPUStrategy", StrategyOnIpu, lib.ParallelStrategy),
    )
    made.IPUAccelerator.register_accelerators(lib.AcceleratorRegistry)
    made.IPUStrategy.register_strategies(lib.StrategyRegistry)
    _connect(lib, made)
    return made


def _connect(lib: Library, made: Names) -> None:
    """Have a Trainer put accelerator, strategy and precision together.

    Lightning's registries know names; which strategy and precision an accelerator takes is in its
    connector, for its own ones only.
    """
    connector = lib.AcceleratorConnector

    def around(name: str) -> Callable[[Callable[..., Any]], None]:
        plain = getattr(connector, name)

        def put(instead: Callable[..., Any]) -> None:
            @functools.wraps(plain)
            def method(self: Any, *args: Any, **kwargs: Any) -> Any:
                return instead(self, plain, *args, **kwargs)

            setattr(connector, name, method)

        return put

    @around("_check_config_and_set_final_flags")
    def flags(self: Any, plain: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        strategy = self._strategy_flag
        ours = isinstance(strategy, made.IPUStrategy) or strategy == made.IPUStrategy.strategy_name
        if not ours:
            return
        if self._accelerator_flag == "auto":
            self._accelerator_flag = "ipu"
        on_ipu = isinstance(self._accelerator_flag, made.IPUAccelerator)
        if not on_ipu and self._accelerator_flag != "ipu":
            raise lib.MisconfigurationException(
                f"IPUStrategy runs on IPUs, and the Trainer has accelerator="
                f"{self._accelerator_flag!r}: say accelerator='ipu', or leave it out"
            )

    @around("_choose_strategy")
    def strategy(self: Any, plain: Any) -> Any:
        on_ipu = isinstance(self.accelerator, made.IPUAccelerator)
        return made.IPUStrategy.strategy_name if on_ipu else plain(self)

    @around("_check_and_init_precision")
    def precision(self: Any, plain: Any) -> Any:
        on_ipu = isinstance(self.accelerator, made.IPUAccelerator)
        if on_ipu and not isinstance(self.strategy, made.IPUStrategy):
            raise lib.MisconfigurationException(
                f"accelerator='ipu' takes strategy='ipu_strategy' or an IPUStrategy(...), not"
                f" {type(self.strategy).__name__}: replicas and stages are its own"
            )
        if on_ipu and self._precision_plugin_flag is None:
            return made.IPUPrecision(self._precision_flag)
        return plain(self)
