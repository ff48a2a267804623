"""`insights` that are worked out once: when a large profile is written, or when first asked for.

The engine puts those of a large profile into the file (`ipuscope.planner.worked_out`); others are
stored in the user's cache if computing them took a while (`ipuscope.profiler.kept`).
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

from ipuscope.planner.insights import Insight, insights
from ipuscope.profiler.analysis.compare import imported
from ipuscope.profiler.file import from_json, schema
from ipuscope.profiler.kept import Kept
from ipuscope.profiler.report import Report

LEAST_SECONDS = 0.5  # of the process: what is quicker is worked out anew
NAME = "insights"


def known_insights(report: Report) -> list[Insight]:
    """`insights` of a profile; those of one that is being written are not cached.

    None of an imported one: they ask for micro-batches and stages, which it does not have.
    """
    if imported(report):
        return []
    if report.path.name.endswith(schema.PARTIAL_SUFFIX):
        return insights(report)
    written = stored_insights(report)
    if written is not None:
        return written
    try:
        store = Kept([report.path])
    except OSError:
        return insights(report)
    known = _cached(store.get(NAME))
    if known is not None:
        return known
    start = time.process_time()
    computed = insights(report)
    if time.process_time() - start >= LEAST_SECONDS:
        store.put(NAME, json.dumps(plain(computed), default=int).encode())
    return computed


def stored_insights(report: Report) -> list[Insight] | None:
    """Those that the file holds; None where it has none of this code."""
    said = report.worked_out(NAME)
    return None if said is None else _read(said)


def plain(found: list[Insight]) -> list[dict[str, Any]]:
    """Insights as JSON has them."""
    return [asdict(one) for one in found]


def _cached(data: bytes | None) -> list[Insight] | None:
    try:
        return None if data is None else _read(json.loads(data))
    except (ValueError, RecursionError):
        return None


def _read(said: Any) -> list[Insight] | None:
    """None where it is not what was written: a file may be a stranger's, a cache damaged."""
    try:
        found: list[Insight] = [from_json.read(Insight, one) for one in said]
    except (ValueError, TypeError):
        return None
    ours = all(one.where.startswith("/") and not one.where.startswith("//") for one in found)
    return found if ours else None
