"""What to change in a model to make it faster, all levers together (docs/advice.md)."""

from __future__ import annotations

from profiler.advise.levers import Basis, Levers, Outlook
from profiler.advise.phases import basis_of
from profiler.advise.relief import Relief, relief
from profiler.advise.search import Advice, Advised, advise, advise_on, predicted, too_large

__all__ = [
    "Advice",
    "Advised",
    "Basis",
    "Levers",
    "Outlook",
    "Relief",
    "advise",
    "advise_on",
    "basis_of",
    "predicted",
    "relief",
    "too_large",
]
