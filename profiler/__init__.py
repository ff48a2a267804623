"""Profiles of modelled IPU runs: the ``profile.pop`` file and the `Report` that reads it.

>>> from profiler import open_report
>>> open_report("training/profile.pop").stages  # doctest: +SKIP
"""

from __future__ import annotations

from profiler.errors import ProfileError, ProfileTaken
from profiler.report import Report, open_report
from profiler.writer import ProfileWriter

__all__ = ["ProfileError", "ProfileTaken", "ProfileWriter", "Report", "open_report"]
