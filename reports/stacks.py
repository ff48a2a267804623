"""Cycles as stacks: module path, operator and kind of step, or call stack.

Two forms: "collapsed" (one line per stack with its cycles, as read by Brendan Gregg's
flamegraph.pl, inferno and speedscope) and speedscope's own
(www.speedscope.app/file-format-schema.json), which also has the order of time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.analysis.source import callers
from ipuscope.profiler.file import records

if TYPE_CHECKING:
    import pandas as pd

    from ipuscope.profiler import Report

Stack = tuple[str, ...]
BY = ("module", "source")


def stacks(report: Report, run: int, iteration: int, by: str) -> dict[int, pd.DataFrame]:
    """The activity of each IPU in time order: ``stack`` (names, outermost first) and ``cycles``.

    Consecutive equal stacks are one row; an IPU's rows add up to the device iteration. ``by``:
    "module" (direction, module path, operator, kind of step), or "source" (the user's call stack
    down to the line instead of the path).
    """
    steps = report.steps(run, iteration=iteration)
    steps = steps[steps["kind"] != records.BESIDE]
    of_op = _of_source(report) if by == "source" else _of_module(report)
    by_stack = {}
    for ipu in sorted(set(steps["ipu"].tolist())):
        ipu_steps = steps[steps["ipu"] == ipu]
        columns = (ipu_steps[name].tolist() for name in ("op", "direction", "kind", "name"))
        rows = [
            _stack(of_op, op, direction, kind, name)
            for op, direction, kind, name in zip(*columns, strict=True)
        ]
        by_stack[ipu] = _merged(rows, ipu_steps["cycles"].to_numpy(np.int64))
    return by_stack


def _stack(of_op: dict[int, Stack], op: int, direction: str, kind: str, name: str) -> Stack:
    """The stack of names of a step; a step without an operator has its own name as its path."""
    inside = of_op.get(op)
    if inside is None:
        return (kind,) if kind == "idle" else (direction or "between", name, kind)
    return (direction or "between", *inside, kind)


def _of_module(report: Report) -> dict[int, Stack]:
    ops = report.ops
    modules: dict[int, Stack] = {}
    for op, module, name in zip(ops.index, ops["module"], ops["name"], strict=True):
        path = tuple(part for part in str(module).replace("/", ".").split(".") if part)
        modules[int(op)] = (*path, str(name).rpartition("/")[2])
    return modules


def _of_source(report: Report) -> dict[int, Stack]:
    ops = report.ops
    columns = (ops[name].tolist() for name in ("file", "line", "name"))
    rows = zip(ops.index.tolist(), callers(report), *columns, strict=True)
    return {
        op: (*above, f"{file}:{line}" if file else "no source line", str(name))
        for op, above, file, line, name in rows
    }


def _merged(made: list[Stack], cycles: np.ndarray) -> pd.DataFrame:
    import pandas as pd

    changes = [at for at, stack in enumerate(made) if at == 0 or stack != made[at - 1]]
    sums = np.add.reduceat(cycles, changes) if changes else np.zeros(0, dtype=np.int64)
    return pd.DataFrame({"stack": [made[at] for at in changes], "cycles": sums})


def write_collapsed(report: Report, path: Path, run: int, iteration: int, by: str) -> int:
    """Write one line per stack and return the number of lines. Raises OSError on failure."""
    total: dict[Stack, int] = {}
    for ipu, frame in stacks(report, run, iteration, by).items():
        for stack, cycles in zip(frame["stack"], frame["cycles"].tolist(), strict=True):
            key = (f"IPU {ipu}", *stack)
            total[key] = total.get(key, 0) + cycles
    with path.open("w", encoding="utf-8") as file:
        for key, cycles in total.items():
            words = ";".join(part.replace(";", ",").replace("\n", " ") for part in key)
            file.write(f"{words} {cycles}\n")
    return len(total)


def write_speedscope(report: Report, path: Path, run: int, iteration: int, by: str) -> int:
    """Write a profile per IPU in time order; return the number of samples. OSError on failure."""
    frames: dict[str, int] = {}
    profiles: list[dict[str, Any]] = []
    for ipu, frame in stacks(report, run, iteration, by).items():
        samples = [
            [frames.setdefault(name, len(frames)) for name in stack] for stack in frame["stack"]
        ]
        cycles = frame["cycles"].tolist()
        about = {"type": "sampled", "name": f"IPU {ipu}", "unit": "none", "startValue": 0}
        profiles.append({**about, "endValue": sum(cycles), "samples": samples, "weights": cycles})
    model = str(report.meta["model"]) or report.path.parent.name
    content = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": f"{model}: cycles of a device iteration",
        "exporter": "IPUscope",
        "activeProfileIndex": 0,
        "shared": {"frames": list(_frames(frames))},
        "profiles": profiles,
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return sum(len(profile["samples"]) for profile in profiles)


def _frames(names: dict[str, int]) -> Iterator[dict[str, Any]]:
    for name in names:
        file, _, line = name.rpartition(":")
        yield {"name": name, **({"file": file, "line": int(line)} if line.isdecimal() else {})}
