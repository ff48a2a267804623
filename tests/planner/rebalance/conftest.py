"""A profile that several test files share."""

from __future__ import annotations

import pytest

from ipuscope.profiler import Report
from tests.planner.rebalance.test_what_if import profiled as trained


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The example's network on two IPUs: B1 and B2, B3 and B4."""
    return trained(tmp_path_factory.mktemp("two"), (0, 2))
