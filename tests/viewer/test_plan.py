"""The plan page: its mappings, and the commands it gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipuscope.planner.mappings.plan_file import save
from ipuscope.viewer.pages.runs import beside, command_of, facts_of, lead
from ipuscope.viewer.plan_app import create_plan_app
from tests.planner.test_plan_file import plan
from tools.screenshots import serving


def test_the_best_is_run_by_its_file_and_others_are_planned_with_their_numbers() -> None:
    the_plan = plan()
    best, other = the_plan.candidates
    assert command_of(the_plan, best, "plan.json") == "ipu-run --placement plan.json train.py"
    words = command_of(the_plan, other, "plan.json")
    assert words.startswith("ipu-run --plan 4 --global-batch 64 --micro-batches 4")
    assert "--proportions 0.2 --fix t=1 --fix p=2 --fix r=2 --fix rts=no" in words
    halved = replace(the_plan, levers="half,overlap")
    assert lead(halved).startswith("64 samples a weight update, for throughput, with half, overlap")
    assert " --with half,overlap train.py" in command_of(halved, best, "plan.json")
    assert command_of(halved, other, "plan.json").endswith("--with half,overlap train.py")


def test_the_app_answers() -> None:
    app = create_plan_app(plan(), "plan.json")
    answer = app.server.test_client().get("/_dash-layout", headers={"Host": "localhost"})
    assert answer.status_code == 200
    assert b"Why the first is the best" in answer.data
    assert b"ipu-run --placement plan.json train.py" in answer.data  # of the first, at once
    assert dict(facts_of(plan().candidates[0]))["t x p x r"] == "1 x 2 x 2"


def test_a_plan_beside_a_profile_is_found_and_other_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "placement.json").write_text('{"format": "ipuscope placement"}')
    save(plan(), tmp_path / "plan.json")
    assert [*beside(tmp_path / "training" / "profile.pop")] == [str(tmp_path / "plan.json")]


@pytest.mark.browser
def test_a_candidate_is_chosen_by_keyboard(chromium: Any) -> None:
    with serving(create_plan_app(plan(), "plan.json")) as address:
        page = chromium.new_page()
        said: list[str] = []
        page.on("console", lambda one: said.append(one.text))
        page.goto(address, wait_until="networkidle")
        page.wait_for_selector("#runs-table .ag-row [col-id=rank]")
        page.locator("#runs-table .ag-header-cell").first.focus()
        for _ in range(3):  # the filters, and two rows
            page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.innerText.trim()") == "2"
        page.keyboard.press("Enter")
        page.wait_for_selector("#runs-table .ag-row-selected [col-id=rank] >> text=2")
        page.close()
        assert [words for words in said if "getRowId" in words] == []
