"""The viewer in a real browser: pages are drawn, reached by keys, printed, saved and readable."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

from ipuscope.viewer.app import PAGES
from tests.viewer.browser import Tab, tab
from tools.screenshots import settled

pytestmark = pytest.mark.browser

_HEADS_ARE_DRAWN = (
    "[...document.querySelectorAll('.ag-header-row')].every(row => row.children.length)"
)
_HEIGHTS = """() => [...document.querySelectorAll('#page > .controls .control')]
    .map((one) => one.getBoundingClientRect().height)"""


def drawn(page: Any, theme: str) -> None:
    """Nothing on the page is empty, too wide or broken."""
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    assert page.locator(".message.error").count() == 0
    assert page.locator(".card").count() > 0
    empty = page.evaluate(
        "() => [...document.querySelectorAll('.js-plotly-plot')].filter(p => !p.data ||"
        " !p.data.length).length"
    )
    assert empty == 0
    wide = page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert wide, "the page is wider than the window"


def grave_faults(page: Any) -> list[tuple[str, str]]:
    """What axe-core finds on the page, as far as it is serious."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    return [
        (fault["id"], fault["nodes"][0]["html"][:120])
        for fault in axe.run(page).response["violations"]
        if fault["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("path", [page.path for page in PAGES])
def test_a_page_is_drawn_light_and_dark_without_complaint_or_fault_of_accessibility(
    view: Tab, path: str
) -> None:
    """When it is the first that is opened; its fields stand level with their names."""
    page = view.open(path)
    drawn(page, "light")
    heights = page.evaluate(_HEIGHTS)
    assert max(heights, default=0) - min(heights, default=0) < 0.5
    view.wait(_HEADS_ARE_DRAWN)
    page.wait_for_timeout(150)  # names are put right after the page is drawn
    assert grave_faults(page) == []
    page.evaluate("() => { document.activeElement.blur(); }")
    page.keyboard.press("t")
    view.wait("document.documentElement.dataset.theme === 'dark'")
    settled(page)
    drawn(page, "dark")
    if path in ("/", "/timeline"):  # where colours differ most
        page.wait_for_timeout(150)
        assert grave_faults(page) == []


# Of the operators of a small model, each with 15 columns, a table is wider than any window.
_SIDEWAYS = """() => [...document.querySelectorAll('.ag-center-cols-viewport')]
    .filter((view) => !view.closest('#costs-grid') && view.scrollWidth > view.clientWidth + 1)
    .map((view) => `${view.closest('[id]').id}: ${view.scrollWidth} in ${view.clientWidth}`)"""
_IDLE_ROOM = """() => [...document.querySelectorAll('.ag-center-cols-viewport')]
    .filter((view) => view.closest('.ag-root-wrapper').querySelector('.ag-header-cell'))
    .map((view) => [view, [...view.closest('.ag-root-wrapper').querySelectorAll('.ag-header-cell')]
      .reduce((sum, cell) => sum + cell.offsetWidth, 0)])
    .filter(([view, taken]) => taken < view.clientWidth - 2)
    .map(([view, taken]) => `${view.closest('[id]').id}: ${taken} of ${view.clientWidth}`)"""
_CUT_HEADINGS = """() => [...document.querySelectorAll('.ag-header-cell-text')]
    .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"""


@pytest.mark.parametrize("path", ["/memory?ipu=1", "/costs?order=program"])
def test_tables_fit_the_window_with_whole_headings(view: Tab, path: str) -> None:
    """They do when they are first drawn, and when the window changes."""
    for width in (768, 1440, 1024):
        view.page.set_viewport_size({"width": width, "height": 900})
        if width == 768:
            view.open(path)
        view.wait("document.querySelectorAll('.ag-header-cell-text').length > 2")
        view.wait("document.querySelector('.ag-cell')")
        for fault in (_SIDEWAYS, _CUT_HEADINGS, _IDLE_ROOM):  # columns are fitted after rows
            view.wait(f"!({fault})().length")
        view.wait("document.documentElement.scrollWidth <= window.innerWidth")


def test_names_keep_both_ends_where_they_are_cut(view: Tab) -> None:
    view.page.set_viewport_size({"width": 1280, "height": 800})
    view.open("/memory?ipu=1")
    view.wait("document.querySelector('#memory-variables .ends')")
    name = "layer2/conv/gradient/convolution_backward/grad input/reduce/partials"
    cut = "[...document.querySelectorAll('#memory-variables .ag-cell:has(.ends)')]"
    view.wait(f"{cut}.some((one) => one.textContent === '{name}')")
    edges = view.page.evaluate(
        f"""() => {{ const cell = {cut}.find((one) => one.textContent === '{name}');
            const [head, tail] = cell.querySelectorAll('.ends > span');
            const end = tail.querySelector('bdi').getBoundingClientRect();
            return [cell.getBoundingClientRect().left, head.getBoundingClientRect().left, end.left,
              end.right, cell.getBoundingClientRect().right, window.innerWidth]; }}"""
    )
    left, first, hidden, last, right, window = edges
    assert left <= first and last <= right <= window, "its start and its end are in the cell"
    assert hidden < last - 60, "what is cut is before them"
    assert not view.page.evaluate(_CUT_HEADINGS)


def test_the_short_drawer_shows_the_largest_sum(view: Tab) -> None:
    view.page.set_viewport_size({"width": 1280, "height": 800})
    page = view.open("/timeline")
    row = page.locator("#timeline-kinds tbody tr").first
    assert "waiting" in row.inner_text()
    box = row.bounding_box()
    assert box["y"] + box["height"] <= 800
    assert "All that is shown, 4 lanes" in page.inner_text("#timeline-kinds th >> nth=0")


def test_letters_typed_fast_stay_in_their_order(view: Tab) -> None:
    words = "layer2/conv/convolution"
    page = view.open("/costs")
    page.keyboard.press("/")
    page.keyboard.type(words)
    view.wait(f"new URLSearchParams(location.search).get('find') === '{words}'")
    assert page.input_value("input[type=search]") == words


# What is in focus, whether it or what holds it looks otherwise without, and whether it can be read.
_FOCUS = """() => {
    const at = document.activeElement, held = at.closest('.dash-input-container, .switch') || at;
    const looks = () => [at, held].map((one) => {
        const style = getComputedStyle(one);
        const outline = style.outlineStyle === 'none' ? '' : style.outline;
        return [outline, style.boxShadow, style.borderColor].join();
    }).join();
    const ground = getComputedStyle(at.closest('label') || at);
    const box = at.getBoundingClientRect(), outside = !at.closest('#drawer, nav');
    const over = outside && document.getElementById('drawer')?.getBoundingClientRect();
    const behind = over && box.height < 60 && box.bottom > over.top;
    const read = ground.color !== ground.backgroundColor && !behind, inFocus = looks();
    at.blur();
    const seen = looks() !== inFocus;
    at.focus({ preventScroll: true });
    const what = at.tagName + ' ' + (at.type || at.getAttribute('role') || '');
    return [what, seen && read];
}"""


@pytest.mark.parametrize(("path", "stops"), [("/timeline", 60), ("/costs?order=program", 44)])
def test_what_is_in_focus_is_seen(view: Tab, path: str, stops: int) -> None:
    page = view.open(path)  # the focus is nowhere
    page.evaluate("document.querySelectorAll('.more').forEach((one) => { one.open = true; })")
    view.wait("document.querySelector('.more, .ag-cell')")
    seen: dict[str, bool] = {}
    for _ in range(stops):
        in_table = page.evaluate("document.activeElement.matches('.ag-header-cell')")
        page.keyboard.press("ArrowDown" if in_table else "Tab")
        page.wait_for_timeout(30)
        what, clearly = page.evaluate(_FOCUS)
        if what.startswith("BODY"):  # the page's end
            break
        seen[what] = seen.get(what, True) and clearly
    assert {"INPUT radio", "INPUT number"} <= seen.keys() or {"DIV gridcell"} <= seen.keys()
    assert [what for what, clearly in seen.items() if not clearly] == []


def test_a_table_is_one_stop_of_the_tab_key(view: Tab) -> None:
    """Arrows go through it; Tab leads in, and on to what follows it or back to what is before."""
    inside = "Boolean(document.activeElement.closest('.ag-root-wrapper'))"
    page = view.open("/costs")
    view.wait("document.querySelector('#costs-grid .ag-cell')")
    page.locator("#costs-csv").focus()
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(inside)
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.matches('.ag-cell') && " + inside)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "costs-csv"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    assert not page.evaluate(inside)


def test_a_page_is_printed_with_its_bars_and_without_its_buttons(dark: Tab) -> None:
    page = dark.open("/")
    page.emulate_media(media="print")
    assert page.locator("nav.side").is_hidden()
    assert page.locator(".tools").first.is_hidden()
    assert page.locator(".bar-chart").first.is_visible()
    kept = "getComputedStyle(document.querySelector('.bar-chart .bar')).printColorAdjust"
    assert page.evaluate(kept) == "exact"
    dark.open("/timeline")
    held = "[...document.querySelectorAll('.dash-graph')].map(one => one.style.minHeight)"
    page.evaluate("() => { window.dispatchEvent(new Event('beforeprint')); }")
    assert all(height.endswith("px") for height in page.evaluate(held))
    page.evaluate("() => { window.dispatchEvent(new Event('afterprint')); }")
    assert set(page.evaluate(held)) == {""}


def test_a_frame_without_storage_has_its_colours(context: Any, address: str) -> None:
    """As in a notebook, whose page is another site's."""
    with tab(context, address) as view:
        view.page.add_init_script(
            "Object.defineProperty(window, 'localStorage', { get() { throw Error('denied'); } })"
        )
        page = view.open("/query")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        page.click("#theme")
        view.wait("document.documentElement.dataset.theme === 'dark'")
        assert view.complaints == []


def test_the_theme_changes_and_stays(context: Any, address: str) -> None:
    with (
        contextlib.closing(context.browser.new_context(color_scheme="light")) as own,
        contextlib.closing(own.new_page()) as fresh,  # what it stores is no other tab's
    ):
        view = Tab(fresh, address)
        page = view.open("/timeline?follow=1")
        page.keyboard.press("t")
        view.wait("document.documentElement.dataset.theme === 'dark'")
        settled(page)
        assert view.plot("timeline-rows", "plot.data.some(t => t.name === 'micro-batch 1')"), (
            "the state was lost"
        )
        page.reload()
        settled(page)
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_keys_open_pages_and_help(view: Tab) -> None:
    page = view.open("/")
    page.keyboard.press("2")
    view.wait("location.pathname === '/timeline'")
    settled(page)
    page.keyboard.press("?")
    view.wait("document.getElementById('shortcuts').open")
    assert "Timeline" in page.inner_text("#shortcuts")
    page.keyboard.press("Escape")
    view.wait("!document.getElementById('shortcuts').open")


def test_a_figure_is_saved(view: Tab, tmp_path: Path) -> None:
    card = view.open("/timeline").locator(".card", has=view.page.locator("#timeline-rows"))
    for form, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg"), ("CSV", b"trace,x,y")):
        with view.page.expect_download(timeout=20_000) as download:
            card.get_by_role("button", name=form).click()
        file = tmp_path / download.value.suggested_filename
        download.value.save_as(file)
        assert file.read_bytes().startswith(start)
        assert file.suffix == "." + form.lower()


def test_an_address_from_anywhere_does_no_harm(view: Tab) -> None:
    """What the server makes of each parameter is in test_refused.py."""
    for path in (
        "/nothing",
        "/timeline?level=steps&from=abc&to=%00&at=zz,1&marks=x,y&select=q",
        "/memory?from=x&to=y&first=a&last=b&low=c&high=d&marks=-1",
        "/query?sql=select+1e999+as+a,+2+as+b&form=line&theme=purple",
    ):
        view.page.goto(view.address + path)
        view.wait("document.querySelector('#page')?.children.length")
        view.page.wait_for_timeout(500)
        assert not re.search("Traceback|Error", view.page.inner_text("body")), path
        assert view.page.evaluate("document.documentElement.dataset.theme") == "light"


def test_what_is_refused_is_said_until_something_else_is_chosen(view: Tab) -> None:
    page = view.open("/costs?direction=sideways&stage=77")
    assert "There is no “sideways” in “for”" in page.inner_text("#alert")
    assert "There is no stage 77" in page.inner_text("#alert")
    assert "direction" not in view.query() or view.query()["direction"] == "all"
    page.locator(".control").filter(has_text=re.compile("^stage")).locator("button").click()
    page.get_by_role("option", name="1 on IPU 1").click()
    view.wait("!document.querySelector('#alert').innerText.includes('stage 77')")
    assert "There is no “sideways” in “for”" in page.inner_text("#alert")
