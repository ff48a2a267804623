"""The table, the summary of its groups, and docs/fidelity.md around them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.fidelity.__main__ import Result


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def table(results: Sequence[Result]) -> str:
    """Every row: predicted, published, ratio; or why there is no prediction."""
    lines = [
        "| row | case | quantity | predicted | published | ratio | source |",
        "| --- | --- | --- | ---: | ---: | ---: | --- |",
    ]
    for result in results:
        row = result.row
        shown = "-" if result.predicted is None else number(result.predicted)
        ratio = "-" if result.ratio is None else f"{result.ratio:.3f}"
        lines.append(
            f"| {row.id} | {row.machine} {row.dtype} {row.case} | {row.quantity}, {row.unit} | {shown} | "
            f"{number(row.value)} | {ratio} | {row.source} |"
        )
    missing = [f"- {result.row.id}: {result.why}" for result in results if result.predicted is None]
    noted = [f"- {result.row.id}: {result.why}" for result in results if result.predicted is not None and result.why]
    lines += ["", "Not run:", "", *missing] if missing else []
    lines += ["", "Run, but:", "", *noted] if noted else []
    return "\n".join(lines)


def groups(results: Sequence[Result]) -> str:
    """Per group: rows, median and worst |ln ratio|, and the median ratio, which shows a bias."""
    lines = [
        "| group | rows | median abs(ln ratio) | worst abs(ln ratio) | worst row | median ratio |",
        "| --- | ---: | ---: | ---: | --- | ---: |",
    ]
    for name in dict.fromkeys(result.row.group for result in results):
        ran = [result for result in results if result.row.group == name and result.ratio is not None]
        if not ran:
            lines.append(f"| {name} | 0 | - | - | none ran | - |")
            continue
        worst = max(ran, key=lambda result: result.error)
        lines.append(
            f"| {name} | {len(ran)} | {statistics.median(r.error for r in ran):.3f} | {worst.error:.3f} | "
            f"{worst.row.id} | {statistics.median(r.ratio for r in ran if r.ratio is not None):.3f} |"
        )
    return "\n".join(lines)


def whole(results: Sequence[Result]) -> str:
    return f"{HEAD}\n{groups(results)}\n\n{BODY}\n{table(results)}\n"


HEAD = ""
BODY = ""
