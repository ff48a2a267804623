"""The questions of docs/viewer.md#questions, answered by the clicks and keys that it names."""

from __future__ import annotations

import pytest

from ipuscope.profiler import Report
from tests.viewer.browser import Tab

pytestmark = pytest.mark.browser


def click(both: Tab, figure: str, x: float, y: float) -> None:
    box = both.page.locator(f"#{figure} .nsewdrag").first.bounding_box()
    both.page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])


def test_a_click_gives_the_details_of_a_slice(both: Tab) -> None:
    page = both.open("/timeline")
    click(both, "timeline-rows", 0.02, 0.1)
    both.wait("document.querySelector('#timeline-step').innerText.includes('IPU')")
    drawer = page.locator("#drawer").bounding_box()
    assert drawer["y"] + drawer["height"] <= 900, "without scrolling"


def test_a_stage_leads_to_an_operator_and_its_source_line(both: Tab) -> None:
    page = both.open("/")
    page.locator(".stage-links a").first.click()
    both.wait("location.pathname === '/costs' && location.search.includes('stage=')")
    page.locator("#costs-grid .ag-row .ag-cell", has_text="conv").last.click()
    page.locator("#costs-grid .ag-row .ag-cell", has_text="conv").last.click()
    both.wait("/\\.py:\\d+/.test(document.querySelector('#costs-chosen').innerText)")


def test_a_tiles_variable_leads_to_its_other_tiles(both: Tab, training: Report) -> None:
    page = both.open("/memory?ipu=1&tile=20")
    size = page.locator("#memory-variables [col-id=bytes].ag-cell").first.bounding_box()
    assert size["x"] + size["width"] <= 1280, "without scrolling sideways"
    page.locator("#memory-variables .ag-row .ag-cell").first.click()
    both.wait("location.search.includes('variable=')")
    both.wait("/ on [\\d,]+ tiles?/.test(document.querySelector('#memory-variable').innerText)")
    number = int(both.query()["variable"])
    count = int((training.usage.variable_tiles(number) > 0).sum())
    assert f"on {count:,} tile" in page.inner_text("#memory-variable")


def test_the_palette_finds_an_operator_by_its_name(both: Tab) -> None:
    page = both.open("/")
    page.keyboard.press("Control+k")
    page.keyboard.type("layer2/conv/convolution")
    both.wait("document.querySelector('#palette-found a')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    both.wait("location.pathname === '/costs' && location.search.includes('op=')")
    both.wait("document.querySelector('#costs-chosen')?.innerText.includes('layer2/conv')")
