"""The questions of docs/viewer.md#questions, answered by the clicks and keys that it names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipuscope.profiler import Report, analysis, open_report
from ipuscope.profiler.analysis import waits
from ipuscope.viewer.app import create_app
from tests.viewer.test_pages import Tab, tab
from tools.screenshots import serving, settled

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def reports(demo: Path) -> list[Report]:
    return [open_report(demo / name) for name in ("training", "inference")]


@pytest.fixture(scope="module")
def context(chromium: Any) -> Iterator[Any]:
    context = chromium.new_context()
    yield context
    context.close()


@pytest.fixture
def view(context: Any, reports: list[Report]) -> Iterator[Tab]:
    with serving(create_app(*reports)) as address:
        if not context.pages:
            context.new_page().goto(f"{address}/assets/style.css")
        with tab(context, address) as view:
            yield view
            assert view.complaints == []


def click(view: Tab, figure: str, x: float, y: float) -> None:
    box = view.page.locator(f"#{figure} .nsewdrag").first.bounding_box()
    view.page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])


def test_the_bottleneck_is_said_at_once(view: Tab, reports: list[Report]) -> None:
    page = view.open("/")
    longest = waits.of(reports[0]).longest.iloc[0]
    assert str(longest["what"])[1:20] in page.inner_text(".waits")


def test_a_click_gives_the_details_of_a_slice(view: Tab) -> None:
    page = view.open("/timeline")
    click(view, "timeline-rows", 0.02, 0.1)
    view.wait("document.querySelector('#timeline-step').innerText.includes('IPU')")
    drawer = page.locator("#drawer").bounding_box()
    assert drawer["y"] + drawer["height"] <= 900, "without scrolling"


def test_a_drag_sums_a_range(view: Tab) -> None:
    page = view.open("/timeline")
    box = page.locator("#timeline-rows .nsewdrag").first.bounding_box()
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 60, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 40, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    view.wait("document.querySelector('#timeline-kinds').innerText.includes('Of the selection')")


def test_a_stage_leads_to_an_operator_and_its_source_line(view: Tab, reports: list[Report]) -> None:
    page = view.open("/")
    page.locator(".stage-links a").first.click()
    view.wait("location.pathname === '/costs' && location.search.includes('stage=')")
    page.locator("#costs-grid .ag-row .ag-cell", has_text="conv").last.click()
    page.locator("#costs-grid .ag-row .ag-cell", has_text="conv").last.click()
    view.wait("/\\.py:\\d+/.test(document.querySelector('#costs-chosen').innerText)")


def test_a_tiles_variable_leads_to_its_other_tiles(view: Tab, reports: list[Report]) -> None:
    page = view.open("/memory?ipu=1&tile=20")
    page.locator("#memory-variables .ag-row .ag-cell").first.click()
    view.wait("location.search.includes('variable=')")
    view.wait("/ on [\\d,]+ tiles?/.test(document.querySelector('#memory-variable').innerText)")
    number = int(view.query()["variable"])
    count = int((reports[0].variable_tiles(number) > 0).sum())
    assert f"on {count:,} tile" in page.inner_text("#memory-variable")


def test_the_second_profile_is_a_choice_away(view: Tab) -> None:
    page = view.open("/memory")
    page.locator("main .controls button.dash-dropdown").first.click()
    page.get_by_role("option").nth(1).click()
    view.wait("document.querySelector('#head').innerText.includes('inference, executed')")


def test_a_tensor_on_a_link_is_named(view: Tab, reports: list[Report]) -> None:
    moved = reports[0].moved_tensors
    moved = moved[(moved["source"] >= 0) & (moved["target"] >= 0)]
    page = view.open(f"/timeline?step={moved['step'].iloc[0]}")
    assert str(moved["name"].iloc[0]) in page.inner_text("#timeline-step")


def test_why_a_tile_is_full_is_beside_it(view: Tab, reports: list[Report]) -> None:
    page = view.open("/memory?ipu=1")
    assert "used" in page.inner_text("#memory-tile")
    largest = reports[0].live_variables(1, *_fullest(reports[0])).iloc[0]
    assert str(largest["name"]) in page.inner_text("#liveness-live")


def _fullest(report: Report) -> tuple[int, int]:
    tile = analysis.fullest(report, 1)
    return int(report.tiles(1)["peak_step"].iloc[tile]), tile


def test_the_effect_of_another_batch_is_listed_where_it_may_change(view: Tab) -> None:
    page = view.open("/rebalance")
    kept = page.inner_text("#rebalance-levers")
    page.get_by_text("may change", exact=True).click()
    view.wait("location.search.includes('batch=change')")
    settled(page)
    assert "samples an update instead of" not in kept
    view.wait("document.querySelector('#rebalance-levers').innerText.includes('samples an update')")


def test_an_operator_of_two_profiles_is_in_one_row(view: Tab, reports: list[Report]) -> None:
    page = view.open("/compare")
    page.keyboard.press("/")
    page.keyboard.type("layer2/conv/convolution")
    view.wait("location.search.includes('find=')")
    both = analysis.compare_ops(*reports).set_index("name").loc["layer2/conv/convolution"]
    row = page.locator("#compare-grid .ag-row", has_text=f"{int(both['total_cycles_b']):,}")
    row.first.wait_for()


def test_all_slices_of_a_name_are_counted_and_gone_through(view: Tab) -> None:
    page = view.open("/timeline")
    page.keyboard.press("/")
    page.keyboard.type("convolve")
    view.wait("/[\\d,]+ slices/.test(document.querySelector('#timeline-found').innerText)")
    page.keyboard.press("Enter")
    view.wait("/ of /.test(document.querySelector('#timeline-hit').innerText)")


def test_the_ipu_that_waits_longest_is_seen_on_summary(view: Tab, reports: list[Report]) -> None:
    page = view.open("/")
    idle = reports[0].cycle_proportions(0).eval("idle / total")
    bars = page.locator("#proportions .bar")
    waits = [
        bars.nth(at).locator("[data-name=waiting]").get_attribute("data-value") for at in range(4)
    ]
    assert max(range(4), key=lambda at: float(waits[at])) == int(idle.idxmax())


def test_the_palette_finds_an_operator_by_its_name(view: Tab, reports: list[Report]) -> None:
    page = view.open("/")
    page.keyboard.press("Control+k")
    page.keyboard.type("layer2/conv/convolution")
    view.wait("document.querySelector('#palette-found a')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    view.wait("location.pathname === '/costs' && location.search.includes('op=')")
    view.wait("document.querySelector('#costs-chosen')?.innerText.includes('layer2/conv')")
