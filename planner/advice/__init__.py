"""What to change in a model to make it faster, all levers together (docs/advice.md)."""

from __future__ import annotations

from ipuscope.planner.advice.relief import Relief as Relief
from ipuscope.planner.advice.relief import relief as relief
from ipuscope.planner.advice.relief import way_to_fit as way_to_fit
from ipuscope.planner.advice.search import Advice as Advice
from ipuscope.planner.advice.search import Advised as Advised
from ipuscope.planner.advice.search import advise as advise
from ipuscope.planner.advice.search import advise_on as advise_on
from ipuscope.planner.advice.search import predicted as predicted
from ipuscope.planner.advice.search import too_large as too_large
from ipuscope.planner.levers.levers import Basis as Basis
from ipuscope.planner.levers.levers import Levers as Levers
from ipuscope.planner.levers.levers import Outlook as Outlook
from ipuscope.planner.levers.phased import basis_of as basis_of
from ipuscope.planner.levers.registry import KEEP as KEEP
from ipuscope.planner.levers.registry import Allowed as Allowed
from ipuscope.planner.levers.registry import anything as anything
from ipuscope.planner.levers.registry import argument as argument
