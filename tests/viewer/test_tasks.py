"""The questions of docs/viewer.md#questions, answered by the clicks and keys that it names."""

from __future__ import annotations

import pytest

from ipuscope.profiler import Report, analysis
from ipuscope.profiler.analysis import waits
from tests.viewer.browser import Tab
from tools.screenshots import settled

pytestmark = pytest.mark.browser


def click(both: Tab, figure: str, x: float, y: float) -> None:
    box = both.page.locator(f"#{figure} .nsewdrag").first.bounding_box()
    both.page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])


def test_the_bottleneck_is_said_at_once(both: Tab, training: Report) -> None:
    page = both.open("/")
    longest = waits.of(training).longest.iloc[0]
    assert str(longest["what"])[1:20] in page.inner_text(".waits")


def test_a_click_gives_the_details_of_a_slice(both: Tab) -> None:
    page = both.open("/timeline")
    click(both, "timeline-rows", 0.02, 0.1)
    both.wait("document.querySelector('#timeline-step').innerText.includes('IPU')")
    drawer = page.locator("#drawer").bounding_box()
    assert drawer["y"] + drawer["height"] <= 900, "without scrolling"


def test_a_drag_sums_a_range(both: Tab) -> None:
    page = both.open("/timeline")
    box = page.locator("#timeline-rows .nsewdrag").first.bounding_box()
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 60, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 40, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    both.wait("document.querySelector('#timeline-kinds').innerText.includes('Of the selection')")


def test_a_stage_leads_to_an_operator_and_its_source_line(both: Tab) -> None:
    page = both.open("/")
    page.locator(".stage-links a").first.click()
    both.wait("location.pathname === '/costs' && location.search.includes('stage=')")
    page.locator("#costs-grid .ag-row .ag-cell", has_text="conv").last.click()
    page.locator("#costs-grid .ag-row .ag-cell", has_text="conv").last.click()
    both.wait("/\\.py:\\d+/.test(document.querySelector('#costs-chosen').innerText)")


def test_a_tiles_variable_leads_to_its_other_tiles(both: Tab, training: Report) -> None:
    page = both.open("/memory?ipu=1&tile=20")
    page.locator("#memory-variables .ag-row .ag-cell").first.click()
    both.wait("location.search.includes('variable=')")
    both.wait("/ on [\\d,]+ tiles?/.test(document.querySelector('#memory-variable').innerText)")
    number = int(both.query()["variable"])
    count = int((training.variable_tiles(number) > 0).sum())
    assert f"on {count:,} tile" in page.inner_text("#memory-variable")


def test_the_second_profile_is_a_choice_away(both: Tab) -> None:
    page = both.open("/memory")
    page.locator("main .controls button.dash-dropdown").first.click()
    page.get_by_role("option").nth(1).click()
    both.wait("document.querySelector('#head').innerText.includes('inference, executed')")


def test_a_tensor_on_a_link_is_named(both: Tab, training: Report) -> None:
    moved = training.moved_tensors
    moved = moved[(moved["source"] >= 0) & (moved["target"] >= 0)]
    page = both.open(f"/timeline?step={moved['step'].iloc[0]}")
    assert str(moved["name"].iloc[0]) in page.inner_text("#timeline-step")


def test_why_a_tile_is_full_is_beside_it(both: Tab, training: Report) -> None:
    page = both.open("/memory?ipu=1")
    assert "used" in page.inner_text("#memory-tile")
    largest = training.live_variables(1, *_fullest(training)).iloc[0]
    both.wait_for_text("liveness-live", str(largest["name"]))


def _fullest(report: Report) -> tuple[int, int]:
    tile = analysis.fullest(report, 1)
    return int(report.tiles(1)["peak_step"].iloc[tile]), tile


def test_the_effect_of_another_batch_is_listed_where_it_may_change(both: Tab) -> None:
    page = both.open("/rebalance")
    kept = page.inner_text("#rebalance-levers")
    page.get_by_text("may change", exact=True).click()
    both.wait("location.search.includes('batch=change')")
    settled(page)
    assert "samples an update instead of" not in kept
    both.wait("document.querySelector('#rebalance-levers').innerText.includes('samples an update')")


def test_an_operator_of_two_profiles_is_in_one_row(
    both: Tab, training: Report, inference: Report
) -> None:
    page = both.open("/compare")
    page.keyboard.press("/")
    page.keyboard.type("layer2/conv/convolution")
    both.wait("location.search.includes('find=')")
    ops = analysis.compare_ops(training, inference).set_index("name")
    cycles = int(ops.loc["layer2/conv/convolution", "total_cycles_b"])
    page.locator("#compare-grid .ag-row", has_text=f"{cycles:,}").first.wait_for()


def test_all_slices_of_a_name_are_counted_and_gone_through(both: Tab) -> None:
    page = both.open("/timeline")
    page.keyboard.press("/")
    page.keyboard.type("convolve")
    both.wait("/[\\d,]+ slices/.test(document.querySelector('#timeline-found').innerText)")
    page.keyboard.press("Enter")
    both.wait("/ of /.test(document.querySelector('#timeline-hit').innerText)")


def test_the_ipu_that_waits_longest_is_seen_on_summary(both: Tab, training: Report) -> None:
    page = both.open("/")
    idle = training.cycle_proportions(0).eval("idle / total")
    bars = page.locator("#proportions .bar")
    waits = [
        bars.nth(at).locator("[data-name=waiting]").get_attribute("data-value") for at in range(4)
    ]
    assert max(range(4), key=lambda at: float(waits[at])) == int(idle.idxmax())


def test_the_palette_finds_an_operator_by_its_name(both: Tab) -> None:
    page = both.open("/")
    page.keyboard.press("Control+k")
    page.keyboard.type("layer2/conv/convolution")
    both.wait("document.querySelector('#palette-found a')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    both.wait("location.pathname === '/costs' && location.search.includes('op=')")
    both.wait("document.querySelector('#costs-chosen')?.innerText.includes('layer2/conv')")
