"""The rows of the tree table of costs: modules, operators, steps; or the program's nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ipuscope.profiler import Report, analysis
from ipuscope.profiler.analysis import hierarchy
from ipuscope.profiler.analysis.hierarchy import Path
from ipuscope.profiler.analysis.program import (
    MOST_OPENED,
    OPENED,
    Nodes,
    nodes,
    parents_of,
    top_nodes,
)
from ipuscope.viewer.figures import flame, units
from ipuscope.viewer.pages import common
from ipuscope.viewer.pages.tables import Column
from ipuscope.viewer.profiles import Profiles

PROGRAM = "program"  # the order in which it runs
_MOST = 2000  # rows: half a megabyte
_INDENT = " " * 4
_TIMES = "executions in a weight update, or in a device iteration"
_CEILING = "FLOPs against what its unit, or the bytes that it receives, would allow"
COLUMNS = (
    Column("label", "operator", least=300),
    Column("total_cycles", "cycles", ",.0f", width=160, tip="of all executions together"),
    Column("share", "share", ".2%", width=85, tip="of the cycles of all operators"),
    Column("executions", "times", ",.0f", width=90, tip=_TIMES),
    Column(
        "recompute_cycles", "again", ",.0f", width=140, tip="recomputation, beside the other cycles"
    ),
    Column("flops", "FLOPs", ".3s", width=85),
    Column("exchanged", "bytes in", ".3s", width=90, tip="received in exchanges, all tiles"),
    Column("cycles", "of one", ",.0f", width=110, tip="cycles of one execution, all its steps"),
    Column("of_roof", "of its ceiling", ".1%", width=120, tip=_CEILING),
    Column("why", "most of the rest", width=230, tip="the main reason it is below its ceiling"),
    Column("direction", "for", width=95),
    Column("stage", "stage", ",.0f", width=75),
    Column("aten", "ATen", width=150),
    Column("balance", "balance", ".0%", width=85, tip="mean over slowest tile, of compute cycles"),
    Column("tiles", "tiles", ",.0f", width=75, tip="at work in its widest step"),
    Column("source", "source", width=200),
)
_OTHER = (
    Column("other_cycles", "other's cycles", ",.0f", width=160, tip="of the other profile"),
    Column("difference", "other − this", "+,.0f", width=160),
)
_OF_PROGRAM = (
    Column("label", "program"),
    Column("type", "type", width=160),
    Column("repeat", "runs", ",.0f", width=80, tip="how often the node's body runs"),
    Column("below", "nodes below", ",.0f", width=120),
    Column("ipu", "IPU", ",.0f", width=80),
    Column("position", "step", ",.0f", width=90, tip="position in the IPU's program"),
    Column(
        "cycles",
        "cycles",
        ",.0f",
        width=160,
        tip="of a call, on the IPU that takes longest; an external sync's with its waiting",
    ),
)
SORTS = (
    ("total", "cycles"),
    ("executions", "times"),
    ("recompute", "recomputation"),
    ("flops", "FLOPs"),
    ("exchanged", "bytes in"),
    ("name", "name"),
)
_SORTED_BY = {"total": "total_cycles", "recompute": "recompute_cycles"}
_SUMMED = ("total_cycles", "share", "recompute_cycles", "executions", "flops", "exchanged")
_CEILINGS = ("of_roof", "why")  # of `profiler.analysis.roofline`, which takes as long as all else
_OF_OPERATOR = [one.name for one in COLUMNS[1:]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an address asks of the table. ``stage`` -1: all; ``at``: a part of the flame graph.

    ``toggled``: ids of opened rows: ``g`` and a group's number, ``o`` and an operator's id, ``n``
    and the id of a node of the program.
    """

    order: str = "module"
    together: bool = False
    stage: int = -1
    direction: str = "all"
    find: str = ""
    sort: str = "total"
    at: Path = ()
    toggled: frozenset[str] = frozenset()

    @classmethod
    def of(cls, *values: Any) -> Wanted:
        """From the parameters of an address: order, layers, stage, direction and so on."""
        order, layers, stage, direction, find, sort, at, toggled = values
        return cls(
            order if order in (*hierarchy.ORDERS, PROGRAM) else "module",
            layers == "together",
            common.whole(stage, -1),
            str(direction),
            str(find or "").strip().lower(),
            str(sort),
            flame.path_of(str(at or "")),
            frozenset(str(toggled or "").split(",")[:MOST_OPENED]),
        )


@dataclass(frozen=True)
class Shown:
    """The visible rows, their columns, and a sentence about how many there are."""

    rows: list[dict[str, Any]]
    columns: Sequence[Column]
    note: str


def rows_of(profiles: Profiles, report: Report, other: Report | None, wanted: Wanted) -> Shown:
    """The visible rows of the table; compared with those of ``other``, if given."""
    if wanted.order == PROGRAM:
        return _of_program(profiles, report, wanted)

    def made(one: Report) -> Operators:
        key, of = ("operators", wanted.order, wanted.together), (wanted.order, wanted.together)

        def make() -> Operators:
            frame = analysis.operators(one, ceilings=False)
            return Operators.of(one, frame, *of, lambda: operators_of(profiles, one)[[*_CEILINGS]])

        return profiles.made(one, key, make)

    tree = made(report)
    before = {} if other is None else made(other).cycles_by_path
    rows, hits = tree.shown(wanted, report, before if other is not None else None)
    columns = COLUMNS if other is None else (*COLUMNS[:3], *_OTHER, *COLUMNS[3:])
    count = len(tree.frame)
    note = units.count(count, "operator") if hits == count else f"{hits:,} of {count:,} operators"
    if wanted.at and not hits:
        note = "No operator is in this part: it is what copies, collectives, streams and syncs take"
    if len(rows) == _MOST:
        note += f"; the first {_MOST:,} rows"
    return Shown(rows, columns, note + ".")


def operators_of(profiles: Profiles, report: Report) -> pd.DataFrame:
    """`ipuscope.profiler.analysis.operators`, cached."""
    return profiles.made(report, "operators", lambda: analysis.operators(report))


@dataclass(frozen=True)
class Operators:
    """Operators in a tree of groups.

    ``frame``: `analysis.operators`, whose ``ceilings`` are read later; ``paths``: of groups, the
    root () first; ``above``: the groups of each operator, int64[operator, depth], padded with -1;
    ``names``: of operators, below their group.
    """

    frame: pd.DataFrame
    paths: list[Path]
    above: np.ndarray
    names: list[str]
    parents: np.ndarray = field(repr=False)
    ceilings: Callable[[], pd.DataFrame]

    @classmethod
    def of(
        cls,
        report: Report,
        frame: pd.DataFrame,
        order: str,
        together: bool,
        ceilings: Callable[[], pd.DataFrame],
    ) -> Operators:
        """The tree of `analysis.operators` in an order of `hierarchy.ORDERS`."""
        numbers: dict[Path, int] = {(): 0}
        of_path = hierarchy.paths_of(frame, order, together, report if order == "stack" else None)
        deepest = max(map(len, of_path), default=1)
        above = np.full((len(of_path), deepest), -1)
        for row, path in enumerate(of_path):
            for depth in range(len(path)):
                above[row, depth] = numbers.setdefault(path[:depth], len(numbers))
        paths = [*numbers]
        parents = np.array([numbers[path[:-1]] if path else -1 for path in paths])
        return cls(frame, paths, above, [path[-1] for path in of_path], parents, ceilings)

    @property
    def cycles_by_path(self) -> dict[Path, int]:
        """Cycles of a weight update by path, of groups and of operators."""
        total = self.frame["total_cycles"].to_numpy()
        sums = self._sums(total, np.ones(len(total), dtype=bool))
        totals = dict(zip(self.paths, sums.astype(int).tolist(), strict=True))
        for row, cycles in enumerate(total.tolist()):
            path = self.path(row)
            totals[path] = totals.get(path, 0) + cycles
        return totals

    def path(self, row: int) -> Path:
        """The path of an operator, its name last."""
        group = int(self.above[row].max())
        return (*self.paths[group], self.names[row])

    def _sums(self, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        sums = np.zeros(len(self.paths))
        for depth in range(self.above.shape[1]):
            there = mask & (self.above[:, depth] >= 0)
            np.add.at(sums, self.above[there, depth], values[there])
        return sums

    def _mask(self, wanted: Wanted) -> np.ndarray:
        frame = self.frame
        mask = np.ones(len(frame), dtype=bool)
        if wanted.stage >= 0:
            mask &= (frame["stage"] == wanted.stage).to_numpy()
        if wanted.direction != "all":
            mask &= (frame["direction"] == wanted.direction).to_numpy()
        if wanted.find:
            named = np.zeros(len(frame), dtype=bool)
            why = self.ceilings()["why"].reindex(frame.index)
            for column in (*(frame[name] for name in ("name", "aten", "source")), why):
                words = column.str
                named |= words.contains(wanted.find, case=False, regex=False).to_numpy(dtype=bool)
            mask &= named
        if wanted.at:
            depth = len(wanted.at)
            groups = [at for at, path in enumerate(self.paths) if path == wanted.at]
            inside = np.isin(self.above, groups).any(axis=1)
            if not inside.any():  # the part is an operator, or a stage of one
                paths = [self.path(row) for row in range(len(frame))]
                inside = np.array([path == wanted.at[: len(path)] for path in paths])
                inside &= np.array([len(path) >= depth - 1 for path in paths])
            mask &= inside
        return mask

    def shown(
        self, wanted: Wanted, report: Report, before: dict[Path, int] | None
    ) -> tuple[list[dict[str, Any]], int]:
        """The visible rows and the number of matches; ``before``: another `cycles_by_path`."""
        mask = self._mask(wanted)
        visible = _Visible(self, report, wanted, mask, before)
        visible.add(0, 0)
        return visible.rows[:_MOST], int(mask.sum())

    def sums(self, mask: np.ndarray) -> dict[str, np.ndarray]:
        """What the operators of each group have together."""
        times, sums = self.frame["executions"].to_numpy(), {}
        for name in _SUMMED:
            each = self.frame[name].to_numpy(dtype=float)
            sums[name] = self._sums(each * times if name in ("flops", "exchanged") else each, mask)
        return sums

    def in_order(self, mask: np.ndarray, by: str) -> list[int]:
        """The rows of ``frame`` that are asked for, by a column, the largest first."""
        rows = np.flatnonzero(mask)
        keys = self.frame[by].to_numpy()[rows]
        keys = keys if by == "name" else -keys.astype(float)
        return rows[np.argsort(keys, kind="stable")].tolist()


class _Visible:
    """Collects the visible rows of a tree from a group down."""

    def __init__(
        self,
        tree: Operators,
        report: Report,
        wanted: Wanted,
        mask: np.ndarray,
        before: dict[Path, int] | None,
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self._tree, self._report, self._before = tree, report, before
        self._toggled, self._sums = wanted.toggled, tree.sums(mask)
        self._all_open = mask.sum() <= common.FEW_ROWS or bool(wanted.find)
        by = _SORTED_BY.get(wanted.sort, wanted.sort)
        rank = self._sums.get(by, np.zeros(len(tree.paths)))
        groups = np.unique(tree.above[mask])
        self._inside: dict[int, list[int]] = {}
        for group in sorted(
            groups[groups > 0].tolist(), key=lambda one: (-rank[one], tree.paths[one][-1])
        ):
            self._inside.setdefault(int(tree.parents[group]), []).append(group)
        self._leaves: dict[int, list[int]] = {}
        for row in tree.in_order(mask, by if by in tree.frame else "total_cycles"):
            self._leaves.setdefault(int(tree.above[row].max()), []).append(row)
        self._columns: dict[str, list[Any]] = {}

    def add(self, group: int, depth: int) -> None:
        """Add what is in a group, as far as there is room."""
        for one in self._inside.get(group, ()):
            if len(self.rows) >= _MOST:
                return
            opened, path = self._all_open != (f"g{one}" in self._toggled), self._tree.paths[one]
            values = {name: float(self._sums[name][one]) for name in _SUMMED}
            self._row(f"g{one}", path, depth, opened, values)
            if opened:
                self.add(one, depth + 1)
        for row in self._leaves.get(group, ()):
            if len(self.rows) >= _MOST:
                return
            if not self._columns:  # with the first operator that is shown
                frame = self._tree.frame.join(self._tree.ceilings())
                self._columns = {name: frame[name].tolist() for name in _OF_OPERATOR}
            number = int(self._tree.frame.index[row])
            opened = f"o{number}" in self._toggled
            values = {name: _plain(self._columns[name][row]) for name in _OF_OPERATOR}
            self._row(f"o{number}", self._tree.path(row), depth, opened, values)
            if opened:
                self.rows += _steps(self._report, number, depth + 1)

    def _row(self, id: str, path: Path, depth: int, opened: bool, values: dict[str, Any]) -> None:
        label = f"{_INDENT * depth}{'▾' if opened else '▸'} {path[-1]}"
        row = {"id": id, "label": label, **values}
        if self._before is not None:
            there = self._before.get(path)
            row["other_cycles"] = there
            row["difference"] = None if there is None else there - int(values["total_cycles"])
        self.rows.append(row)


def _plain(value: Any) -> Any:
    """A value that JSON has; what is missing is None."""
    return None if value is None or value != value else value


def _steps(report: Report, operator: int, depth: int) -> list[dict[str, Any]]:
    steps = report.program_steps()
    own = steps[steps["op"] == operator]
    return [
        {
            "id": f"s{row.program}",
            "label": f"{_INDENT * depth}  {row.name}",
            "cycles": int(row.cycles),
            "aten": str(row.kind),
            "direction": str(row.direction),
            "exchanged": int(row.bytes_in),
            "balance": _plain(row.tile_balance),
            "tiles": int(row.active_tiles),
        }
        for row in units.rows_of(own)
    ]


def _of_program(profiles: Profiles, report: Report, wanted: Wanted) -> Shown:
    flipped = {common.whole(id[1:], -1) for id in wanted.toggled if id[:1] == "n"} - {-1}
    if not (wanted.find or flipped):
        top = top_nodes(report)
        shown, hits, count = program_rows(top, top.depth < OPENED), None, top.count
    else:
        tree = profiles.made(report, "program tree", lambda: Tree(report))
        shown, hits = tree.shown(wanted.find, flipped)
        count = tree.nodes.count
    note = f"{count:,} nodes" if hits is None else f"{hits:,} of {count:,} nodes, with all above"
    if len(shown) == MOST_OPENED:
        note += f"; the first {MOST_OPENED:,} are shown"
    if not count:
        note = "The profile has no program tree"
    return Shown(shown, _OF_PROGRAM, f"{note}.")


def program_rows(shown: Nodes, opened: np.ndarray) -> list[dict[str, Any]]:
    """The rows of nodes of the program; ``opened``: whether each is."""
    columns = ("id", "depth", "below", "ipu", "position", "cycles", "repeat", "name", "type")
    return [
        {
            "id": f"{'n' if below else 's'}{id}",
            "label": _INDENT * depth
            + (("▾ " if is_open else "▸ ") if below else "   ")
            + (name or kind),
            "type": kind,
            "repeat": repeat if repeat != 1 else None,
            "below": below or None,
            "ipu": ipu if ipu >= 0 else None,
            "position": position if ipu >= 0 else None,
            "cycles": cycles or None,
        }
        for is_open, id, depth, below, ipu, position, cycles, repeat, name, kind in zip(
            opened.tolist(), *(getattr(shown, name).tolist() for name in columns), strict=True
        )
    ]


class Tree:
    """The program tree, to be searched, opened and closed."""

    def __init__(self, report: Report) -> None:
        self.nodes = nodes(report)
        self.names = report.program["name"]
        self.parent: list[int] = parents_of(report.program).tolist()

    def shown(self, find: str, toggled: set[int]) -> tuple[list[dict[str, Any]], int | None]:
        """The visible rows, and the number of search hits (None without a search)."""
        count = self.nodes.count
        hit = np.ones(count, dtype=bool)
        if find:
            hit &= self.names.str.contains(find, case=False, regex=False).to_numpy(dtype=bool)
        inside = hit.tolist()
        if find:
            for row in range(count - 1, -1, -1):  # the nodes that contain a match
                if inside[row] and self.parent[row] >= 0:
                    inside[self.parent[row]] = True
        deep = OPENED if not find else count
        opened = (self.nodes.depth < deep) != np.isin(self.nodes.id, list(toggled))
        is_open = opened.tolist()
        seen = [False] * count
        for row, above in enumerate(self.parent):
            seen[row] = inside[row] and (above < 0 or (seen[above] and is_open[above]))
        rows = np.flatnonzero(seen)[:MOST_OPENED]
        return program_rows(self.nodes.where(rows), opened[rows]), int(hit.sum()) if find else None
