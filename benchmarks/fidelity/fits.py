"""Fits or not: published runs and out-of-memories against what a compile here says.

`fits.csv` holds cases of which only that is published; every measured row of the other files was a
run as well, and has to fit. The vendor's IPUModel runs what does not fit, so its rows say nothing.
"""

from __future__ import annotations

import csv
import ctypes
import gc
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.fidelity.cases import CannotRun, Row, compiled
from benchmarks.scaling.cases import PUBLISHED
from benchmarks.scaling.cases import row as scaling_row
from ipu_exec.errors import Error

if TYPE_CHECKING:
    from benchmarks.fidelity.__main__ import Result

HERE = Path(__file__).parent
RAN, OUT_OF_MEMORY = "ran", "out of memory"


@dataclass(frozen=True)
class Verdict:
    """A case, what was published of it and what a compile says; ``said`` is "" if none could."""

    row: Row
    published: str
    said: str
    why: str = ""

    @property
    def right(self) -> bool:
        return self.said == self.published


def rows(path: Path = HERE / "fits.csv") -> list[tuple[Row, str]]:
    """The cases and what was published of them."""
    with path.open(newline="") as file:
        return [
            (
                Row(
                    line["id"],
                    "fits",
                    line["machine"],
                    line["dtype"],
                    line["case"],
                    "fits",
                    "",
                    1.0,
                    line["source"],
                    line["mark"],
                ),
                line["published"],
            )
            for line in csv.DictReader(file)
        ]


def submitted() -> list[tuple[Row, str]]:
    """The pods of the MLPerf submission (docs/scaling.md), all of which ran."""
    cases = []
    for model, systems in PUBLISHED.items():
        for system in systems:
            if system.published is None:
                continue
            name = f"mlp-{model.split(',')[0].lower()}-{system.pod.lower()}"
            row = replace(scaling_row(system), id=name, source="MLP v1.1")
            cases.append((row, RAN))
    return cases


def run(cases: Iterable[tuple[Row, str]]) -> list[Verdict]:
    """Compile every case."""
    verdicts = []
    for row, published in cases:
        try:
            note = compiled(row).note
        except (CannotRun, Error) as error:
            verdicts.append(Verdict(row, published, "", str(error)))
            continue
        verdicts.append(Verdict(row, published, OUT_OF_MEMORY if note else RAN, note))
        gc.collect()  # executables refer to themselves, and those of pods take gigabytes
        _give_back()
    return verdicts


def _give_back() -> None:
    """Have glibc return what is free among what is not: weights that were cast lie in between."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def of_results(results: Iterable[Result]) -> list[Verdict]:
    """The measured rows, each of which ran where it was measured."""
    verdicts = []
    for result in results:
        row = result.row
        if row.kind != "hardware" or row.unit == "bytes" or result.predicted is None:
            continue
        said = OUT_OF_MEMORY if "out of memory" in result.why else RAN
        verdicts.append(Verdict(result.row, RAN, said, result.why))
    return verdicts


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
