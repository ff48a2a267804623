"""The plan page: its figure, its Pareto front and the commands it gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ipuscope.planner.mappings import Obtained
from ipuscope.viewer.figures import theme as themes
from ipuscope.viewer.figures.plan import candidates, pareto
from ipuscope.viewer.plan_app import command_of, create_plan_app, facts_of, first_chosen
from tests.planner.test_plan_file import candidate, plan
from tools.screenshots import serving


def test_the_front_has_what_no_other_beats_in_speed_and_memory() -> None:
    slow, fast = candidate(5.0), candidate(10.0)
    small = replace(candidate(4.0), fullest=1000)
    broken = candidate(50.0, Obtained(1000, 5000, "out of memory"))
    assert pareto([slow, fast, small, broken]) == [2, 1]


def test_every_candidate_is_a_point_that_says_its_mapping() -> None:
    figure = candidates(plan(), themes.theme("dark"), (1, 0))
    points = [trace for trace in figure.data if trace.mode == "markers"]
    positions = sorted(position for trace in points for position in trace.customdata)
    assert positions == [0, 1]
    assert "micro-batch 4 x 8" in points[0].text[0]
    assert [note.text for note in figure.layout.annotations[:2]] == ["<b>A</b>", "<b>B</b>"]


def test_the_best_is_run_by_its_file_and_others_are_planned_with_their_numbers() -> None:
    the_plan = plan()
    best, other = the_plan.candidates
    assert command_of(the_plan, best, "plan.json") == "ipu-run --placement plan.json train.py"
    words = command_of(the_plan, other, "plan.json")
    assert words.startswith("ipu-run --plan 4 --global-batch 64 --micro-batches 4")
    assert "--proportions 0.2 --fix t=1 --fix p=2 --fix r=2 --fix rts=no" in words


def test_the_app_answers() -> None:
    app = create_plan_app(plan(), "plan.json")
    answer = app.server.test_client().get("/_dash-layout", headers={"Host": "localhost"})
    assert answer.status_code == 200
    assert b"Samples a second over memory" in answer.data
    assert dict(facts_of(plan().candidates[0]))["t x p x r"] == "1 x 2 x 2"


@pytest.mark.browser
def test_a_candidate_is_chosen_by_keyboard(chromium: Any) -> None:
    with serving(create_plan_app(plan(), "plan.json")) as address:
        page = chromium.new_page()
        said: list[str] = []
        page.on("console", lambda one: said.append(one.text))
        page.goto(address, wait_until="networkidle")
        page.wait_for_selector("#plan-table .ag-row [col-id=rank]")
        page.locator("#plan-table .ag-header-cell").first.focus()
        for _ in range(3):  # the filters, and two rows
            page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.innerText.trim()") == "2"
        page.keyboard.press("Enter")
        page.wait_for_selector("#plan-table .ag-row-selected [col-id=rank] >> text=2")
        page.close()
        assert [words for words in said if "getRowId" in words] == []


def test_the_best_and_the_scripts_own_are_side_by_side_at_first() -> None:
    best, other = plan().candidates
    with_own = replace(plan(), candidates=(best, replace(other, own=True)))
    assert first_chosen(plan()) == first_chosen(with_own) == [1, 0]
    notes = candidates(with_own, themes.theme("light"), (0, 1)).layout.annotations
    assert [note.text for note in notes][:2] == ["<b>A</b>", "<b>B</b> the script’s own"]
