"""pytest plugin for PopTorch's tests: stands in for PopTorch, and writes down what came of each.

Outcomes go as JSON lines to the file that ``IPUSCOPE_OUTCOMES`` names. Tests that are there are
left out, so that a run goes on where the one before it stopped.

The suite was written for PyTorch 2.0. Where later releases took away what it uses, they are asked
for it: `torch.load` of whole modules, and a sampler's argument.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ipu_exec.stand_in import stand_in
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
    """For a wheel of torchvision whose compiled part does not load beside this torch."""
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
    """It began; where nothing follows, it took its process with it."""
    _write(id=nodeid, when="start")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """It ended."""
    if report.when != "call" and report.outcome == "passed":
        return
    row: dict[str, Any] = {"id": report.nodeid, "when": report.when, "outcome": report.outcome}
    if report.failed:
        row["text"] = report.longreprtext[-_KEPT:]
    elif report.skipped:
        row["text"] = str(report.longrepr)[-300:]
    _write(**row, seconds=round(report.duration, 2))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be collected is a failure too."""
    if report.failed:
        _write(
            id=report.nodeid, when="collect", outcome="failed", text=report.longreprtext[-_KEPT:]
        )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is done."""
    done = outcomes.read(_path())
    items[:] = [item for item in items if item.nodeid.removeprefix("tests/") not in done]
