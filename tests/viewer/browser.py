"""Tabs of a headless browser on the viewer."""

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

    def forget(self) -> None:
        """Nothing of what earlier tests had the browser remember."""
        self.page.goto(f"{self.address}/assets/style.css")
        self.page.evaluate("() => localStorage.clear()")

    def open(self, path: str) -> Any:
        """Load a page, and wait until it is drawn."""
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
        self.wait(f"document.querySelector('#{id}')?.innerText.includes({json.dumps(text)})")

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
