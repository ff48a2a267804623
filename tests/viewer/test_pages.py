"""The viewer in a real browser, on the example's profile.

Pages are drawn, addresses restore them, and their numbers are right.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ipuscope.planner.advice import advise
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.split_text import profiled
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.search.split_search import best_split, quickest
from ipuscope.profiler import Report, analysis, open_report
from ipuscope.profiler.file import lock
from ipuscope.viewer.app import PAGES, create_app, following_app
from ipuscope.viewer.figures import rebalance as figures
from ipuscope.viewer.figures import theme, units
from ipuscope.viewer.pages import rebalance
from ipuscope.viewer.profiles import FollowedProfiles
from tests.synthetic import synthetic_profile
from tools.screenshots import serving, settled

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(demo: Path) -> Report:
    return open_report(demo / "training")


@pytest.fixture(scope="module")
def address(report: Report) -> Iterator[str]:
    with serving(create_app(report)) as served:
        yield served


# dash-cytoscape passes the default, which Cytoscape.js takes for the user's
_OF_CYTOSCAPE = "You have set a custom wheel sensitivity"
_COMPLAINS = {"error", "warning", "assert", "trace"}  # plotly's warnings come as traces


class Tab:
    """A page of the browser, with the errors and warnings it logged."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.page.set_viewport_size({"width": 1280, "height": 900})
        self.address = address
        self.complaints: list[str] = []
        self.page.on(
            "console",
            lambda m: (
                self.complaints.append(m.text)
                if m.type in _COMPLAINS and _OF_CYTOSCAPE not in m.text
                else None
            ),
        )
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))

    def open(self, path: str) -> Any:
        self.page.goto(self.address + path)
        settled(self.page)
        return self.page

    def query(self) -> dict[str, str]:
        return {
            name: values[-1] for name, values in parse_qs(urlsplit(self.page.url).query).items()
        }

    def plot(self, id: str, what: str) -> Any:
        """Evaluate JavaScript in which ``plot`` is the figure in the graph with that id."""
        return self.page.evaluate(
            f"() => {{ const plot = document.querySelector('#{id} .js-plotly-plot'); return"
            f" {what}; }}"
        )

    def wait(self, expression: str) -> None:
        # A function: the page's policy lets no text become a script.
        self.page.wait_for_function(f"() => {expression}", timeout=30_000, polling=50)

    def wait_for_text(self, id: str, text: str) -> None:
        """Tables come a while after the page: their code is loaded when one is first drawn."""
        self.wait(f"document.querySelector('#{id}').innerText.includes({json.dumps(text)})")


@pytest.fixture(scope="module")
def chromium(chromium: Any, address: str) -> Iterator[Any]:
    """A context with one page, which stays open, for all tabs to be opened from."""
    context = chromium.new_context()
    context.new_page().goto(f"{address}/assets/style.css")
    yield context
    context.close()


@contextlib.contextmanager
def tab(context: Any, address: str, color_scheme: str = "light") -> Iterator[Tab]:
    """Open a tab.

    It is opened by the page that stays, so that both are of one process, which has the scripts
    compiled: a third of the time of a tab in a process of its own.
    """
    with context.expect_page() as opening:
        context.pages[0].evaluate("() => { window.open('about:blank'); }")
    opened = Tab(opening.value, address)
    opened.page.emulate_media(color_scheme=color_scheme)
    try:
        yield opened
    finally:
        opened.page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", [page.path for page in PAGES])
def test_a_page_draws_without_complaint(chromium: Any, address: str, path: str, theme: str) -> None:
    with tab(chromium, address, color_scheme=theme) as view:
        page = view.open(path)
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
        assert view.complaints == []


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


@pytest.mark.parametrize("path", ["/memory?ipu=1", "/costs?order=program", "/pod"])
def test_tables_fit_the_window_with_whole_headings(chromium: Any, address: str, path: str) -> None:
    """They do when they are first drawn, and when the window changes."""
    with tab(chromium, address) as view:
        for width in (768, 1440, 1024):
            view.page.set_viewport_size({"width": width, "height": 900})
            page = view.page if width != 768 else view.open(path)
            view.wait("document.querySelectorAll('.ag-header-cell-text').length > 2")
            page.wait_for_timeout(300)  # columns are fitted once there are rows
            assert page.evaluate(_SIDEWAYS) == [], width
            assert page.evaluate(_CUT_HEADINGS) == [], width
            assert page.evaluate(_IDLE_ROOM) == [], width
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("path", ["/timeline", "/rebalance", "/memory"])
def test_fields_stand_level_with_their_names(chromium: Any, address: str, path: str) -> None:
    with tab(chromium, address) as view:
        heights = view.open(path).evaluate(
            "() => [...document.querySelectorAll('#page > .controls .control')]"
            ".map((one) => one.getBoundingClientRect().height)"
        )
        assert len(heights) > 2
        assert max(heights) - min(heights) < 0.5


def test_the_summary_has_the_reports_numbers(chromium: Any, address: str, report: Report) -> None:
    with tab(chromium, address) as view:
        words = view.open("/").inner_text("#page")
        run = report.runs.iloc[0]
        assert units.cycles(run["cycles"] / run["iterations"]) in words
        slowest = int(report.stages["stage"].iloc[int(report.stages["cycles"].to_numpy().argmax())])
        assert f"stage {slowest}" in words
        used = [report.tiles(ipu)["peak"].max() for ipu in range(report.target.num_ipus)]
        fullest = max(used)
        assert units.size(int(fullest)) in words
        assert str(report.path) in words


def test_the_summarys_bars_have_the_reports_numbers_and_are_saved(
    chromium: Any, address: str, report: Report, tmp_path: Path
) -> None:
    def saved(card: Any, form: str) -> str:
        with page.expect_download() as waiting:
            card.locator(".tool", has_text=form).click()
        path = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(path)
        return path.read_bytes().decode("latin-1")

    with tab(chromium, address) as view:
        page = view.open("/")
        assert (
            page.locator(".js-plotly-plot").count() == 0
        )  # which the first page does not wait for
        card = page.locator(".card", has=page.locator("#stage-costs"))
        rows = [line.split(",") for line in saved(card, "CSV").splitlines()[1:]]
        drawn = {
            name: sum(float(value) for _, part, value in rows if part == name)
            for name in {r[1] for r in rows}
        }
        assert drawn["forward"] == report.stages["forward_cycles"].sum()
        assert drawn["backward"] + drawn["recompute"] == report.stages["backward_cycles"].sum()
        total = report.stages["cycles"]
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
        assert view.complaints == []


def test_the_pipeline_has_the_reports_numbers(chromium: Any, address: str, report: Report) -> None:
    with tab(chromium, address) as view:
        view.open("/timeline")
        lanes = view.plot("timeline-rows", "plot.layout.yaxis.ticktext.length")
        assert lanes == report.target.num_ipus
        update = report.pipeline_cycles(0, 0).iloc[-1]
        view.open(f"/timeline?level=tasks&from={update['start'] - 3000}&to={update['end']}")
        drawn = view.plot(
            "timeline-rows",
            "plot._fullData.find(t => t.type === 'bar' && t.name === 'weight update').x.reduce((a,"
            " b) => a + b, 0)",
        )
        tasks = report.tasks(0, iteration=0)
        assert drawn == tasks.loc[tasks["direction"] == "update", "cycles"].sum()


def test_an_address_restores_the_pipeline(chromium: Any, address: str, report: Report) -> None:
    with tab(chromium, address) as view:
        view.open("/pipeline?level=tasks&run=1&iteration=3&unit=µs&follow=4&from=200000&to=400000")
        low, high = view.plot("timeline-rows", "plot.layout.xaxis.range")
        scale = 1e6 / report.target.clock_hz
        assert low == pytest.approx(200_000 * scale)
        assert high == pytest.approx(400_000 * scale)
        assert view.plot("timeline-rows", "plot.data.some(t => t.name === 'micro-batch 4')")
        assert view.page.input_value("input[type=number]") == "3"
        assert "run 1" in view.page.inner_text(".controls")


def test_a_control_changes_the_address_and_the_figure(chromium: Any, address: str) -> None:
    with tab(chromium, address) as view:
        page = view.open("/timeline")
        page.get_by_text("µs", exact=True).click()
        view.wait(
            "document.querySelector('#timeline-rows .js-plotly-plot').layout.xaxis.title.text ==="
            " 'time (µs)'"
        )
        assert view.query()["unit"] == "µs"
        again = view.page.url
        page.goto(again)
        settled(page)
        assert view.plot("timeline-rows", "plot.layout.xaxis.title.text") == "time (µs)"
        assert view.complaints == []


def test_the_wheel_zooms_and_brings_detail(chromium: Any, address: str) -> None:
    with tab(chromium, address) as view:
        page = view.open("/timeline")
        box = page.locator("#timeline-rows .nsewdrag").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        for _ in range(6):
            page.mouse.wheel(0, -400)
            page.wait_for_timeout(60)
        view.wait("new URLSearchParams(location.search).get('from')")
        view.wait("document.querySelector('#timeline-rows .js-plotly-plot').layout.xaxis.range[0]")
        settled(page)
        low, high = int(view.query()["from"]), int(view.query()["to"])
        shown = view.plot("timeline-rows", "plot.layout.xaxis.range")
        assert 0 <= low < high
        assert shown[0] == pytest.approx(low, abs=2)
        page.keyboard.press("0")
        view.wait("!new URLSearchParams(location.search).get('from')")


def test_a_point_of_the_heat_map_says_what_is_live_there(
    chromium: Any, address: str, report: Report
) -> None:
    with tab(chromium, address) as view:
        page = view.open("/memory?ipu=1&step=10&tile=7")
        live = report.live_variables(1, 10, 7)
        view.wait_for_text("liveness-live", live["name"].iloc[0])
        words = page.inner_text("#liveness-live")
        assert f"IPU 1, tile 7, step 10 ({report.program_steps(1)['name'].iloc[10]})" in words
        assert units.size(int(live["bytes"].sum())) in words
        page.locator("#liveness-heat").evaluate("one => one.scrollIntoView()")
        box = page.locator("#liveness-heat .nsewdrag").first.bounding_box()
        page.mouse.click(box["x"] + 30, box["y"] + 30)
        view.wait("new URLSearchParams(location.search).get('step') !== '10'")
        step, tile = int(view.query()["step"]), int(view.query()["tile"])
        view.wait(
            f"document.querySelector('#liveness-live').innerText.includes('tile {tile}, step"
            f" {step} ')"
        )


def test_the_heat_map_scales_with_the_report(chromium: Any, address: str, report: Report) -> None:
    with tab(chromium, address) as view:
        view.open("/memory?ipu=2&first=10&last=40&low=100&high=300")
        top = view.plot("liveness-heat", "plot.data[0].zmax")
        assert top * 1024 == pytest.approx(
            report.liveness_map(2, slice(10, 40), slice(100, 300)).max()
        )


def test_the_memory_page_has_the_tiles_numbers(chromium: Any, address: str, report: Report) -> None:
    with tab(chromium, address) as view:
        page = view.open("/memory?ipu=1&tile=20&gaps=with")
        row = report.tiles(1).iloc[20]
        words = page.inner_text("#memory-tile")
        for column in ("peak", "total", "always_live", "free"):
            assert units.size(int(row[column])) in words, column
        drawn = view.plot(
            "memory-tiles", "plot._fullData.find(t => t.name === 'extent, with gaps').y[20]"
        )
        assert drawn * 1024 == pytest.approx(row["total"])
        on_ipu = report.variables.query("ipu == 1")
        largest = max(on_ipu.index, key=lambda variable: report.variable_tiles(variable)[20])
        view.wait_for_text("memory-variables", on_ipu["name"][largest])
        assert report.tile_vertices(1, 20)["vertex_type"].iloc[0] in page.inner_text(
            "#memory-vertices"
        )


def test_the_trace_is_found_clicked_and_restored(
    chromium: Any, address: str, report: Report
) -> None:
    steps = report.steps(0, 1, 0)
    hits = steps["name"].str.contains("convolve", case=False)
    step = (
        report.program_steps(1)
        .set_index("name")
        .loc["layer2/conv/convolution/conv/convolve", "step"]
    )
    number = int(step.iloc[0] if hasattr(step, "iloc") else step)
    with tab(chromium, address) as view:
        page = view.open(f"/trace?ipu=1&form=flame&find=convolve&step={number}")
        assert f"{int(hits.sum()):,} slices" in page.inner_text("#timeline-found")
        assert f"{int(steps.loc[hits, 'cycles'].sum()):,} cycles" in page.inner_text(
            "#timeline-found"
        )
        assert "layer2/conv/convolution/conv/convolve" in page.inner_text("#timeline-step")
        vertices = report.vertices(number)
        assert f"{int(vertices['count'].iloc[0]):,}" in page.inner_text("#timeline-step")
        kinds = page.inner_text("#timeline-kinds")
        assert f"{int(steps.loc[steps['kind'] == 'compute', 'cycles'].sum()):,}" in kinds


def test_a_slice_is_pinned_by_its_ends_and_unpinned(chromium: Any, address: str) -> None:
    with tab(chromium, address) as view:
        page = view.open("/timeline?level=steps&at=100000,0&marks=5")
        page.get_by_role("button", name="Pin it").click()
        view.wait("new URLSearchParams(location.search).get('marks').split(',').length === 3")
        begin, end = (int(one) for one in view.query()["marks"].split(",")[1:])
        assert begin <= 100000 < end
        settled(page)
        assert f"{end - begin:,} cycles" in page.inner_text(".measured")
        page.get_by_role("button", name="Pin it").click()
        view.wait("new URLSearchParams(location.search).get('marks') === '5'")
        assert view.complaints == []


def test_p_again_unpins_the_lane_that_left_the_pointer(chromium: Any, address: str) -> None:
    with tab(chromium, address) as view:
        page = view.open("/timeline?level=steps")
        box = page.locator("#timeline-rows .nsewdrag").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.9)
        page.keyboard.press("p")
        view.wait("new URLSearchParams(location.search).get('pins') === '3'")
        view.wait(
            "document.querySelector('#timeline-rows .js-plotly-plot').layout.yaxis.ticktext[0]"
            " === '▴ IPU 3'"
        )
        page.keyboard.press("p")
        view.wait("!new URLSearchParams(location.search).get('pins')")
        page.keyboard.press("p")
        view.wait("new URLSearchParams(location.search).get('pins') === '3'")
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.6)
        page.keyboard.press("p")
        view.wait("/^3,[012]$/.test(new URLSearchParams(location.search).get('pins'))")
        assert view.complaints == []


def test_a_click_on_a_step_tells_of_it(chromium: Any, address: str) -> None:
    with tab(chromium, address) as view:
        page = view.open("/timeline?level=steps&ipu=0")
        box = page.locator("#timeline-rows .nsewdrag").bounding_box()
        page.mouse.move(box["x"] + 8, box["y"] + box["height"] / 2)
        page.wait_for_timeout(300)
        page.mouse.click(box["x"] + 8, box["y"] + box["height"] / 2)
        view.wait("new URLSearchParams(location.search).get('step')")
        view.wait("document.querySelector('#timeline-step').innerText.includes('host I/O')")


@pytest.mark.parametrize("width", [1440, 900])
def test_overview_trace_and_counters_have_their_marks_one_below_the_other(
    chromium: Any, address: str, width: int
) -> None:
    with tab(chromium, address) as view:
        view.page.set_viewport_size({"width": width, "height": 900})
        page = view.open("/timeline?level=steps")
        left = page.evaluate(
            "['overview', 'rows', 'counters'].map(name => document.querySelector("
            "`#timeline-${name} .js-plotly-plot`)._fullLayout.xaxis._offset)"
        )
        assert left[0] == left[1] == left[2]


def test_a_drag_over_the_overview_shows_that_part(chromium: Any, address: str) -> None:
    with tab(chromium, address) as view:
        page = view.open("/timeline?level=steps")
        box = page.locator("#timeline-overview .nsewdrag").bounding_box()
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] * 0.25, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=5)
        page.mouse.up()
        view.wait("new URLSearchParams(location.search).get('from')")
        settled(page)
        end = view.plot("timeline-overview", "plot.layout.xaxis.range[1]")
        assert int(view.query()["from"]) == pytest.approx(end * 0.25, rel=0.05)
        assert int(view.query()["to"]) == pytest.approx(end * 0.5, rel=0.05)


def test_the_operations_are_the_reports(chromium: Any, address: str, report: Report) -> None:
    largest = analysis.operators(report).iloc[0]
    with tab(chromium, address) as view:
        page = view.open(f"/operations?op={largest['id']}&find={largest['name']}")
        words = page.inner_text("#costs-grid")
        assert f"{largest['total_cycles']:,}" in words
        assert f"{largest['cycles']:,} cycles" in page.inner_text("#costs-chosen")
        page.fill("main input[type=search]", "max_pool")
        view.wait("document.querySelector('#costs-grid').innerText.includes('max_pool')")
        assert view.query()["find"] == "max_pool"


def test_a_module_opens_to_its_operators_and_their_steps(
    chromium: Any, address: str, report: Report
) -> None:
    """Its cycles are those of its operators together; what is open is in the address."""
    opened = "document.querySelector('#costs-grid').innerText.includes('▾')"
    ops = analysis.operators(report)
    with tab(chromium, address) as view:
        page = view.open("/costs?order=aten")
        total = ops.groupby("aten")["total_cycles"].sum()
        first = page.locator("#costs-grid [row-index='0']").first
        first.wait_for()
        assert str(total.idxmax()) in first.inner_text()
        assert f"{total.max():,}" in first.inner_text()
        page.locator("#costs-grid [row-index='0'] .ag-cell").first.click()
        view.wait(opened)
        page.goto(page.url)
        settled(page)
        view.wait(opened)
        page.locator("#costs-grid [row-index='0'] .ag-cell").first.click()
        view.wait(f"!{opened}")
        assert view.complaints == []


def test_letters_typed_fast_stay_in_their_order(chromium: Any, address: str) -> None:
    words = "layer2/conv/convolution"
    with tab(chromium, address) as view:
        page = view.open("/costs")
        page.keyboard.press("/")
        page.keyboard.type(words)
        view.wait(f"new URLSearchParams(location.search).get('find') === '{words}'")
        assert page.input_value("input[type=search]") == words


def test_a_number_that_there_is_not_is_refused(chromium: Any, address: str) -> None:
    with tab(chromium, address) as view:
        page = view.open("/timeline")
        page.locator(".control input[type=number]").fill("99999")
        page.keyboard.press("Enter")
        view.wait("document.querySelector('#alert').innerText.includes('99999: there are 0 to')")
        view.wait("!location.search.includes('NaN')")
        assert page.input_value(".control input[type=number]") == "99999"


def test_a_figure_is_asked_by_keyboard_alone(chromium: Any, address: str) -> None:
    """Down goes from lane to lane, P pins the one asked after, and focus stays where it is."""
    focused = "document.activeElement?.closest('#timeline-rows')"
    with tab(chromium, address) as view:
        page = view.open("/timeline")
        page.locator("#timeline-rows .js-plotly-plot").focus()
        for row in range(3):
            page.keyboard.press("ArrowDown")
            view.wait(f"location.search.includes('%2C{row}') && {focused}")
        view.wait("/IPU\\s+2/.test(document.querySelector('#timeline-step').innerText)")
        page.keyboard.press("p")
        view.wait("location.search.includes('pins=2') && location.search.includes('%2C0')")
        view.wait("/IPU\\s+2/.test(document.querySelector('#timeline-step').innerText)")
        assert page.evaluate(f"() => Boolean({focused})")
        page.get_by_role("button", name="Pin it").press("Enter")
        view.wait("location.search.includes('marks')")
        view.wait("document.activeElement?.textContent === 'Pin it'")
        page.keyboard.press("Escape")
        view.wait("!new URLSearchParams(location.search).get('at')")
        view.wait("document.querySelector('#timeline-step').innerText.includes('Click anything')")
        page.keyboard.press("3")
        view.wait("location.pathname === '/memory' && document.activeElement?.id === 'main'")
        assert page.locator(".modebar-btn[data-title*='Share']").count() == 0
        assert view.complaints == []


# What is in focus, whether it or what holds it looks otherwise without, and whether it can be read.
_FOCUS = """() => {
    const at = document.activeElement, held = at.closest('.dash-input-container, .switch') || at;
    const looks = () => [at, held].map((one) => {
        const style = getComputedStyle(one);
        const outline = style.outlineStyle === 'none' ? '' : style.outline;
        return [outline, style.boxShadow, style.borderColor].join();
    }).join();
    const ground = getComputedStyle(at.closest('label') || at);
    const read = ground.color !== ground.backgroundColor, inFocus = looks();
    at.blur();
    const seen = looks() !== inFocus;
    at.focus({ preventScroll: true });
    const what = at.tagName + ' ' + (at.type || at.getAttribute('role') || '');
    return [what, seen && read];
}"""


@pytest.mark.parametrize(("path", "stops"), [("/timeline", 30), ("/costs?order=program", 44)])
def test_what_is_in_focus_is_seen(chromium: Any, address: str, path: str, stops: int) -> None:
    with tab(chromium, address) as view:
        page = view.open(path)
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


def test_a_table_is_one_stop_of_the_tab_key(chromium: Any, address: str) -> None:
    """Arrows go through it; Tab leads in, and on to what follows it or back to what is before."""
    inside = "Boolean(document.activeElement.closest('.ag-root-wrapper'))"
    with tab(chromium, address) as view:
        page = view.open("/costs")
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


def test_a_page_is_printed_with_its_bars_and_without_its_buttons(
    chromium: Any, address: str
) -> None:
    with tab(chromium, address, color_scheme="dark") as view:
        page = view.open("/")
        page.emulate_media(media="print")
        assert page.locator("nav.side").is_hidden()
        assert page.locator(".tools").first.is_hidden()
        assert page.locator(".bar-chart").first.is_visible()
        kept = "getComputedStyle(document.querySelector('.bar-chart .bar')).printColorAdjust"
        assert page.evaluate(kept) == "exact"
        view.open("/timeline")
        held = "[...document.querySelectorAll('.dash-graph')].map(one => one.style.minHeight)"
        page.evaluate("() => { window.dispatchEvent(new Event('beforeprint')); }")
        assert all(height.endswith("px") for height in page.evaluate(held))
        page.evaluate("() => { window.dispatchEvent(new Event('afterprint')); }")
        assert set(page.evaluate(held)) == {""}


def test_the_program_is_searched_and_leads_on(chromium: Any, address: str, report: Report) -> None:
    with tab(chromium, address) as view:
        page = view.open("/program?find=convolve")
        count = int(report.program["name"].str.contains("convolve").sum())
        view.wait(f"document.querySelector('#costs-trail').innerText.startsWith('{count:,} of')")
        page.locator("#costs-grid .ag-cell", has_text="convolve").last.click()
        view.wait("document.querySelector('#costs-chosen').innerText.includes('convolve')")
        page.get_by_text("variables live then").click()
        view.wait("location.pathname === '/memory'")
        settled(page)
        assert "convolve" in page.inner_text("#liveness-live")


def test_the_program_opens_and_closes_by_a_click(chromium: Any, address: str) -> None:
    rows = "document.querySelectorAll('#costs-grid .ag-center-cols-container .ag-row').length"
    with tab(chromium, address) as view:
        page = view.open("/costs?order=program")
        view.wait(f"{rows} > 3")
        before = page.evaluate(rows)
        page.locator("#costs-grid .ag-cell", has_text="▾").first.click()
        view.wait(f"{rows} === 1")
        view.open(urlsplit(page.url).path + "?" + urlsplit(page.url).query)
        view.wait(f"{rows} === 1")
        page.locator("#costs-grid .ag-cell", has_text="▸").first.click()
        view.wait(f"{rows} === {before}")


def test_the_insights_lead_to_their_pages(chromium: Any, address: str) -> None:
    with tab(chromium, address) as view:
        page = view.open("/")
        page.locator(".insights a[href^='/rebalance']").first.click()
        view.wait("location.pathname === '/rebalance'")
        settled(page)
        assert view.complaints == []


def test_blocks_move_and_the_prediction_follows(
    chromium: Any, address: str, report: Report
) -> None:
    costs = Costs.from_report(report)
    with tab(chromium, address) as view:
        page = view.open("/rebalance")
        measured = int(report.runs["cycles"].iloc[0] // report.runs["iterations"].iloc[0])
        assert f"{measured:,} cycles" in page.inner_text("#rebalance-numbers")
        assert "Cycles are likely" in page.inner_text("#rebalance-numbers")
        page.locator("#rebalance-blocks tr", has_text="B4").get_by_text("◀").click()
        view.wait("new URLSearchParams(location.search).get('starts') === '0,1,2'")
        expected = what_if(costs, Assignment((0, 1, 2), (0, 1, 2)))
        view.wait(
            f"document.querySelector('#rebalance-numbers').innerText.includes('{units.cycles(expected.total)}')"
        )
        view.wait(
            "document.querySelector('#rebalance-lanes .js-plotly-plot')"
            ".layout.yaxis.ticktext.length === 3"
        )
        page.locator("#rebalance-profiled").click()
        view.wait("!new URLSearchParams(location.search).get('starts')")


def test_why_speaks_of_the_split_that_is_proposed(report: Report) -> None:
    """Of the quickest onto these IPUs, which may be fewer or come back to one."""
    costs = Costs.from_report(report)
    present, best = what_if(costs, profiled(costs)), quickest(costs).prediction
    less = f"split onto these IPUs takes {present.total - best.total:,} cycles less."
    assert less in str(rebalance._why(report, costs, present))
    assert "This is the best split" in str(rebalance._why(report, costs, best))


def test_of_sharded_execution_no_slowest_stage_is_blamed(report: Report) -> None:
    """IPUs take turns: work of all stages, and what they hand on."""
    costs = replace(Costs.from_report(report), pipelined=False, recompute=False)
    present = what_if(costs, profiled(costs))
    work = int(present.stage_cycles.sum())
    clock = units.Clock(1e9)
    numbers = str(rebalance._numbers(report, costs, present, present, clock))
    assert "work of all stages" in numbers
    assert clock.short(work) in numbers
    best = quickest(costs)
    why = " ".join(best.why)
    rest = best.prediction.pipeline_cycle - work
    assert f"the work of all stages, {work:,} cycles however even they are, and {rest:,}" in why
    figure = figures.stages(costs, present, work, clock, theme.LIGHT)
    words = f"{numbers} {why} {rebalance._why(report, costs, present)} {figure}"
    assert "slowest" not in words
    assert "pipeline cycle" not in words


def test_the_best_split_is_proposed_and_saved(chromium: Any, address: str, report: Report) -> None:
    best = best_split(Costs.from_report(report), 2).prediction.assignment.starts
    with tab(chromium, address) as view:
        page = view.open("/rebalance")
        page.locator("#rebalance-count").click()
        page.get_by_role("option", name="2", exact=True).click()
        page.locator("#rebalance-best").click()
        view.wait(
            f"new URLSearchParams(location.search).get('starts') === '{','.join(map(str, best))}'"
        )
        view.wait(
            "document.querySelector('#rebalance-why').innerText.includes('best split into 2"
            " stages')"
        )
        with page.expect_download() as download:
            page.locator("#rebalance-save").click()
        placement = json.loads(Path(download.value.path()).read_text())
        assert [stage["ipu"] for stage in placement["stages"]] == [0, 1]
        names = [name for stage in placement["stages"] for name in stage["blocks"]]
        assert names == report.blocks["name"].tolist()


def test_the_levers_beside_the_split_have_their_lines(
    chromium: Any, address: str, report: Report
) -> None:
    advised = advise(report)
    with tab(chromium, address) as view:
        page = view.open("/rebalance")
        said = page.inner_text("#rebalance-levers")
        for one in advised.single[:2]:
            assert "\n".join(one.code) in said
        assert "ipu-report advise" in said and "--check SCRIPT" in said


def test_two_profiles_are_compared(chromium: Any, demo: Path, report: Report) -> None:
    other = open_report(demo / "inference")
    with serving(create_app(report, other)) as both, tab(chromium, both) as view:
        page = view.open("/compare")
        words = page.inner_text("#page")
        pace = analysis.pace(report)
        assert f"{pace.cycles:,}" in words
        assert units.minus(f"{analysis.pace(other).cycles - pace.cycles:,}") in words
        largest = analysis.compare_ops(report, other).iloc[0]["name"]
        page.locator("#compare-grid [row-index='0']", has_text=largest).first.wait_for()
        first = analysis.compare_paths(report, other).iloc[0]
        drawn = view.plot("compare-path", "plot.data[0].y")
        assert drawn[:2] == ["A", first["name"]] and drawn[-1] == "B"
        lengths = view.plot("compare-path", "plot.data[0].x")
        assert sum(lengths[:-1]) == pytest.approx(lengths[-1])
        assert "a device iteration" in words
        view.open("/memory?profile=1")
        assert "inference" in page.inner_text(".controls")
        assert view.complaints == []


def test_a_frame_without_storage_has_its_colours(chromium: Any, address: str) -> None:
    """As in a notebook, whose page is another site's."""
    with tab(chromium, address) as view:
        view.page.add_init_script(
            "Object.defineProperty(window, 'localStorage', { get() { throw Error('denied'); } })"
        )
        page = view.open("/query")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        page.click("#theme")
        view.wait("document.documentElement.dataset.theme === 'dark'")
        assert view.complaints == []


def test_another_profile_is_another_page(chromium: Any, demo: Path, tmp_path: Path) -> None:
    """Head, numbers and choices are the chosen profile's, not a mixture."""
    other = open_report(synthetic_profile(tmp_path / "profile.pop", ipus=2))
    with (
        open_report(demo / "training") as report,
        serving(create_app(report, other)) as both,
        tab(chromium, both) as view,
    ):
        page = view.open("/memory?ipu=1&tile=3")
        assert "4 IPUs" in page.inner_text("#head")
        page.locator("main .controls button.dash-dropdown").first.click()
        page.get_by_role("option").nth(1).click()
        view.wait("document.querySelector('#head').innerText.includes('2 IPUs')")
        assert (view.query()["profile"], view.query()["ipu"]) == ("1", "1")
        settled(page)
        page.locator("main .controls button.dash-dropdown").nth(2).click()
        assert page.get_by_role("option").count() == 2
        assert view.complaints == []


def test_a_link_within_a_page_stays_with_what_is_shown(chromium: Any, demo: Path) -> None:
    """The profile, and on pages of time the unit and the iteration, as the pages' names do."""
    with (
        open_report(demo / "inference") as one,
        open_report(demo / "training") as other,
        serving(create_app(one, other)) as both,
        tab(chromium, both) as view,
    ):
        page = view.open("/timeline?profile=1&iteration=3&unit=%C2%B5s&at=100000,0")
        page.get_by_role("link", name="its steps").first.click()
        view.wait("location.search.includes('ipu=0') && location.search.includes('span=')")
        settled(page)
        asked = {name: view.query().get(name) for name in ("profile", "iteration", "unit", "ipu")}
        assert asked == {"profile": "1", "iteration": "3", "unit": "µs", "ipu": "0"}
        assert "training" in page.inner_text("#head")
        page.go_back()
        view.wait("location.search.includes('at=')")
        assert view.query()["profile"] == "1"


def test_a_lanes_name_opens_it_between_its_lines_too(chromium: Any, address: str) -> None:
    with tab(chromium, address) as view:
        page = view.open("/timeline")
        view.plot("timeline-rows", "plot.layout.meta.lanes[1] = [1, 1]")  # as if it were folded
        box = page.locator("#timeline-rows .ytick text").nth(1).bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        view.wait("document.querySelector('#timeline-rows .over-name')")
        page.mouse.down()
        page.mouse.up()
        view.wait("new URLSearchParams(location.search).get('opened') === '1'")


def test_the_other_profile_is_shown_beside_this_one(
    chromium: Any, demo: Path, report: Report
) -> None:
    other = open_report(demo / "inference")
    with serving(create_app(report, other)) as both, tab(chromium, both) as view:
        view.open("/memory?ipu=1&other=show")
        line = "plot._fullData.find(trace => trace.name === 'the other profile')"
        drawn = view.plot("memory-tiles", f"Array.from({line}.customdata).slice(0, 5)")
        used = "total_excluding_gaps"
        difference = (other.tiles(1)[used] - report.tiles(1)[used]) / 1024
        assert drawn == pytest.approx(difference.head(5).tolist())
        view.open("/memory?ipu=0&other=show")
        most = view.plot("liveness-steps", f"Math.max(...{line}.y)")
        assert most == pytest.approx(other.liveness(0)["total"].max() / 1024**2)
        page = view.open("/costs?other=show&find=layer2/conv/convolution")
        name = "layer2/conv/convolution"
        both = (analysis.operators(one).set_index("name") for one in (report, other))
        this, that = (ops.at[name, "total_cycles"] for ops in both)
        page.locator("#costs-grid .ag-row", has_text=f"{that:,}").first.wait_for()
        assert f"{this:,}" in page.inner_text("#costs-grid")
        page = view.open("/costs?other=show&find=update")  # which the other profile has none of
        page.locator("#costs-grid [row-index='0']").first.wait_for()
        assert view.complaints == []


def test_the_theme_changes_and_stays(chromium: Any, address: str) -> None:
    with (
        contextlib.closing(chromium.browser.new_context(color_scheme="light")) as own,
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


def test_keys_open_pages_and_help(chromium: Any, address: str) -> None:
    with tab(chromium, address) as view:
        page = view.open("/")
        page.keyboard.press("2")
        view.wait("location.pathname === '/timeline'")
        settled(page)
        page.keyboard.press("?")
        view.wait("document.getElementById('shortcuts').open")
        assert "Timeline" in page.inner_text("#shortcuts")
        page.keyboard.press("Escape")
        view.wait("!document.getElementById('shortcuts').open")


@pytest.mark.parametrize("form", ["PNG", "SVG", "CSV"])
def test_a_figure_is_saved(chromium: Any, address: str, tmp_path: Path, form: str) -> None:
    with tab(chromium, address) as view:
        page = view.open("/timeline")
        with page.expect_download(timeout=20_000) as download:
            page.locator(".card", has=page.locator("#timeline-rows")).get_by_role(
                "button", name=form
            ).click()
        file = tmp_path / download.value.suggested_filename
        download.value.save_as(file)
        start = {"PNG": b"\x89PNG", "SVG": b"<svg", "CSV": b"trace,x,y"}[form]
        assert file.read_bytes().startswith(start)
        assert file.suffix == "." + form.lower()


def test_a_profile_that_vanishes_gives_a_message(chromium: Any, tmp_path: Path) -> None:
    path = synthetic_profile(tmp_path / "profile.pop")
    with (
        open_report(path) as report,
        serving(create_app(report)) as address,
        tab(chromium, address) as view,
    ):
        view.open("/")
        path.unlink()
        view.page.goto(address + "/memory")
        view.wait("document.querySelector('.message.error')")
        words = view.page.inner_text("#page")
        assert "gone" in words
        assert "Traceback" not in words


def test_a_profile_written_anew_is_shown_anew(chromium: Any, tmp_path: Path) -> None:
    path = synthetic_profile(tmp_path / "profile.pop", ipus=2)
    other = synthetic_profile(tmp_path / "other.pop", ipus=4)
    with (
        open_report(path) as report,
        serving(create_app(report)) as address,
        tab(chromium, address) as view,
    ):
        assert "2 IPUs" in view.open("/").inner_text("#head")
        shutil.move(other, path)
        assert "4 IPUs" in view.open("/").inner_text("#head")


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/pipeline?run=99&iteration=-3&from=x&to=1e99&follow=%00",
        "/liveness?ipu=77&step=1e9&tile=-1",
        "/timeline?level=steps&from=abc&to=%00&at=zz,1&marks=x,y&select=q",
        "/liveness?from=x&to=y&first=a&last=b&low=c&high=d&marks=-1",
        "/query?sql=select+1e999+as+a,+2+as+b&form=line",
        "/flame?at=zz&form=treemap",
        "/?theme=purple",
    ],
)
def test_an_address_from_anywhere_does_no_harm(chromium: Any, address: str, path: str) -> None:
    with tab(chromium, address) as view:
        view.page.goto(address + path)
        view.wait("document.querySelector('#page')?.children.length")
        view.page.wait_for_timeout(500)
        assert not re.search("Traceback|Error", view.page.inner_text("body"))
        assert view.page.evaluate("document.documentElement.dataset.theme") == "light"
        assert view.complaints == []


def test_what_is_refused_is_said_until_something_else_is_chosen(
    chromium: Any, address: str
) -> None:
    with tab(chromium, address) as view:
        page = view.open("/costs?direction=sideways&stage=77")
        assert "There is no “sideways” in “for”" in page.inner_text("#alert")
        assert "There is no stage 77" in page.inner_text("#alert")
        assert "direction" not in view.query() or view.query()["direction"] == "all"
        page.locator(".control").filter(has_text=re.compile("^stage")).locator("button").click()
        page.get_by_role("option", name="1 on IPU 1").click()
        view.wait("!document.querySelector('#alert').innerText.includes('stage 77')")
        assert "There is no “sideways” in “for”" in page.inner_text("#alert")


def test_tabs_do_not_disturb_each_other(chromium: Any, address: str) -> None:
    with tab(chromium, address) as one, tab(chromium, address) as two:
        one.open("/memory?ipu=0")
        two.open("/memory?ipu=3")
        one.page.get_by_text("not always live", exact=True).first.click()
        one.wait("new URLSearchParams(location.search).get('what') === 'not_always_live'")
        assert two.query().get("what", "total") == "total"


def test_nothing_but_the_given_profile_is_reachable(report: Report, tmp_path: Path) -> None:
    client = create_app(report).server.test_client()
    for path in ("/assets/../app.py", "/assets/%2e%2e/app.py", "/assets//etc/passwd"):
        response = client.get(path)
        assert b"create_app" not in response.data
        assert b"root:" not in response.data
    assert response.headers["X-Frame-Options"] == "SAMEORIGIN"


@pytest.mark.parametrize("path", ["/", "/timeline", "/timeline?level=steps"])
def test_a_compiled_model_shows_its_schedule_as_predicted(
    chromium: Any, tmp_path: Path, path: str
) -> None:
    """It shows the figure of a model that ran, with a line saying that it is predicted."""
    compiled = synthetic_profile(tmp_path / "compiled.pop", runs=0)
    ran = synthetic_profile(tmp_path / "ran.pop", runs=1)
    spans, lines = [], []
    for profile in (compiled, ran):
        with serving(create_app(open_report(profile))) as served, tab(chromium, served) as view:
            page = view.open(path)
            graphs = "[...document.querySelectorAll('.js-plotly-plot')]"
            spans.append(page.evaluate(f"() => {graphs}.map(p => p.layout.xaxis.range)"))
            lines.append(page.locator("#head", has_text="times are predicted").count())
            assert page.locator(".message.error").count() == 0
    assert lines == [1, 0]
    assert spans[0] == spans[1]
    if path != "/":
        assert any(high - low > 1000 for low, high in spans[0]), "cycles of a device iteration"


def test_a_window_of_time_holds_behind_other_pages_and_is_a_step_back(
    chromium: Any, address: str
) -> None:
    with tab(chromium, address) as view:
        page = view.open("/timeline?unit=µs")
        page.keyboard.press("w")
        view.wait("new URLSearchParams(location.search).get('from')")
        settled(page)
        zoomed = view.query()
        page.locator("nav.side a.nav", has_text="Costs").click()
        view.wait("document.querySelector('#flame-graph .js-plotly-plot')?.data?.length")
        assert "from" not in view.query()
        link = page.locator("nav.side a.nav", has_text="Timeline")
        assert f"from={zoomed['from']}" in str(link.get_attribute("href"))
        for _ in range(2):
            page.go_back()
            settled(page)
        view.wait("location.pathname === '/timeline'")
        view.wait("!new URLSearchParams(location.search).get('from')")


def test_the_next_hit_of_a_search_is_shown(chromium: Any, address: str) -> None:
    with tab(chromium, address) as view:
        page = view.open("/timeline?level=steps&find=convolve&profile=0")
        page.keyboard.press("n")
        view.wait("new URLSearchParams(location.search).get('from')")
        first = view.query()["from"]
        settled(page)
        page.keyboard.press("n")
        view.wait(f"new URLSearchParams(location.search).get('from') !== '{first}'")
        assert int(view.query()["from"]) > int(first)
        assert view.complaints == []


def test_a_turn_of_the_wheel_moves_what_is_there_in_the_next_frame(
    chromium: Any, address: str
) -> None:
    """The server's answer then replaces it, drawn afresh without any stretching."""
    with tab(chromium, address) as view:
        page = view.open("/timeline")
        box = page.locator("#timeline-rows .nsewdrag").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        moved = page.evaluate(
            """() => new Promise((done) => {
              const plot = document.querySelector('#timeline-rows .js-plotly-plot');
              const before = plot.layout.xaxis.range.join();
              const turn = { deltaY: -400, bubbles: true, cancelable: true, clientX: 700 };
              plot.querySelector('.nsewdrag').dispatchEvent(new WheelEvent('wheel', turn));
              requestAnimationFrame(() => requestAnimationFrame(() => {
                const part = plot._fullLayout._plots.xy.plot.node().getAttribute('transform');
                done([part, plot.layout.xaxis.range.join() === before]);
              }));
            })"""
        )
        scale = float(re.search(r"scale\(([\d.]+)", moved[0])[1])
        assert scale > 1.5 and moved[1], "moved before the figure was drawn anew"
        view.wait("new URLSearchParams(location.search).get('from')")
        view.wait("!document.querySelector('#timeline-rows .moving')")
        assert view.complaints == []


def test_time_is_marked_selected_and_asked_after(chromium: Any, address: str) -> None:
    with tab(chromium, address) as view:
        page = view.open("/timeline?level=steps")
        box = page.locator("#timeline-rows .nsewdrag").bounding_box()

        def at(x: float, y: float) -> tuple[float, float]:
            return box["x"] + x * box["width"], box["y"] + y * box["height"]

        page.mouse.move(*at(0.2, 0.1))
        page.keyboard.press("m")
        page.mouse.move(*at(0.4, 0.1))
        view.wait("new URLSearchParams(location.search).get('marks')")
        page.keyboard.press("m")
        view.wait("document.querySelector('#timeline-measured').innerText.includes('A → B')")
        page.mouse.move(*at(0.3, 0.1))
        page.keyboard.down("Shift")
        page.mouse.down()
        page.mouse.move(*at(0.5, 0.4), steps=3)
        page.mouse.up()
        page.keyboard.up("Shift")
        view.wait("document.querySelector('#timeline-kinds').innerText.includes('IPU 0, IPU 1')")
        page.mouse.click(*at(0.01, 0.1))
        view.wait(
            "document.querySelector('#timeline-step').innerText.includes('variables live then')"
        )
        query = view.query()
        assert len(query["marks"].split(",")) == 2
        assert query["select"].endswith(",0,1")
        assert view.complaints == []


def test_a_query_runs_and_is_in_its_address(chromium: Any, address: str, report: Report) -> None:
    with tab(chromium, address) as view:
        page = view.open("/query")
        page.wait_for_selector("#query-text")
        page.fill("#query-text", "SELECT name, cycles FROM ops ORDER BY cycles DESC LIMIT 3")
        page.keyboard.press("Control+Enter")
        largest = report.ops.sort_values("cycles", ascending=False, kind="stable")["name"].iloc[0]
        view.wait(f"document.querySelector('#query-rows').innerText.includes('{largest}')")
        page.goto(page.url)
        settled(page)
        view.wait(f"document.querySelector('#query-rows').innerText.includes('{largest}')")
        view.open("/query?sql=DROP TABLE ops")
        view.wait("document.querySelector('#query-rows')?.innerText.includes('not authorized')")
        assert view.complaints == []


def test_a_part_of_the_flame_graph_is_opened_and_left(chromium: Any, address: str) -> None:
    with tab(chromium, address) as view:
        page = view.open("/flame?at=layer2")
        page.locator("#flame-parts button", has_text="conv").first.click()
        view.wait("new URLSearchParams(location.search).get('at').startsWith('layer2')")
        view.wait("document.querySelector('#costs-trail').innerText.includes('conv')")
        page.locator("#costs-trail .trail button", has_text="all").click()
        view.wait("!new URLSearchParams(location.search).get('at')")
        assert view.complaints == []


_HEADS_ARE_DRAWN = (
    "[...document.querySelectorAll('.ag-header-row')].every(row => row.children.length)"
)


def test_no_page_has_a_serious_fault_of_accessibility(chromium: Any, address: str) -> None:
    """axe-core finds none, in the light theme and, where colours differ most, in the dark one."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    grave = ("serious", "critical")
    faults = []
    for scheme, paths in (("light", [page.path for page in PAGES]), ("dark", ["/", "/timeline"])):
        with tab(chromium, address, color_scheme=scheme) as view:
            for path in paths:
                page = view.open(path)
                view.wait(_HEADS_ARE_DRAWN)
                page.wait_for_timeout(150)  # names are put right after the page is drawn
                for fault in axe.run(page).response["violations"]:
                    if fault["impact"] in grave:
                        faults.append((scheme, path, fault["id"], fault["nodes"][0]["html"][:120]))
    assert faults == []


def test_a_directory_is_followed_from_one_profile_to_the_next(
    chromium: Any, demo: Path, tmp_path: Path
) -> None:
    """The newest profile is announced and, by a click, shown, with the previous one to compare."""
    profiles = FollowedProfiles(tmp_path)
    assert profiles.refresh() == ""
    _appear(demo / "training", tmp_path / "first" / "training")
    assert "first" in profiles.refresh()
    with serving(following_app(profiles)) as address, tab(chromium, address) as view:
        page = view.open("/")
        assert "training, executed" in page.inner_text("#head")
        _appear(demo / "inference", tmp_path / "second" / "inference")
        page.wait_for_selector("#toast >> text=A new profile: second/inference", timeout=20_000)
        assert "training, executed" in page.inner_text("#head"), "what is read stays"
        page.get_by_role("button", name="Show it").click()
        page.wait_for_selector("#head >> text=inference, executed", timeout=20_000)
        page.wait_for_function("() => !document.querySelector('#toast').innerText")
        assert len(profiles) == 2
        assert profiles.get(1).meta["kind"] == "training"
        assert view.complaints == []


def test_a_followed_directory_may_be_empty(chromium: Any, demo: Path, tmp_path: Path) -> None:
    """Before the first run, and after its profile was removed, the page waits and says for what."""
    out = tmp_path / "out"
    with (
        serving(following_app(FollowedProfiles(out))) as address,
        tab(chromium, address) as view,
    ):
        page = view.open("/timeline")
        words = page.inner_text("#page")
        assert "Waiting for a profile" in words
        assert "does not exist yet" in words
        assert f"ipu-run --profile-dir {out} train.py" in words
        _appear(demo / "training", out / "training")
        page.wait_for_selector("#timeline-rows .js-plotly-plot", timeout=20_000)
        shutil.rmtree(out / "training")
        page.wait_for_selector("#page >> text=Waiting for a profile", timeout=20_000)
        assert "does not exist" not in page.inner_text("#page")
        assert view.complaints == []


def test_a_run_that_goes_on_is_told_from_one_that_was_ended(
    chromium: Any, demo: Path, tmp_path: Path
) -> None:
    """By the lock of who writes the partial file, which ends with its process."""
    partial = tmp_path / "profile.pop.partial"
    shutil.copyfile(demo / "training" / "profile.pop", partial)
    with contextlib.closing(sqlite3.connect(partial)) as file, file:
        file.execute("UPDATE meta SET value = 'false' WHERE key = 'complete'")
    assert lock.acquire(tmp_path / "profile.pop")
    with (
        serving(following_app(FollowedProfiles(tmp_path))) as address,
        tab(chromium, address) as view,
    ):
        page = view.open("/")
        page.wait_for_selector("#notes >> text=A run is writing this profile now")
        lock.release(tmp_path / "profile.pop")
        page.wait_for_selector("#notes >> text=This profile was not finished", timeout=20_000)
        assert view.complaints == []


def _appear(profile: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copyfile(profile / "profile.pop", folder / "profile.pop")
