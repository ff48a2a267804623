"""The HTML report: one file that opens offline, draws, and shows names as text."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights import insights
from ipuscope.planner.search.split_search import quickest
from ipuscope.profiler import analysis, open_report
from ipuscope.profiler.units import sentence
from ipuscope.reports import html
from ipuscope.reports.html import write_html
from ipuscope.viewer.figures import lanes
from tests.strangers import HTML, named
from tests.synthetic import synthetic_profile


@pytest.fixture(scope="module")
def of_demo(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the example's training."""
    path = tmp_path_factory.mktemp("html") / "report.html"
    with open_report(demo / "training") as report:
        write_html(report, path)
    return path


def test_the_file_is_whole_or_not_there(demo: Path, of_demo: Path, tmp_path: Path) -> None:
    assert [path.name for path in of_demo.parent.iterdir()] == ["report.html"]
    assert of_demo.stat().st_size < 5_000_000
    with open_report(demo / "training") as report, pytest.raises(OSError):
        write_html(report, tmp_path / "none" / "report.html")
    assert not [*tmp_path.iterdir()]


def test_more_steps_than_can_be_drawn_are_left_out(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MOST_STEPS", 10)
    with open_report(demo / "training") as report:
        (section,) = (one for one in html._sections(report) if one.title == "Pipeline")
    assert "Strip: empty, since its steps are too many to draw." in section.note


def test_it_says_why_and_what_to_do(demo: Path) -> None:
    """The report gives reasons and advice, and all its heat maps share one scale."""
    with open_report(demo / "training") as report:
        sections = {section.title: section for section in html._sections(report)}
        waits = sections["What a weight update waits for"]
        tables = {title: section.table for title, section in sections.items() if section.table}
        first = insights(report)[0]
        assert f"{analysis.pace(report).cycles:,} cycles" in waits.note
        gain, title, _, change = tables["What to do about it"][1][0]
        assert title == sentence(first.title) and gain == first.gain_in_words
        said, _, code = change.partition("\n")
        assert said == first.change_in_words and code == "\n".join(first.code)
        assert f"<pre>{escape(code)}</pre>" in html._cell(change, "change")
        assert tables["The longest waits"][1]
        best = quickest(Costs.from_report(report)).prediction.assignment
        assert len(tables["The quickest split of its Blocks"][1]) == len(best.ipus)
        options = dict(tables["Options"][1])
        assert options["Training.gradientAccumulation"] == "10"
        uneven = next(one for one in insights(report) if "unevenly" in one.title)
        op = report.ops[report.ops["name"] == uneven.title.split(" uses")[0]].iloc[0]
        assert uneven.why.endswith(f" is {op['file']}:{op['line']}.") and uneven.line > 0
        whys = [row[2] for row in tables["What to do about it"][1]]
        assert uneven.why in whys and not insights(report)[0].file  # options change there
    (links,) = sections["Links between IPUs"].figures
    assert (
        links["dark"].data[0].y[0].startswith("IPU 0 to 1 · ")
        and links["light"].data[0].z.max() > 0
    )
    assert sections["The model as a graph"].figures
    maps = [one["light"] for one in sections["Live bytes over tiles and program steps"].figures]
    assert len(maps) == 4
    assert len({(figure.data[0].zmin, figure.data[0].zmax) for figure in maps}) == 1
    assert maps[0].data[0].zmax == max(figure.data[0].z.max() for figure in maps)


_UNFOLD = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_draws_offline(chromium: Any, of_demo: Path, theme: str) -> None:
    context = chromium.new_context(offline=True, color_scheme=theme)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.goto(of_demo.as_uri())
    page.wait_for_selector("#note", state="detached", timeout=30_000)
    assert page.locator("h2").first.inner_text() == "Summary"
    high = page.evaluate("document.documentElement.scrollHeight")
    assert high < 4000  # what matters first is seen first, the rest is folded
    figures = page.locator(".figure").count()
    assert figures >= 8
    page.evaluate(_UNFOLD)
    page.wait_for_function(
        "(count) => document.querySelectorAll('.figure .js-plotly-plot, .figure.js-plotly-plot')"
        ".length >= count",
        arg=figures,
    )
    assert page.locator(".figure .main-svg").count() >= figures
    assert page.evaluate("document.documentElement.scrollHeight") > 2 * high
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    assert complaints == []
    context.close()


@pytest.fixture(scope="module")
def opened(chromium: Any, of_demo: Path) -> Iterator[Any]:
    """That report in a window."""
    page = chromium.new_page()
    page.goto(of_demo.as_uri())
    page.wait_for_selector("#note", state="detached", timeout=30_000)
    yield page
    page.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [420, 1024])
def test_it_fits_a_narrow_window(opened: Any, width: int) -> None:
    """No table is wider than its section, no number breaks, no names of phases touch."""
    page = opened
    page.set_viewport_size({"width": width, "height": 900})
    page.reload()  # as it is first drawn at that width
    page.wait_for_selector("#note", state="detached", timeout=30_000)
    page.evaluate(_UNFOLD)
    page.wait_for_timeout(500)
    wide = page.evaluate(
        "() => [...document.querySelectorAll('.scroll'), document.scrollingElement]"
        ".filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
    )
    broken = page.evaluate(
        "() => [...document.querySelectorAll('td.number')].map((one) => [one, new Range()])"
        ".filter(([one, words]) => (words.selectNodeContents(one),"
        " words.getClientRects().length > 1)).map(([one]) => one.textContent)"
    )
    touching = page.evaluate(_TOUCHING)
    assert wide == broken == touching == []


_TOUCHING = """() => [...document.querySelectorAll('.figure')].flatMap((figure) => {
  const { left, right } = figure.getBoundingClientRect();
  const notes = [...figure.querySelectorAll('.annotation-text')];
  const boxes = notes.map((one) => one.getBoundingClientRect());
  const outside = boxes.filter((one) => one.left < left || one.right > right);
  const met = boxes.filter((one, i) => boxes.some((other, j) => j < i
    && other.left < one.right && one.left < other.right
    && other.top < one.bottom && one.top < other.bottom));
  return [...outside, ...met].map((one) => notes[boxes.indexOf(one)].textContent);
})"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [420, 640, 1440])
def test_names_of_phases_keep_apart(opened: Any, width: int) -> None:
    """Names that would touch lose their numbers, and one at the margin stays in the figure."""
    names = [["<b>ramp-down</b> 85.7 M", 70], ["<b>update</b> 183 M", 100]]
    apart = opened.evaluate(
        """([names, width]) => apart({ legend: { x: -1 }, margin: { l: 90, r: 16 },
          xaxis: { range: [0, 100] }, annotations: names.map(([text, x]) =>
            ({ text, x, yshift: 22, font: { size: 12 } })) }, width).map((one) =>
              [one.text, one.x * (width - 106) / 100 + one.xshift])""",
        [names, width],
    )
    short = width == 420
    assert [words for words, _ in apart] == [
        name.split(" ")[0] if short else name for name, _ in names
    ]
    assert apart[1][1] + 4 * len("update 183 M") / (2 if short else 1) < width - 90
    assert apart[0][1] == pytest.approx(0.7 * (width - 106))


@pytest.mark.browser
def test_a_strangers_names_run_nothing_and_call_nobody(chromium: Any, tmp_path: Path) -> None:
    """The page allows only its own three scripts, by hash.

    A name that looks like a placeholder of the template is shown as it is.
    """
    path = named(synthetic_profile(tmp_path / "profile.pop", tiles=8), HTML + "@@FIGURES@@")
    with open_report(path) as report:
        write_html(report, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    policy = text.split('http-equiv="Content-Security-Policy"')[1].split(">")[0]
    assert policy.count("'sha256-") == 3
    assert "script-src 'unsafe-inline'" not in policy
    page = chromium.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("#note", state="detached", timeout=30_000)
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.querySelectorAll('a, img').length") == 0
    assert HTML + "@@FIGURES@@model" in page.inner_text("h1")
    # What a name would have to do, were it markup: the policy stops it too.
    page.evaluate(
        "() => { const one = document.createElement('script'); one.textContent = 'window.pwned ="
        " 1'; document.body.append(one); document.body.insertAdjacentHTML('beforeend', '<p"
        " onclick=\"window.pwned = 1\" id=trap>'); document.querySelector('#trap').click(); }"
    )
    assert page.evaluate("window.pwned") is None
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    page.close()
