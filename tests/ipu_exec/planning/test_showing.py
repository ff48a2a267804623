"""A plan on the terminal."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from ipu_exec.planning.showing import show
from planner import StagePlan
from tests.planner.test_plan_file import plan


def test_on_80_columns_nothing_is_cut() -> None:
    best, *others = plan().candidates
    counts = (1, *[2] * 9, *[1] * 6)
    stages = tuple(
        StagePlan(ipu, tuple(f"B{ipu}.{number}" for number in range(count)))
        for ipu, count in enumerate(counts)
    )
    many = replace(best, mapping=replace(best.mapping, stages=stages))
    console = Console(width=80, file=io.StringIO())
    show(replace(plan(), candidates=(many, *others)), console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in printed
    assert all(len(line) <= 80 for line in printed.splitlines() if not line.startswith("- "))
    assert "1-9x2" in printed
