"""The model as a graph: Blocks, modules and operators, and the tensors between them.

Operators are grouped by Block, then module (`hierarchy`); a group is one node until it is opened.
Tensors are followed by what operators read and write (table ``op_variables``): views have none of
their own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler import confidence
from ipuscope.profiler.analysis.hierarchy import Path, paths_of
from ipuscope.profiler.analysis.operators import executed_ops
from ipuscope.profiler.analysis.source import bytes_at_peak
from ipuscope.profiler.answers import stored
from ipuscope.profiler.enums import Direction, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

TENSOR, TIED = "tensor", "tied weight"
_LONGEST = 8  # Blocks of a repeated layer


@dataclass(frozen=True)
class Node:
    """A group of operators, or an operator, as shown.

    ``path``: its names from the root; ``count``: equal groups that it stands for, itself the first;
    ``blocks`` and ``stages`` of its operators in the profile, least and most (-1: none); ``cycles``
    of a weight update in the graph's direction, ``operators`` and ``bytes`` (of their outputs, live
    at the IPUs' fullest steps) of all groups, ``ipus`` of these; ``opens``: whether it has parts,
    ``opened``: whether they are shown; ``low`` and ``high``: of its speed, as if its operators
    erred alike (`confidence.of_operators`; NaN without); ``waiting``: by `with_waiting`.
    """

    path: Path
    count: int
    blocks: tuple[int, int]
    stages: tuple[int, int]
    cycles: int
    bytes: int
    operators: int
    ipus: tuple[int, ...]
    opens: bool
    opened: bool
    low: float = math.nan
    high: float = math.nan
    waiting: float = 0.0

    @property
    def uncertainty(self) -> float:
        """How wide its bar is: ln(high / low); 0 where the profile does not say."""
        return 0.0 if math.isnan(self.low) else math.log(self.high / self.low)


@dataclass(frozen=True)
class Edge:
    """Tensors from one shown node to another: positions in `Graph.nodes`.

    ``shapes`` of different tensors, as in the profile ("[1, 128]"); ``bytes`` of all of them;
    ``tensors``: their ids; ``kind``: `TENSOR`, or `TIED` of weights that both use.
    """

    source: int
    target: int
    kind: str
    shapes: tuple[str, ...]
    bytes: int
    tensors: tuple[int, ...] = field(repr=False)


@dataclass(frozen=True)
class Graph:
    """The nodes shown, parents before their parts, and the edges between them."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def flows(report: Report, direction: str) -> pd.DataFrame:
    """Tensors from the operator that makes them to each that reads them, in one direction.

    ``source, target`` (ids of operators), ``tensor, shape, bytes`` and ``kind``: `TENSOR`, or
    `TIED` from the first operator that reads a weight to those of other modules. A row a tensor and
    reader.
    """
    import pandas as pd

    variables = report.usage.variables_with("op", "tensor", "shape", "role", "bytes")
    uses = report.file.table(records.Use)
    rows = pd.DataFrame({"target": uses["op"], "variable": uses["variable"]})
    rows = rows.join(variables, on="variable")
    named = rows["tensor"].to_numpy() >= 0
    own = (report.ops["direction"].reindex(rows["target"]) == direction).to_numpy()
    rows = rows[named & own].drop_duplicates(["target", "tensor"])
    made = variables[(variables["op"] >= 0) & (variables["tensor"] >= 0)]
    makers = made.drop_duplicates("tensor").set_index("tensor")["op"]
    weights = rows[rows["role"] == Role.WEIGHT]
    first = weights.groupby("tensor")["target"].min()
    source = rows["tensor"].map(makers).fillna(-1).to_numpy()
    tied = (rows["role"] == Role.WEIGHT).to_numpy()
    source = np.where(tied, rows["tensor"].map(first).fillna(-1), source).astype(np.int64)
    rows = rows.assign(source=source, kind=np.where(tied, TIED, TENSOR))
    rows = rows[(rows["source"] >= 0) & (rows["source"] < rows["target"])]  # a view makes no input
    module = report.ops["module"]  # views of a weight in its own module tie nothing
    ends = (module.reindex(rows[end]).to_numpy() for end in ("source", "target"))
    rows = rows[(rows["kind"] != TIED).to_numpy() | np.not_equal(*ends)]
    return rows[["source", "target", "tensor", "shape", "bytes", "kind"]]


def groups(report: Report) -> set[Path]:
    """The paths of all groups of operators, which `graph` may open."""
    paths = paths_of(report.ops, _order(report.ops))
    return {path[:size] for path in paths for size in range(1, len(path))}


def _order(ops: pd.DataFrame) -> str:
    """How operators are grouped: by Block, or by module in a model without Blocks."""
    return "block" if (ops["block"] >= 0).any() else "module"


def graph(
    report: Report,
    opened: Collection[Path] = (),
    direction: str = Direction.FORWARD,
    together: bool = False,
) -> Graph:
    """The model with the groups that are ``opened``; the root always is.

    ``together``: equal Blocks in succession, alone or as a sequence of up to 8, are one; equal
    means the same ATen operators and FLOPs in the forward.
    """
    wanted = (report.ops["direction"] == direction).to_numpy()
    ops = report.ops[wanted]
    order = _order(ops)
    paths = paths_of(ops, order)
    like = equal_blocks(report) if together and order == "block" else {}
    paths = [(like.get(path[0], path[0]), *path[1:]) for path in paths]
    took, nbytes = (_costs(report)[name][wanted] for name in ("cycles", "bytes"))
    bars = confidence.of_operators(report)[wanted]
    bounds = [np.where(took > 0, took / bars[name].to_numpy(), 0.0) for name in ("low", "high")]
    shown = _Shown(paths, frozenset(opened))
    blocks, stages, ipus = (ops[name].to_numpy() for name in ("block", "stage", "ipu"))
    copies = Counter(like.values())
    nodes = []
    for at, (path, members) in enumerate(zip(shown.paths, shown.members, strict=True)):
        cycles = int(took[members].sum())
        most, least = (float(one[members].sum()) or math.nan for one in bounds)
        nodes.append(
            Node(
                path,
                copies.get(path[0], 1) if len(path) == 1 else 1,
                _span(blocks[members]),
                _span(stages[members]),
                cycles,
                int(nbytes[members].sum()),
                len(members),
                tuple(np.unique(ipus[members]).tolist()),
                shown.opens[at],
                path in shown.opened,
                cycles / most,
                cycles / least,
            )
        )
    node_of = dict(zip(ops.index.tolist(), shown.node, strict=True))
    return Graph(tuple(nodes), _edges(flows(report, direction), node_of))


def _span(values: np.ndarray) -> tuple[int, int]:
    return int(values.min()), int(values.max())


def with_waiting(report: Report, nodes: Sequence[Node]) -> list[Node]:
    """The nodes with the share of the run, 0..1, that their IPUs wait: the mean, 0 without a run.

    By `Report.cycle_proportions`; an operator of no IPU does not wait.
    """
    if not len(report.runs):
        return list(nodes)
    cycles = report.cycle_proportions()
    idle = np.append(cycles["idle"] / cycles["total"].clip(lower=1), 0.0)
    return [replace(one, waiting=float(idle[list(one.ipus)].mean())) for one in nodes]


@stored
def _costs(report: Report) -> dict[str, np.ndarray]:
    """For each operator, cycles of a weight update and bytes at the fullest steps: int64."""
    ids = report.ops.index
    nbytes = bytes_at_peak(report).reindex(ids).fillna(0).to_numpy(np.int64)
    return {"cycles": executed_ops(report)["total_cycles"].to_numpy(), "bytes": nbytes}


class _Shown:
    """The nodes shown: ``paths``, rows of ``members`` of each, ``node`` of each operator."""

    def __init__(self, paths: Sequence[Path], opened: frozenset[Path]) -> None:
        self.opened = opened
        self.paths: list[Path] = []
        self.opens: list[bool] = []
        self.node: list[int] = []
        rows: list[list[int]] = []
        number: dict[Path, int] = {}
        inside: dict[Path, set[Path]] = {}
        for path in set(paths):
            for level in range(1, len(path)):
                inside.setdefault(path[:level], set()).add(path[: level + 1])
        for row, path in enumerate(paths):
            depth = 1
            while depth < len(path) and (
                path[:depth] in opened or (depth > 1 and len(inside[path[: depth - 1]]) == 1)
            ):  # an only child opens with what it is in
                depth += 1
            for level in range(1, depth + 1):
                part = path[:level]
                if part not in number:
                    number[part] = len(self.paths)
                    self.paths.append(part)
                    self.opens.append(False)
                    rows.append([])
                rows[number[part]].append(row)
                self.opens[number[part]] |= level < len(path)
            self.node.append(number[path[:depth]])
        self.members = [np.array(one, dtype=np.int64) for one in rows]


def _edges(rows: pd.DataFrame, node_of: dict[int, int]) -> tuple[Edge, ...]:
    """The tensors between different nodes, those of a pair together."""
    table = rows.assign(
        source=rows["source"].map(node_of).fillna(-1).astype(np.int64),
        target=rows["target"].map(node_of).fillna(-1).astype(np.int64),
    )
    table = table[(table["source"] >= 0) & (table["source"] != table["target"])]
    table = table.drop_duplicates(["source", "target", "kind", "tensor"])
    edges = []
    keys: Any
    for keys, own in table.groupby(["source", "target", "kind"], sort=False):
        source, target, kind = keys
        shapes = tuple(dict.fromkeys(own["shape"].tolist()))
        tensors = tuple(own["tensor"].tolist())
        edges.append(Edge(source, target, kind, shapes, int(own["bytes"].sum()), tensors))
    return tuple(edges)


def equal_blocks(report: Report) -> dict[str, str]:
    """For each Block in a repetition, the name of the first Block equal to it."""
    ops = report.ops
    ops = ops[(ops["direction"] == Direction.FORWARD).to_numpy() & (ops["block"] >= 0).to_numpy()]
    made: dict[int, list[Any]] = {}
    columns = zip(ops["block"].tolist(), ops["aten"].tolist(), ops["flops"].tolist(), strict=True)
    for block, aten, flops in columns:
        made.setdefault(block, []).append((aten, flops))
    names = report.blocks.set_index("block")["name"]
    blocks = sorted(made)
    looks = [tuple(made[block]) for block in blocks]
    like: dict[str, str] = {}
    at = 0
    while at < len(blocks):
        length, times = _repeats(looks, at)
        for one in range(length * times if times > 1 else 0):
            first = names[blocks[at + one % length]]
            like[str(names[blocks[at + one]])] = str(first)
        at += length * times
    return like


def _repeats(looks: list[Any], at: int) -> tuple[int, int]:
    """The length of what repeats from ``at`` on, and how often; (1, 1) if nothing does."""
    best = (1, 1)
    for length in range(1, _LONGEST + 1):
        unit, times = looks[at : at + length], 1
        while looks[at + times * length : at + (times + 1) * length] == unit:
            times += 1
        if times > 1 and length * times > best[0] * best[1]:
            best = (length, times)
    return best
