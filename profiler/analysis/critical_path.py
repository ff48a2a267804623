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

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler.answers import stored
from ipuscope.profiler.enums import BodyTask, Purpose
from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

    from ipuscope.profiler.file.trace import Bodies

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


_IDS = ("ipu", "stage", "step", "op", "tensor")
_BY_STEP = (
    *(
        "phase",
        "cause",
        "ipu",
        "stage",
        "direction",
        "task",
        "body",
        "step",
        "op",
        "tensor",
        "name",
    ),
)


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


def chain_of(report: Report, run: int = 0, iteration: int = 0) -> tuple[pd.DataFrame, Chain]:
    """The tasks of a run's device iteration (`Report.tasks`), and the chain from its beginning."""
    tasks = report.tasks(run, iteration=iteration)
    key = f"chain of run {run}, iteration {iteration}"
    return tasks, report.file.once(key, lambda: chain_through(tasks))


def chain_through(tasks: pd.DataFrame) -> Chain:
    """The chain through the tasks of a device iteration (`Report.tasks`), from its beginning."""
    import pandas as pd

    origin = int(tasks["start"].min()) if len(tasks) else 0
    kind, kinds = pd.factorize(tasks["kind"])
    rank_of = [{"idle": 2, records.BESIDE: 1}.get(str(name), 0) for name in kinds]
    rank = np.array(rank_of or [0])[kind]
    start, end = (tasks[name].to_numpy() - origin for name in ("start", "end"))
    total = int(end.max(initial=0))
    return chain(tasks["ipu"].to_numpy(), start, end, rank, total)


def on_ipus(tasks: pd.DataFrame, chain: Chain) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the chain runs (`chain_of`): IPU, start and end of each stretch on one IPU."""
    return pieces_on_ipus(tasks["ipu"].to_numpy(), chain)


def pieces_on_ipus(
    ipu_of_task: np.ndarray, chain: Chain
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`on_ipus`, from the IPU of each task."""
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
    return on_ipus(*chain_of(report, run, iteration)) if run else _first_path(report)


@stored
def _first_path(report: Report) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return on_ipus(*chain_of(report))


def critical_path(report: Report, run: int = 0, iteration: int = 0) -> pd.DataFrame:
    """Every cycle of an update by what the run waited for, one row for each step on the path.

    ``phase`` (of `records.PHASES`), ``cause`` (of `CAUSES`), ``ipu``, ``stage``, ``direction``,
    ``task`` (of `BodyTask`), ``body``, ``step`` (-1: none), ``op`` (-1: none), ``tensor``,
    ``name``, ``times`` (how often it is on the path) and ``cycles`` (of all times together), which
    add up exactly to the update's. Most cycles first. Callers must not modify it.
    """
    key = f"critical path of run {run}, iteration {iteration}"
    return report.file.once(
        key, lambda: critical_path_of(report, *chain_of(report, run, iteration))
    )


def critical_path_of(report: Report, tasks: pd.DataFrame, path: Chain) -> pd.DataFrame:
    """`critical_path` along a given chain (`chain_of`)."""
    rows = spent_by_step(report, _pieces(tasks, path))
    rows = rows[rows["cycles"] > 0]
    return rows.sort_values("cycles", ascending=False, kind="stable", ignore_index=True)


def _pieces(tasks: pd.DataFrame, path: Chain) -> pd.DataFrame:
    """The chain's pieces by phase, body and length: ``phase, body, length, times``."""
    import pandas as pd

    real = path.task >= 0
    on_path = tasks.iloc[path.task[real]]
    phase = np.full(len(real), WAITING, dtype=object)
    phase[real] = on_path["phase"].astype(str).to_numpy()
    body = np.full(len(real), -1, dtype=np.int64)
    body[real] = on_path["body"].to_numpy()
    pieces = pd.DataFrame({"phase": phase, "body": body, "length": path.end - path.start})
    return pieces.value_counts(sort=False).rename("times").reset_index()


def spent_by_step(report: Report, pieces: pd.DataFrame) -> pd.DataFrame:
    """What pieces spend, by phase, body and step, in the order in which each first comes.

    ``pieces``: ``phase, body, length`` (cycles) and ``times``; the last step of a piece lasts until
    it ends. The columns are those of `critical_path`.
    """
    import pandas as pd

    bodies = report.sequence.bodies_in_row
    piece, entry, cycles = _unrolled(report.bodies["body"].to_numpy(), bodies, pieces)
    phase, phases = pd.factorize(pieces["phase"])
    step, steps = _same_step(bodies, entry)
    key = phase[piece] * steps + step
    size = max(1, len(phases)) * steps
    first = np.full(size, -1)
    first[key[::-1]] = np.arange(len(key))[::-1]
    rows = np.sort(first[first >= 0])
    totals = np.zeros((2, size), dtype=np.int64)
    np.add.at(totals[0], key, pieces["times"].to_numpy()[piece])
    np.add.at(totals[1], key, cycles)
    named = _named(report, entry[rows])
    return named.assign(
        phase=pieces["phase"].take(piece[rows]).array,
        cause=_causes(named),
        body=pieces["body"].to_numpy()[piece[rows]],
        times=totals[0][key[rows]],
        cycles=totals[1][key[rows]],
    )[[*_BY_STEP, "times", "cycles"]]


def _unrolled(
    ids: np.ndarray, bodies: Bodies, pieces: pd.DataFrame
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pieces of bodies ``ids`` by step: piece, entry of ``bodies`` (-1: none), cycles of all."""
    body = pieces["body"].to_numpy()
    order = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids, body, sorter=order), max(0, len(ids) - 1))
    row = order[at] if len(ids) else np.full(len(body), -1)
    real = (row >= 0) & (np.append(ids, -1)[row] == body)
    count = np.ones(len(body), dtype=np.int64)
    count[real] = bodies.count[row[real]]
    piece = np.repeat(np.arange(len(body)), count)
    within = np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count)
    entry = np.where(real[piece], np.append(bodies.first, 0)[row[piece]] + within, -1)
    start = np.append(bodies.start, 0)[entry]
    last = np.append(piece[1:] != piece[:-1], [True] * bool(len(piece)))
    length, times = (pieces[name].to_numpy() for name in ("length", "times"))
    stop = np.where(last, length[piece], np.append(start[1:], 0)[: len(start)])
    return piece, entry, (stop - start) * times[piece]


def _same_step(bodies: Bodies, entry: np.ndarray) -> tuple[np.ndarray, int]:
    """A number for each entry, the same if a body runs the same step; and a bound of the numbers.

    Loops run steps several times. Numbers are below the bound, not all of them used.
    """
    chosen = np.unique(np.searchsorted(bodies.first, entry[entry >= 0], side="right") - 1)
    count = bodies.count[chosen]
    begin = np.cumsum(count) - count
    every = np.repeat(bodies.first[chosen] - begin, count) + np.arange(int(count.sum()))
    body, step = np.repeat(np.arange(len(chosen)), count), bodies.step[every]
    number = np.arange(len(every))
    follow = (step[1:] > step[:-1]) | (body[1:] != body[:-1])
    if not follow.all():  # some come again, or in another order
        keys = body * (int(step.max(initial=0)) + 2) + step
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        number = first[which]
    of_entries = np.full(len(bodies.step) + 1, len(every))  # the last: of no entry
    of_entries[every] = number
    return of_entries[entry], len(every) + 1


def _named(report: Report, entry: np.ndarray) -> pd.DataFrame:
    """Rows of `Report.sequence.body_steps` by numbers; -1 is waiting that no task accounts for."""
    real = entry >= 0
    named = report.sequence.body_steps_at(entry[real])
    if real.all():
        return named
    named = named.set_axis(np.flatnonzero(real)).reindex(np.arange(len(entry)))
    named = named.fillna(dict.fromkeys(_IDS, -1))
    named = named.fillna(dict.fromkeys(("task", "direction", "purpose"), ""))
    named = named.fillna({"kind": WAITING, "name": WAITING})
    return named.astype(dict.fromkeys(_IDS, np.int64))


def _causes(steps: pd.DataFrame) -> np.ndarray:
    """`_cause` of each step, computed once for all of a kind."""
    about = steps[["kind", "purpose", "task"]]
    kind = about.groupby([*about.columns], sort=False).ngroup()  # in the order of the first of each
    first_ones = about[~kind.duplicated()]
    causes = [_cause(*map(str, one)) for one in first_ones.itertuples(index=False)]
    of_steps: np.ndarray = np.array(causes, dtype=object)[kind]
    return of_steps


def _cause(kind: str, purpose: str, task: str) -> str:
    if not task:
        return WAITING
    return _OF_PURPOSE.get(purpose) or cause_of_kind(kind)


def cause_of_kind(kind: str) -> str:
    """What a step or a body is on the path for, by its kind (of `records.KINDS`)."""
    return _OF_KIND.get(kind, "compute")


NUMBER = r"(?<=[./_])\d+\b|(?<=[a-z])\d+(?=[./:])"  # of a layer, or of one of its operators
_ACROSS = ("copy between IPUs", "collective over replicas", "host I/O", "streaming memory")


def waterfall(path: pd.DataFrame) -> pd.DataFrame:
    """The path by cause and phase, in the order of `CAUSES`.

    ``cause``, a column for each of `records.PHASES` that occurs, ``cycles`` and ``share`` (of the
    update, 0..1). ``path``: from `critical_path`.
    """
    table = path.pivot_table(
        index="cause", columns="phase", values="cycles", aggfunc="sum", fill_value=0
    )
    phases = [phase for phase in (*records.PHASES, WAITING) if phase in table.columns]
    table = table.reindex([cause for cause in CAUSES if cause in table.index])[phases]
    total = table.sum(axis=1)
    summed = table.assign(cycles=total, share=total / max(1, int(total.sum())))
    return summed.rename_axis(columns=None).reset_index()


def entries(path: pd.DataFrame, operators: pd.Series[str]) -> pd.DataFrame:
    """What the update waits for, most first: one row for what a single change would shorten.

    Work has one row for each stage and cause (in the weight update, for each IPU and cause);
    transfers across the chip's edge have one row for each step. ``cause, ipu, stage, cycles,
    share`` (of the update, 0..1). ``operators``: names by id. Of the operators with the most
    cycles, where those whose names differ only in numbers are one: ``of_which`` (cycles) and
    ``alike`` (how many are one); of the longest step of theirs: ``task, direction, step, op,
    tensor, name`` (the operator's, if it has one) and ``times`` (on the path).
    """
    across = path["cause"].isin(_ACROSS).to_numpy()
    name = path["op"].map(operators).fillna(path["name"])
    groups = path.assign(
        group=np.where(across, path["step"], -1),
        update=path["task"] == BodyTask.UPDATE,
        name=name,
        part=name.astype(str).str.replace(NUMBER, "*", regex=True),
    )
    whole = ["cause", "ipu", "stage", "group", "update"]
    about = ["task", "direction", "step", "op", "tensor", "name"]
    steps = groups.groupby([*whole, "part", *about], sort=False, as_index=False)[
        ["times", "cycles"]
    ].sum()
    steps = steps.sort_values("cycles", ascending=False, kind="stable")
    parts = steps.groupby([*whole, "part"], sort=False, as_index=False)
    rows = parts.first().assign(of_which=parts["cycles"].sum()["cycles"])
    rows["alike"] = parts["name"].nunique()["name"]
    rows = rows.sort_values("of_which", ascending=False, kind="stable")
    by_whole = rows.groupby(whole, sort=False, as_index=False)
    rows = by_whole.first().assign(cycles=by_whole["of_which"].sum()["of_which"])
    rows["share"] = rows["cycles"] / max(1, int(path["cycles"].sum()))
    rows = rows.sort_values("cycles", ascending=False, kind="stable", ignore_index=True)
    return rows[["cause", "ipu", "stage", "cycles", "share", *about, "times", "of_which", "alike"]]
