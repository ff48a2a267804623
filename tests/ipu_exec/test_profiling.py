"""Tracepoints of the host, and the names of PopTorch that need a machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ipu_exec as poptorch

SCRIPT = """
import ipu_exec as poptorch

class Loader:
    def load(self, n):
        return n + 1

channel = poptorch.profiling.Channel("MyApp")
with channel.tracepoint("Outer"):
    with channel.tracepoint("Inner"):
        pass
loader = channel.instrument(Loader(), "load")
print(loader.load(1), loader.load(2))
try:
    with channel.tracepoint("Failing"):
        raise KeyError
except KeyError:
    pass
"""


def run(tmp_path: Path, options: str) -> list[Path]:
    environment = {**os.environ, "PVTI_OPTIONS": options}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "2 3\n"
    return list(tmp_path.glob("*.trace.json"))


def test_tracepoints_are_bars_of_a_trace_where_they_are_asked_for(tmp_path: Path) -> None:
    assert run(tmp_path, json.dumps({"directory": str(tmp_path)})) == []
    (path,) = run(tmp_path, json.dumps({"enable": "true", "directory": str(tmp_path)}))
    trace = json.loads(path.read_text())
    events = {event["name"]: event for event in trace["traceEvents"]}
    names = [event["name"] for event in trace["traceEvents"]]
    assert names == ["MyApp.Inner", "MyApp.Outer", "MyApp.load", "MyApp.load", "MyApp.Failing"]
    assert {event["ph"] for event in trace["traceEvents"]} == {"X"}
    inner, outer = events["MyApp.Inner"], events["MyApp.Outer"]
    assert outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    assert path.name == f"host-{outer['pid']}.trace.json"


def test_a_method_that_is_not_there_is_an_error() -> None:
    with pytest.raises(poptorch.Error, match="Channel has no method 'trace'"):
        poptorch.profiling.Channel("A").instrument(poptorch.profiling.Channel("B"), "trace")


def test_there_is_no_manager_of_partitions() -> None:
    manager = poptorch.distributed.VirtualIpuManager
    assert manager.isAvailable() is False
    for call in (
        manager.numIpus,
        manager.listPartitions,
        lambda: manager.createPartition("p", poptorch.distributed.Partition(4)),
        lambda: manager.deletePartition("p"),
        lambda: manager.resetPartition("p"),
    ):
        with pytest.raises(poptorch.Error, match="there is no vipu-cli"):
            call()
