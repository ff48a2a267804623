"""Cycles and bytes by module, operator and stage, as trees for flame graphs and treemaps.

A leaf is a path of names and a number; a tree adds up its leaves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ipuscope.profiler.analysis.critical_path import busy_by_step, busy_tasks, cause_of_kind
from ipuscope.profiler.analysis.memory_hot_spots import live_at_peaks
from ipuscope.profiler.analysis.source import callers
from ipuscope.profiler.answers import stored
from ipuscope.profiler.enums import OF_WEIGHTS, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.lazy import once
from ipuscope.profiler.report import Report
from ipuscope.profiler.report.frames import first_ones, frame_of, some_columns, summed

if TYPE_CHECKING:
    import pandas as pd

# The parts of a path, from the root; "module" is as many names as a module is deep.
ORDERS: dict[str, tuple[str, ...]] = {
    "module": ("module", "operator", "stage"),
    "stage": ("stage", "module", "operator"),
    "block": ("block", "module", "operator"),
    "aten": ("aten", "module", "operator"),
    "source": ("file", "line", "operator"),
    "stack": ("stack", "line", "operator"),
}
NARROWEST = 1 / 1400  # of the width of a drawing: less than a pixel
_LEAF = ("path", "value", "kind")
MEASURES = ("cycles", "bytes")
MIXED = "mixed"
_OF_OPERATORS = ("compute", "exchange on chip", "sync")  # causes
_NO_MODULE, _NO_STAGE, _NO_LINE = "no module", "no stage", "no source line"
NUMBER = re.compile(r"(?<=[./])\d+\b|(?<=layer)\d+$|(?<=^stage )\d+")  # of a layer or a stage
_PART_OF_COPY = re.compile(r"/(?:begin|mid|end)$")
Path = tuple[str, ...]


class Node(NamedTuple):
    """A name in a tree with the sum of everything beneath it.

    ``before``: the same sum of another profile, 0 without one. ``width``: its extent in a drawing,
    the sum of its leaves' larger values. ``kind``: the kind of at least two thirds of it, or
    `MIXED`.
    """

    path: Path
    value: int
    before: int
    width: int
    kind: str


def cycles_by_step(report: Report, run: int = 0, iteration: int = 0) -> pd.DataFrame:
    """Cycles for which IPUs are busy in a device iteration, by program step.

    ``ipu, stage, direction, step, op, cause`` (of `critical_path.CAUSES`), ``name, times``
    (executions, of all replicas) and ``cycles`` (of all of them). Includes overlapped work on I/O
    tiles, but no waiting.
    """
    steps = frame_of(busy_by_step(report, run, iteration))
    keys = ["ipu", "stage", "direction", "step", "op", "cause", "name"]
    return steps.groupby(keys, as_index=False, sort=False)[["times", "cycles"]].sum()


def leaves_of_cycles(report: Report, order: str, together: bool = False) -> pd.DataFrame:
    """`cycles_by_step` of the first device iteration: ``path``, ``value`` (cycles) and ``kind``.

    ``kind``: the direction of what operators do on their chip, else the cause. Steps without an
    operator (copies, host I/O) have their cause as module. ``order``: of `ORDERS`; ``together``:
    layers that differ only in their number are one.
    """
    return _leaves(report, _by_operator(report), "cycles", order, together)


@once
def _by_operator(report: Report) -> pd.DataFrame:
    """Cycles by operator, or by name and cause of steps without one, as `_leaves` takes them."""
    steps = busy_by_step(report)
    has_op, cause = steps["op"] >= 0, steps["cause"]
    on_chip = has_op & np.isin(cause, _OF_OPERATORS)
    # an operator's steps differ in kind only: few rows before their names are read
    columns = {
        **some_columns(steps, "op", "stage"),
        "kind": np.where(on_chip, steps["direction"], cause),
        "name": np.where(has_op, "", steps["name"]),
        "otherwise": np.where(has_op, "", cause),
    }
    first, which = first_ones(*columns.values())
    cycles = summed(steps["cycles"], which, len(first))
    return frame_of({name: of[first] for name, of in columns.items()} | {"cycles": cycles})


def leaves_of_bytes(report: Report, order: str, together: bool = False) -> pd.DataFrame:
    """Bytes live at the step at which each IPU of a replica is fullest, as leaves.

    ``path``, ``value`` (bytes over all tiles) and ``kind`` (role, or category of a program's own).
    A weight and its state are in the weight's module; a variable without operator and module has
    its category instead.
    """
    live = live_at_peaks(report)
    about = report.variables.loc[live["variable"], ["name", "role", "category", "op", "stage"]]
    rows = about.reset_index(drop=True).assign(bytes=live["bytes"])
    role, category = rows["role"].astype(str), rows["category"].astype(str)
    kind = category.where(role == Role.PROGRAM.value, role)
    weights = zip(rows["name"], role.isin(list(OF_WEIGHTS)).tolist(), strict=True)
    module = [
        str(name).split("/", 1)[0].rpartition(".")[0] if is_weight else ""
        for name, is_weight in weights
    ]
    rows = rows.assign(kind=kind, otherwise=kind, module=module)
    return _leaves(report, rows, "bytes", order, together)


def _operators(steps: pd.Series[str], operators: pd.Series[str], has_op: np.ndarray) -> np.ndarray:
    """Names of operators, or of steps without one; parts of a stream copy get the copy's name."""
    names = operators.astype(str).to_numpy(dtype=object)
    names[~has_op] = steps[~has_op].str.replace(_PART_OF_COPY, "", regex=True).to_numpy()
    return names


def _leaves(
    report: Report, rows: pd.DataFrame, measure: str, order: str, together: bool
) -> pd.DataFrame:
    """Rows with ``op``, ``stage``, ``otherwise``, ``kind`` and a measure, summed by path."""
    import pandas as pd

    about = ["name", "aten", "module", "block_name", "file", "line"]
    operators = report.ops[about].reindex(rows["op"])
    operators = operators.fillna({"line": 0}).fillna("")
    has_op = (rows["op"] >= 0).to_numpy()
    module = operators["module"].astype(str).to_numpy()
    if "module" in rows:
        module = np.where(rows["module"] != "", rows["module"], module)
    block = operators["block_name"].astype(str).to_numpy()
    stage, dims = rows["stage"].to_numpy(), ORDERS[order]
    columns: dict[str, Any] = {
        "module": module,
        "operator": _operators(rows["name"], operators["name"], has_op),
        "aten": np.where(has_op, operators["aten"].astype(str), rows["otherwise"]),
        "block": np.where(block != "", block, "no Block"),
        **(_places(operators["file"].astype(str), operators["line"]) if "line" in dims else {}),
        **({"stack": _stacks(report, rows["op"].to_numpy())} if order == "stack" else {}),
        "stage": np.where(stage >= 0, np.char.add("stage ", stage.astype(str)), _NO_STAGE),
        # instead of a module, if there is neither module nor operator
        "otherwise": np.where(has_op | (module != ""), "", rows["otherwise"].astype(str)),
        "kind": rows["kind"].astype(str),
        "value": rows[measure].to_numpy(),
    }
    keys = list(dict.fromkeys(["module", "otherwise", *dims, "kind"]))
    table = pd.DataFrame(columns).groupby(keys, as_index=False, sort=False)[["value"]].sum()
    names = [_names(dim, table, together) for dim in dims]
    table["path"] = _without_no_stage([_joined(parts) for parts in zip(*names, strict=True)])
    if together:
        table = table.groupby(["path", "kind"], as_index=False, sort=False)[["value"]].sum()
    return table[[*_LEAF]]


def _places(files: pd.Series[str], lines: pd.Series[int]) -> dict[str, list[str]]:
    """The levels ``file`` and ``line`` ("bert.py:31") of operators."""
    names = [_place_of(file) for file in files.tolist()]
    numbers = zip(files.tolist(), names, lines.tolist(), strict=True)
    return {
        "file": [file or _NO_LINE for file in files.tolist()],
        "line": [f"{name}:{int(line)}" if file else _NO_LINE for file, name, line in numbers],
    }


def _stacks(report: Report, ops: np.ndarray) -> list[str]:
    """The callers of each operator's line, outermost first, a line each; "" without any."""
    of_op = dict(zip(report.ops.index.tolist(), callers(report), strict=True))
    places = {stack: "\n".join(_place_of(one) for one in stack) for stack in {*of_op.values()}}
    return [places[of_op[op]] if op in of_op else "" for op in ops.tolist()]


def _place_of(where: str) -> str:
    """A line as a name: "bert.py:31" for "/home/me/bert.py:31"."""
    return where.replace("\\", "/").rpartition("/")[2]


def paths_of(
    operators: pd.DataFrame, order: str, together: bool = False, report: Report | None = None
) -> list[Path]:
    """The path of each operator (rows of `Report.ops`) in the tree of that order, its name last.

    ``report``: theirs, for the order "stack".
    """
    dims = ORDERS[order][: ORDERS[order].index("operator") + 1]
    stacks = {"stack": _stacks(report, operators.index.to_numpy())} if report else {}
    places = _places(operators["file"], operators["line"]) if "line" in dims else {}
    table = operators.assign(
        **stacks,
        **places,
        operator=operators["name"],
        block=operators["block_name"].replace("", "no Block"),
        stage=np.char.add("stage ", operators["stage"].to_numpy().astype(str)),
        otherwise="",
    )
    names = [_names(dim, table, together) for dim in dims]
    return [_joined(parts) for parts in zip(*names, strict=True)]


def _joined(parts: Iterable[Path]) -> Path:
    """One path, without a name that repeats the one above it."""
    names: list[str] = []
    for name in chain.from_iterable(parts):
        if not names or names[-1] != name:
            names.append(name)
    return tuple(names)


def _without_no_stage(paths: list[Path]) -> list[Path]:
    """Paths without a final "no stage", unless others with the same beginning have a stage."""
    with_stage = {path[:-1] for path in paths if path[-1] != _NO_STAGE}
    return [
        path[:-1]
        if len(path) > 1 and path[-1] == _NO_STAGE and path[:-1] not in with_stage
        else path
        for path in paths
    ]


def _names(dimension: str, table: pd.DataFrame, together: bool) -> list[Path]:
    """The part of each row's path for one dimension."""
    if dimension == "module":
        both = zip(table["otherwise"].tolist(), table["module"].tolist(), strict=True)
        parts = [(no,) if no else _module(name) for no, name in both]
    elif dimension == "operator":
        rows = zip(table["operator"].tolist(), table["module"].tolist(), strict=True)
        parts = [(_short(name, module),) for name, module in rows]
    elif dimension == "stack":
        parts = [tuple(stack.split("\n")) if stack else () for stack in table["stack"].tolist()]
    else:
        parts = [(value,) for value in table[dimension].tolist()]
    if together and dimension in ("module", "operator", "block"):
        return [_alike(part) for part in parts]
    return parts


@lru_cache(maxsize=1 << 14)
def _alike(part: Path) -> Path:
    """The names without the numbers of layers."""
    return tuple(NUMBER.sub("*", name) for name in part)


@lru_cache(maxsize=1 << 14)
def _module(name: str) -> Path:
    """``layer.3.attention`` or ``layer/3/attention`` as ("layer.3", "attention")."""
    names: list[str] = []
    for part in re.split(r"[./]", name):
        if part.isdigit() and names:
            names[-1] += f".{part}"
        elif part:
            names.append(part)
    return tuple(names) or (_NO_MODULE,)


def _short(name: str, module: str) -> str:
    """An operator's name without the module's name, which is shown above it."""
    above = f"{module}/".replace(".", "/")
    return name[len(above) :] if name.replace(".", "/").startswith(above) else name


def tree(leaves: pd.DataFrame, before: pd.DataFrame | None = None) -> dict[Path, Node]:
    """Every node by its path, the root () included; ``before``: another profile's leaves. Exact."""
    sides = [leaves] if before is None else [leaves, before]
    rows = _Rows.of([path for side in sides for path in side["path"]])
    values = np.concatenate([side["value"].to_numpy() for side in sides]).astype(np.int64)
    kinds = np.concatenate([side["kind"].astype(str).to_numpy(dtype=object) for side in sides])
    is_new = np.arange(len(values)) < len(leaves)
    new, old = rows.sums(np.where(is_new, values, 0)), rows.sums(np.where(is_new, 0, values))
    ends = np.zeros(len(rows.parents), dtype=np.int64)
    ends[rows.end] = np.maximum(new, old)[rows.end]  # once for a leaf that occurs twice
    width = rows.up(ends)
    kind = rows.kinds(values, kinds, is_new)
    if before is not None:
        others = rows.kinds(values, kinds, ~is_new)
        kind = [own or other for own, other in zip(kind, others, strict=True)]
    columns = (new.tolist(), old.tolist(), width.tolist(), kind)
    nodes = map(Node._make, zip(rows.paths, *columns, strict=True))
    return dict(zip(rows.paths, nodes, strict=True))


@dataclass(frozen=True)
class _Rows:
    """The nodes above some leaves, parents first: their paths, and each one's parent (-1: none).

    ``end``: the node of each leaf.
    """

    paths: list[Path]
    parents: np.ndarray
    depth: np.ndarray
    end: np.ndarray

    @classmethod
    def of(cls, leaves: list[Path]) -> _Rows:
        number: dict[Path, int] = {}
        parents: list[int] = []
        for path in leaves:
            if path in number:
                continue
            depth = len(path) - 1
            while depth >= 0 and path[:depth] not in number:
                depth -= 1
            above = number[path[:depth]] if depth >= 0 else -1
            for below in range(depth + 1, len(path) + 1):
                number[path[:below]] = len(parents)
                parents.append(above)
                above = len(parents) - 1
        end = np.array([number[path] for path in leaves], dtype=np.int64)
        depths = np.array([len(path) for path in number], dtype=np.int64)
        return cls(list(number), np.array(parents, dtype=np.int64), depths, end)

    def up(self, values: np.ndarray) -> np.ndarray:
        """Values of nodes (the first axis), each with those of all nodes beneath it."""
        total = values.copy()
        for depth in range(int(self.depth.max(initial=0)), 0, -1):
            here = np.flatnonzero(self.depth == depth)
            np.add.at(total, self.parents[here], total[here])
        return total

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Values of leaves, summed: int64[node]."""
        of_ends = np.zeros(len(self.parents), dtype=np.int64)
        np.add.at(of_ends, self.end, values)
        return self.up(of_ends)

    def kinds(self, values: np.ndarray, kind: np.ndarray, chosen: np.ndarray) -> list[str]:
        """The kind of at least two thirds of each node's ``chosen`` leaves; "" without any."""
        names, which = np.unique(kind, return_inverse=True)
        of_ends = np.zeros((len(self.parents), len(names)), dtype=np.int64)
        leaves = np.zeros_like(of_ends)
        np.add.at(of_ends, (self.end[chosen], which[chosen]), values[chosen])
        np.add.at(leaves, (self.end[chosen], which[chosen]), 1)
        totals, leaves = self.up(of_ends), self.up(leaves)
        largest = np.where(leaves > 0, totals, -1).argmax(axis=1)
        most = totals[np.arange(len(totals)), largest]
        names_of_most = np.where(3 * most >= 2 * totals.sum(axis=1), names[largest], MIXED)
        return np.where(leaves.any(axis=1), names_of_most, "").tolist()


def visible(nodes: dict[Path, Node], at: Path, least: float, most: int = 3000) -> list[Node]:
    """The nodes to draw from ``at`` down, parents first, widest first among siblings.

    Ancestors of ``at`` come first. Nodes narrower than ``least`` of ``at`` (0..1) are combined into
    one node a parent, named "12 smaller"; beyond ``most`` nodes, deeper ones are left out.
    """
    children: dict[Path, list[Node]] = {}
    for path, node in nodes.items():
        if path and path[: len(at)] == at[: len(path)]:
            children.setdefault(path[:-1], []).append(node)
    shown = [nodes[at[:depth]] for depth in range(len(at) + 1)]
    limit = least * nodes[at].width
    level = [nodes[at]]
    while level and len(shown) < most:
        below: list[Node] = []
        for parent in level:
            siblings = sorted(children.get(parent.path, ()), key=lambda one: -one.width)
            wide = [one for one in siblings if one.width >= limit and one.width > 0]
            narrow = siblings[len(wide) :]
            below += wide
            shown += wide
            if narrow and sum(one.width for one in narrow) > 0:
                shown.append(_together(parent.path, narrow))
        level = below
    return shown


@dataclass(frozen=True)
class Look:
    """A tree as seen from one node: the nodes ``shown`` (`visible`), and its parts.

    ``inside``: its children, widest first; ``opens``: which of them have children themselves.
    """

    shown: list[Node]
    inside: list[Node]
    opens: frozenset[Path]


def look(nodes: dict[Path, Node], at: Path) -> Look:
    """The tree from a node on, without nodes narrower than a pixel."""
    inside = [node for path, node in nodes.items() if len(path) == len(at) + 1]
    inside = [node for node in inside if node.path[: len(at)] == at and node.width]
    inside.sort(key=lambda one: -one.width)
    above = {path[:-1] for path in nodes if path}
    opens = frozenset(node.path for node in inside if node.path in above)
    return Look(visible(nodes, at, NARROWEST), inside, opens)


def by_direction(report: Report) -> Look:
    """`first_look` by direction: at once, for it takes tasks instead of their steps."""
    import pandas as pd

    ran, length = busy_tasks(report)
    bodies, which = np.unique(ran, return_inverse=True)
    cycles, body = summed(length, which, len(bodies)), report.file.table(records.Body)
    of = (body[name][bodies].tolist() for name in ("direction", "kind"))
    kinds = [str(direction or cause_of_kind(kind)) for direction, kind in zip(*of, strict=True)]
    rows = [((kind,), spent, kind) for kind, spent in zip(kinds, cycles.tolist(), strict=True)]
    return look(tree(pd.DataFrame(rows, columns=pd.Index(_LEAF))), ())


@stored
def first_look(report: Report) -> Look:
    """All of `leaves_of_cycles` by module, layers together."""
    return look(tree(leaves_of_cycles(report, "module", together=True)), ())


def _together(parent: Path, nodes: Iterable[Node]) -> Node:
    several = list(nodes)
    return Node(
        (*parent, f"{len(several):,} smaller"),
        sum(one.value for one in several),
        sum(one.before for one in several),
        sum(one.width for one in several),
        several[0].kind if len({one.kind for one in several}) == 1 else MIXED,
    )
