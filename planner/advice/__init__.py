"""What to change in a model to make it faster, all levers together (docs/advice.md)."""

from __future__ import annotations

from ipuscope.planner.advice.relief import Relief, relief, way_to_fit
from ipuscope.planner.advice.search import Advice, Advised, advise, advise_on, predicted, too_large
from ipuscope.planner.levers.levers import Basis, Outlook
from ipuscope.planner.levers.phased import basis_of
from ipuscope.planner.levers.registry import KEEP, Allowed, anything, argument
from ipuscope.planner.levers.settings import Levers

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
    "argument",
    "basis_of",
    "predicted",
    "relief",
    "too_large",
    "way_to_fit",
]
