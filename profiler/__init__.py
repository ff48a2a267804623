"""Profiles of modelled IPU runs: the ``profile.pop`` file and the `Report` that reads it.

>>> from ipuscope.profiler import open_report
>>> open_report("training/profile.pop").stages  # doctest: +SKIP
"""

from __future__ import annotations

from ipuscope.profiler.errors import ProfileError, ProfileTaken
from ipuscope.profiler.file.writer import ProfileWriter
from ipuscope.profiler.report import Report, open_report


def _in_html(report: Report) -> str:
    from ipuscope.profiler.notebook import summary_html

    return summary_html(report)


Report.in_html = _in_html

__all__ = ["ProfileError", "ProfileTaken", "ProfileWriter", "Report", "open_report"]
