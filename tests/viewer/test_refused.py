"""Every parameter of every page: what there is not is refused in words, never in silence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from ipuscope.profiler import open_report
from ipuscope.viewer.app import PAGES, create_app
from ipuscope.viewer.pages import common, refused, timespan
from ipuscope.viewer.pages.common import Page
from tests.synthetic import synthetic_profile
from tests.viewer.page_requests import PageRequests

PAGE = {page.name: page for page in PAGES}
BAD = ("-7", "99999999999", "1.5", "zz zz\0{}%s<b>", "9" * 3000, "1e400", "nan", ",,x,")
ANY_WORDS = {"find", "sql"}  # a search may find nothing, a statement be wrong: that is an answer
CUT = 20  # characters of a value, in a failure


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> PageRequests:
    folder = tmp_path_factory.mktemp("refused")
    reports = [open_report(synthetic_profile(folder / f"{name}.pop", tiles=16)) for name in "ab"]
    return PageRequests(create_app(*reports))


def texts(node: Any) -> Iterator[str]:
    """What the warnings of a page's or a callback's answer say."""
    if isinstance(node, list):
        for one in node:
            yield from texts(one)
    elif isinstance(node, dict):
        props = node.get("props", {})
        if "warning" in str(props.get("className", "")):
            yield str(props["children"])
        for one in node.values():
            yield from texts(one)


def answers(pages: PageRequests, page: Page, **params: str) -> Iterator[dict[str, Any]]:
    """Answers of the page and its callbacks, each a JSON object."""
    where = {"theme": "light", "width": 1000, "search": "?" + urlencode(params)}
    for what, request in pages.of_page(page, where):
        answer = pages.ask(request)
        if not answer:  # nothing to update
            continue
        assert answer.startswith("{"), (page.name, what, params, answer[:200])
        said = json.loads(answer)
        assert "sideUpdate" not in said, (page.name, what, params)  # a failure's message
        yield said


def parameters(pages: PageRequests, page: Page) -> list[str]:
    """The parameters of a page, by the controls that its layout has."""
    found: set[str] = set()

    def look(node: Any) -> None:
        if isinstance(node, list):
            for one in node:
                look(one)
        elif isinstance(node, dict):
            id = node.get("id")
            if isinstance(id, dict) and "param" in id:
                found.add(id["param"])
            for one in node.values():
                look(one)

    look(next(answers(pages, page)))
    return sorted(found)


@pytest.mark.parametrize("name", PAGE)
def test_what_there_is_not_is_refused_in_words(pages: PageRequests, name: str) -> None:
    page = PAGE[name]
    names = parameters(pages, page)
    assert "profile" in names
    for at, param in enumerate(sorted({*names, "theme", "nothing of the kind"} - ANY_WORDS)):
        for bad in (BAD[0], BAD[1 + at % (len(BAD) - 1)]):  # each value for some parameters
            answered = answers(pages, page, **{param: bad})
            if bad == BAD[0]:  # of others only as far as it is said
                answered = iter(list(answered))
            words = (words for one in answered for words in texts(one))
            assert any("There is no" in one for one in words), (param, bad[:CUT])


@pytest.mark.parametrize("name", PAGE)
def test_what_a_page_writes_into_its_address_is_not_refused(pages: PageRequests, name: str) -> None:
    assert [words for one in answers(pages, PAGE[name]) for words in texts(one)] == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("", ""), ""),
        ((None, None), ""),
        (("10", "90"), ""),
        (("0", "100"), ""),
        (("50", "10"), "window from 50 to 10: it ends before it begins. All is shown."),
        (("50", "50"), "window from 50 to 50: it ends where it begins. All is shown."),
        (("-9", "50"), "window from -9 to 50: there are cycles 0 to 100. This is 0 to 50."),
        (("50", "900"), "window from 50 to 900: there are cycles 0 to 100. This is 50 to 100."),
        (("-9", "-5"), "window from -9 to -5: there are cycles 0 to 100. All is shown."),
        (("x", "50"), "window from “x” to 50: there are cycles 0 to 100. All is shown."),
        (("50", ""), "window from 50 to nowhere: there are cycles 0 to 100. All is shown."),
    ],
)
def test_a_window_that_is_not_shown_as_asked_is_refused(asked: tuple[str, str], said: str) -> None:
    words = common.no_window(*asked, 100, "cycles")
    assert words == (f"There is no {said}" if said else "")
    if not said and asked[0]:
        assert common.window(*asked, 100) == tuple(map(float, asked))


@pytest.mark.parametrize(
    ("select", "fine"),
    [
        ("", True),
        ("10,50", True),
        ("10,50,0,3", True),
        ("10,50,0,4", False),
        ("10,50,3,0", False),
        ("10,500", False),
        ("10,50,0", False),
        ("10,50,0,3,9", False),
    ],
)
def test_a_selection_that_is_not_taken_as_asked_is_refused(select: str, fine: bool) -> None:
    assert (timespan.refusals("", "", "", select, 100, 4) == []) == fine


def test_what_is_refused_is_named_with_what_there_is_and_a_way_out(pages: PageRequests) -> None:
    asked = {"follow": "900", "unit": "parsecs", "pins": "1,77"}
    layout = next(answers(pages, PAGE["Timeline"], **asked))
    assert list(texts(layout["response"]["alert"])) == [
        "There is no 77 in “pinned”: there are 0 to 3. It is left out.",
        "There is no “parsecs” in “time in”: there are cycles and µs. This is cycles.",
        "There is no micro-batch 900: there are 0 to 9. None is chosen; choose in “follow a"
        " micro-batch”.",
    ]


def test_an_address_of_too_many_parameters_is_refused(pages: PageRequests) -> None:
    asked = {f"p{at}": "1" for at in range(common.MOST_PARAMETERS + 1)}
    said = list(texts(next(answers(pages, PAGE["Memory"], **asked))))
    assert len(said) == 1
    assert "50 parameters at the most" in said[0]


@pytest.mark.parametrize(
    ("words", "there"),
    [
        (["none", "0", "1", "2"], "there are none and 0 to 2"),
        (["a"], "there is a only"),
        (["0", "2"], "there are 0 and 2"),
        ([str(at) for at in range(3, 1500)], "there are 3 to 1,499"),
        ([f"x{at}" for at in range(20)], "there are x0, x1, x2, x3, x4, x5, x6, x7 and 12 more"),
    ],
)
def test_what_there_is_is_said_in_short(words: list[str], there: str) -> None:
    assert refused.names(words) == there
