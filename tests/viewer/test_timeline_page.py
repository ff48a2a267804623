"""The timeline in a real browser: zooms, marks, selections, pins, searches and their keys."""

from __future__ import annotations

import pytest

from ipuscope.profiler import Report
from tests.viewer.browser import Tab
from tools.screenshots import settled

pytestmark = pytest.mark.browser


def test_an_address_restores_the_pipeline(view: Tab, training: Report) -> None:
    view.open("/pipeline?level=tasks&run=1&iteration=3&unit=µs&follow=4&from=200000&to=400000")
    low, high = view.plot("timeline-rows", "plot.layout.xaxis.range")
    scale = 1e6 / training.target.clock_hz
    assert low == pytest.approx(200_000 * scale)
    assert high == pytest.approx(400_000 * scale)
    assert view.plot("timeline-rows", "plot.data.some(t => t.name === 'micro-batch 4')")
    assert view.page.input_value("input[type=number]") == "3"
    view.page.locator(".more summary").click()
    assert "run 1" in view.page.inner_text(".more")


def test_a_control_changes_the_address_and_the_figure(view: Tab) -> None:
    page = view.open("/timeline")
    page.get_by_text("µs", exact=True).click()
    view.wait(
        "document.querySelector('#timeline-rows .js-plotly-plot').layout.xaxis.title.text ==="
        " 'time (µs)'"
    )
    assert view.query()["unit"] == "µs"
    page.reload()
    settled(page)
    assert view.plot("timeline-rows", "plot.layout.xaxis.title.text") == "time (µs)"


def test_the_wheel_zooms_and_brings_detail(view: Tab) -> None:
    page = view.open("/timeline")
    box = page.locator("#timeline-rows .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    for _ in range(6):
        page.mouse.wheel(0, -400)
        page.wait_for_timeout(60)
    view.wait_for_query("from")
    view.wait("document.querySelector('#timeline-rows .js-plotly-plot').layout.xaxis.range[0]")
    settled(page)
    low, high = int(view.query()["from"]), int(view.query()["to"])
    shown = view.plot("timeline-rows", "plot.layout.xaxis.range")
    assert 0 <= low < high
    assert shown[0] == pytest.approx(low, abs=2)
    page.keyboard.press("0")
    view.wait("!new URLSearchParams(location.search).get('from')")


def test_a_slice_is_pinned_by_its_ends_and_unpinned(view: Tab) -> None:
    page = view.open("/timeline?level=steps&at=100000,0&marks=5")
    page.get_by_role("button", name="Pin it").click()
    view.wait("new URLSearchParams(location.search).get('marks').split(',').length === 3")
    begin, end = (int(one) for one in view.query()["marks"].split(",")[1:])
    assert begin <= 100000 < end
    settled(page)
    assert f"{end - begin:,} cycles" in page.inner_text(".measured")
    page.get_by_role("button", name="Pin it").click()
    view.wait_for_query("marks", "5")


def test_p_again_unpins_the_lane_that_left_the_pointer(view: Tab) -> None:
    page = view.open("/timeline?level=steps")
    box = page.locator("#timeline-rows .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.9)
    page.keyboard.press("p")
    view.wait_for_query("pins", "3")
    view.wait(
        "document.querySelector('#timeline-rows .js-plotly-plot').layout.yaxis.ticktext[0]"
        " === '▴ IPU 3'"
    )
    page.keyboard.press("p")
    view.wait("!new URLSearchParams(location.search).get('pins')")
    page.keyboard.press("p")
    view.wait_for_query("pins", "3")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.6)
    page.keyboard.press("p")
    view.wait("/^3,[012]$/.test(new URLSearchParams(location.search).get('pins'))")


def test_overview_trace_and_counters_have_their_marks_one_below_the_other(view: Tab) -> None:
    for width in (1440, 900):
        view.page.set_viewport_size({"width": width, "height": 900})
        left = view.open("/timeline?level=steps").evaluate(
            "['overview', 'rows', 'counters'].map(name => document.querySelector("
            "`#timeline-${name} .js-plotly-plot`)._fullLayout.xaxis._offset)"
        )
        assert left[0] == left[1] == left[2]


def test_a_drag_over_the_overview_shows_that_part(view: Tab) -> None:
    page = view.open("/timeline?level=steps")
    box = page.locator("#timeline-overview .nsewdrag").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.25, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=5)
    page.mouse.up()
    view.wait_for_query("from")
    settled(page)
    end = view.plot("timeline-overview", "plot.layout.xaxis.range[1]")
    assert int(view.query()["from"]) == pytest.approx(end * 0.25, rel=0.05)
    assert int(view.query()["to"]) == pytest.approx(end * 0.5, rel=0.05)


def test_a_number_that_there_is_not_is_refused(view: Tab) -> None:
    page = view.open("/timeline")
    page.locator(".more summary").click()
    page.locator(".control input[type=number]").fill("99999")
    page.keyboard.press("Enter")
    view.wait("document.querySelector('#alert').innerText.includes('99999: there are 0 to')")
    view.wait("!location.search.includes('NaN')")
    assert page.input_value(".control input[type=number]") == "99999"


def test_a_figure_is_asked_by_keyboard_alone(view: Tab) -> None:
    """Down goes from lane to lane, P pins the one asked after, and focus stays where it is."""
    focused = "document.activeElement?.closest('#timeline-rows')"
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


def test_a_lanes_name_opens_it_between_its_lines_too(view: Tab) -> None:
    page = view.open("/timeline")
    view.plot("timeline-rows", "plot.layout.meta.lanes[1] = [1, 1]")  # as if it were folded
    box = page.locator("#timeline-rows .ytick text").nth(1).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    view.wait("document.querySelector('#timeline-rows .over-name')")
    page.mouse.down()
    page.mouse.up()
    view.wait_for_query("opened", "1")


def test_a_window_of_time_holds_behind_other_pages_and_is_a_step_back(view: Tab) -> None:
    page = view.open("/timeline?unit=µs")
    page.keyboard.press("w")
    view.wait_for_query("from")
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


def test_slices_of_a_name_are_counted_and_gone_through(view: Tab) -> None:
    page = view.open("/timeline?level=steps")
    page.keyboard.press("/")
    page.keyboard.type("convolve")
    view.wait("/[\\d,]+ slices/.test(document.querySelector('#timeline-found').innerText)")
    page.keyboard.press("Enter")
    view.wait("/ of /.test(document.querySelector('#timeline-hit').innerText)")
    view.wait_for_query("from")
    first = view.query()["from"]
    settled(page)
    page.evaluate("() => { document.activeElement.blur(); }")
    page.keyboard.press("n")
    view.wait(f"new URLSearchParams(location.search).get('from') !== '{first}'")
    assert int(view.query()["from"]) > int(first)


def test_a_turn_of_the_wheel_moves_what_is_there_before_it_is_drawn_anew(view: Tab) -> None:
    """The server's answer then replaces it, drawn afresh without any stretching."""
    page = view.open("/timeline")
    box = page.locator("#timeline-rows .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    moved = page.evaluate(
        """() => new Promise((done) => {
          const plot = document.querySelector('#timeline-rows .js-plotly-plot');
          const before = plot.layout.xaxis.range.join();
          const turn = { deltaY: -400, bubbles: true, cancelable: true, clientX: 700 };
          plot.querySelector('.nsewdrag').dispatchEvent(new WheelEvent('wheel', turn));
          const look = (frames) => {
            const part = plot._fullLayout._plots.xy.plot.node().getAttribute('transform');
            const same = plot.layout.xaxis.range.join() === before;
            const scale = Number((/scale\\(([\\d.]+)/.exec(part) || [0, 1])[1]);
            if (scale > 1.5 || !same || !frames) done([scale, same]);
            else requestAnimationFrame(() => look(frames - 1));
          };
          look(200);  // a busy machine leaves frames out
        })"""
    )
    scale, same = moved
    assert scale > 1.5 and same, "moved before the figure was drawn anew"
    view.wait_for_query("from")
    view.wait("!document.querySelector('#timeline-rows .moving')")


def test_time_is_marked_selected_and_asked_after(view: Tab) -> None:
    page = view.open("/timeline?level=steps")
    box = page.locator("#timeline-rows .nsewdrag").bounding_box()

    def at(x: float, y: float) -> tuple[float, float]:
        return box["x"] + x * box["width"], box["y"] + y * box["height"]

    page.mouse.move(*at(0.2, 0.1))
    page.keyboard.press("m")
    page.mouse.move(*at(0.4, 0.1))
    view.wait_for_query("marks")
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
    view.wait_for_query("step")
    view.wait("document.querySelector('#timeline-step').innerText.includes('variables live then')")
    query = view.query()
    assert len(query["marks"].split(",")) == 2
    assert query["select"].endswith(",0,1")
