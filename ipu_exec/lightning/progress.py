"""Additions to Lightning's progress bar: compiling, then modelled and measured samples a second."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ipuscope.profiler.units import per_second

_PREDICTED, _HOST = "ipu/s", "host/s"


class Progress:
    """Adds to the metrics of a Trainer's bar while it is attached."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._samples = self._seconds = self._predicted = 0.0
        self._compiling = False

    def attach(self, lib: Any, trainer: Any) -> None:
        """Show it in the Trainer's bar, if it has one."""
        self.detach()
        self._samples = self._seconds = self._predicted = 0.0
        bar = trainer.progress_bar_callback
        if not isinstance(bar, lib.ProgressBar):
            return
        self._bar = bar
        plain = bar.get_metrics

        def get_metrics(trainer: Any, module: Any) -> dict[str, Any]:
            return {**plain(trainer, module), **self.metrics()}

        bar.get_metrics = get_metrics

    def detach(self) -> None:
        """Restore the bar."""
        if self._bar is not None:
            vars(self._bar).pop("get_metrics", None)
        self._bar = None

    def metrics(self) -> dict[str, str]:
        """The metrics that the bar shows now."""
        if self._compiling:
            return {"ipu": "compiling"}
        if not self._seconds:
            return {}
        rates = {_PREDICTED: self._predicted, _HOST: self._samples / self._seconds}
        return {name: f"{per_second(rate)}" for name, rate in rates.items()}

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Inside, the bar says that it is compiling."""
        self._compiling = True
        self._show()
        try:
            yield
        finally:
            self._compiling = False

    def ran(self, samples: int, seconds: float, predicted: float) -> None:
        """Record the seconds for this many samples; ``predicted``: modelled samples a second."""
        self._samples += samples
        self._seconds += seconds
        self._predicted = predicted

    def _show(self) -> None:
        """Draw the bars that are there; a bar of another kind shows it at its next batch."""
        for name in ("train_progress_bar", "val_progress_bar", "test_progress_bar"):
            shown = vars(self._bar).get(f"_{name}") if self._bar is not None else None
            if shown is not None and hasattr(shown, "set_postfix"):
                shown.set_postfix(self.metrics())
