"""What is worked out when a large profile is written, for those who open it.

The engine puts these answers into the file with a digest of the code that gave them
(`ProfileWriter.publish`, `schema.WORKED_OUT`). A reader of the same code takes them
(`Report.answered`) after checking them, as the file may be a stranger's; any other works them out.
They are aggregates: what a page shows first, not what it is made of.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ipuscope.planner.costs import known_memory, known_ties
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights import insights, kept_insights
from ipuscope.planner.predict import profiled_split
from ipuscope.planner.search import known_split
from ipuscope.profiler import held, held_memory, kept
from ipuscope.profiler.analysis import hierarchy, memory_hot_spots, waits_in_short
from ipuscope.profiler.analysis.critical_path import worked_out as of_path
from ipuscope.profiler.analysis.kinds import worked_out as of_kinds
from ipuscope.profiler.analysis.pod import worked_out as of_pod
from ipuscope.profiler.analysis.program import worked_out as of_program
from ipuscope.profiler.file import records
from ipuscope.profiler.held_memory import FIRST_SHAPE, of_tiles
from ipuscope.profiler.report import SUMS, Report, open_report

LEAST_STEPS = 1 << 14  # program steps of a profile: below, its answers take no second
_log = logging.getLogger(__name__)


def answers(path: Path) -> Mapping[str, Any]:
    """What a profile that was just finished is to hold; nothing of a small one.

    The run is worth more than its insights: whatever goes wrong with them leaves them to those who
    ask.
    """
    try:
        with open_report(path) as report:
            large = report.columns_of(records.Step).rows >= LEAST_STEPS
            return worked_out(report) if large else {}
    except Exception:
        _log.debug("nothing is worked out for %s", path, exc_info=True)
        return {}


def worked_out(report: Report) -> dict[str, Any]:
    """Each answer by its name, as JSON can hold it, from the profile's rows alone."""
    found: dict[str, Any] = {
        kept_insights.NAME: kept_insights.plain(insights(report)),
        SUMS: report.sums_over_tiles[1].tolist(),
        memory_hot_spots.FULLEST: memory_hot_spots.fullest_tiles(report).tolist(),
        **_of_memory(report),
        **of_program(report),
    }
    if len(report.runs):
        found |= of_pod(report) | of_path(report) | of_kinds(report)
        found[waits_in_short.NAME] = waits_in_short.of(report).plain()
        found |= hierarchy.worked_out(report)
    with suppress(ValueError):  # no Blocks
        found[known_memory.NAME] = known_memory.plain(Costs.from_report(report).memory)
        found |= known_ties.worked_out(report) | profiled_split.worked_out(report)
    with suppress(ValueError):  # ... or phases that a file does not say
        found[known_split.NAME] = known_split.plain(known_split.known_split(report))
    return found


def _of_memory(report: Report) -> dict[str, Any]:
    """What `held_memory` reads."""
    ipus = range(report.target.ipus_per_replica)
    rows, first = report.memory(), report.liveness(0)
    answers: dict[str, dict[str, Any]] = {
        held_memory.LIVE: {"bytes": np.concatenate([report.live_bytes(ipu) for ipu in ipus])},
        held_memory.KINDS: {name: rows[name] for name in held_memory.OF_KINDS},
        held_memory.FULLEST_AT: {name: first[name] for name in ("max_tile", "max_tile_bytes")},
        held_memory.MAP: {"bytes": report.liveness_map(0, shape=FIRST_SHAPE).ravel()},
        held_memory.VARIABLES: {
            **report.variables_of(0),
            held_memory.ON_TILE: report.bytes_of_variables(0, memory_hot_spots.fullest(report, 0)),
        },
    }
    for ipu in ipus:
        columns = report.tile_columns(ipu)
        answers[of_tiles(ipu)] = {name: columns[name] for name in held_memory.OF_TILES}
    return {name: held.plain(columns) for name, columns in answers.items()}


def otherwise(report: Report) -> list[str]:
    """The names of answers that the file holds, and its rows answer otherwise."""
    if not report.holds_worked_out:
        return []
    with _RowsAlone(report.path) as rows:
        fresh = kept.from_json(kept.as_json(worked_out(rows)))
    held = {name: report.worked_out(name) for name in fresh}
    return [name for name, said in held.items() if said is not None and said != fresh[name]]


class _RowsAlone(Report):
    def worked_out(self, name: str) -> Any:
        return None
