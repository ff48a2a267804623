"""Names of Lightning's IPU code up to 2.0 and of lightning-graphcore, for ``ipu-run``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from ipu_exec.lightning.library import PACKAGES, installed, library
from ipu_exec.lightning.names import Names, names
from ipu_exec.lightning.precision import AUTO_DEVICES, PRECISIONS


class StepByStage(torch.nn.Module):
    """Calls the step of a LightningModule for its trainer's current stage."""

    def __init__(self, forward_module: Any) -> None:
        super().__init__()
        vars(self)["_module"] = forward_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        module = vars(self)["_module"]
        steps = {
            "training": "training_step",
            "testing": "test_step",
            "sanity_checking": "validation_step",
            "validating": "validation_step",
            "predicting": "predict_step",
        }
        for stage, step in steps.items():
            if module._trainer is not None and getattr(module._trainer, stage):
                return getattr(module, step)(*args, **kwargs)
        return module(*args, **kwargs)


def graphcore(module: str) -> Mapping[str, Any]:
    """The contents of a lightning_graphcore module, built for the script's Lightning."""
    loaded = [package for package in PACKAGES if package in sys.modules]
    library = names((loaded or list(installed()))[0])
    own = _classes(library) | {"_POPTORCH_AVAILABLE": True, "_IPU_AVAILABLE": True}
    if module.endswith(".precision"):
        own["_PRECISION_INPUT"] = PRECISIONS
    if module.endswith((".utils", ".strategy")):
        own["_LightningModuleWrapperBase"] = StepByStage
    return own


def _classes(made: Names) -> dict[str, Any]:
    return {
        "IPUAccelerator": made.IPUAccelerator,
        "IPUPrecision": made.IPUPrecision,
        "IPUStrategy": made.IPUStrategy,
    }


def restore(package: str) -> None:
    """Restore a Lightning's former IPU names, and its Trainer's old arguments."""
    ipu_names, lib = names(package), library(package)
    classes = _classes(ipu_names)
    plugins = {"IPUPlugin": ipu_names.IPUStrategy, "IPUPrecisionPlugin": ipu_names.IPUPrecision}
    for place, own in (
        ("accelerators", classes),
        ("strategies", classes),
        ("plugins", classes | plugins),
        ("plugins.precision", classes | plugins),
    ):
        module = sys.modules[f"{package}.{place}"]
        for name in own if place.startswith("plugins") else (f"IPU{_WORDS[place]}",):
            setattr(module, name, own[name])
        if place != "plugins":
            inner = ModuleType(f"{module.__name__}.ipu", "IPU names of Lightning up to 2.0.")
            vars(inner).update(own, _IPU_AVAILABLE=True)
            sys.modules[inner.__name__] = inner
            vars(module)["ipu"] = inner
    _old_words(lib.module.Trainer, ipu_names, lib)
    _choose_ipus(lib, ipu_names)


_WORDS = {"accelerators": "Accelerator", "strategies": "Strategy"}


def _choose_ipus(lib: Any, made: Names) -> None:
    """Have ``accelerator="auto"`` mean "ipu", as up to 2.0, unless the strategy is another's."""
    connector = lib.AcceleratorConnector
    plain = connector._choose_auto_accelerator

    def choose(self: Any) -> str:
        strategy = self._strategy_flag
        ours = strategy in ("auto", made.IPUStrategy.strategy_name)
        return "ipu" if ours or isinstance(strategy, made.IPUStrategy) else plain()

    connector._choose_auto_accelerator = choose


def _old_words(trainer: Any, made: Names, lib: Any) -> None:
    """``Trainer(ipus=8)``, ``Trainer(plugins=IPUPlugin(...))``, and the warning of idle IPUs."""
    plain = trainer.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, ipus: int | None = None, **kwargs: Any) -> None:
        if ipus is not None:
            kwargs.setdefault("accelerator", "ipu")
            kwargs.setdefault("devices", ipus)
        plugins = kwargs.get("plugins")
        plugins = plugins if isinstance(plugins, (list, tuple)) else [plugins]
        strategies = [plugin for plugin in plugins if isinstance(plugin, made.IPUStrategy)]
        if strategies:
            kwargs["strategy"] = strategies[0]
            others = [plugin for plugin in plugins if plugin not in strategies]
            kwargs["plugins"] = others or None
        plain(self, *args, **kwargs)
        if not isinstance(self.accelerator, made.IPUAccelerator):
            lib.rank_zero_warn(
                "IPU available but not used. Set `accelerator` and `devices` using"
                f" `Trainer(accelerator='ipu', devices={AUTO_DEVICES})`."
            )

    trainer.__init__ = init
