"""pytest plugin for PopTorch's tests: stands in for PopTorch, and records each outcome.

Outcomes go as JSON lines to the file that ``IPUSCOPE_OUTCOMES`` names. Tests already in it are
skipped, so that a run continues where the previous one stopped.

The suite was written for PyTorch 2.0. The plugin restores what it uses and later releases changed:
`torch.load` of whole modules, and a sampler's argument.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ipu_exec.base.stand_in import stand_in
from tools.poptorch_suite import outcomes
from tools.poptorch_suite.plugin_name import OUTCOMES_VARIABLE

_KEPT = 6_000  # characters of an error

stand_in()
os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")


def _as_in_torch_2_0() -> None:
    def taking_a_data_source(self: Any, data_source: Any = None) -> None:
        pass

    torch.utils.data.Sampler.__init__ = taking_a_data_source  # type: ignore[method-assign]


def _torchvision_without_its_library() -> None:
    """Stand in for torchvision's compiled part where it does not load beside this torch."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT_ALIVE.append(library)


_KEPT_ALIVE: list[Any] = []
_as_in_torch_2_0()
if os.environ.get("TORCHVISION_WITHOUT_C"):
    _torchvision_without_its_library()


def _path() -> Path:
    return Path(os.environ.get(OUTCOMES_VARIABLE, os.devnull))


def _write(**row: Any) -> None:
    with _path().open("a") as file:
        file.write(json.dumps(row) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Record that a test began; if nothing follows, its process died with it."""
    _write(id=nodeid, when="start")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record how a test ended."""
    if report.when != "call" and report.outcome == "passed":
        return
    row: dict[str, Any] = {"id": report.nodeid, "when": report.when, "outcome": report.outcome}
    if report.failed:
        row["text"] = report.longreprtext[-_KEPT:]
    elif report.skipped:
        row["text"] = str(report.longrepr)[-300:]
    _write(**row, seconds=round(report.duration, 2))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a file that cannot be collected as a failure."""
    if report.failed:
        _write(
            id=report.nodeid, when="collect", outcome="failed", text=report.longreprtext[-_KEPT:]
        )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests that already have an outcome."""
    done = outcomes.read(_path())
    items[:] = [item for item in items if item.nodeid.removeprefix("tests/") not in done]
