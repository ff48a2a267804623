"""The section of docs/fidelity.md about error bars: how wide they are, and whether they hold."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from itertools import combinations

from benchmarks.fidelity.cases import Row, number
from benchmarks.fidelity.errors import (
    INSIDE,
    KINDS,
    Residual,
    bar,
    coverage,
    factors_of_others,
    kind_of,
    residuals,
)
from benchmarks.fidelity.fits import OUT_OF_MEMORY, RAN, Verdict
from benchmarks.fidelity.store import Result
from ipu_exec.lowering.measured import ANY, FULLEST
from ipuscope.profiler.confidence import Fits, fits

ENOUGH = 20  # rows, for a coverage to say something
WANTED = 0.75, 0.90
TILE = 1 << 20  # any size: verdicts are of shares


def section(results: Sequence[Result], verdicts: Sequence[Verdict]) -> str:
    """Bars, their coverage, what is sure of differences, and verdicts with their doubt."""
    known = residuals(results)
    return "\n\n".join(
        (
            BARS,
            _bars(known),
            COVERAGE,
            _coverage(known),
            CALIBRATED,
            _calibrated(known),
            DIFFERENCES,
            _differences(results),
            VERDICTS,
            _verdicts(verdicts, known),
        )
    )


def _bars(known: Sequence[Residual]) -> str:
    """A row a kind: measurements and estimates behind it, and its bar anywhere."""
    lines = [
        "| kind | measured | by sources | estimated by the vendor | true over predicted |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for kind in KINDS:
        one = bar(known, kind, ANY, ANY)
        lines.append(
            f"| {kind} | {one.rows} | {one.sources} | {one.estimates} |"
            f" {one.low:.2f} to {one.high:.2f} |"
        )
    return "\n".join(lines)


def _coverage(known: Sequence[Residual]) -> str:
    """A row a kind, target and type with enough rows: width and coverage of what was left out."""
    lines = [
        "| kind | target | type | rows | sources | bar | median ln(true / predicted) |"
        " covered, its source left out | 75 to 90%? |",
        "| --- | --- | --- | ---: | --- | --- | ---: | ---: | --- |",
    ]
    every: list[bool] = []
    for cell, inside in sorted(coverage(known).items()):
        kind, target, dtype = cell
        every += inside
        mine = [r for r in known if r.measured and (r.kind, r.target, r.dtype) == cell]
        one = bar(known, *cell)
        share, verdict = "-", "no other source"
        if inside:
            share = f"{sum(inside) / len(inside):.0%}"
            verdict = _judged(inside)
        sources = ", ".join(sorted({r.source for r in mine}))
        median = statistics.median(r.log for r in mine)
        lines.append(
            f"| {kind} | {target} | {dtype} | {len(mine)} | {sources} |"
            f" {one.low:.2f} to {one.high:.2f} | {median:+.3f} | {share} | {verdict} |"
        )
    lines += ["", f"Of all {len(every)} rows {sum(every) / len(every):.0%} are covered."]
    return "\n".join(lines)


def _calibrated(known: Sequence[Residual]) -> str:
    """A row a kind of two sources or more: its errors as they are, and by others' factors."""
    lines = [
        "| kind | rows | factor for each source, of the others | median error | p80 |"
        " calibrated: median error | p80 |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for kind in KINDS:
        mine = [one for one in known if one.measured and one.kind == kind]
        factors = factors_of_others(mine)
        if factors:
            names = ", ".join(f"{name} {math.exp(by):.2f}" for name, by in sorted(factors.items()))
            off = _median_and_p80([one.log for one in mine])
            left = _median_and_p80([one.log - factors[one.source] for one in mine])
            lines.append(f"| {kind} | {len(mine)} | {names} | {off} | {left} |")
    return "\n".join(lines)


def _median_and_p80(logs: Sequence[float]) -> str:
    sizes = sorted(map(abs, logs))
    return f"{statistics.median(sizes):.3f} | {sizes[int(0.8 * len(sizes))]:.3f}"


def _judged(inside: Sequence[bool]) -> str:
    if len(inside) < ENOUGH:
        return "few rows"
    share = sum(inside) / len(inside)
    if share < WANTED[0]:
        return "too narrow"
    return "too wide" if share > WANTED[1] else "yes"


Key = Callable[[Row], tuple[object, ...]]


def _but(pattern: str) -> Key:
    """What rows have in common that differ by what the pattern is of their case."""
    return lambda row: (re.sub(pattern, "", row.case), row.machine, row.dtype, row.source)


# Decisions that published pairs are about: what both rows share, and what differs.
DECISIONS: dict[str, tuple[Key, Callable[[Row], object]]] = {
    "the batch": (_but(r"batch (size )?\d+|@ \d+x\d+"), lambda row: row.case),
    "the type": (
        lambda row: (row.case.replace("; partials fp16", ""), row.machine, row.source),
        lambda row: row.dtype,
    ),
    "the machine": (
        lambda row: (row.case, row.dtype, row.source.split()[0]),
        lambda row: row.machine,
    ),
    "the number of replicas": (
        _but(r"gradient accumulation \d+|\d+ replicas"),
        lambda row: number(row.case, r"(\d+) replicas", 0),
    ),
}


def _differences(results: Sequence[Result]) -> str:
    """For each kind of decision: pairs, how far their ratio is off, and Kendall's tau."""
    lines = [
        "| rows that differ by | pairs | median error of one | of their ratio | p80 of it |"
        " in the right order | Kendall's tau |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    timed = [r for r in results if r.ratio and kind_of(r.row) and r.row.unit != "bytes"]
    for decision, (same, by) in DECISIONS.items():
        groups: dict[tuple[object, ...], list[Result]] = {}
        for result in timed:
            groups.setdefault((result.row.unit, *same(result.row)), []).append(result)
        pairs = [
            (a, b)
            for group in groups.values()
            for a, b in combinations(group, 2)
            if by(a.row) != by(b.row) and a.row.value != b.row.value
        ]
        if not pairs:
            continue
        errors = sorted(abs(math.log(a.ratio / b.ratio)) for a, b in pairs if a.ratio and b.ratio)
        right = sum(
            (a.predicted > b.predicted) == (a.row.value > b.row.value)
            for a, b in pairs
            if a.predicted and b.predicted
        )
        alone = statistics.median(one.error for pair in pairs for one in pair)
        lines.append(
            f"| {decision} | {len(pairs)} | {alone:.3f} | {statistics.median(errors):.3f} |"
            f" {errors[int(0.8 * len(errors))]:.3f} | {right / len(pairs):.0%} |"
            f" {2 * right / len(pairs) - 1:.2f} |"
        )
    return "\n".join(lines)


def recall(verdicts: Sequence[Verdict], low: float, high: float) -> list[str]:
    """The table of verdicts where bytes are between these factors of the predicted."""
    lines = [
        "| published | cases | fits | fits, uncertain | does not fit, uncertain | does not fit |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for published in (RAN, OUT_OF_MEMORY):
        answers = [
            fits(round(v.share * TILE), TILE, (low, high))
            for v in verdicts
            if v.published == published
        ]
        counts = " | ".join(str(answers.count(answer)) for answer in Fits)
        lines.append(f"| {published} | {len(answers)} | {counts} |")
    return lines


def _verdicts(verdicts: Sequence[Verdict], known: Sequence[Residual]) -> str:
    """Recall of out-of-memory, with and without what is uncertain."""
    one = bar(known, FULLEST, ANY, ANY)
    judged = [v for v in verdicts if v.said and not v.row.mark]
    lines = recall(judged, one.low, one.high)
    gone = [v for v in judged if v.published == OUT_OF_MEMORY]
    found = sum(v.share > 1 for v in gone)
    warned = sum(v.share * one.high > 1 for v in gone)
    lines += [
        "",
        f"Recall of out-of-memory: {found} of {len(gone)} without the bar, {warned} of {len(gone)}"
        f" where 'fits, uncertain' counts as a warning (bytes are {one.low:.2f} to {one.high:.2f}"
        " of the predicted).",
    ]
    return "\n".join(lines)


BARS = f"""## Error bars

A bar holds {INSIDE:.0%} of what was measured, whoever measured it, as factors of the predicted
speed (bytes). Operators have theirs from operators on hardware, totals from whole models on
hardware, and bytes from Poplar's own compiler. The vendor's estimators ([PLB] and [TUT4]: cycles by
its IPUModel) are no measurements. A kind that they estimate, and nobody measured, has the bar of
the nearest kinds, widened by how far the estimates are from ours; a kind that they do not know
either, by how far all of theirs are. A profile's header has the bar of whole models of its kind; of
small programs, if a micro-batch takes less than a million cycles; and if most of its cycles are of
kinds that nobody measured, also what its operators' bars add up to, the wider one on each side."""

COVERAGE = """### Coverage

Whether a bar holds is tried on rows of a source that it has not seen: for each row, the bar is made
again without any row of that source (all releases of a page are one source). With `n` sources of a
kind, the next may be unlike all of them with 1 in n + 1, so that much of the weight goes to the
residuals of other kinds. Where one source is all there is of a kind, its rows are covered by other
kinds' bars alone: 'too wide' says that the class is better than its neighbours, not that the bar
could be narrower for somebody else's program."""

CALIBRATED = """### Calibrated

What one factor a kind, fitted on the other sources, does to the rows of a source: its logarithm is
the mean of the others' median residuals. No figure of a profile has it; the middle of a bar is
about there. With measurements of your own, `ipu-report compare --calibrate` makes your factors
([real profiles](how-to/real-profiles.md))."""

DIFFERENCES = """### Differences

Two rows of one publication that differ by one choice share most of their error. Each pair counts
once; Kendall's tau is of pairs in the right order less those in the wrong one."""

VERDICTS = """### Verdicts with their doubt

The fullest tile of a compile here, by the bar of bytes: 'uncertain' where the bar has the limit in
it. A planner that wants to be sure takes only what fits without doubt."""
