"""Fits or not: published runs and out-of-memories against what a compile here says.

`fits.csv` holds cases of which only that is published; every measured row of the other files was a
run as well, and has to fit. The vendor's IPUModel runs what does not fit, so its rows say nothing.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fidelity.cases import Row
from benchmarks.fidelity.store import Result

HERE = Path(__file__).parent
RAN, OUT_OF_MEMORY = "ran", "out of memory"


@dataclass(frozen=True)
class Verdict:
    """A case, what was published of it, and how full its fullest tile is by a compile here.

    ``share`` is of a tile's memory; 0 if no compile could say.
    """

    row: Row
    published: str
    share: float
    why: str = ""

    @property
    def said(self) -> str:
        """The verdict here; "" without one."""
        if not self.share:
            return ""
        return OUT_OF_MEMORY if self.share > 1 else RAN

    @property
    def right(self) -> bool:
        return self.said == self.published


def rows(path: Path = HERE / "fits.csv") -> list[Row]:
    """The cases; what was published of one is the quantity of its row."""
    with path.open(newline="") as file:
        return [
            Row(
                line["id"],
                "fits",
                line["machine"],
                line["dtype"],
                line["case"],
                line["published"],
                "",
                1.0,
                line["source"],
                line["mark"],
            )
            for line in csv.DictReader(file)
        ]


def verdicts(results: Iterable[Result]) -> list[Verdict]:
    """Of these results: the cases of fits.csv, and the measured rows, each of which ran."""
    found = []
    for result in results:
        row = result.row
        if row.kind == "fits" and row.quantity:  # else it is predicted, but not registered yet
            found.append(Verdict(row, row.quantity, result.fullest, result.why))
        elif row.kind == "hardware" and row.unit != "bytes" and result.predicted is not None:
            found.append(Verdict(row, RAN, result.fullest, result.why))
    return found


def section(verdicts: Sequence[Verdict]) -> str:
    """The part of the page about fitting. Marked cases are another program, and count apart."""
    known = [verdict for verdict in verdicts if verdict.said and not verdict.row.mark]
    lines = [
        f"Of {len(known)} published cases {sum(v.right for v in known)} are right.",
        "",
        "| source | ran, fits here | ran, does not fit here | out of memory, here too |"
        " out of memory, fits here |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for source in dict.fromkeys(_key(verdict) for verdict in known):
        of = [verdict for verdict in known if _key(verdict) == source]
        outcomes = [(v.published, v.said) for v in of]
        cells = [
            outcomes.count(outcome)
            for outcome in (
                (RAN, RAN),
                (RAN, OUT_OF_MEMORY),
                (OUT_OF_MEMORY, OUT_OF_MEMORY),
                (OUT_OF_MEMORY, RAN),
            )
        ]
        lines.append(f"| {source} | {' | '.join(map(str, cells))} |")
    lines += _table("Wrong:", [v for v in known if not v.right])
    lines += _table("Out of memory, as published:", [v for v in known if _both_out(v)])
    lines += _table("Not the same program:", [v for v in verdicts if v.row.mark and not v.right])
    return "\n".join(lines)


def _key(verdict: Verdict) -> str:
    return verdict.row.source.split()[0]


def _both_out(verdict: Verdict) -> bool:
    return verdict.right and verdict.said == OUT_OF_MEMORY


def _table(title: str, verdicts: Sequence[Verdict]) -> list[str]:
    if not verdicts:
        return []
    lines = ["", title, "", "| case | what | published | here |", "| --- | --- | --- | --- |"]
    for verdict in verdicts:
        row = verdict.row
        mark = f" ({row.mark})" if row.mark else ""
        lines.append(
            f"| {row.id} | {row.machine} {row.dtype} {row.case}{mark} | {verdict.published} |"
            f" {verdict.why or verdict.said} |"
        )
    return lines
