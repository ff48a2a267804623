"""What one more micro-batch takes, from two sizes of a run that was published for both.

Where both take the same samples to a weight update, each pipeline runs more micro-batches for it on
the smaller machine. Whatever an update takes besides, once on the IPUs (ramps, state) or for its
samples on the host (batches, the call), is in the times of both and not in their difference.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING

from benchmarks.fidelity.cases import number, per_pack

if TYPE_CHECKING:
    from benchmarks.fidelity.store import Result

SAME = 0.02  # most that the samples of an update may differ by


@dataclass(frozen=True)
class Increment:
    """Two sizes of a run; times in seconds, each predicted and published.

    ``micro_batch`` is what one more takes, ``rest`` what an update of the larger machine takes
    besides its micro-batches.
    """

    name: str
    counts: tuple[int, int]  # micro-batches of a weight update, on the smaller machine first
    micro_batch: tuple[float, float]
    rest: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Above 1: predicted too fast."""
        return self.micro_batch[1] / self.micro_batch[0]


@dataclass(frozen=True)
class _Size:
    result: Result
    count: int
    samples: float

    def seconds(self) -> tuple[float, float]:
        """Of a weight update, predicted and published."""
        assert self.result.predicted is not None
        return self.samples / self.result.predicted, self.samples / self.result.row.value


def increments(results: Sequence[Result]) -> Iterator[Increment]:
    """All pairs of neighbouring sizes of one program whose updates take the same samples.

    Sizes of a run have ids that differ by the number of IPUs, and cases that differ by their
    replicas and their accumulation.
    """
    runs: dict[tuple[str, str], list[_Size]] = {}
    for result in results:
        row, case = result.row, result.row.case
        if row.mark or result.predicted is None or not row.unit.endswith("/s"):
            continue
        batch, count, replicas = (number(case, part, 0) for part in _PARTS)
        if batch and count and replicas:
            program = re.sub("|".join(_PARTS[1:]), "", case)
            sizes = runs.setdefault((re.sub(r"(bow|pod)\d+", r"\1", row.id), program), [])
            sizes.append(_Size(result, count, batch * count * replicas * per_pack(case)))
    for (name, _), sizes in runs.items():
        for more, fewer in pairwise(sorted(sizes, key=lambda size: -size.count)):
            if more.count > fewer.count and abs(log(more.samples / fewer.samples)) <= SAME:
                yield _between(name, more, fewer)


_PARTS = r"micro-batch (\d+)", r"gradient accumulation (\d+)", r"(\d+) replicas"


def _between(name: str, more: _Size, fewer: _Size) -> Increment:
    apart = more.count - fewer.count
    long, short = more.seconds(), fewer.seconds()
    one = [(a - b) / apart for a, b in zip(long, short, strict=True)]
    rest = [b - fewer.count * each for b, each in zip(short, one, strict=True)]
    return Increment(name, (more.count, fewer.count), (one[0], one[1]), (rest[0], rest[1]))


def errors(results: Sequence[Result]) -> list[float]:
    """|ln ratio| of each micro-batch."""
    return [abs(log(one.ratio)) for one in increments(results)]


def section(results: Sequence[Result]) -> str:
    """The table of them."""
    found = list(increments(results))
    if not found:
        return "No run was published for two sizes."
    lines = [
        "| run | micro-batches | a micro-batch, ms: predicted | published | ratio |"
        " the rest of an update, ms: predicted | published |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in sorted(found, key=lambda one: one.ratio):
        batch, rest = ([1e3 * each for each in pair] for pair in (one.micro_batch, one.rest))
        lines.append(
            f"| {one.name} | {one.counts[0]:,} and {one.counts[1]:,} | {batch[0]:.3f} |"
            f" {batch[1]:.3f} | {one.ratio:.3f} | {rest[0]:,.0f} | {rest[1]:,.0f} |"
        )
    median = statistics.median(abs(log(one.ratio)) for one in found)
    return "\n".join([*lines, "", f"The median of abs(ln ratio) is {median:.3f}."])
