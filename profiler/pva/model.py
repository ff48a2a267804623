"""The data behind libpva's objects: a profile's columns, in the order of libpva's lists.

libpva has one program for the whole device, we a sequence of steps for each IPU; here they are one
list, in the order of the program tree. What is live on an IPU between two of its own steps is live
during the other IPUs' steps between them, so a lifetime is one interval of that list, and the bytes
on all IPUs are defined at every step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from ipuscope.profiler.analysis.program import subtree_ends
from ipuscope.profiler.errors import ProfileError
from ipuscope.profiler.file import records, sql_rows
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.lazy import by_arguments, cached_property
from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline import liveness
from ipuscope.profiler.timeline.tile_usage import IpuVariables

T = TypeVar("T")

# Categories that libpva shows as such, even if they are empty.
CATEGORIES = (*records.CATEGORIES[2:10], "controlCode", "constant")
OWN_NAME = ("variable", "constant")  # categories whose variables have their own names
# What programs have per tile (code, vertices) instead of variables.
OF_PROGRAMS = ("vertexCode", "vertexInstanceState", "internalExchangeCode", "controlCode")
_MOST_CACHED = 64  # large results, such as bytes of a tile over all steps
_remembered = by_arguments(attrgetter("_remember"))


class Model:
    """Columns of one report; steps are numbered in program order, over all IPUs of a replica."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.target = target = report.target
        self.tiles = target.tiles_per_ipu
        self.ipus = target.ipus_per_replica
        self._recent: OrderedDict[Any, Any] = OrderedDict()
        self._piece_lists: dict[tuple[int, int], tuple[list[int], list[int]]] = {}

    def damaged(self, problem: str) -> ProfileError:
        """The error to raise for a file that contradicts itself."""
        return ProfileError(self.report.path, problem, "Run the model again to get a new profile")

    def ipu_of(self, ipu: int) -> int:
        """The modelled IPU that represents an IPU of any replica."""
        if not 0 <= ipu < self.target.num_ipus:
            raise IndexError(f"the profile has IPUs 0 to {self.target.num_ipus - 1}, not {ipu}")
        return ipu % self.ipus

    def tile_of(self, tile: int) -> tuple[int, int]:
        """(modelled IPU, its tile) for a tile numbered over the whole device."""
        if not 0 <= tile < self.target.num_ipus * self.tiles:
            raise IndexError(
                f"the device has tiles 0 to {self.target.num_ipus * self.tiles - 1}, not {tile}"
            )
        return self.ipu_of(tile // self.tiles), tile % self.tiles

    def over_device(self, by_ipu: dict[int, np.ndarray]) -> list[int]:
        """Values over the tiles of modelled IPUs, expanded to all tiles of all replicas."""
        one = np.zeros((self.ipus, self.tiles), dtype=np.int64)
        for ipu, values in by_ipu.items():
            one[ipu] = values
        return np.tile(one.ravel(), self.target.num_ipus // self.ipus).tolist()

    # -- program ---

    @cached_property
    def tree(self) -> dict[str, np.ndarray]:
        """The program tree, depth-first."""
        frame = self.report.program
        return {str(name): frame[name].to_numpy() for name in frame}

    @cached_property
    def node_of(self) -> dict[int, int]:
        """Program id -> its index in `tree`."""
        return {int(id): at for at, id in enumerate(self.tree["id"].tolist())}

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """Index of a program in `tree` -> the indices of its children."""
        by_parent: dict[int, list[int]] = {}
        for at, parent in enumerate(self.tree["parent"].tolist()):
            if parent >= 0:
                by_parent.setdefault(self.node_of[parent], []).append(at)
        return by_parent

    @cached_property
    def step_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the program steps in tree order, and the index in `tree` of each of them."""
        stored, programs = (self.report.file.table(one) for one in (records.Step, records.Program))
        ids = programs["id"][self.report.sequence.tree]
        node = rows_of(stored["program"], ids)
        order = np.lexsort((stored["id"], node))
        node = node[order]
        if (node < 0).any() or (node[1:] == node[:-1]).any():
            raise self.damaged("a program step has no leaf of the program tree of its own")
        return order, node

    @cached_property
    def steps(self) -> dict[str, np.ndarray]:
        """Program steps in tree order, with ``node`` (index in `tree`) and ids of vectors."""
        frame = self.report.program_steps()
        stored = self.report.file.table(records.Step)
        frame = frame.set_index("step").loc[stored["id"]]
        order, node = self.step_rows
        columns = {
            **stored,
            "kind": frame["kind"].to_numpy(),
            "received": frame["bytes_in"].to_numpy(),
            "sent": frame["bytes_out"].to_numpy(),
        }
        return {"node": node, **{name: values[order] for name, values in columns.items()}}

    @cached_property
    def step_of(self) -> dict[int, int]:
        """Step id -> its index in `steps`."""
        return {int(id): at for at, id in enumerate(self.steps["id"].tolist())}

    @cached_property
    def code_node(self) -> np.ndarray:
        """For each program of `tree`, the first with the same (outlined) code: mostly itself."""
        nodes = np.arange(len(self.tree["id"]), dtype=np.int64)
        for at, code in enumerate(self.steps["code"].tolist()):
            first = self.step_of.get(code, at)
            if self.steps["ipu"][first] == self.steps["ipu"][at]:
                nodes[self.steps["node"][at]] = self.steps["node"][first]
        return nodes

    @cached_property
    def compute_set_steps(self) -> np.ndarray:
        """For each compute set, by id, the first step that runs it."""
        ids = self.steps["compute_set"]
        rows = np.flatnonzero(ids >= 0)
        rows = rows[np.lexsort((rows, ids[rows]))]
        _, first = np.unique(ids[rows], return_index=True)
        return rows[first]

    @cached_property
    def step_of_compute_set(self) -> dict[int, int]:
        """Compute set -> the first step that runs it."""
        steps = self.compute_set_steps
        return dict(zip(self.steps["compute_set"][steps].tolist(), steps.tolist(), strict=True))

    @cached_property
    def step_of_node(self) -> dict[int, int]:
        """Index of a program in `tree` -> its step, for programs that are steps."""
        return {int(node): at for at, node in enumerate(self.steps["node"].tolist())}

    @cached_property
    def order(self) -> list[np.ndarray]:
        """For each modelled IPU, the index in `steps` of each of its steps (by position)."""
        ordered = []
        for ipu in range(self.ipus):
            here = np.flatnonzero(self.steps["ipu"] == ipu)
            ordered.append(here[np.argsort(self.steps["position"][here], kind="stable")])
        return ordered

    @cached_property
    def external_sync(self) -> np.ndarray:
        """For each modelled IPU, the index in `steps` of its first external sync, or -1."""
        first_syncs = np.full(self.ipus, -1, dtype=np.int64)
        syncs = np.flatnonzero(self.steps["kind"] == "external sync")[::-1]
        first_syncs[self.steps["ipu"][syncs]] = syncs
        return first_syncs

    @cached_property
    def program_names(self) -> list[str]:
        """The name of each program of `tree`.

        Operators have PopART's names; a sync is "Internal" (of one chip's tiles) or "External".
        """
        names = [str(name) for name in self.tree["name"]]
        ops = self.report.file.table(records.Op)
        called = dict(zip(ops["name"][::-1], ops["popart_name"][::-1], strict=True))
        for at, type in enumerate(self.tree["type"]):
            if type == records.SEQUENCE:
                names[at] = called.get(names[at], names[at])
        names_of = zip(ops["name"], ops["popart_name"], strict=True)
        of_op = dict(zip(ops["id"].tolist(), names_of, strict=True))
        rows = (self.steps[name].tolist() for name in ("node", "op", "type", "kind"))
        for at, op, type, kind in zip(*rows, strict=True):
            if type == records.SYNC:
                names[at] = "External" if kind == "external sync" else "Internal"
            else:
                own, theirs = of_op.get(op, ("", ""))
                if own and names[at].startswith(own):
                    names[at] = theirs + names[at].removeprefix(own)
        return names

    def tile_vector(self, step: int, name: str) -> np.ndarray | None:
        """``tile_cycles``, ``bytes_in`` or ``bytes_out`` of a step per tile, or None."""
        id = int(self.steps[name][step])
        return None if id < 0 else self.report.file.vector(id)

    def cycles_on_device(self, step: int) -> list[int]:
        """Cycles of a step, as planned, on each tile of the device."""
        return self.over_device({int(self.steps["ipu"][step]): self.cycles_by_tile(step)})

    def cycles_by_tile(self, step: int, cycles: int | None = None) -> np.ndarray:
        """Cycles of a step over the tiles of its IPU.

        Compute has its stored cycles, an exchange counts on the tiles that take part, and anything
        else (a sync, a stream) on all of them. ``cycles``: as executed; None: as planned.
        """
        total = int(self.steps["cycles"][step]) if cycles is None else cycles
        by_tile = self.tile_vector(step, "tile_cycles")
        if by_tile is not None:
            return by_tile
        moved = [self.tile_vector(step, name) for name in ("bytes_in", "bytes_out")]
        masks = [vector > 0 for vector in moved if vector is not None]
        if not masks:
            return np.full(self.tiles, total, dtype=np.int64)
        return np.logical_or.reduce(masks) * np.int64(total)

    @cached_property
    def activity(self) -> dict[str, np.ndarray]:
        """``first`` (cycles of the quickest working tile), ``balance``, ``active_balance``."""
        columns = self.steps
        first = columns["cycles"].copy()
        balance, active = np.ones(len(first)), np.ones(len(first))
        unique, which = np.unique(columns["tile_cycles"], return_inverse=True)
        for at, id in enumerate(unique.tolist()):
            if id < 0:
                continue
            working, earliest, _, of_all, of_working = sql_rows.work(self.report.file.vector(id))
            if working:
                rows = which == at
                first[rows] = np.minimum(first[rows], earliest)
                balance[rows], active[rows] = of_all, of_working
        return {"first": first, "balance": balance, "active_balance": active}

    # -- variables ---

    @cached_property
    def variables(self) -> dict[str, np.ndarray]:
        """Variables in file order; ``first`` and ``last`` (exclusive): their lives in `steps`."""
        columns = self.report.file.table(records.Variable)
        first = np.zeros(len(columns["id"]), dtype=np.int64)
        last = np.full(len(first), len(self.steps["id"]), dtype=np.int64)
        for ipu, order in enumerate(self.order):
            here = np.flatnonzero((columns["ipu"] == ipu) & (columns["always_live"] == 0))
            start, stop = columns["start"][here], columns["stop"][here]
            if (start < 0).any() or (stop > len(order)).any():
                raise self.damaged(f"a variable is live outside the steps of IPU {ipu}")
            lives = stop > start
            first[here[lives]] = order[start[lives]]
            last[here[lives]] = order[stop[lives] - 1] + 1
            last[here[~lives]] = 0
        return {**columns, "first": first, "last": last, "always": columns["always_live"] != 0}

    @cached_property
    def of_ipu(self) -> list[tuple[IpuVariables, np.ndarray]]:
        """For each modelled IPU its variables, and their indices in `variables`."""
        rows = []
        for ipu in range(self.ipus):
            variables = self.report.usage.ipu_variables(ipu)
            rows.append((variables, np.flatnonzero(self.variables["ipu"] == ipu)))
        return rows

    @cached_property
    def classes(self) -> tuple[np.ndarray, np.ndarray]:
        """Equivalence classes: (first, last) of each, and the class of every variable."""
        pairs = np.stack([self.variables["first"], self.variables["last"]], axis=1)
        unique, which = np.unique(pairs, axis=0, return_inverse=True)
        return unique, which.ravel()

    @cached_property
    def lowered_first(self) -> np.ndarray:
        """The id of each variable's first lowered variable, followed by their total number.

        A variable has one lowered variable for each tile that holds a part of it.
        """
        count = np.zeros(len(self.variables["id"]) + 1, dtype=np.int64)
        for variables, rows in self.of_ipu:
            count[rows + 1] = np.count_nonzero(variables.vectors, axis=1)[variables.vector]
        return np.cumsum(count)

    def pieces_of(self, row: int) -> tuple[list[int], list[int]]:
        """Device tiles with a part of the variable at ``row``, and the bytes on each.

        Variables with the same layout share the lists.
        """
        key = int(self.variables["tile_bytes"][row]), int(self.variables["ipu"][row])
        pieces = self._piece_lists.get(key)
        if pieces is None:
            values = self.report.file.vector(key[0])
            tiles = np.flatnonzero(values)
            pieces = (tiles + key[1] * self.tiles).tolist(), values[tiles].tolist()
            self._piece_lists[key] = pieces
        return pieces

    def vector_of(self, row: int) -> np.ndarray:
        """Bytes of the variable at ``row`` on each tile of its IPU."""
        return self.report.file.vector(int(self.variables["tile_bytes"][row]))

    @_remembered
    def live_bytes(self, ipu: int | None = None, tile: int | None = None) -> np.ndarray:
        """Not-always-live bytes at every step: of a replica's IPUs, one IPU, or one tile of it."""
        columns = self.variables
        if ipu is None:
            rows, size = np.arange(len(columns["id"])), columns["bytes"]
        else:
            variables, rows = self.of_ipu[ipu]
            size = (
                columns["bytes"][rows]
                if tile is None
                else variables.vectors[variables.vector, tile]
            )
        dies = ~columns["always"][rows] & (columns["last"][rows] > columns["first"][rows])
        rows, size = rows[dies], size[dies]
        steps = len(self.steps["id"])
        change = np.zeros(steps + 1, dtype=np.int64)
        np.add.at(change, columns["first"][rows], size)
        np.add.at(change, columns["last"][rows], -size)
        return np.cumsum(change)[:steps]

    def live_rows(
        self, step: int, ipu: int | None = None, tile: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(rows, bytes) of the variables live at a step but not always, largest first."""
        columns = self.variables
        lives = ~columns["always"] & (columns["first"] <= step) & (step < columns["last"])
        return self._sized(lives, ipu, tile)

    def always_rows(
        self, ipu: int | None = None, tile: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(rows, bytes) of the always-live variables, largest first."""
        return self._sized(self.variables["always"], ipu, tile)

    def _sized(
        self, mask: np.ndarray, ipu: int | None, tile: int | None
    ) -> tuple[np.ndarray, np.ndarray]:
        if ipu is None:
            rows = np.flatnonzero(mask)
            size = self.variables["bytes"][rows]
        else:
            variables, here = self.of_ipu[ipu]
            rows = here[mask[here]]
            size = self.variables["bytes"][rows]
            if tile is not None:
                size = variables.vectors[variables.vector[mask[here]], tile]
        nonzero = np.flatnonzero(size > 0)
        nonzero = nonzero[np.argsort(-size[nonzero], kind="stable")]
        return rows[nonzero], size[nonzero]

    # -- what operators use ---

    def variables_of_step(self, step: int) -> list[int]:
        """Rows of the variables that a step's operator uses and that are live at the step.

        These include the stack of the workers that run it; for a step without operator, what it
        moves and what it needs for that. Code and vertex state belong to its program, per tile.
        """
        op, ipu = int(self.steps["op"][step]), int(self.steps["ipu"][step])
        none = np.zeros(0, dtype=np.int64)
        rows = self._data_of_op.get(op, none) if op >= 0 else self._data_of_step.get(step, none)
        columns = self.variables
        here = (
            (columns["ipu"][rows] == ipu)
            & (columns["first"][rows] <= step)
            & (step < columns["last"][rows])
        )
        stack = self._stack_of_ipu.get(ipu, [])
        return rows[here].tolist() + (stack if self.steps["compute_set"][step] >= 0 else [])

    @cached_property
    def _data_of_op(self) -> dict[int, np.ndarray]:
        """Operator -> rows of the variables it uses, without what programs have per tile."""
        uses, columns = self.report.file.table(records.Use), self.variables
        rows = rows_of(uses["variable"], columns["id"])
        here = (rows >= 0) & ~np.isin(columns["category"], OF_PROGRAMS)[rows]
        by_op: dict[int, list[int]] = {}
        for op, row in zip(uses["op"][here].tolist(), rows[here].tolist(), strict=True):
            by_op.setdefault(op, []).append(row)
        return {op: np.array(rows, dtype=np.int64) for op, rows in by_op.items()}

    @cached_property
    def _data_of_step(self) -> dict[int, np.ndarray]:
        """Of steps without operator: code and headers of a host exchange, and their tensor's."""
        columns, steps = self.variables, self.steps
        data = ~np.isin(columns["category"], OF_PROGRAMS)
        by_step = {}
        for step in np.flatnonzero(steps["op"] < 0).tolist():
            tensor = int(steps["tensor"][step])
            of_step = columns["step"] == steps["id"][step]
            if tensor >= 0:
                of_step |= columns["tensor"] == tensor
            by_step[step] = np.flatnonzero(of_step & data)
        return by_step

    @cached_property
    def _stack_of_ipu(self) -> dict[int, list[int]]:
        """Modelled IPU -> rows of its stacks."""
        by_ipu: dict[int, list[int]] = {}
        for row in np.flatnonzero(self.variables["category"] == "stack").tolist():
            by_ipu.setdefault(int(self.variables["ipu"][row]), []).append(row)
        return by_ipu

    @cached_property
    def code_of_exchange(self) -> dict[int, int]:
        """Step -> row of the variable that is its code; equal exchanges share that of the first."""
        is_code = self.variables["category"] == "internalExchangeCode"
        rows = np.flatnonzero(is_code & (self.variables["step"] >= 0)).tolist()
        return {
            self.step_of[int(self.variables["step"][row])]: row
            for row in rows
            if int(self.variables["step"][row]) in self.step_of
        }

    @cached_property
    def subtree_end(self) -> np.ndarray:
        """Index in `tree` at which the subtree of each program ends."""
        parents = [self.node_of.get(id, -1) for id in self.tree["parent"].tolist()]
        return subtree_ends(np.array(parents, dtype=np.int64))

    def control_code(self, at: int) -> dict[int, np.ndarray]:
        """Control code of the steps under a program, by modelled IPU: bytes per tile.

        The steps of an IPU have equal shares of its code in whole bytes, which add up to all of it.
        A step that runs the code of an earlier step has no share.
        """
        at = int(self.code_node[at])
        low, high = np.searchsorted(self.steps["node"], (at, self.subtree_end[at]))
        by_ipu = {}
        for ipu in np.unique(self.steps["ipu"][low:high]).tolist():
            whole, _ = self.category(ipu, "controlCode", False)
            shares = self._control_shares[ipu]
            here = np.flatnonzero(self.steps["ipu"][low:high] == ipu) + low
            number = np.sort(shares[here][shares[here] >= 0])
            count = int(shares.max(initial=-1)) + 1
            breaks = np.flatnonzero(np.diff(number) != 1) + 1
            by_ipu[ipu] = np.zeros_like(whole)
            for run in np.split(number, breaks) if len(number) else ():
                by_ipu[ipu] += whole * (run[-1] + 1) // count - whole * run[0] // count
        return by_ipu

    @cached_property
    def _control_shares(self) -> list[np.ndarray]:
        """The number of each step among its IPU's steps that have their own control code.

        By modelled IPU; -1 for a step of another IPU, or one that runs the code of an earlier step.
        """
        shares, node = [], self.steps["node"]
        own_code = self.code_node[node] == node
        for order in self.order:
            number = np.full(len(node), -1, dtype=np.int64)
            own = order[own_code[order]]
            number[own] = np.arange(len(own))
            shares.append(number)
        return shares

    # -- compute sets ---

    @cached_property
    def vertices(self) -> dict[int, list[tuple[str, int, int]]]:
        """Compute set -> (vertex type, state bytes of one instance, id of the vector of counts)."""
        use, kinds = map(self.report.file.table, (records.VertexUse, records.VertexType))
        kind = {
            id: about
            for id, *about in zip(
                *(kinds[name].tolist() for name in ("id", "name", "state_bytes")), strict=True
            )
        }
        by_type: dict[int, list[tuple[str, int, int]]] = {}
        columns = (use[name].tolist() for name in ("compute_set", "vertex_type", "count"))
        for compute_set, type, count in zip(*columns, strict=True):
            by_type.setdefault(compute_set, []).append((*kind.get(type, ("unknown", 0)), count))
        return by_type

    @cached_property
    def vertex_sizes(self) -> dict[str, int]:
        """Vertex type -> state bytes of one instance."""
        return {name: state for kinds in self.vertices.values() for name, state, _ in kinds}

    # -- memory ---

    @_remembered
    def rank_on_tiles(self, ipu: int) -> np.ndarray:
        """How many earlier tiles of an IPU have a piece of each vector: int32[vector, tile]."""
        there = self.of_ipu[ipu][0].vectors > 0
        return np.cumsum(there, axis=1, dtype=np.int32) - there

    @_remembered
    def totals(self, ipu: int) -> dict[str, np.ndarray]:
        """Columns of ``Report.tiles``."""
        frame = self.report.tiles(ipu)
        return {str(name): frame[name].to_numpy() for name in frame}

    @_remembered
    def category(self, ipu: int, category: str, interleaved: bool) -> tuple[np.ndarray, np.ndarray]:
        """(always-live bytes, packed bytes of the others) of a category and region, per tile."""
        variables, _ = self.of_ipu[ipu]
        mask = (variables.category == category) & (variables.interleaved == interleaved)
        always = variables.always(mask)
        others = variables.intervals_of(mask)
        packed = liveness.peaks(others, variables.steps, np.zeros_like(always)).tile_peak
        return always, packed

    @_remembered
    def vertex_code(self, ipu: int) -> tuple[list[str], np.ndarray]:
        """Vertex types on an IPU, and their code bytes [type, tile]."""
        variables, rows = self.of_ipu[ipu]
        mask = variables.category == "vertexCode"
        names = [str(self.variables["name"][row]) for row in rows[mask].tolist()]
        return names, variables.vectors[variables.vector[mask]]

    def _remember(self, key: Any, make: Callable[[], T]) -> T:
        if key in self._recent:
            self._recent.move_to_end(key)
        else:
            self._recent[key] = make()
            while len(self._recent) > _MOST_CACHED:
                self._recent.popitem(last=False)
        return self._recent[key]
