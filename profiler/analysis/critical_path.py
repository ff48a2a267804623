"""The critical path of an update, cycle by cycle: the chain of tasks that sets its length.

An update (a device iteration) ends when its last task ends. That task began when the task before it
on its IPU ended or, if its IPU was waiting, when a task of another IPU ended. Followed back to the
beginning, every cycle belongs to exactly one task, and a task's cycles to its program steps, so the
attribution adds up exactly to the update. To shorten what is not on the path gains nothing; to
shorten what is on it gains at most its cycles, until another chain is longer
(`ipuscope.profiler.timeline.schedules` computes that).

If several IPUs end at the same cycle, the path stays on its IPU if that one works until then.
Otherwise it goes to the longest of the tasks that end there, then to the lowest IPU.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.answers import stored
from ipuscope.profiler.enums import BodyTask, Purpose
from ipuscope.profiler.file import records
from ipuscope.profiler.file.trace import Tasks
from ipuscope.profiler.lazy import once
from ipuscope.profiler.report import Report
from ipuscope.profiler.report.frames import first_of_each, first_ones, frame_of, ranges_of, summed

if TYPE_CHECKING:
    import pandas as pd


WAITING = "waiting"  # cycles without a task: none, in what the engine writes

# The causes of the path's cycles, from a step's kind and purpose; the order is the legend's.
CAUSES = (
    "compute",
    "exchange on chip",
    "sync",
    "stash",
    "copy between IPUs",
    "collective over replicas",
    "collective over shards",
    "host I/O",
    "streaming memory",
    WAITING,
)
_OF_PURPOSE: dict[str, str] = {
    Purpose.STASH: "stash",
    Purpose.RESTORE: "stash",
    Purpose.STREAM_IN: "host I/O",
    Purpose.STREAM_OUT: "host I/O",
    Purpose.REMOTE_LOAD: "streaming memory",
    Purpose.REMOTE_STORE: "streaming memory",
    Purpose.ALL_REDUCE: "collective over replicas",
    Purpose.REDUCE_SCATTER: "collective over replicas",
    Purpose.ALL_GATHER: "collective over replicas",
    Purpose.GATHER_SHARDS: "collective over shards",
    Purpose.COPY: "copy between IPUs",
    Purpose.EXTERNAL_SYNC: "sync",
}
_OF_KIND = {
    "exchange": "exchange on chip",
    "sync": "sync",
    "external sync": "sync",
    "global exchange": "collective over shards",  # an operator's, of IPUs that share its tensors
}


_BY_STEP = ("ipu", "stage", "direction", "task", "body", "step", "op", "tensor", "name")
_PHASES = (*records.PHASES, "", WAITING)

Path = Mapping[str, np.ndarray]  # the columns of `critical_path`, texts as objects


@dataclass(frozen=True, slots=True)
class Chain:
    """Path in time order, int64[piece], without gaps; ``task``: row of the tasks, -1 if none."""

    task: np.ndarray
    start: np.ndarray
    end: np.ndarray


def chain(
    ipu: np.ndarray, start: np.ndarray, end: np.ndarray, rank: np.ndarray, total: int
) -> Chain:
    """The critical chain of tasks from cycle 0 to ``total``.

    ``rank``: 0 for work, 1 for what overlaps the work (host transfers over I/O tiles), 2 for
    waiting, which is never on the path. Arrays have one entry a task, times in cycles.
    """
    usable = np.flatnonzero((rank < 2) & (end > start))
    # Of those that end together: work first, then the longest, then the lowest IPU.
    length = end[usable] - start[usable]
    # one key of two numbers instead of four: sorting takes half as long
    then = length * (int(ipu.max(initial=0)) + 1) - ipu[usable]
    usable = usable[np.lexsort((-then, end[usable] * 2 + rank[usable]))]
    # Python's lists: single look-ups are quicker than in arrays
    ends, begins, ipus = end[usable].tolist(), start[usable].tolist(), ipu[usable].tolist()
    worker = np.where(rank[usable] == 0, ipu[usable], -1).tolist()
    tasks, starts, stops = [], [], []
    time, here = total, -1
    while time > 0:
        low, high = bisect_left(ends, time), bisect_right(ends, time)
        row = low if low < high else -1
        if here >= 0 and here in (together := worker[low:high]):
            row = high - 1 - together[::-1].index(here)  # the last of them
        begin = begins[row] if row >= 0 else ends[low - 1] if low else 0
        tasks.append(int(usable[row]) if row >= 0 else -1)
        starts.append(max(0, begin))
        stops.append(time)
        time, here = begin, ipus[row] if row >= 0 else here
    order = slice(None, None, -1)
    return Chain(
        np.array(tasks[order], dtype=np.int64),
        np.array(starts[order], dtype=np.int64),
        np.array(stops[order], dtype=np.int64),
    )


def chain_of(report: Report, run: int = 0, iteration: int = 0) -> tuple[Tasks, Chain]:
    """The tasks of a run's device iteration, and the chain from its beginning."""
    tasks = report.trace.tasks(run, None, iteration)
    key = f"chain of run {run}, iteration {iteration}"
    kind, kinds = report.file.table(records.Body).coded("kind")
    of = kind[tasks.body], kinds, tasks.ipu, tasks.start, tasks.end
    return tasks, report.file.once(key, lambda: _chain(*of))


def chain_through(tasks: pd.DataFrame) -> Chain:
    """The chain through the tasks of a device iteration (`Report.tasks`), from its beginning."""
    import pandas as pd

    kind, kinds = pd.factorize(tasks["kind"])
    return _chain(kind, kinds, *(tasks[name].to_numpy() for name in ("ipu", "start", "end")))


def _chain(
    kind: np.ndarray, kinds: Iterable[str], ipu: np.ndarray, start: np.ndarray, end: np.ndarray
) -> Chain:
    origin = int(start.min()) if len(start) else 0
    rank_of = [{"idle": 2, records.BESIDE: 1}.get(str(name), 0) for name in kinds]
    rank = np.array(rank_of or [0])[kind]
    total = int(end.max(initial=origin)) - origin
    return chain(ipu, start - origin, end - origin, rank, total)


def on_ipus(ipu_of_task: np.ndarray, chain: Chain) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the chain runs: IPU, start and end of each stretch on one IPU."""
    real = chain.task >= 0
    ipu = ipu_of_task[chain.task[real]]
    start, end = chain.start[real], chain.end[real]
    first = np.flatnonzero(np.append([True], ipu[1:] != ipu[:-1])[: len(ipu)])
    last = np.append(first[1:], len(ipu))[: len(first)] - 1
    return ipu[first], start[first], end[last]


def path_on_ipus(
    report: Report, run: int = 0, iteration: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`on_ipus` of a device iteration, from its beginning. All of a run are alike."""
    if not run:
        return _first_path(report)
    tasks, chain = chain_of(report, run, iteration)
    return on_ipus(tasks.ipu, chain)


@stored
def _first_path(report: Report) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tasks, chain = chain_of(report)
    return on_ipus(tasks.ipu, chain)


@once
def critical_path(report: Report, run: int = 0, iteration: int = 0) -> pd.DataFrame:
    """Every cycle of an update by what the run waited for, one row for each step on the path.

    ``phase`` (of `records.PHASES`), ``cause`` (of `CAUSES`), ``ipu``, ``stage``, ``direction``,
    ``task`` (of `BodyTask`), ``body``, ``step`` (-1: none), ``op`` (-1: none), ``tensor``,
    ``name``, ``times`` (how often it is on the path) and ``cycles`` (of all times together), which
    add up exactly to the update's. Most cycles first. Callers must not modify it.
    """
    return frame_of(path_columns(report, run, iteration))


@once
def path_columns(report: Report, run: int = 0, iteration: int = 0) -> Path:
    """`critical_path` as arrays: pandas is not imported."""
    tasks, path = chain_of(report, run, iteration)
    phase = np.full(len(path.task), _PHASES.index(WAITING))
    body = np.full(len(path.task), -1)
    real = path.task >= 0
    phase[real] = report.trace.phases(run, tasks)[path.task[real]]
    body[real] = tasks.body[path.task[real]]
    rows = _named(report, _spent_by_entry(report, body, path.end - path.start, phase))
    order = np.argsort(-rows["cycles"], kind="stable")
    order = order[rows["cycles"][order] > 0]
    return {name: values[order] for name, values in rows.items()}


def busy_by_step(
    report: Report, run: int = 0, iteration: int = 0, named: bool = True
) -> dict[str, np.ndarray]:
    """What tasks spend by body and step, without waiting, in the order in which each first comes.

    Columns as of `critical_path`; without ``name`` unless ``named``: texts take longest to read.
    """
    return _named(report, _busy_by_entry(report, run, iteration), named)


@once
def _busy_by_entry(report: Report, run: int, iteration: int) -> dict[str, np.ndarray]:
    body, length = busy_tasks(report, run, iteration)
    return _spent_by_entry(report, body, length, np.zeros_like(body))


def busy_tasks(report: Report, run: int = 0, iteration: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Body (a row of their table) and length (cycles) of all tasks that are no waiting."""
    tasks = report.trace.tasks(run, None, iteration)
    waits = report.file.table(records.Body).equals("kind", "idle")[tasks.body]
    return tasks.body[~waits], (tasks.end - tasks.start)[~waits]


def _spent_by_entry(
    report: Report, body: np.ndarray, length: np.ndarray, phase: np.ndarray
) -> dict[str, np.ndarray]:
    """What tasks spend by ``entry`` of `Bodies` (-1: of no body): ``phase, times, cycles``.

    Of each task: its body (a row of their table; -1: none), cycles and phase (a position in
    `_PHASES`). The last step of a task lasts until it ends.
    """
    alike, which = first_ones(phase, body, length)  # tasks that are alike are worked out once
    phase, body, length = phase[alike], body[alike], length[alike]
    count_of = np.bincount(which, minlength=len(alike))
    own = _distinct(report)
    steps = len(own.entry) + 1  # the last: of no body
    count = np.append(own.count, 1)[body]
    piece = np.repeat(np.arange(len(body)), count)
    step = ranges_of(np.append(own.first, steps - 1)[body], count)
    cycles, runs = np.append(own.cycles, 0)[step], np.append(own.runs, 1)[step]
    last = np.flatnonzero(step == np.append(own.last, steps - 1)[body[piece]])  # one a piece
    cycles[last] += length - np.append(own.start_of_last, 0)[body]
    rows, row_of = first_of_each(phase[piece] * steps + step)
    return {
        "entry": np.append(own.entry, -1)[step[rows]],
        "phase": np.array(_PHASES, dtype=object)[phase[piece[rows]]],
        "times": summed(runs * count_of[piece], row_of, len(rows)),
        "cycles": summed(cycles * count_of[piece], row_of, len(rows)),
    }


@dataclass(frozen=True, slots=True)
class _Distinct:
    """The distinct steps of each body, in the order in which they first come; loops repeat them.

    Steps of body b: ``first[b]``, ``count[b]`` of them. Of a step: its first ``entry`` of `Bodies`,
    how often its body ``runs`` it, and for how many ``cycles``, without the body's last entry: that
    is one of step ``last[b]``, begins at ``start_of_last[b]`` and lasts until the task ends.
    """

    first: np.ndarray
    count: np.ndarray
    entry: np.ndarray
    runs: np.ndarray
    cycles: np.ndarray
    last: np.ndarray
    start_of_last: np.ndarray


@once
def _distinct(report: Report) -> _Distinct:
    bodies = report.sequence.bodies_in_row
    body, step = np.repeat(np.arange(len(bodies.first)), bodies.count), bodies.step
    first_like = np.arange(len(step))
    follow = (step[1:] > step[:-1]) | (body[1:] != body[:-1])
    if not follow.all():  # some come again, or in another order
        keys = body * (int(step.max(initial=0)) + 2) + step
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        first_like = first[which]
    is_first = first_like == np.arange(len(step))
    of_entry = (np.cumsum(is_first) - 1)[first_like]
    last = bodies.first + bodies.count - 1
    cycles = np.append(bodies.start[1:], 0)[: len(step)] - bodies.start
    cycles[last] = 0
    entry, first = np.flatnonzero(is_first), of_entry[bodies.first]
    return _Distinct(
        first,
        np.diff(np.append(first, len(entry))),
        entry,
        np.bincount(of_entry, minlength=len(entry)),
        summed(cycles, of_entry, len(entry)),
        of_entry[last],
        bodies.start[last],
    )


def _named(
    report: Report, spent: Mapping[str, np.ndarray], named: bool = True
) -> dict[str, np.ndarray]:
    """The columns of `critical_path` from what entries of `Bodies` spend."""
    about = _body_steps(report, spent["entry"], named)
    return {
        "phase": spent["phase"],
        "cause": _causes(about.pop("kind"), about.pop("purpose"), about["task"]),
        **about,
        "times": spent["times"],
        "cycles": spent["cycles"],
    }


def _body_steps(report: Report, entry: np.ndarray, named: bool) -> dict[str, np.ndarray]:
    """Rows of `Report.sequence.body_steps` by numbers; -1 is waiting that no task accounts for."""
    real = entry >= 0
    columns, wanted = {}, _BY_STEP if named else _BY_STEP[:-1]
    found = report.sequence.body_steps_at(entry[real], *wanted, "kind", "purpose")
    if real.all():
        return found
    for name, values in found.items():
        none = WAITING if name in ("kind", "name") else "" if values.dtype == object else -1
        columns[name] = np.full(len(entry), none, dtype=values.dtype)
        columns[name][real] = values
    return columns


def _causes(kind: np.ndarray, purpose: np.ndarray, task: np.ndarray) -> np.ndarray:
    """`_cause` of each step, computed once for all of a kind."""
    about = [*zip(kind.tolist(), purpose.tolist(), task.tolist(), strict=True)]
    cause = {one: _cause(*map(str, one)) for one in dict.fromkeys(about)}
    of_steps: np.ndarray = np.array([cause[one] for one in about], dtype=object)
    return of_steps


def _cause(kind: str, purpose: str, task: str) -> str:
    if not task:
        return WAITING
    return _OF_PURPOSE.get(purpose) or cause_of_kind(kind)


def cause_of_kind(kind: str) -> str:
    """What a step or a body is on the path for, by its kind (of `records.KINDS`)."""
    return _OF_KIND.get(kind, "compute")


# Of a layer, or of one of its operators.
NUMBER = re.compile(r"(?<=[./_])\d+\b|(?<=[a-z])\d+(?=[./:])")
_ACROSS = ("copy between IPUs", "collective over replicas", "host I/O", "streaming memory")


def waterfall(path: Mapping[str, Any] | pd.DataFrame) -> pd.DataFrame:
    """The path by cause and phase, in the order of `CAUSES`.

    ``cause``, a column for each of `records.PHASES` that occurs, ``cycles`` and ``share`` (of the
    update, 0..1). ``path``: from `critical_path`.
    """
    return frame_of(waterfall_columns(path))


def waterfall_columns(path: Mapping[str, Any] | pd.DataFrame) -> dict[str, np.ndarray]:
    """`waterfall` as arrays."""
    spent: Counter[tuple[str, str]] = Counter()
    of_path = zip(*(path[name].tolist() for name in ("cause", "phase", "cycles")), strict=True)
    for cause, phase, cycles in of_path:
        spent[cause, phase] += cycles
    causes = [one for one in CAUSES if any(one == cause for cause, _ in spent)]
    columns = {
        phase: np.array([spent[cause, phase] for cause in causes])
        for phase in (*records.PHASES, WAITING)
        if any(phase == other for _, other in spent)
    }
    total = sum(columns.values(), np.zeros(len(causes), dtype=np.int64))
    share = total / max(1, int(total.sum()))
    return {"cause": np.array(causes, dtype=object), **columns, "cycles": total, "share": share}


def entries(path: Path, named: np.ndarray) -> dict[str, np.ndarray]:
    """What the update waits for, most first: one row for what a single change would shorten.

    Work has one row for each stage and cause (in the weight update, for each IPU and cause);
    transfers across the chip's edge have one row for each step. ``cause, ipu, stage, cycles,
    share`` (of the update, 0..1). ``named``: the operator (or step) of each row of ``path``. Of
    the ones with the most cycles, where names that differ only in numbers are one: ``of_which``
    (cycles) and ``alike`` (how many names); of their longest step: ``task, direction, step, op,
    tensor, name`` (of ``named``) and ``times`` (on the path).
    """
    step = np.where(np.isin(path["cause"], _ACROSS), path["step"], -1)
    whole = [*(path[name] for name in ("cause", "ipu", "stage")), step]
    whole.append(path["task"] == BodyTask.UPDATE)
    about = ("task", "direction", "step", "op", "tensor")  # a step says the last two
    alike_as = {name: NUMBER.sub("*", name).removesuffix("_*") for name in {*named.tolist()}}
    part = np.array([alike_as[name] for name in named.tolist()], dtype=object)
    rows, which = first_ones(*whole[:3], named, *(path[name] for name in about[:3]))
    times, cycles = (summed(path[name], which, len(rows)) for name in ("times", "cycles"))
    order = np.argsort(-cycles, kind="stable")
    leads, which = first_ones(*(values[rows[order]] for values in (*whole, part)))
    names, _ = first_ones(which, named[rows[order]])
    alike = np.bincount(which[names], minlength=len(leads))
    of_which = summed(cycles[order], which, len(leads))
    parts = np.argsort(-of_which, kind="stable")
    tops, which = first_ones(*(values[rows[order[leads[parts]]]] for values in whole))
    total = summed(of_which[parts], which, len(tops))
    longest = np.argsort(-total, kind="stable")
    top = parts[tops[longest]]
    lead = order[leads[top]]
    return {
        **{name: path[name][rows[lead]] for name in ("cause", "ipu", "stage")},
        "cycles": total[longest],
        "share": total[longest] / max(1, int(cycles.sum())),
        **{name: path[name][rows[lead]] for name in about},
        "name": named[rows[lead]],
        "times": times[lead],
        "of_which": of_which[top],
        "alike": alike[top],
    }
