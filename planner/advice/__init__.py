"""What to change in a model to make it faster, all levers together (docs/advice.md)."""

from __future__ import annotations

from ipuscope.planner.advice.relief import Relief, relief
from ipuscope.planner.advice.search import (
    KEEP,
    Advice,
    Advised,
    Allowed,
    advise,
    advise_on,
    anything,
    predicted,
    too_large,
)
from ipuscope.planner.levers.levers import Basis, Levers, Outlook
from ipuscope.planner.levers.phased import basis_of

__all__ = [
    "KEEP",
    "Advice",
    "Advised",
    "Allowed",
    "Basis",
    "Levers",
    "Outlook",
    "Relief",
    "advise",
    "advise_on",
    "anything",
    "basis_of",
    "predicted",
    "relief",
    "too_large",
]
