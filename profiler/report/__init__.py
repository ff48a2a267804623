"""`Report`: answers a profile's questions as pandas frames (docs/architecture.md lists them).

Opening reads the header; each frame is read on first use and cached. A returned frame is the
report's own: copy it before changing it. pandas is imported with the first frame, so that `import
profiler` stays light.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

from ipuscope.profiler.report.frames import number as number
from ipuscope.profiler.report.memory import ReportMemory
from ipuscope.profiler.report.runs import MAX_SLICES as MAX_SLICES
from ipuscope.profiler.report.runs import PREDICTED as PREDICTED
from ipuscope.profiler.report.runs import PREDICTED_NOTE as PREDICTED_NOTE
from ipuscope.profiler.report.runs import Ipus as Ipus
from ipuscope.profiler.report.runs import ReportRuns
from ipuscope.profiler.report.tables import DAMAGED as DAMAGED


def open_report(path: str | os.PathLike[str]) -> Report:
    """Open a ``profile.pop``, a ``profile.pop.partial`` or a directory that contains one.

    Raises `ProfileError` if there is none, or none in a format this version reads.
    """
    return Report(path)


class Report(ReportRuns, ReportMemory):
    """An open profile. It is a context manager, and threads may share it.

    It has layers, each on the ones below: `ReportTables`, `ReportProgram`, and on these
    `ReportRuns` and `ReportMemory`.
    """

    # Displays of a report are above it, and put themselves here when they are imported.
    in_html: ClassVar[Callable[[Report], str]] = repr
    drawn: ClassVar[Callable[[Report], Any] | None] = None

    @property
    def figures(self) -> Any:
        """The viewer's plotly figures of this report: `ipuscope.viewer.figures.of_report.Figures`.

        AttributeError unless `ipuscope.viewer`, which draws them, is imported.
        """
        draw = type(self).drawn
        if draw is None:
            raise AttributeError("the viewer draws the figures: import ipuscope.viewer first")
        return draw(self)

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        return type(self).in_html(self)
