"""Cycles as stacks: module path, operator and kind of step, or call stack.

Three forms: "collapsed" (one line per stack with its cycles, as read by Brendan Gregg's
flamegraph.pl, inferno and speedscope) and speedscope's own
(www.speedscope.app/file-format-schema.json), which also has the order of time; and pprof's, a
gzipped protobuf (github.com/google/pprof/blob/main/proto/profile.proto), which also has bytes.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.analysis.source import bytes_at_peak, callers
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
    total = _totals(report, run, iteration, by)
    with path.open("w", encoding="utf-8") as file:
        for key, cycles in total.items():
            words = ";".join(part.replace(";", ",").replace("\n", " ") for part in key)
            file.write(f"{words} {cycles}\n")
    return len(total)


def _totals(report: Report, run: int, iteration: int, by: str) -> Counter[Stack]:
    """The cycles of each stack, its IPU first."""
    total: Counter[Stack] = Counter()
    for ipu, frame in stacks(report, run, iteration, by).items():
        for stack, cycles in zip(frame["stack"], frame["cycles"].tolist(), strict=True):
            total[f"IPU {ipu}", *stack] += cycles
    return total


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


def write_pprof(report: Report, path: Path, run: int, iteration: int, by: str) -> int:
    """Write each stack with its cycles and bytes; return the number of stacks. OSError on failure.

    The bytes of an operator, without kind of step, are of its outputs live at its IPU's fullest
    step.
    """
    of_op = _of_source(report) if by == "source" else _of_module(report)
    ops = report.ops
    values = {stack: (cycles, 0) for stack, cycles in _totals(report, run, iteration, by).items()}
    made = bytes_at_peak(report)
    of_ops = ops.loc[ops.index.intersection(made.index), ["ipu", "direction"]].join(made)
    for op, ipu, way, nbytes in zip(of_ops.index, *(of_ops[c] for c in of_ops), strict=True):
        stack = (f"IPU {ipu}", str(way), *of_op[int(op)])
        values[stack] = 0, values.get(stack, (0, 0))[1] + int(nbytes)
    texts, frames = {"": 0}, dict[str, int]()

    def text(words: str) -> int:
        return texts.setdefault(words, len(texts))

    kinds = [_field(1, _number(1, text(name)) + _number(2, text(unit))) for name, unit in _UNITS]
    samples = []
    for stack, both in values.items():
        inside = [frames.setdefault(name, len(frames) + 1) for name in reversed(stack)]
        samples.append(_field(2, _field(1, _varints(inside)) + _field(2, _varints(both))))
    places = []
    for id, frame in enumerate(_frames(frames), 1):
        line = _number(1, id) + _number(2, frame.get("line", 0))
        function = _number(1, id) + _number(2, text(frame["name"]))
        function += _number(4, text(frame.get("file", "")))
        places += [_field(4, _number(1, id) + _field(4, line)), _field(5, function)]
    strings = [_field(6, words.encode("utf-8", "replace")) for words in texts]
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.writelines([*kinds, *samples, *places, *strings])
    return len(values)


_UNITS = (("cycles", "count"), ("bytes", "bytes"))  # "cycles" is no unit of pprof's


def _varints(numbers: Iterable[int]) -> bytes:
    """Numbers of 0 or more in protobuf's base 128, least digits first."""
    out = bytearray()
    for number in numbers:
        while number > 127:
            out.append(number & 127 | 128)
            number >>= 7
        out.append(number)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varints((field << 3, value))


def _field(field: int, content: bytes) -> bytes:
    """A field of bytes: a text, a message or packed numbers."""
    return _varints((field << 3 | 2, len(content))) + content
