"""``self.log`` inside a step: collected apart from Lightning's results, then passed to them.

Values are collected while a step is captured, when they are not numbers, and on several replicas,
whose values are then combined by ``reduce_fx``, as on one device with the same samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from ipu_exec.lightning.library import Library


@dataclass(frozen=True)
class Logged:
    """One ``self.log``. ``cache``: of a metric, its value for this micro-batch."""

    fx: str
    name: str
    value: Any
    cache: Any
    settings: dict[str, Any]

    @property
    def tensor(self) -> torch.Tensor | None:
        """What goes to the host: the value, or a metric's value for this micro-batch."""
        number = self.value if isinstance(self.value, torch.Tensor) else self.cache
        return number.detach() if isinstance(number, torch.Tensor) else None


@contextlib.contextmanager
def collected(trainer: Any) -> Iterator[list[Logged]]:
    """Inside, logged values go to the list and not to Lightning's results."""
    entries: list[Logged] = []
    results = _results(trainer)

    def log(fx: str, name: str, value: Any, **settings: Any) -> None:
        cache = None if isinstance(value, torch.Tensor) else value._forward_cache
        entries.append(Logged(fx, name, value, cache, settings))

    def reset(**about: Any) -> None:
        """Do nothing: what a new epoch forgets, `give` forgets."""

    connector = trainer._logger_connector
    current = connector._current_fx
    results.log, results.reset = log, reset
    try:
        yield entries
    finally:
        del results.log, results.reset
        connector._current_fx = current


def give(trainer: Any, replicas: Sequence[Sequence[Logged]]) -> None:
    """Log what the replicas logged, each of their values once."""
    results, connector = _results(trainer), trainer._logger_connector
    for same in _together(replicas):
        first = same[0]
        if connector.should_reset_tensors(first.fx):
            results.reset(metrics=False, fx=first.fx)
        sizes = [logged.settings.get("batch_size") for logged in same]
        settings = dict(first.settings)
        value = first.value
        if isinstance(value, torch.Tensor):
            value = _reduced([logged.value for logged in same], settings.get("reduce_fx"), sizes)
        else:
            value._forward_cache = _reduced([logged.cache for logged in same], "mean", sizes)
        if all(isinstance(size, int) for size in sizes):
            settings["batch_size"] = sum(sizes)
        results.log(first.fx, first.name, value, **settings)
        connector._current_fx = first.fx


def _results(trainer: Any) -> Any:
    return trainer.strategy.predicted if trainer.predicting else trainer._results


@contextlib.contextmanager
def logging_predictions(module: Any, results: Any, batch: Any) -> Iterator[None]:
    """Inside, ``self.log`` of a predict_step goes to ``results``: Lightning's loop drops them."""

    def log(
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        **settings: Any,
    ) -> None:
        is_logged = isinstance(value, torch.Tensor | torch.nn.Module)
        logged = value if is_logged else torch.tensor(float(value))
        own_arguments = ("reduce_fx", "add_dataloader_idx", "batch_size", "metric_attribute")
        own_settings = {name: settings[name] for name in own_arguments if name in settings}
        shown = {"prog_bar": prog_bar, "logger": logger is not False}
        results.log(
            "predict_step",
            name,
            logged,
            on_step=bool(on_step),
            on_epoch=True,
            **shown,
            **own_settings,
        )

    results.batch, results.batch_size = batch, None
    vars(module)["log"] = log
    try:
        yield
    finally:
        del vars(module)["log"]


def log_predictions(trainer: Any, results: Any) -> None:
    """At the end of a prediction, pass what its steps logged to callbacks and loggers."""
    metrics = results.metrics(on_step=False)
    connector = trainer._logger_connector
    connector._callback_metrics.update(metrics["callback"])
    connector._logged_metrics.update(metrics["log"])
    connector.log_metrics(metrics["log"], step=trainer.global_step)


def spare_device_search(lib: Library, trainer: Any) -> None:
    """Spare a Trainer the search for logged tensors on another device: there are none.

    Searching a metric's tensors at each ``self.log`` takes as long as several small layers.
    """
    epoch_loop = trainer.fit_loop.epoch_loop
    loops = (epoch_loop, epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop)
    for loop in loops:
        if type(loop._results) is lib.ResultCollection:
            loop._results.__class__ = _results_on_host(lib)


@lru_cache
def _results_on_host(lib: Library) -> type:
    results, metric = lib.ResultCollection, lib.ResultMetric

    def stay(self: Any, *_: Any, **__: Any) -> Any:
        return self

    metric_on_host = type(metric.__name__, (metric,), {"to": stay})

    def put(self: Any, key: str, value: Any) -> None:
        if type(value) is metric:
            value.__class__ = metric_on_host
        results.__setitem__(self, key, value)

    return type(results.__name__, (results,), {"__setitem__": put})


def _together(replicas: Sequence[Sequence[Logged]]) -> list[list[Logged]]:
    """The values that several replicas logged under one name, in the order of the first to log."""
    groups: dict[tuple[str, int], list[Logged]] = {}
    for logs in replicas:
        times: dict[str, int] = {}
        for logged in logs:
            times[logged.name] = times.get(logged.name, -1) + 1
            groups.setdefault((logged.name, times[logged.name]), []).append(logged)
    return list(groups.values())


def _reduced(values: list[Any], how: Any, sizes: Sequence[int | None]) -> Any:
    """``how``: what ``self.log`` takes as ``reduce_fx``. A mean counts the samples of each."""
    if not all(isinstance(value, torch.Tensor) for value in values) or len(values) == 1:
        return values[-1]
    name = how if isinstance(how, str) else getattr(how, "__name__", "mean")
    stacked = torch.stack([one if one.is_floating_point() else one.float() for one in values])
    if name in ("mean", "avg") and all(sizes) and len(set(sizes)) > 1:
        weights = torch.tensor(sizes, dtype=stacked.dtype)
        return (stacked * weights).sum(0) / weights.sum()
    if name == "sum":
        return stacked.sum(0)
    if name in ("max", "min"):
        return stacked.amax(0) if name == "max" else stacked.amin(0)
    return stacked.mean(0)
