"""Rebalance's other schedules: a table at a click, with what the command line answers."""

from __future__ import annotations

import json
from pathlib import Path

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.split_text import profiled
from ipuscope.planner.schedules.compared import compared
from ipuscope.profiler import open_report
from ipuscope.viewer.app import create_app
from ipuscope.viewer.pages import rebalance
from tests.synthetic import synthetic_profile
from tests.viewer.page_requests import PageRequests


def test_a_click_compares_the_schedules_as_whatif_does(tmp_path: Path) -> None:
    report = open_report(synthetic_profile(tmp_path / "profile.pop"))
    costs = Costs.from_report(report)
    rows, _ = compared(report, costs, profiled(costs))
    page = PageRequests(create_app(report))
    asked = dict(page.of_page(rebalance.PAGE, {"theme": "light", "width": 1000}))
    compare = asked["rebalance-schedules-rows"]
    assert not json.loads(page.ask(compare))["response"]  # nothing before a click
    compare["inputs"][0]["value"] = 1
    grid, note = json.loads(page.ask(compare))["response"]["rebalance-schedules-rows"]["children"]
    answered = rows[rows["note"] == ""]
    shown = grid["props"]["rowData"]
    assert [row["schedule"] for row in shown] == answered["schedule"].tolist()
    assert [row["cycles"] for row in shown] == answered["cycles"].tolist()
    for reason in rows.loc[rows["note"] != "", "note"]:
        assert reason in note["props"]["children"]
