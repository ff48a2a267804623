"""Tabs of a headless browser on the viewer.

A tab that shows the viewer already goes to the next page as a link does, without loading its
scripts again: that is most of the time of a page.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tools.screenshots import settled

# dash-cytoscape passes the default, which Cytoscape.js takes for the user's
_OF_CYTOSCAPE = "You have set a custom wheel sensitivity"
_COMPLAINS = {"error", "warning", "assert", "trace"}  # plotly's warnings come as traces
_SIZE: Any = {"width": 1280, "height": 900}

# What one test chose is nothing to the next: values that hold on several pages are forgotten.
_FORGET = """(theme) => {
  shared.forEach((group) => { group.values = {}; });
  Object.assign(chips, { value: '', seen: {} });
  document.querySelectorAll('dialog[open]').forEach((one) => one.close());
  document.documentElement.dataset.theme = theme;
}"""
# As dcc.Link does.
_GO = """(address) => {
  window.history.pushState({}, '', address);
  window.dispatchEvent(new CustomEvent('_dashprivate_pushstate'));
  window.scrollTo(0, 0);
}"""
_NOWHERE = "/no-page"  # between two pages: nothing of the first is left on the second


class Tab:
    """A page of the browser, with the errors and warnings it logged."""

    def __init__(self, page: Any, address: str, theme: str = "light") -> None:
        self.page, self.address, self._theme = page, address, theme
        self.complaints: list[str] = []
        self.page.emulate_media(color_scheme=theme)
        self.page.set_viewport_size(_SIZE)
        self.page.on(
            "console",
            lambda m: (
                self.complaints.append(m.text)
                if m.type in _COMPLAINS and _OF_CYTOSCAPE not in m.text
                else None
            ),
        )
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))

    def anew(self) -> None:
        """As it was opened, for the next test."""
        self.complaints.clear()
        self.page.emulate_media(media="screen", color_scheme=self._theme)
        self.page.set_viewport_size(_SIZE)
        self.page.mouse.move(0, 0)

    def load(self, path: str) -> Any:
        """Load a page with all its scripts, as the first of a viewer."""
        self.page.goto(self.address + path)
        settled(self.page)
        return self.page

    def open(self, path: str) -> Any:
        """Go to a page, which begins with nothing but its address."""
        if not self.page.url.startswith(self.address):
            return self.load(path)
        self.go(path)
        settled(self.page, pause=100)
        return self.page

    def go(self, path: str) -> None:
        """`open` without waiting until the page is drawn."""
        self.page.evaluate(_FORGET, self._theme)
        self.page.evaluate(_GO, _NOWHERE)
        self.wait(
            f"document.querySelector('#page').innerText.includes('There is no page {_NOWHERE}')"
        )
        self.page.evaluate(_GO, path)
        self.wait(f"!document.querySelector('#page').innerText.includes('page {_NOWHERE}')")

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

    def wait_for_query(self, name: str, value: str = "") -> None:
        """Until the address has a parameter, of this value if one is given."""
        there = f"new URLSearchParams(location.search).get('{name}')"
        self.wait(f"{there} === {json.dumps(value)}" if value else there)


@contextlib.contextmanager
def tab(context: Any, address: str, theme: str = "light") -> Iterator[Tab]:
    """Open a tab.

    It is opened by the page that stays, so that both are of one process, which has the scripts
    compiled: a third of the time of a tab in a process of its own.
    """
    with context.expect_page() as opening:
        context.pages[0].evaluate("() => { window.open('about:blank'); }")
    opened = Tab(opening.value, address, theme)
    try:
        yield opened
    finally:
        opened.page.close()
