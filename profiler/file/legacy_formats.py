"""Facts that profiles of formats 1 and 2 only express in names.

This is the only place where a display name has a meaning. From format 3 on the columns of
`ipuscope.profiler.file.records.SINCE_3` say it, and names are free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipuscope.profiler.enums import BodyTask, Purpose, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.unique_names import popart_names

Columns = dict[str, np.ndarray]

_OVER_IO_TILES = {BodyTask.STREAM_IN: BodyTask.LOAD, BodyTask.STREAM_OUT: BodyTask.UNLOAD}
_OF_STREAM: dict[str, Purpose] = {
    BodyTask.STREAM_IN: Purpose.STREAM_IN,
    BodyTask.LOAD: Purpose.STREAM_IN,
    BodyTask.STREAM_OUT: Purpose.STREAM_OUT,
    BodyTask.UNLOAD: Purpose.STREAM_OUT,
}
_STREAM_TYPES = (records.STREAM_COPY_BEGIN, records.STREAM_COPY_MID, records.STREAM_COPY_END)
_COLLECTIVES = {
    "AllReduce": Purpose.ALL_REDUCE,
    "ReduceScatter": Purpose.REDUCE_SCATTER,
    "AllGather": Purpose.ALL_GATHER,
}
_ENDINGS = {  # of steps' names
    "/stash": Purpose.STASH,
    "/restore": Purpose.RESTORE,
    "/part": Purpose.SHARD,
    "/from I/O tiles": Purpose.FROM_IO_TILES,
    "/from I/O tiles/Internal": Purpose.FROM_IO_TILES,
    "/to I/O tiles": Purpose.TO_IO_TILES,
    "/to I/O tiles/Internal": Purpose.TO_IO_TILES,
}
_TENSORS = frozenset(Role) - {Role.PROGRAM, Role.TEMPORARY, Role.STREAM_BUFFER, Role.STASH}
_MOVED = ("/stash", "/restore")
_CODE = "/exchange code"


def machine(clock_hz: float) -> dict[str, float]:
    """Machine parameters missing from the headers of formats 1 and 2: cycles, and bytes/cycle."""
    return {
        "host_latency": round(9e-6 * clock_hz),
        "link_hop_latency": 0.16e-6 * clock_hz,
        "external_sync": 600,
        "stream_step": 257,
        "slice_cycles": 403,
        "slice_bytes_per_cycle": 4,
        "streaming_bytes_per_cycle": 5e9 / clock_hz,
    }


def completed(
    record: type[Any], columns: Columns, stored: Callable[[type[Any]], Columns]
) -> Columns:
    """The columns of an older file's table, with those that its format did not have.

    They come in the order of the record's fields. ``stored`` gives the file's columns of other
    tables.
    """
    if record is records.Body:
        return {**columns, "task": body_tasks(columns)}
    if record is records.Op:
        return {**columns, "popart_name": _words(popart_names(columns["name"], _kinds(columns)))}
    if record is records.Step:
        tensors = _tensors(stored(records.Variable))
        return {
            **columns,
            "purpose": step_purposes(columns, stored(records.Body)),
            "tensor": _numbers([_moved(name, tensors) for name in columns["name"]]),
            "code": np.full(len(columns["id"]), -1, dtype=np.int64),
        }
    tensors = _tensors(columns)
    return {
        **columns,
        "tensor": _numbers([tensors.get(name, -1) for name in _whole_names(columns)]),
        "parameter": _numbers(
            [
                tensors.get(name.rpartition("/")[0], -1) if role == Role.OPTIMISER_STATE else -1
                for name, role in zip(columns["name"], columns["role"], strict=True)
            ]
        ),
        "step": _code_of_exchange(columns, stored(records.Step)),
    }


def _kinds(ops: Columns) -> list[str]:
    """The PyTorch name of each operator, capitalised."""
    words = (str(aten).split(".")[1:2] or [""] for aten in ops["aten"])
    return ["".join(part.capitalize() for part in word.split("_")) for (word,) in words]


def body_tasks(bodies: Columns) -> np.ndarray:
    """The `BodyTask` of each body."""
    rows = zip(bodies["name"], bodies["kind"], bodies["direction"], strict=True)
    return _words([_body_task(*row) for row in rows])


def _body_task(name: str, kind: str, direction: str) -> str:
    if direction:
        return direction
    if kind == "global exchange":
        return BodyTask.REDUCE if "reduce" in name.lower() else BodyTask.COPY
    if kind in ("host I/O", records.BESIDE):
        outwards = "outputs to host" in name
        task = BodyTask.STREAM_OUT if outwards else BodyTask.STREAM_IN
        return _OVER_IO_TILES[task] if kind == records.BESIDE else task
    return BodyTask.SYNC if kind == "external sync" else BodyTask.IDLE


def step_purposes(steps: Columns, bodies: Columns) -> np.ndarray:
    """The `Purpose` of each step."""
    task_of = dict(zip(bodies["id"].tolist(), body_tasks(bodies), strict=True))
    rows = zip(steps["name"], steps["type"], steps["body"].tolist(), strict=True)
    return _words([_purpose(name, type, task_of.get(body, "")) for name, type, body in rows])


def _purpose(name: str, type: str, task: str) -> str:
    if type == records.SYNC and "external" in name.lower():
        return Purpose.EXTERNAL_SYNC
    if type in _STREAM_TYPES:
        remote = Purpose.REMOTE_STORE if "/store/" in name else Purpose.REMOTE_LOAD
        return _OF_STREAM.get(task, remote)
    if type == records.GLOBAL_EXCHANGE:
        last = name.rpartition("/")[2].split(" in groups of ")[0]
        return _COLLECTIVES.get(last, Purpose.COPY)
    ending = next((ending for ending in _ENDINGS if name.endswith(ending)), "")
    return _ENDINGS.get(ending, Purpose.OPERATOR)


def _whole_names(variables: Columns) -> list[str]:
    """The name of the tensor that each variable holds, or "" where it holds none."""
    return [
        name.removesuffix("/stash") if role == Role.STASH else name if role in _TENSORS else ""
        for name, role in zip(variables["name"], variables["role"], strict=True)
    ]


def _tensors(variables: Columns) -> dict[str, int]:
    """Numbers for the names of tensors."""
    return {
        name: at for at, name in enumerate(dict.fromkeys(filter(None, _whole_names(variables))))
    }


def _moved(step: str, tensors: dict[str, int]) -> int:
    """The tensor that a step moves, according to its name."""
    ending = next((ending for ending in _MOVED if step.endswith(ending)), "")
    return tensors.get(step.removesuffix(ending), -1) if ending else -1


def _code_of_exchange(variables: Columns, steps: Columns) -> np.ndarray:
    """The step of each variable that holds the code of an exchange.

    Of steps with the same operator and name, the first have the variables of that name, in order.
    -1 for other variables.
    """
    waiting: dict[tuple[int, int, str], list[int]] = {}
    order = np.lexsort((steps["position"], steps["ipu"]))
    for row in order[steps["type"][order] == records.DO_EXCHANGE].tolist():
        key = int(steps["ipu"][row]), int(steps["op"][row]), str(steps["name"][row])
        waiting.setdefault(key, []).append(int(steps["id"][row]))
    step = np.full(len(variables["id"]), -1, dtype=np.int64)
    for row in np.flatnonzero(variables["category"] == "internalExchangeCode").tolist():
        name = str(variables["name"][row]).removesuffix(_CODE)
        key = int(variables["ipu"][row]), int(variables["op"][row]), name
        if waiting.get(key):
            step[row] = waiting[key].pop(0)
    return step


def _words(values: list[str]) -> np.ndarray:
    words = np.empty(len(values), dtype=object)
    words[:] = [str(value) for value in values]
    return words


def _numbers(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)
