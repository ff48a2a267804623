"""libpva's object model over a ``profile.pop``: programs for the vendor's library run on it.

``import ipuscope.profiler.pva as pva``; under ``ipu-run`` it is ``pva``. Source of names and
meanings: docs/libpva.md.

>>> from ipuscope.profiler import pva
>>> report = pva.openReport("training/profile.pop")  # doctest: +SKIP
>>> sum(step.ipus[0].cycles for step in report.execution.steps)  # doctest: +SKIP
"""

from __future__ import annotations

from ipuscope.profiler.pva import pva_core
from ipuscope.profiler.pva.pva_core import *  # noqa: F403
from ipuscope.profiler.pva.pva_core import __all__ as _types

__all__ = [*_types, "pva_core"]
