"""Repeated things compared: equal Blocks, stages, modules, source lines and micro-batches.

What is built alike should take alike; where it does not, the steps in which most of the difference
is say why.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler import units
from ipuscope.profiler.analysis.hierarchy import cycles_by_step
from ipuscope.profiler.analysis.model_graph import equal_blocks
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

BY = ("block", "stage", "module", "line", "micro-batch")
_NUMBER = re.compile(r"\d+")
_NEAR = 0.001  # of the median: what differs less takes the same


@dataclass(frozen=True)
class Regions:
    """``things``: a row each, the groups that take most first, and in them the slowest first.

    ``group`` (the first of those that are alike), ``name``, ``cycles`` (of Blocks, stages and lines
    what IPUs are busy with them in a weight update, of stages their transfers too; of a micro-batch
    from its first task to the end of its last), ``ratio`` (to the median of its group) and ``why``
    (in words; "" of what is not longer than the median by a thousandth). ``groups``: ``group,
    count, least, median, most``.
    """

    things: pd.DataFrame
    groups: pd.DataFrame

    @property
    def slow(self) -> pd.DataFrame:
        """``group, name, count, ratio, why``: what takes longer than its median, the most first.

        What takes as long for the same reason is one row: ``stage 7 and 23 more``.
        """
        rows = self.things[self.things["why"] != ""]
        like = rows["why"].str.replace(r"\d+", "*", regex=True)
        each = rows.groupby(["group", "cycles", like], sort=False, as_index=False)
        found = each.agg(
            name=("name", "first"),
            count=("name", "size"),
            ratio=("ratio", "first"),
            why=("why", "first"),
        )
        found["name"] = [
            f"{name} and {many - 1} more" if many > 1 else name
            for name, many in zip(found["name"], found["count"], strict=True)
        ]
        found = found.sort_values("ratio", ascending=False, kind="stable", ignore_index=True)
        return found[["group", "name", "count", "ratio", "why"]]

    @property
    def words(self) -> str:
        """How many there are, and how many of them take longer."""
        many, slow = len(self.things), int((self.things["why"] != "").sum())
        if not many:
            return "No two of these are built alike in this profile."
        kinds = units.count(len(self.groups), "group")
        return f"{many:,} in {kinds} are built alike; {slow:,} slower than their group's median."


def regions(report: Report, by: str) -> Regions:
    """What is repeated, ``by`` one of `BY`; nothing without a schedule. ValueError for another."""
    import pandas as pd

    if by not in BY:
        raise ValueError(f"{by!r} is not compared: {', '.join(BY)} are")
    rows: list[tuple[Any, ...]] = []
    if len(report.runs):
        rows = _micro_batches(report) if by == "micro-batch" else _of_steps(report, by)
    things = pd.DataFrame(rows, columns=pd.Index(["group", "name", "cycles", "ratio", "why"]))
    cycles = things.groupby("group", sort=False)["cycles"]
    groups = cycles.agg(count="size", least="min", median="median", most="max").reset_index()
    groups = groups.sort_values("median", ascending=False, kind="stable", ignore_index=True)
    rank = things["group"].map({name: at for at, name in enumerate(groups["group"])})
    order = np.lexsort((-things["cycles"].to_numpy(), rank.to_numpy()))
    return Regions(things.iloc[order].reset_index(drop=True), groups)


def _of_steps(report: Report, by: str) -> list[tuple[Any, ...]]:
    """Blocks, stages, modules or lines by what their steps take in a device iteration."""
    steps, like = cycles_by_step(report), equal_blocks(report)
    ops = report.ops
    block = ops["block_name"].reindex(steps["op"]).fillna("").reset_index(drop=True)
    kind = block.map(like)
    if by == "stage":  # alike are stages of the same Blocks in the same order
        names = report.blocks["name"].map(lambda name: like.get(name, name))
        built = names.groupby(report.blocks["stage"]).agg(" + ".join)
        group, thing = steps["stage"].map(built), "stage " + steps["stage"].astype(str)
    elif by == "module":
        thing = ops["module"].reindex(steps["op"]).fillna("").reset_index(drop=True)
        group = thing.map(_modules_alike(ops))
    elif by == "line":
        place = ops["file"].str.replace(r".*[/\\]", "", regex=True) + ":" + ops["line"].astype(str)
        place = place.where(ops["file"] != "", None).reindex(steps["op"]).reset_index(drop=True)
        within = kind.astype(object).fillna("").astype(str)
        group, thing = (place + " in " + within).where(kind.notna()), place + " in " + block
    else:
        group, thing = kind, block
    rows: list[tuple[Any, ...]] = []
    like_name = steps["name"].str.replace(r"\d+", "*", regex=True)
    there = steps.assign(group=group, thing=thing, like=like_name).dropna(subset=["group"])
    for one, members in there.groupby("group", sort=False):
        work = members.groupby("thing", sort=False)["cycles"].sum().sort_values(kind="stable")
        if len(work) < 2:
            continue
        middle = str(work.index[(len(work) - 1) // 2])
        median = max(1, int(work[middle]))
        slow = {thing for thing, cycles in work.items() if cycles > (1 + _NEAR) * median}
        keyed = {
            str(thing): _keyed(own)
            for thing, own in members.groupby("thing", sort=False)
            if thing in slow or thing == middle
        }
        for name, cycles in zip(map(str, work.index), work.tolist(), strict=True):
            other = middle.rpartition(" in ")[2]  # the same line in another Block
            why = _why(keyed[name], keyed[middle], other) if name in slow else ""
            rows.append((str(one), name, cycles, cycles / median, why))
    return rows


def _modules_alike(ops: pd.DataFrame) -> dict[str, str]:
    """The group of each module with a number in its path: alike but for that, and built alike.

    Modules are built alike with the same ATen operators and FLOPs, in the forward if they have one.
    """
    looks: dict[str, dict[bool, list[Any]]] = {}
    forward = (ops["direction"] == Direction.FORWARD).tolist()
    columns = (ops[name].tolist() for name in ("module", "aten", "flops"))
    for module, aten, flops, first in zip(*columns, forward, strict=True):
        if _NUMBER.search(module):
            looks.setdefault(module, {}).setdefault(first, []).append((aten, flops))
    built = {module: (_NUMBER.sub("*", module), *one[max(one)]) for module, one in looks.items()}
    kinds = Counter(name for name, *_ in set(built.values()))
    first_of: dict[Any, str] = {}
    return {
        module: look[0] if kinds[look[0]] == 1 else first_of.setdefault(look, module)
        for module, look in built.items()
    }


def _keyed(steps: pd.DataFrame) -> pd.DataFrame:
    """Steps by what is the same in things that are alike."""
    return steps.groupby(["cause", "direction", "like"], sort=False).agg(
        cycles=("cycles", "sum"), times=("times", "sum"), name=("name", "first")
    )


def _why(own: pd.DataFrame, usual: pd.DataFrame, middle: str) -> str:
    """In what a thing takes longer than the usual one: the cause, and most of it."""
    more = own["cycles"].sub(usual["cycles"], fill_value=0)
    by_cause = more.groupby(level=0).sum().sort_values(ascending=False, kind="stable")
    cause = str(by_cause.index[0])
    at: Any = more[[cause]].idxmax()
    row: Any = own.loc[at]  # where it takes most more, it has a step
    many = units.cycles(int(by_cause.iloc[0]))
    said = f"{cause}, {many} cycles more than in {middle}; most in {row['name']}"
    if at not in usual.index:
        again = at[1] == Direction.RECOMPUTE
        return f"{said}, {'run again for the backward' if again else f'of which {middle} has none'}"
    other = int(usual["times"][at])
    return said + (f", run {row['times']:,} times, not {other:,}" if row["times"] != other else "")


def _micro_batches(report: Report) -> list[tuple[Any, ...]]:
    """Micro-batches of the first device iteration, from the first task to the last one's end."""
    tasks = report.tasks(0, iteration=0)
    tasks = tasks[(tasks["micro_batch"] >= 0) & (tasks["kind"].astype(str) != "idle")]
    each = tasks.groupby("micro_batch")
    cycles = (each["end"].max() - each["start"].min()).to_numpy()
    if len(cycles) < 2:
        return []
    numbers, work = list(each.groups), each["cycles"].sum().to_numpy()
    at = int(np.argsort(cycles, kind="stable")[(len(cycles) - 1) // 2])
    middle, median = numbers[at], max(1, int(cycles[at]))
    rows = []
    for number, took, own in zip(numbers, cycles.tolist(), work.tolist(), strict=True):
        why, more = "", took - median
        if took > (1 + _NEAR) * median:
            worked = own - int(work[at])
            waits = f"waits {units.cycles(max(0, more - worked))} cycles more between its tasks"
            why = f"{waits} than micro-batch {middle}"
            if worked > more // 2:
                why = (
                    f"its tasks take {units.cycles(worked)} cycles more than micro-batch {middle}'s"
                )
        rows.append(("micro-batch", f"micro-batch {number}", took, took / median, why))
    return rows
