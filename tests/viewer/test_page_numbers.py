"""The numbers of pages in a real browser are the report's, and lead on to their causes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.split_text import profiled
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.search.split_search import best_split, quickest
from ipuscope.profiler import Report, analysis
from ipuscope.viewer.figures import rebalance as figures
from ipuscope.viewer.figures import theme, units
from ipuscope.viewer.pages import rebalance
from tests.viewer.browser import Tab
from tools.screenshots import settled

pytestmark = pytest.mark.browser


def test_the_summarys_bars_have_the_reports_numbers_and_are_saved(
    view: Tab, training: Report, tmp_path: Path
) -> None:
    def saved(card: Any, form: str) -> str:
        with page.expect_download() as waiting:
            card.locator(".tool", has_text=form).click()
        path = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(path)
        return path.read_bytes().decode("latin-1")

    page = view.open("/")
    assert page.locator(".js-plotly-plot").count() == 0  # which the first page does not wait for
    card = page.locator(".card", has=page.locator("#stage-costs"))
    rows = [line.split(",") for line in saved(card, "CSV").splitlines()[1:]]
    drawn = {
        name: sum(float(value) for _, part, value in rows if part == name)
        for name in {r[1] for r in rows}
    }
    assert drawn["forward"] == training.stages["forward_cycles"].sum()
    assert drawn["backward"] + drawn["recompute"] == training.stages["backward_cycles"].sum()
    total = training.stages["cycles"]
    widths = page.evaluate(
        "() => [...document.querySelectorAll('#stage-costs .bar')].map(bar =>"
        " [...bar.querySelectorAll('[data-value]')].reduce((sum, one) => sum +"
        " one.offsetWidth, 0))"
    )
    assert [width / max(widths) for width in widths] == pytest.approx(
        list(total / total.max()), abs=0.01
    )
    picture = saved(card, "SVG")
    assert picture.startswith("<svg") and picture.count("<rect") > len(rows)
    assert saved(card, "PNG").startswith("\x89PNG")


def test_a_point_of_the_heat_map_says_what_is_live_there(view: Tab, training: Report) -> None:
    page = view.open("/memory?ipu=1&step=10&tile=7")
    live = training.live_variables(1, 10, 7)
    view.wait_for_text("liveness-live", live["name"].iloc[0])
    words = page.inner_text("#liveness-live")
    assert f"IPU 1, tile 7, step 10 ({training.program_steps(1)['name'].iloc[10]})" in words
    assert units.size(int(live["bytes"].sum())) in words
    page.locator("#liveness-heat").evaluate("one => one.scrollIntoView()")
    box = page.locator("#liveness-heat .nsewdrag").first.bounding_box()
    page.mouse.click(box["x"] + 30, box["y"] + 30)
    view.wait("new URLSearchParams(location.search).get('step') !== '10'")
    step, tile = int(view.query()["step"]), int(view.query()["tile"])
    view.wait(
        f"document.querySelector('#liveness-live').innerText.includes('tile {tile}, step {step} ')"
    )


def test_a_module_opens_to_its_operators_and_their_steps(view: Tab, training: Report) -> None:
    """Its cycles are those of its operators together; what is open is in the address."""
    opened = "document.querySelector('#costs-grid').innerText.includes('▾')"
    ops = analysis.operators(training)
    page = view.open("/costs?order=aten")
    total = ops.groupby("aten")["total_cycles"].sum()
    first = page.locator("#costs-grid [row-index='0']").first
    first.wait_for()
    assert str(total.idxmax()) in first.inner_text()
    assert f"{total.max():,}" in first.inner_text()
    page.locator("#costs-grid [row-index='0'] .ag-cell").first.click()
    view.wait(opened)
    page.reload()
    settled(page)
    view.wait(opened)
    page.locator("#costs-grid [row-index='0'] .ag-cell").first.click()
    view.wait(f"!{opened}")


def test_the_program_is_searched_and_leads_on(view: Tab, training: Report) -> None:
    page = view.open("/program?find=convolve")
    count = int(training.program["name"].str.contains("convolve").sum())
    view.wait(f"document.querySelector('#costs-trail').innerText.startsWith('{count:,} of')")
    page.locator("#costs-grid .ag-cell", has_text="convolve").last.click()
    view.wait("document.querySelector('#costs-chosen').innerText.includes('convolve')")
    page.get_by_text("variables live then").click()
    view.wait("location.pathname === '/memory'")
    view.wait_for_text("liveness-live", "convolve")


def test_the_program_opens_and_closes_by_a_click(view: Tab) -> None:
    rows = "document.querySelectorAll('#costs-grid .ag-center-cols-container .ag-row').length"
    page = view.open("/costs?order=program")
    view.wait(f"{rows} > 3")
    before = page.evaluate(rows)
    page.locator("#costs-grid .ag-cell", has_text="▾").first.click()
    view.wait(f"{rows} === 1")
    view.open(urlsplit(page.url).path + "?" + urlsplit(page.url).query)
    view.wait(f"{rows} === 1")
    page.locator("#costs-grid .ag-cell", has_text="▸").first.click()
    view.wait(f"{rows} === {before}")


def test_borders_of_stages_are_dragged_and_moved_by_keys(view: Tab, training: Report) -> None:
    """The prediction follows each Block that a border passes; stages keep their IPUs."""
    costs = Costs.from_report(training)

    def shows(starts: tuple[int, ...], ipus: tuple[int, ...]) -> None:
        asked = "@".join(",".join(map(str, each)) for each in (starts, ipus))
        view.wait_for_query("starts", asked)
        total = units.cycles(what_if(costs, Assignment(starts, ipus)).total)
        view.wait_for_text("rebalance-numbers", total)
        lanes = "document.querySelector('#rebalance-lanes .js-plotly-plot').layout.yaxis.ticktext"
        view.wait(f"{lanes}.length === {len(set(ipus))}")

    page = view.open("/rebalance?starts=0,1,3@0,1,0")
    measured = int(training.runs["cycles"].iloc[0] // training.runs["iterations"].iloc[0])
    assert "Cycles on hardware are likely" in page.inner_text("#rebalance-numbers")
    border = page.locator(".split .border").nth(2)
    box, row = border.bounding_box(), page.locator(".split .block").nth(1).bounding_box()
    page.mouse.move(box["x"] + 6, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(row["x"] + row["width"] * 0.8, box["y"] + 20, steps=6)
    shows((0, 1, 2), (0, 1, 0))  # before the button is let go
    page.mouse.up()
    border.press("ArrowRight")
    shows((0, 1, 3), (0, 1, 0))
    view.wait("document.activeElement.dataset.stage === '2'")  # drawn anew, it keeps the focus
    on_graph = page.locator("#model-graph-borders .border")
    on_graph.nth(1).press("ArrowLeft")
    shows((0, 1, 2), (0, 1, 0))
    # it is fitted into its frame once it is drawn anew
    high = "document.querySelector('#model-graph-frame').getBoundingClientRect().height"
    inside = f"b.x1 > 0 && 0 <= b.y1 && b.y1 < b.y2 && b.y2 <= {high}"
    view.wait(f"[window.cy.elements().renderedBoundingBox()].every((b) => {inside})")
    edge = "window.cy.edges('[cut = 3]')[0].renderedMidpoint()"
    box, frame = on_graph.nth(1).bounding_box(), page.locator("#model-graph").bounding_box()
    page.mouse.move(box["x"] + 6, box["y"] + 20)
    page.mouse.down()
    to = (
        frame["x"] + page.evaluate(f"() => {edge}.x"),
        frame["y"] + page.evaluate(f"() => {edge}.y"),
    )
    page.mouse.move(*to, steps=6)
    shows((0, 1, 3), (0, 1, 0))
    page.mouse.up()
    box = on_graph.nth(1).bounding_box()
    assert abs(box["x"] + box["width"] / 2 - to[0]) < 2 and box["y"] <= to[1] <= box["y"] + 16
    page.locator(".split .border").nth(1).press("+")
    shows((0, 1, 2, 3), (0, 1, 2, 0))
    page.locator(".split .border").nth(3).press("Delete")
    shows((0, 1, 2), (0, 1, 2))
    page.evaluate("() => { window.ipuscopeMoved = 0; }")  # long ago
    page.locator("#rebalance-profiled").click()
    view.wait("!new URLSearchParams(location.search).get('starts')")
    view.wait_for_text("rebalance-numbers", f"{measured:,} cycles")
    page.go_back()
    shows((0, 1, 2), (0, 1, 2))


def test_the_graph_is_as_small_as_its_window_needs(view: Tab) -> None:
    """Nothing of it runs out at the right; where one could not read it, its first node is seen."""
    page = view.page
    inside = "const b = window.cy.elements().renderedBoundingBox(); return b.x1 > 0 && b.x2 <"
    page.set_viewport_size({"width": 1000, "height": 900})
    view.open("/rebalance")
    view.wait(f"(() => {{ {inside} window.cy.width() && window.cy.zoom() < 0.9; }})()")
    page.set_viewport_size({"width": 360, "height": 900})
    view.open("/rebalance")
    view.wait("window.cy && window.cy.zoom() === 0.9")
    view.wait(f"(() => {{ {inside} Infinity; }})()")


def test_why_speaks_of_the_split_that_is_proposed(training: Report) -> None:
    """Of the quickest onto these IPUs, which may be fewer or come back to one."""
    costs = Costs.from_report(training)
    present, best = what_if(costs, profiled(costs)), quickest(costs).prediction
    less = f"split onto these IPUs takes {present.total - best.total:,} cycles less."
    assert less in str(rebalance._why(training, costs, present))
    assert "This is the best split" in str(rebalance._why(training, costs, best))


def test_of_sharded_execution_no_slowest_stage_is_blamed(training: Report) -> None:
    """IPUs take turns: work of all stages, and what they hand on."""
    costs = replace(Costs.from_report(training), pipelined=False, recompute=False)
    present = what_if(costs, profiled(costs))
    work = int(present.stage_cycles.sum())
    clock = units.Clock(1e9)
    numbers = str(rebalance._numbers(training, costs, present, present, clock))
    assert "work of all stages" in numbers
    assert clock.short(work) in numbers
    best = quickest(costs)
    why = " ".join(best.why)
    rest = best.prediction.pipeline_cycle - work
    assert f"the work of all stages, {work:,} cycles however even they are, and {rest:,}" in why
    figure = figures.stages(costs, present, work, clock, theme.LIGHT)
    words = f"{numbers} {why} {rebalance._why(training, costs, present)} {figure}"
    assert "slowest" not in words
    assert "pipeline cycle" not in words


def test_the_best_split_is_proposed_and_saved(view: Tab, training: Report) -> None:
    best = best_split(Costs.from_report(training), 2).prediction.assignment.starts
    page = view.open("/rebalance")
    page.locator("#rebalance-count").click()
    page.get_by_role("option", name="2", exact=True).click()
    page.locator("#rebalance-best").click()
    view.wait(
        f"new URLSearchParams(location.search).get('starts') === '{','.join(map(str, best))}'"
    )
    view.wait(
        "document.querySelector('#rebalance-why').innerText.includes('best split into 2 stages')"
    )
    with page.expect_download() as download:
        page.locator("#rebalance-save").click()
    placement = json.loads(Path(download.value.path()).read_text())
    assert [stage["ipu"] for stage in placement["stages"]] == [0, 1]
    names = [name for stage in placement["stages"] for name in stage["blocks"]]
    assert names == training.blocks["name"].tolist()


def test_a_query_runs_and_is_in_its_address(view: Tab, training: Report) -> None:
    page = view.open("/query")
    page.wait_for_selector("#query-text")
    page.fill("#query-text", "SELECT name, cycles FROM ops ORDER BY cycles DESC LIMIT 3")
    page.keyboard.press("Control+Enter")
    largest = training.ops.sort_values("cycles", ascending=False, kind="stable")["name"].iloc[0]
    view.wait(f"document.querySelector('#query-rows').innerText.includes('{largest}')")
    page.reload()
    settled(page)
    view.wait(f"document.querySelector('#query-rows').innerText.includes('{largest}')")
    view.open("/query?sql=DROP TABLE ops")
    view.wait("document.querySelector('#query-rows')?.innerText.includes('not authorized')")


def test_a_part_of_the_flame_graph_is_opened_and_left(view: Tab) -> None:
    page = view.open("/flame?at=layer2")
    page.locator("#flame-parts button", has_text="conv").first.click()
    view.wait("new URLSearchParams(location.search).get('at').startsWith('layer2')")
    view.wait("document.querySelector('#costs-trail').innerText.includes('conv')")
    page.locator("#costs-trail .trail button", has_text="all").click()
    view.wait("!new URLSearchParams(location.search).get('at')")
