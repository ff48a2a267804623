"""Lifetimes of tensors on an IPU: intervals over the IPU's steps in program order."""

from __future__ import annotations

from collections.abc import Collection

from ipu_exec.compiler.emission.bodies import Body, ProgramTree
from ipu_exec.compiler.placement.place import Placement
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.timeline import schedule_types

_PART = {
    schedule_types.STREAM_IN: Direction.FORWARD,
    schedule_types.ENTER: Direction.FORWARD,
    schedule_types.FORWARD: Direction.FORWARD,
    schedule_types.REDUCE: Direction.UPDATE,
    schedule_types.UPDATE: Direction.UPDATE,
}
_EARLY = (schedule_types.STREAM_IN, schedule_types.FORWARD)
Span = tuple[int, int]  # first and last position


class Lifetimes:
    """Lifetimes of tensors on one IPU. ``bodies``: the IPU's, each with its first position."""

    def __init__(
        self,
        placement: Placement,
        tree: ProgramTree,
        bodies: list[tuple[Body, int]],
        weights: Collection[int],
    ) -> None:
        """``weights``: their storages."""
        self.placement, self.tree, self.weights = placement, tree, weights
        # of each storage: the bodies that touch it, with their number, and at which positions
        self.touching: dict[int, list[tuple[int, Body, Span]]] = {}
        for number, (body, at) in enumerate(bodies):
            for storage, (first, last) in body.touched.items():
                span = (at + first, at + last)
                self.touching.setdefault(storage, []).append((number, body, span))

    def of(self, storage: int, stage: int) -> list[Span]:
        """The intervals during which a stage holds the tensor.

        A stashed tensor lives in the forward until it is copied to its stash, and in the backward
        from its restore on. A recomputed tensor dies and is made again. A tensor from another IPU
        arrived at the end of the previous pipeline cycle: it is live from the first step on, and
        at the copy.
        """
        if storage in self.tree.moving:
            return self._while_on_chip(storage, stage)
        spans, copied = self._spans(storage, stage)
        intervals = self._intervals(storage, stage, spans)
        if not intervals:
            return [copied] if copied else []
        if self._arrives(storage, stage):
            intervals[0] = (0, intervals[0][1])
            again = copied is not None and copied[0] > intervals[-1][1]
            return [*intervals, copied] if copied and again else intervals
        if copied:
            of_stage = (t for t in self.placement.transfers if t.source == stage)
            sent = next((t.direction for t in of_stage if t.storage == storage), Direction.FORWARD)
            index = -1 if sent == Direction.BACKWARD else 0
            intervals[index] = (intervals[index][0], max(intervals[index][1], copied[1]))
        return intervals

    def _touches(self, storage: int, stage: int) -> list[tuple[int, Body, Span]]:
        return [one for one in self.touching.get(storage, ()) if one[1].stage in (stage, -1)]

    def _spans(self, storage: int, stage: int) -> tuple[dict[int, Span], Span | None]:
        """The positions at which each task's bodies touch it, and those of copies between IPUs."""
        spans: dict[int, Span] = {}
        copied: Span | None = None
        for _, body, span in self._touches(storage, stage):
            if body.task == schedule_types.COPY:
                copied = span
            else:
                spans[body.task] = _union(spans.get(body.task), span)
        return spans, copied

    def _intervals(self, storage: int, stage: int, spans: dict[int, Span]) -> list[Span]:
        """One interval, or two if it is off the chip (or not yet recomputed) in between."""
        twice = (self.tree.stashed, self.tree.recomputed)
        if not any(storage in by_stage.get(stage, ()) for by_stage in twice):
            return [_span(list(spans.values()))] if spans else []
        early = [span for task, span in spans.items() if task in _EARLY]
        late = [span for task, span in spans.items() if task not in _EARLY]
        return [_span(part) for part in (early, late) if part]

    def _arrives(self, storage: int, stage: int) -> bool:
        """Whether it comes from another stage; phases receive at their beginning."""
        return not self.placement.phases and any(
            t.storage == storage and (t.source < stage <= t.target or t.source > stage >= t.target)
            for t in self.placement.transfers
        )

    def _while_on_chip(self, storage: int, stage: int) -> list[Span]:
        """The intervals from each load (or write) of the tensor to its store (or last read).

        In phased execution: one per phase, or up to the end of forward or backward. Otherwise,
        and if phases are pipelines: one for the forward, one for recomputation and backward, one
        for the update; the weights of the last pipelined phase stay for the backward.
        """
        in_pipelines = self.placement.phases and self.placement.pipelined
        stays = in_pipelines and stage in self.tree.turning and storage in self.weights
        spans: dict[int | str, Span] = {}
        for number, body, span in self._touches(storage, stage):
            part = _PART.get(body.task, Direction.BACKWARD)
            turns = body.stage in self.tree.turning and body.task in (
                schedule_types.FORWARD,
                schedule_types.BACKWARD,
            )
            phased = self.placement.phases and self.tree.moving[storage]
            key: int | str = ("turn" if turns else number) if phased else part
            if in_pipelines:
                key = "turn" if stays and part != Direction.UPDATE else part
            spans[key] = _union(spans.get(key), span)
        return list(spans.values())


def _union(a: Span | None, b: Span) -> Span:
    return b if a is None else (min(a[0], b[0]), max(a[1], b[1]))


def _span(parts: list[Span]) -> Span:
    return min(first for first, _ in parts), max(last for _, last in parts)
