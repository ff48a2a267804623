"""The program of a profile as arrays: its steps in order, and its bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler.file import integrity, records, trace
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.file.columns import Columns, among
from ipuscope.profiler.file.trace import Bodies
from ipuscope.profiler.lazy import cached, cached_property
from ipuscope.profiler.report.frames import depth_first, frame_of, looked_up, order_of, texts_of
from ipuscope.profiler.report.tables import ProfileFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

_BODY_STEPS = (
    *("body", "task", "ipu", "stage", "direction", "step", "kind", "op", "tensor", "purpose"),
    *("name", "start"),
)
VECTORS_OF_STEPS = ("tile_cycles", "bytes_in", "bytes_out")


class ProgramSequence:
    """`Report.sequence`: the steps of the program, in the order in which each IPU has them."""

    def __init__(self, file: ProfileFile) -> None:
        self.file, self._lock = file, file.lock

    @cached
    def steps_in_order(self, name: str) -> np.ndarray:
        """One column of `program_steps` that needs no sums over tiles; only that column is read."""
        return self.in_order(self._step_column(name))

    @cached
    def steps_with(self, name: str, *words: str) -> np.ndarray:
        """Which steps have one of these texts in a column of `steps_in_order`.

        Much faster than comparing that column: each distinct text is compared once.
        """
        return among(words, *self.coded_in_order(name))

    def coded_in_order(self, name: str) -> tuple[np.ndarray, Sequence[str]]:
        """A text of `steps_in_order` as each one's position among these texts; -1: none of them."""
        if name == "kind":
            code, texts = self.coded_kinds
            return self.in_order(code), texts
        body = self.file.table(records.Body)
        code, distinct = (body if name == "direction" else self.columns).coded(name)
        if name == "direction":
            code = looked_up(self.columns["body"], body["id"], code, -1)
        return self.in_order(code), distinct.tolist()

    def steps_of_ipu(self, ipu: int, *names: str) -> dict[str, np.ndarray]:
        """`steps_in_order` of one IPU: several columns by name, of its steps by position."""
        self.file.check_ipu(ipu)
        end = int(self.steps_of_ipus[: ipu + 1].sum())
        here = slice(end - int(self.steps_of_ipus[ipu]), end)
        return {name: self.steps_in_order(name)[here] for name in names}

    def names_of_steps(self, ipu: int, positions: np.ndarray) -> np.ndarray:
        """Names of program steps of an IPU by their positions; of few, only these are read."""
        ids = self.steps_of_ipu(ipu, "step")["step"][positions]
        return self.file.names_of(records.Step, ids)

    def activity_of_steps(self, ipu: int) -> tuple[np.ndarray, np.ndarray]:
        """Active tiles of each of an IPU's steps, and the bytes that they send together."""
        columns = self.steps_of_ipu(ipu, *VECTORS_OF_STEPS)
        cycles, received, sent = (columns[name] for name in VECTORS_OF_STEPS)
        bytes_out, _, senders = self.sums_of_steps(sent)
        _, _, receivers = self.sums_of_steps(received)
        _, _, busy = self.sums_of_steps(cycles)
        self.file.sound(integrity.of_sums("program_steps", bytes_out))
        return np.where(cycles < 0, np.maximum(receivers, senders), busy), bytes_out

    def in_order(self, of_steps: np.ndarray) -> np.ndarray:
        """A column of the steps' table, by IPU and position."""
        order = self._program_order
        return of_steps if order is None else of_steps[order]

    def _step_column(self, name: str) -> np.ndarray:
        """Column of the steps' table, in the order of the table."""
        step = self.columns
        if name == "kind":
            return self.kinds
        if name == "block":
            op = self.file.table(records.Op)
            return looked_up(step["op"], op["id"], op["block"], -1)
        if name == "times":
            return self._times
        if name == "spent":  # in a run of its body
            return step["cycles"] * self._times
        if name in ("direction", "stage"):
            body = self.file.table(records.Body)
            none = "" if name == "direction" else -1
            return looked_up(step["body"], body["id"], body[name], none)
        return step["id" if name == "step" else name]

    @cached_property
    def tree(self) -> np.ndarray:
        """Rows of the program tree, depth-first. Raises `ProfileError` if it is not a tree."""
        columns = self.file.table(records.Program)
        order = depth_first(columns["id"], columns["parent"], columns["position"])
        if order is None:
            wrong = "the program tree has a cycle or a parent that is not there"
            raise self.file.reader.damaged(wrong)
        return order

    @cached_property
    def _program_order(self) -> np.ndarray | None:
        """Rows of the steps by IPU and position; None if the file has that order, as ours do."""
        columns = self.file.table(records.Step)
        columns.read("id", "ipu", "position")
        return order_of(columns["ipu"], columns["position"])

    @cached_property
    def body_steps(self) -> pd.DataFrame:
        """The steps of all bodies, body by body.

        ``body, task, ipu, stage, direction`` describe the body; ``step, op, tensor, kind, purpose,
        name`` the step, or the body if it has no step (-1); ``start`` counts cycles from the start
        of the body.
        """
        parts = self._of_entries(np.arange(len(self.bodies_in_row.step)), *_BODY_STEPS)
        return frame_of(
            {
                name: texts_of(values, which) if values.dtype == object else values[which]
                for name, (values, which) in parts.items()
            }
        )

    def body_steps_at(self, entries: np.ndarray, *names: str) -> dict[str, np.ndarray]:
        """Some rows of `body_steps`, by their numbers, as arrays; the named columns only."""
        parts = self._of_entries(entries, *names)
        return {name: values[which] for name, (values, which) in parts.items()}

    def _of_entries(
        self, entries: np.ndarray, *names: str
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Columns of `body_steps`: values, and which of them each of the entries has."""
        body, step, bodies = self.file.table(records.Body), self.columns, self.bodies_in_row
        at = np.searchsorted(bodies.first, entries, side="right") - 1
        row = rows_of(bodies.step[entries], step["id"])
        what = np.where(bodies.step[entries] < 0, len(step["id"]) + at, row)  # steps, then bodies

        def column(name: str) -> tuple[np.ndarray, np.ndarray]:
            if name in ("step", "start"):
                return getattr(bodies, name), entries
            if name in ("body", "task", "ipu", "stage", "direction"):
                return body["id" if name == "body" else name], at
            values = self.kinds if name == "kind" else step[name]
            none = np.full(len(body["id"]), "" if values.dtype == object else -1, values.dtype)
            return np.concatenate([values, body[name] if name in ("kind", "name") else none]), what

        return {name: column(name) for name in names}

    @cached_property
    def bodies_in_row(self) -> Bodies:
        """The steps of all bodies as numbers, in the order of `bodies` and `body_steps`."""
        try:
            return Bodies.make(*self.body_vectors)
        except ValueError as error:
            raise self.file.reader.damaged(str(error)) from error

    @cached_property
    def moved_tensors(self) -> pd.DataFrame:
        """Tensors that steps move on or off a chip.

        ``step, tensor, name, source, target`` (IPUs of the replica; -1: the host or streaming
        memory; the same IPU twice: between replicas) and ``bytes``. Empty for older profiles.
        """
        return frame_of(self.file.table(records.MovedTensor))

    @cached_property
    def columns(self) -> Columns:
        """The program steps; their positions on each IPU must be 0, 1, 2, ..."""
        columns = self.file.table(records.Step)
        columns.read("id", "ipu", "position")
        ipu, position = self.in_order(columns["ipu"]), self.in_order(columns["position"])
        begins = np.diff(ipu, prepend=-1) != 0
        if np.where(begins, position, np.diff(position, prepend=0) - 1).any():
            raise self.file.reader.damaged(
                "the positions of an IPU's program steps do not count from 0 on"
            )
        return columns

    @cached_property
    def _times(self) -> np.ndarray:
        """How often a body runs each step, in the order of the table; 1 for a step without body."""
        ids, steps = self.columns["id"], self.bodies_in_row.step
        if (ids == np.arange(len(ids))).all():  # as the engine counts them
            return np.maximum(1, np.bincount(steps[steps >= 0], minlength=len(ids))[: len(ids)])
        run, times = np.unique(steps, return_counts=True)
        return np.maximum(1, looked_up(ids, run, times, 1))

    @cached_property
    def kinds(self) -> np.ndarray:
        """The kind of each step, in the order of the table: object[step]."""
        kind, kinds = self.coded_kinds
        return np.array([*kinds, None], dtype=object)[kind]

    @cached_property
    def coded_kinds(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """The kind of each step as a position among the distinct kinds, and these."""
        (type, types), (purpose, purposes) = map(self.columns.coded, ("type", "purpose"))
        pairs = [trace.step_kind(one, other) for one in types for other in purposes]
        kinds = tuple(dict.fromkeys(pairs))
        code = np.array([kinds.index(pair) for pair in pairs] or [0])
        return code[type * len(purposes) + purpose], kinds

    @cached_property
    def body_vectors(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Ids of each body's steps, and the cycles at which they start."""
        columns = self.file.table(records.Body)
        vectors = self.file.reader.vectors(np.concatenate([columns["steps"], columns["starts"]]))
        steps = [vectors[id] for id in columns["steps"].tolist()]
        stored = self.file.table(records.Step)
        self.file.sound(integrity.of_bodies(steps, columns["ipu"], stored["id"], stored["ipu"]))
        return steps, [vectors[id] for id in columns["starts"].tolist()]

    @cached_property
    def steps_of_bodies(self) -> np.ndarray:
        """Entries of each body in `bodies_in_row`, counted without reading them: int64[body]."""
        if "bodies_in_row" in self.__dict__:
            return self.bodies_in_row.count
        lengths = self.file.reader.lengths(self.file.table(records.Body)["steps"])
        return np.maximum(1, lengths)  # a wait has one

    def sums_of_steps(self, ids: np.ndarray) -> np.ndarray:
        """`_vector_sums` of vectors of the program steps: int64[3, id]."""
        vectors, sums = self.sums_over_tiles
        return np.take(sums, np.searchsorted(vectors, ids), axis=1)

    @cached_property
    def sums_over_tiles(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all vectors of program steps, sorted, including -1 if a step lacks one.

        And of each the sum, the maximum and the count of nonzeros: int64[3, id].
        """
        ids = np.concatenate([self.columns[name] for name in VECTORS_OF_STEPS])
        wanted = np.unique(ids, return_counts=True)[0]  # without counts numpy imports numpy.ma
        return wanted, self.file.sums_of(wanted)

    @cached_property
    def steps_of_ipus(self) -> np.ndarray:
        """Program steps of each IPU: int64[IPU], 0 for those of the replicas after the first."""
        return np.bincount(self.columns["ipu"], minlength=self.file.target.num_ipus)
