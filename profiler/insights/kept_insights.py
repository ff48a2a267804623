"""Cached `insights`, stored if computing them took a while (`profiler.kept`)."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

from profiler import schema
from profiler.insights import Insight, Waits, insights
from profiler.kept import Kept
from profiler.report import Report

LEAST_SECONDS = 0.5  # of the process: what is quicker is worked out anew
_NAME = "insights"


def known_insights(report: Report) -> list[Insight]:
    """`insights` of a profile; those of one that is being written are not cached."""
    if report.path.name.endswith(schema.PARTIAL_SUFFIX):
        return insights(report)
    try:
        store = Kept([report.path])
    except OSError:
        return insights(report)
    cached = _read(store.get(_NAME))
    if cached is not None:
        return cached
    start = time.process_time()
    computed = insights(report)
    if time.process_time() - start >= LEAST_SECONDS:
        store.put(_NAME, json.dumps([asdict(one) for one in computed], default=int).encode())
    return computed


def _read(data: bytes | None) -> list[Insight] | None:
    """None where nothing is cached, or where it is not what was written."""
    if data is None:
        return None
    try:
        return [_insight(said) for said in json.loads(data)]
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def _insight(said: dict[str, Any]) -> Insight:
    waits, code = said.pop("waits"), said.pop("code")
    about = Waits(**{name: tuple(every) for name, every in waits.items()}) if waits else None
    return Insight(**said, waits=about, code=tuple(code))
