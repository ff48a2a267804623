"""The program of a profile: its tree, bodies, steps and vertices."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.file import integrity, records, trace
from ipuscope.profiler.file.columns import Columns, among
from ipuscope.profiler.file.trace import Bodies
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report.frames import (
    columns_without,
    depth_first,
    frame_of,
    looked_up,
    position_in,
    texts_of,
)
from ipuscope.profiler.report.tables import ReportTables

if TYPE_CHECKING:
    import pandas as pd

# Columns of steps that are read together.
_FRAME_OF_STEPS = (
    *("id", "ipu", "position", "program", "body", "op", "type", "name", "cycles"),
    *("tile_cycles", "bytes_in", "bytes_out", "purpose", "tensor"),
)
_STEPS_IN_ORDER = (
    *("step", "ipu", "position", "name", "type", "kind", "purpose", "tensor", "direction"),
    *("stage", "block", "op", "cycles", "program"),
)
_VECTORS_OF_STEPS = ("tile_cycles", "bytes_in", "bytes_out")


class ReportProgram(ReportTables):
    """A report's program."""

    @cached_property
    def program(self) -> pd.DataFrame:
        """The program tree, depth-first. Raises `ProfileError` if it is not a tree."""
        columns = self._table(records.Program)
        order = depth_first(columns["id"], columns["parent"], columns["position"])
        if order is None:
            raise self._reader.damaged("the program tree has a cycle or a parent that is not there")
        return frame_of({name: values[order] for name, values in columns.items()})

    @cached_property
    def bodies(self) -> pd.DataFrame:
        """Pieces of program that run as a unit; ``steps`` is their number of steps."""
        columns = self._table(records.Body)
        steps, _ = self._body_vectors
        count = np.array([len(ids) for ids in steps], dtype=np.int64)
        return frame_of(
            {
                "body": columns["id"],
                **columns_without(columns, "id", "starts", "steps"),
                "steps": count,
            }
        )

    def program_steps(self, ipu: int | None = None) -> pd.DataFrame:
        """Program steps by IPU and position.

        ``cycles`` are those of one execution, ``times`` is how often its body runs a step (more
        than once in a loop). ``bytes_in``/``bytes_out`` are sums over tiles, ``tile_balance`` the
        mean over the maximum of all tiles' cycles (docs/libpva.md#execution), NaN without cycles of
        tiles.
        """
        return self._keep(("program_steps", ipu), lambda: self._of_ipu(self._program_steps, ipu))

    def steps_as_run(self, ipu: int | None = None) -> pd.DataFrame:
        """`program_steps` with each step as often as its body runs it, for sums over a body."""
        steps = self.program_steps(ipu)
        if (steps["times"] == 1).all():
            return steps
        return steps.loc[steps.index.repeat(steps["times"])].reset_index(drop=True)

    @cached_property
    def _program_steps(self) -> pd.DataFrame:
        self._steps.read(*_FRAME_OF_STEPS)
        cycles, received, sent = (self._in_order(self._steps[name]) for name in _VECTORS_OF_STEPS)
        total, largest, busy = self._sums_of_steps(cycles)
        bytes_in, _, receivers = self._sums_of_steps(received)
        bytes_out, _, senders = self._sums_of_steps(sent)
        self._sound(integrity.of_sums("program_steps", total, bytes_in, bytes_out))
        with np.errstate(divide="ignore", invalid="ignore"):
            balance = np.where(
                cycles < 0, np.nan, np.where(largest > 0, total / (self._tiles * largest), 1.0)
            )
        return frame_of(
            {
                **{name: self.steps_in_order(name) for name in _STEPS_IN_ORDER},
                "bytes_in": bytes_in,
                "bytes_out": bytes_out,
                "active_tiles": np.where(cycles < 0, np.maximum(receivers, senders), busy),
                "tile_balance": balance,
                "times": self.steps_in_order("times"),
            }
        )

    def steps_in_order(self, name: str) -> np.ndarray:
        """One column of `program_steps` that needs no sums over tiles; only that column is read."""
        return self._keep(("steps in order", name), lambda: self._in_order(self._step_column(name)))

    def steps_with(self, name: str, *words: str) -> np.ndarray:
        """Which steps have one of these texts in a column of `steps_in_order`.

        Much faster than comparing that column: each distinct text is compared once.
        """

        def make() -> np.ndarray:
            if name == "kind":
                chosen = among(words, *self._kinds_of_steps)
            elif name == "direction":
                body = self._table(records.Body)
                of_body = body.equals(name, *words)
                chosen = looked_up(self._steps["body"], body["id"], of_body, False)
            else:
                chosen = self._steps.equals(name, *words)
            return self._in_order(chosen)

        return self._keep(("steps with", name, words), make)

    def steps_of_ipu(self, ipu: int, *names: str) -> dict[str, np.ndarray]:
        """`steps_in_order` of one IPU: several columns by name, of its steps by position."""
        self._check_ipu(ipu)
        end = int(self.steps_of_ipus[: ipu + 1].sum())
        here = slice(end - int(self.steps_of_ipus[ipu]), end)
        return {name: self.steps_in_order(name)[here] for name in names}

    def activity_of_steps(self, ipu: int) -> tuple[np.ndarray, np.ndarray]:
        """Active tiles of each of an IPU's steps, and the bytes that they send together."""
        columns = self.steps_of_ipu(ipu, *_VECTORS_OF_STEPS)
        cycles, received, sent = (columns[name] for name in _VECTORS_OF_STEPS)
        bytes_out, _, senders = self._sums_of_steps(sent)
        _, _, receivers = self._sums_of_steps(received)
        _, _, busy = self._sums_of_steps(cycles)
        self._sound(integrity.of_sums("program_steps", bytes_out))
        return np.where(cycles < 0, np.maximum(receivers, senders), busy), bytes_out

    def _in_order(self, of_steps: np.ndarray) -> np.ndarray:
        order = self._program_order
        return of_steps if order is None else of_steps[order]

    def _step_column(self, name: str) -> np.ndarray:
        """Column of the steps' table, in the order of the table."""
        step = self._steps
        if name == "kind":
            return self._step_kinds
        if name == "block":
            op = self._table(records.Op)
            return looked_up(step["op"], op["id"], op["block"], -1)
        if name == "times":
            return self._times
        if name == "spent":  # in a run of its body
            return step["cycles"] * self._times
        if name in ("direction", "stage"):
            body = self._table(records.Body)
            none = "" if name == "direction" else -1
            return looked_up(step["body"], body["id"], body[name], none)
        return step["id" if name == "step" else name]

    @cached_property
    def _program_order(self) -> np.ndarray | None:
        """Rows of the steps by IPU and position; None if the file has that order, as ours do."""
        columns = self._table(records.Step)
        columns.read("id", "ipu", "position")
        ipu, position = columns["ipu"], columns["position"]
        later, same = ipu[1:] > ipu[:-1], ipu[1:] == ipu[:-1]
        if (later | (same & (position[1:] >= position[:-1]))).all():
            return None
        return np.lexsort((position, ipu))

    @cached_property
    def body_steps(self) -> pd.DataFrame:
        """The steps of all bodies, body by body.

        ``body, task, ipu, stage, direction`` describe the body; ``step, op, tensor, kind, purpose,
        name`` the step, or the body if it has no step (-1); ``start`` counts cycles from the start
        of the body.
        """
        return self.body_steps_at(np.arange(len(self.bodies_in_row.step)))

    def body_steps_at(self, entries: np.ndarray) -> pd.DataFrame:
        """Some rows of `body_steps`, by their numbers, without making the others."""
        body, step, bodies = self._table(records.Body), self._steps, self.bodies_in_row
        at = np.searchsorted(bodies.first, entries, side="right") - 1
        steps = bodies.step[entries]
        row = looked_up(steps, step["id"], np.arange(len(step["id"])), 0)
        what = np.where(steps < 0, len(step["id"]) + at, row)  # of steps, then of bodies

        def of_step(values: np.ndarray, otherwise: np.ndarray) -> Any:
            both = np.concatenate([values, otherwise])
            return texts_of(both, what) if both.dtype == object else both[what]

        none = np.full(len(body["id"]), -1)
        no_text = np.full(len(body["id"]), "", dtype=object)
        return frame_of(
            {
                "body": body["id"][at],
                "task": texts_of(body["task"], at),
                "ipu": body["ipu"][at],
                "stage": body["stage"][at],
                "direction": texts_of(body["direction"], at),
                "step": steps,
                "kind": of_step(self._step_kinds, body["kind"]),
                "op": of_step(step["op"], none),
                "tensor": of_step(step["tensor"], none),
                "purpose": of_step(step["purpose"], no_text),
                "name": of_step(step["name"], body["name"]),
                "start": bodies.start[entries],
            }
        )

    @cached_property
    def bodies_in_row(self) -> Bodies:
        """The steps of all bodies as numbers, in the order of `bodies` and `body_steps`."""
        try:
            return Bodies.make(*self._body_vectors)
        except ValueError as error:
            raise self._reader.damaged(str(error)) from error

    @cached_property
    def moved_tensors(self) -> pd.DataFrame:
        """Tensors that steps move on or off a chip.

        ``step, tensor, name, source, target`` (IPUs of the replica; -1: the host or streaming
        memory; the same IPU twice: between replicas) and ``bytes``. Empty for older profiles.
        """
        return frame_of(self._table(records.MovedTensor))

    def step_tiles(self, step: int) -> dict[str, np.ndarray | None]:
        """``cycles``, ``bytes_in``, ``bytes_out`` of a step (by id) per tile; None if missing."""
        at = position_in(self._steps["id"], step)
        if at is None:
            raise KeyError(f"no program step {step} in {self.path}")
        ids = {name: int(self._steps[name][at]) for name in _VECTORS_OF_STEPS}
        return {
            name.removeprefix("tile_"): None if id < 0 else self.vector(id)
            for name, id in ids.items()
        }

    def vertices(self, step: int) -> pd.DataFrame:
        """Vertices of a step's compute set, by type; bytes of code and state are over all tiles."""
        at = position_in(self._steps["id"], step)
        if at is None:
            raise KeyError(f"no program step {step} in {self.path}")
        use, types = self._table(records.VertexUse), self._table(records.VertexType)
        compute_set = self._steps["compute_set"][at]
        here = np.flatnonzero((use["compute_set"] == compute_set) & (compute_set >= 0))
        count, _, tiles = self._vector_sums(use["count"][here])
        kind = use["vertex_type"][here]
        frame = frame_of(
            {
                "vertex_type": looked_up(kind, types["id"], types["name"], "unknown"),
                "count": count,
                "tiles": tiles,
                "code_bytes": tiles * looked_up(kind, types["id"], types["code_bytes"], 0),
                "state_bytes": count * looked_up(kind, types["id"], types["state_bytes"], 0),
            }
        )
        return frame.sort_values("count", ascending=False, ignore_index=True)

    def tile_vertices(self, ipu: int, tile: int) -> pd.DataFrame:
        """Vertices on one tile, by type.

        ``vertex_type, compute_sets, count, state_bytes``, sorted by state, largest first.
        """
        use, types, steps = (
            self._table(records.VertexUse),
            self._table(records.VertexType),
            self._steps,
        )
        if not 0 <= tile < self._tiles:
            raise IndexError(f"an IPU has tiles 0 to {self._tiles - 1}, not {tile}")
        here = np.unique(steps["compute_set"][(steps["ipu"] == ipu) & (steps["compute_set"] >= 0)])
        rows = np.flatnonzero(np.isin(use["compute_set"], here))
        vectors = self._over_tiles(np.unique(use["count"][rows]))
        count = np.array([vectors[id][tile] for id in use["count"][rows].tolist()], dtype=np.int64)
        kind = use["vertex_type"][rows][count > 0]
        unique, which = np.unique(kind, return_inverse=True)
        number = np.bincount(which, weights=count[count > 0], minlength=len(unique)).astype(
            np.int64
        )
        frame = frame_of(
            {
                "vertex_type": looked_up(unique, types["id"], types["name"], "unknown"),
                "compute_sets": np.bincount(which, minlength=len(unique)),
                "count": number,
                "state_bytes": number * looked_up(unique, types["id"], types["state_bytes"], 0),
            }
        )
        return frame.sort_values("state_bytes", ascending=False, ignore_index=True)

    @cached_property
    def _steps(self) -> Columns:
        """The program steps; their positions on each IPU must be 0, 1, 2, ..."""
        columns = self._table(records.Step)
        columns.read("id", "ipu", "position")
        ipu, position = self._in_order(columns["ipu"]), self._in_order(columns["position"])
        first = np.searchsorted(ipu, ipu)
        if (position != np.arange(len(ipu)) - first).any():
            raise self._reader.damaged(
                "the positions of an IPU's program steps do not count from 0 on"
            )
        return columns

    @cached_property
    def _times(self) -> np.ndarray:
        """How often a body runs each step, in the order of the table; 1 for a step without body."""
        ids, steps = self._steps["id"], self.bodies_in_row.step
        if (ids == np.arange(len(ids))).all():  # as the engine counts them
            return np.maximum(1, np.bincount(steps[steps >= 0], minlength=len(ids))[: len(ids)])
        run, times = np.unique(steps, return_counts=True)
        return np.maximum(1, looked_up(ids, run, times, 1))

    @cached_property
    def _step_kinds(self) -> np.ndarray:
        kind, kinds = self._kinds_of_steps
        of_steps: np.ndarray = np.array([*kinds, None], dtype=object)[kind]
        return of_steps

    @cached_property
    def _kinds_of_steps(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """The kind of each step as a position among the distinct kinds, and these."""
        (type, types), (purpose, purposes) = map(self._steps.coded, ("type", "purpose"))
        pairs = [trace.step_kind(one, other) for one in types for other in purposes]
        kinds = tuple(dict.fromkeys(pairs))
        code = np.array([kinds.index(pair) for pair in pairs] or [0])
        return code[type * len(purposes) + purpose], kinds

    @cached_property
    def _body_vectors(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        columns = self._table(records.Body)
        vectors = self._reader.vectors(np.concatenate([columns["steps"], columns["starts"]]))
        steps = [vectors[id] for id in columns["steps"].tolist()]
        stored = self._table(records.Step)
        self._sound(integrity.of_bodies(steps, columns["ipu"], stored["id"], stored["ipu"]))
        return steps, [vectors[id] for id in columns["starts"].tolist()]

    @cached_property
    def _steps_of_bodies(self) -> np.ndarray:
        """Entries of each body in `bodies_in_row`, counted without reading them: int64[body]."""
        if "bodies_in_row" in self.__dict__:
            return self.bodies_in_row.count
        lengths = self._reader.lengths(self._table(records.Body)["steps"])
        return np.maximum(1, lengths)  # a wait has one

    def _sums_of_steps(self, ids: np.ndarray) -> np.ndarray:
        """`_vector_sums` of vectors of the program steps: int64[3, id]."""
        vectors, sums = self.sums_over_tiles
        of_ids: np.ndarray = sums[:, np.searchsorted(vectors, ids)]
        return of_ids

    @cached_property
    def sums_over_tiles(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all vectors of program steps, sorted, including -1 if a step lacks one.

        And of each the sum, the maximum and the count of nonzeros: int64[3, id].
        """
        wanted = np.unique(np.concatenate([self._steps[name] for name in _VECTORS_OF_STEPS]))
        return wanted, self._sums_of(wanted)

    @cached_property
    def steps_of_ipus(self) -> np.ndarray:
        """Program steps of each IPU: int64[IPU], 0 for those of the replicas after the first."""
        return np.bincount(self._steps["ipu"], minlength=self.target.num_ipus)

    @cached_property
    def _rows_of_ipus(self) -> dict[int, np.ndarray]:
        """Rows of each IPU's variables, in the order of the table."""
        ipu = self._table(records.Variable)["ipu"]
        order = np.argsort(ipu, kind="stable")
        ipus, first = np.unique(ipu[order], return_index=True)
        edges = [*first.tolist(), len(order)]
        return {
            int(one): order[begin:end]
            for one, (begin, end) in zip(ipus, pairwise(edges), strict=True)
        }
