"""Comparing two reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler import units
from ipuscope.profiler.analysis.critical_path import critical_path
from ipuscope.profiler.analysis.memory_hot_spots import fullest_tiles, overflows
from ipuscope.profiler.analysis.operators import executed_ops
from ipuscope.profiler.analysis.pace import pace, turn, waiting
from ipuscope.profiler.analysis.peak import SHORT, peak
from ipuscope.profiler.analysis.pod import shards_of
from ipuscope.profiler.analysis.waits import worker
from ipuscope.profiler.enums import OUT_OF_MEMORY
from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report, number

if TYPE_CHECKING:
    import pandas as pd


def compare_ops(a: Report, b: Report) -> pd.DataFrame:
    """Operators of two reports matched by name and direction, the largest differences first.

    ``name, direction``, of each side ``stage, cycles`` (one execution), ``executions`` and
    ``total_cycles`` (of a weight update, `executed_ops`), and ``difference`` and ``ratio`` of the
    totals; None if a report has none. Totals are per sample, as fractions, if the updates have
    different numbers of samples; of one execution, by PopART's names, if one was imported. Equal
    differences are in the order of their cycles.
    """
    import pandas as pd

    keys = ["name", "direction"]
    sides, of = [], basis(a, b)
    per_sample = of == SAMPLE
    for report in (a, b):
        ops = report.ops.join(executed_ops(report))
        if of == _ONE:
            ops = ops.assign(name=_popart_names(ops), total_cycles=ops["cycles"])
        if per_sample:
            ops["total_cycles"] = ops["total_cycles"] / max(1, _samples(report))
        ops["number"] = ops.groupby(keys).cumcount()
        sides.append(ops[[*keys, "number", "stage", "cycles", "executions", "total_cycles"]])
    both = pd.merge(sides[0], sides[1], on=[*keys, "number"], how="outer", suffixes=("_a", "_b"))
    before, after = both["total_cycles_a"], both["total_cycles_b"]
    both["difference"] = after.fillna(0) - before.fillna(0)
    both["ratio"] = _or_none(after / before.where(before > 0))
    kind: Any = "Float64" if per_sample else "Int64"
    for name in ("stage", "cycles", "executions", "total_cycles"):
        for side in "ab":
            of_side = both[f"{name}_{side}"].astype(kind if name == "total_cycles" else "Int64")
            both[f"{name}_{side}"] = _or_none(of_side)
    if not per_sample:
        both["difference"] = both["difference"].astype(np.int64)
    most = both[["total_cycles_a", "total_cycles_b"]].astype(float).max(axis=1)
    order = np.lexsort((-most.fillna(0), -both["difference"].abs()))
    return both.drop(columns="number").iloc[order].reset_index(drop=True)


def compare_classes(measured: Report, modelled: Report) -> pd.DataFrame:
    """Cycles of one execution of the operators that both reports have, by class and in total.

    ``kind`` ("all" in the last row), ``operators``, ``measured``, ``modelled``, and ``error``: by
    which share of the measured the modelled is more. Empty if none are paired.
    """
    import pandas as pd

    both = paired_ops(measured, modelled)
    sums = {
        "operators": ("kind", "size"),
        "measured": ("measured", "sum"),
        "modelled": ("modelled", "sum"),
    }
    classes = both.groupby("kind").agg(**sums).sort_values("measured", ascending=False)
    whole = both.assign(kind="all").groupby("kind").agg(**sums)
    rows = pd.concat([classes, whole]).reset_index()
    rows["error"] = rows["modelled"] / rows["measured"] - 1
    return rows


def paired_ops(measured: Report, modelled: Report) -> pd.DataFrame:
    """The operators that both have, paired by PopART's names, direction and order.

    ``kind`` (the modelled ATen operator, without overload), ``measured`` and ``modelled`` cycles of
    one execution; those without cycles in one report are left out.
    """
    from ipuscope.profiler.calibration import kinds_of

    keys, sides = ["popart_name", "direction", "number"], []
    for report in (measured, modelled):
        ops = report.ops[["popart_name", "direction", "aten", "cycles"]]
        ops = ops.assign(number=ops.groupby(keys[:2]).cumcount())
        sides.append(ops[ops["cycles"] > 0])
    both = sides[0].merge(sides[1], on=keys)
    names = {"cycles_x": "measured", "cycles_y": "modelled"}
    return both.assign(kind=kinds_of(both["aten_y"])).rename(columns=names)


def basis(a: Report, b: Report) -> str:
    """What operators' cycles are of, in `compare_ops`: a turn, "a sample" or "one execution"."""
    if a.imported != b.imported:
        return _ONE
    return turn(a, b) if _samples(a) == _samples(b) else SAMPLE


def _popart_names(ops: pd.DataFrame) -> pd.Series[Any]:
    return ops["popart_name"].where(ops["popart_name"] != "", ops["name"])


def _or_none(values: pd.Series[Any]) -> pd.Series[Any]:
    """The values, with None for missing ones."""
    return values.astype(object).where(values.notna(), None)


def compare_waits(a: Report, b: Report) -> pd.DataFrame:
    """Where the difference between two updates comes from, on their critical paths.

    One row for each cause and place of waiting: ``cause, where`` ("stage 2", "the weight update on
    IPU 0", "IPU 3 and 4"), ``cycles_a, cycles_b`` (0 if a path has none of it), ``difference`` and
    ``share`` (of the whole difference; NaN if that is 0), the largest differences first; they add
    up to that of the updates. Cycles are per sample, as fractions, if the updates have different
    numbers of samples. Empty if a report has no times, or one was imported.
    """
    return _differences(a, b, _waits, _WAITS)


LEVELS = ("cause", "module", "IPU")  # of `compare_paths`


def compare_paths(a: Report, b: Report, at: Sequence[str] = ()) -> pd.DataFrame:
    """`compare_waits` by cause, of one cause ``at`` by module, and of one module of it by IPU.

    ``name`` in place of ``cause, where``. Without an operator, the task's name is the module.
    """

    def by(report: Report, path: pd.DataFrame) -> pd.Series[Any]:
        ops = report.ops["module"].reindex(path["op"]).fillna("").astype(str).to_numpy()
        task = path["task"].astype(str).replace("", "no module").to_numpy()
        module = np.where(ops != "", ops, np.where(path["op"] >= 0, "no module", task))
        ipu = np.char.add("IPU ", path["ipu"].to_numpy().astype(str))
        named = [path["cause"].astype(str).to_numpy(), module, ipu]
        chosen = np.ones(len(path), dtype=bool)
        for names, wanted in zip(named, at, strict=False):
            chosen &= names == wanted
        rows = path.assign(name=named[min(len(at), len(named) - 1)])
        return rows[chosen].groupby("name")["cycles"].sum()

    return _differences(a, b, by, ("name", *_WAITS[2:]))


def _differences(
    a: Report,
    b: Report,
    by: Callable[[Report, pd.DataFrame], pd.Series[Any]],
    columns: Sequence[str],
) -> pd.DataFrame:
    """The cycles of both critical paths ``by`` something, and their differences."""
    import pandas as pd

    sides, of = [], basis(a, b)
    per_sample = of == SAMPLE
    for report in (a, b):
        path = critical_path(report) if len(report.runs) and of != _ONE else None
        if path is None or not len(path):
            return pd.DataFrame(columns=pd.Index(columns))
        cycles = by(report, path)
        sides.append(cycles / max(1, _samples(report)) if per_sample else cycles)
    both = pd.concat(sides, axis=1, keys=["cycles_a", "cycles_b"]).fillna(0)
    both["difference"] = both["cycles_b"] - both["cycles_a"]
    whole = float(both["difference"].sum())
    both["share"] = both["difference"] / whole if whole else math.nan
    kind = np.float64 if per_sample else np.int64
    both = both.astype(dict.fromkeys(("cycles_a", "cycles_b", "difference"), kind)).reset_index()
    order = np.argsort(-both["difference"].abs().to_numpy(), kind="stable")
    return both[list(columns)].iloc[order].reset_index(drop=True)


_WAITS = ("cause", "where", "cycles_a", "cycles_b", "difference", "share")


def _waits(report: Report, path: pd.DataFrame) -> pd.Series[Any]:
    """Cycles of a critical path by cause and by what is waited for."""
    steps = path["step"].isin(report.sequence.moved_tensors["step"])
    peers = _peers(report, set(path.loc[steps, "step"].tolist()))
    columns = (path[name].tolist() for name in ("task", "stage", "ipu", "step"))
    where = [
        peers.get(step) or worker(task, stage, ipu)
        for task, stage, ipu, step in zip(*columns, strict=True)
    ]
    return path.assign(where=where).groupby(["cause", "where"])["cycles"].sum()


def _peers(report: Report, steps: set[int]) -> dict[int, str]:
    """For each step that moves tensors between IPUs, these IPUs: 'IPUs 3 and 4'."""
    moved = report.sequence.moved_tensors
    moved = moved[moved["step"].isin(steps) & (moved["source"] >= 0) & (moved["target"] >= 0)]
    names = {}
    for step, tensors in moved.groupby("step"):
        ipus = sorted({*tensors["source"].tolist(), *tensors["target"].tolist()})
        names[int(str(step))] = units.ipus(ipus)
    return names


def compare(a: Report, b: Report) -> pd.DataFrame:
    """The main measures of two reports: ``what, unit, a, b, difference, ratio``.

    NaN if a report lacks the measure; ``ratio`` is None if it makes no sense. Times of a model that
    was only compiled come from its schedule, like those of one that ran.
    """
    import pandas as pd

    rows = []
    for what, unit, function in _MEASURES:
        one, two = function(a), function(b)
        if what in (TURN, _WORK) and basis(a, b) == _ONE:  # an update is not the other's run
            one, two = (one, math.nan) if a.imported else (math.nan, two)
        ratio = two / one if one > 0 and math.isfinite(two) else None
        rows.append((turn(a, b) if what == TURN else what, unit, one, two, two - one, ratio))
    return pd.DataFrame(rows, columns=pd.Index(["what", "unit", "a", "b", "difference", "ratio"]))


def not_comparable(a: Report, b: Report) -> dict[str, str]:
    """Measures of `compare` that do not tell which of the two is better, and why."""
    kinds = a.meta["kind"], b.meta["kind"]
    reasons: dict[str, str] = {}
    apart = basis(a, b) == _ONE
    names = [set(_popart_names(one.ops) if apart else one.ops["name"]) for one in (a, b)]
    if all(names) and names[0].isdisjoint(names[1]):
        reasons = dict.fromkeys(
            _OF_A_MODEL, "A and B have no operator in common: the models differ"
        )
    if kinds[0] != kinds[1]:
        reasons = dict.fromkeys(_OF_A_MODEL, f"A is {kinds[0]} and B is {kinds[1]}")
    reasons = _other_samples(a, b) | reasons | _other_peaks(a, b)
    for what, _, measure in _MEASURES:
        for name, report in zip("AB", (a, b), strict=True):
            unknown = apart and what in (TURN, SAMPLE)
            if what in _OF_A_MODEL and not unknown and not measure(report) > 0:
                reasons[what] = f"{name} has none ({report.path}: it is {report.meta['state']})"
    return {turn(a, b) if what == TURN else what: why for what, why in reasons.items()}


def _other_samples(a: Report, b: Report) -> dict[str, str]:
    if basis(a, b) == _ONE:
        name = "A" if a.imported else "B"
        why = f"{name} was imported, and does not say of how many samples its run is"
        reasons = dict.fromkeys((TURN, SAMPLE, _RATE), why)
        return reasons | {"waiting": f"in {name} waits for a sync of IPUs are time of that sync"}
    one, two = _samples(a), _samples(b)
    words = f"it is of {one:,} samples in A and of {two:,} in B; {SAMPLE!r} compares them"
    return {} if one == two else {TURN: words}


def _other_peaks(a: Report, b: Report) -> dict[str, str]:
    reasons = {}
    tops = [SHORT[top.dtype] for top in (peak(a), peak(b)) if top]
    if len(set(tops)) > 1:
        why = f"they are of the {tops[0]} peak in A and of the {tops[1]} peak in B"
        reasons = dict.fromkeys(("MFU", "HFU"), why)
    for name, report in zip("AB", (a, b), strict=True):
        if not _fits(report):
            worst = max(overflows(report), key=lambda one: one.bytes_over, default="")
            why = f"{name} is out of memory{worst and ': '}{worst}"
            reasons |= dict.fromkeys((_RATE, "MFU", "HFU"), why)
    return reasons


def caveats(a: Report, b: Report) -> list[str]:
    """Sentences about what cannot be compared, one per reason, and about compilers that differ."""
    reasons, said = not_comparable(a, b), []
    for why in dict.fromkeys(reasons.values()):
        *most, last = [name for name, reason in reasons.items() if reason == why]
        what = f"{', '.join(most)} and {last}" if most else last
        said.append(f"{what[:1].upper()}{what[1:]} cannot be compared: {why}.")
    rules = [report.meta.get("rules") for report in (a, b)]
    if all(rules) and rules[0] != rules[1]:
        said.append(
            "A and B were compiled by different versions of IPUscope or PyTorch: part of any"
            " difference may be the compiler's."
        )
    return said


def _samples(report: Report) -> int:
    """Samples of a weight update, or of a device iteration, over all replicas."""
    micro_batch = int(number(report.meta, "micro_batch", 0))
    return pace(report).micro_batches * micro_batch * report.target.num_replicas


def _cycles(report: Report) -> float:
    return float(pace(report).cycles) or math.nan


def _cycles_a_sample(report: Report) -> float:
    samples = _samples(report)
    return _cycles(report) / samples if samples else math.nan


def _fits(report: Report) -> bool:
    return report.meta["state"] != OUT_OF_MEMORY


def _stage(report: Report, which: str) -> float:
    cycles = report.stages["cycles"]
    return float(getattr(cycles, which)()) if len(cycles) else math.nan


def _of_peak(report: Report, which: str) -> float:
    top = peak(report)
    return getattr(top, which) if top and _fits(report) else math.nan


# The first is named by `turn`: an inference has no weight update.
TURN, SAMPLE, STAGE, TILE = "an iteration", "a sample", "slowest stage", "fullest tile"
_RATE, _WORK, _ONE = "samples a second", "operators' cycles", "one execution"
_OF_A_MODEL = (TURN, SAMPLE, STAGE, TILE)
_MEASURES: tuple[tuple[str, str, Callable[[Report], float]], ...] = (
    (TURN, "cycles", _cycles),
    (SAMPLE, "cycles", _cycles_a_sample),
    (_RATE, "1/s", lambda r: (_fits(r) and pace(r).samples_per_second) or math.nan),
    (STAGE, "cycles", lambda r: _stage(r, "max")),
    ("mean stage", "cycles", lambda r: _stage(r, "mean")),
    ("waiting", "share", lambda r: waiting(r) if len(r.runs) else math.nan),
    ("MFU", "share", lambda r: _of_peak(r, "mfu")),
    ("HFU", "share", lambda r: _of_peak(r, "hfu")),
    (TILE, "bytes", lambda r: float(fullest_tiles(r).max(initial=0))),
    (_WORK, "cycles", lambda r: float(executed_ops(r)["total_cycles"].sum())),
    ("IPUs", "count", lambda r: float(r.target.num_ipus * shards_of(r))),
    ("program steps", "count", lambda r: float(r.file.table(records.Step).rows)),
    ("variables", "count", lambda r: float(r.file.table(records.Variable).rows)),
)
