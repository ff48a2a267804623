"""What Rebalance says of levers where there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ipuscope.viewer.pages import rebalance


@pytest.mark.parametrize(
    ("state", "said"),
    [("executed", "No lever gains 0.5%"), ("out of memory", "By the costs of this profile no")],
)
def test_no_lever_is_said_by_what_it_would_be_for(state: str, said: str) -> None:
    none: Any = SimpleNamespace(every=())
    report: Any = SimpleNamespace(meta={"state": state})
    assert rebalance._levers(report, none).children.startswith(said)
