"""An open profile: `Report` (pandas frames) on its four facets (numpy arrays)."""

from __future__ import annotations

import os

from ipuscope.profiler.report.frames import number as number
from ipuscope.profiler.report.report import BATCH as BATCH
from ipuscope.profiler.report.report import Report as Report
from ipuscope.profiler.report.runs import MAX_SLICES as MAX_SLICES
from ipuscope.profiler.report.runs import PREDICTED as PREDICTED
from ipuscope.profiler.report.runs import PREDICTED_NOTE as PREDICTED_NOTE
from ipuscope.profiler.report.runs import Ipus as Ipus
from ipuscope.profiler.report.tables import DAMAGED as DAMAGED


def open_report(path: str | os.PathLike[str]) -> Report:
    """Open a ``profile.pop``, a ``profile.pop.partial`` or a directory that contains one.

    Raises `ProfileError` if there is none, or none in a format this version reads.
    """
    return Report(path)
