"""The critical path of a report, computed once and cached: chain, steps and longest waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

import numpy as np

from profiler import Report
from profiler.analysis.critical_path import Chain, chain_of, critical_path
from profiler.analysis.waits import longest_waits
from viewer.figures.pipeline import CriticalPath, on_ipus
from viewer.figures.units import rows_of
from viewer.profiles import Profiles

if TYPE_CHECKING:
    import pandas as pd


class Waits(NamedTuple):
    """What an update waits for: every step on the path, and the longest waits in words."""

    path: pd.DataFrame
    longest: pd.DataFrame


def waits_of(profiles: Profiles, report: Report) -> Waits:
    """The waits of the first run's first device iteration; all iterations wait for the same."""

    def make() -> Waits:
        path = critical_path(report)
        return Waits(path, longest_waits(report, path))

    return profiles.made(report, "waits", make)


def chain(profiles: Profiles, report: Report, run: int, iteration: int) -> CriticalPath:
    """The critical path over the IPUs in a device iteration, as figures draw it."""

    def make() -> CriticalPath:
        return on_ipus(*chain_of(report, run, iteration))

    return profiles.made(report, ("path", run, iteration), make)


def links(profiles: Profiles, report: Report, waits: Waits, rows: pd.DataFrame) -> list[str]:
    """Addresses in the execution trace of where these waits are longest on the path.

    ``rows`` are of ``waits.longest``.
    """
    tasks, chain = chain_of(report)
    body = tasks["body"].to_numpy()
    on_path = np.where(chain.task >= 0, body[chain.task], -1)
    steps, bodies = waits.path["step"].to_numpy(), waits.path["body"].to_numpy()
    ipus = waits.path["ipu"].to_numpy()
    addresses = []
    for row in rows_of(rows):
        bodies_of_step = bodies[(steps == row.step) & (ipus == row.ipu)]
        pieces = np.flatnonzero(np.isin(on_path, bodies_of_step))
        addresses.append(_address(int(row.ipu), int(row.step), chain, pieces))
    return addresses


def _address(ipu: int, step: int, found: Chain, pieces: np.ndarray) -> str:
    query: dict[str, int | str] = {"step": step}
    if len(pieces):
        length = found.end[pieces] - found.start[pieces]
        longest = pieces[int(length.argmax())]
        margin = max(1, int(length.max()) // 4)
        query["from"] = max(0, int(found.start[longest]) - margin)
        query["to"] = int(found.end[longest]) + margin
    return "/trace?" + urlencode(query)
