"""The critical path of a report as pages show it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from ipuscope.profiler import Report
from ipuscope.profiler.analysis.critical_path import path_on_ipus
from ipuscope.viewer.figures.lanes import CriticalPath
from ipuscope.viewer.profiles import Profiles


def chain(profiles: Profiles, report: Report, run: int, iteration: int) -> CriticalPath:
    """The critical path over the IPUs in a device iteration, as figures draw it."""

    def make() -> CriticalPath:
        return CriticalPath(*path_on_ipus(report, run, iteration))

    return profiles.made(report, ("path", run, iteration), make)


def link(row: Any, total: int) -> str:
    """The address in the execution trace of where a wait is longest on the path.

    ``row``: one of `ipuscope.profiler.analysis.waits_in_short`'s longest; ``total``: cycles of the
    path.
    """
    query: dict[str, int | str] = {"step": int(row.step)}
    if row.end >= 0:
        margin = max(1, (row.end - row.begin) // 4)
        query["from"] = max(0, row.begin - margin)
        query["to"] = min(total, row.end + margin)
    return "/trace?" + urlencode(query)
