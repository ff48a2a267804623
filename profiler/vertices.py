"""What elementwise vertices cost: the table that engine and planner count with.

``vertex_costs.csv``, from popops' public formulas (docs/cycles.md#elementwise); a row's note says
what else it is taken from.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

WORKERS = 6  # of a tile


def rows() -> Iterator[tuple[str, str, list[int]]]:
    """Kind, vertex and numbers of elementwise vertices, in the order of their file's columns."""
    text = Path(__file__).with_name("vertex_costs.csv").read_text("utf-8")
    for kind, vertex, *numbers, _ in [*csv.reader(text.splitlines())][1:]:
        yield kind, vertex, [*map(int, numbers)]
