"""The viewer inside a notebook: served from the notebook's own process, shown in a frame."""

from __future__ import annotations

import html
import logging
import threading
from dataclasses import dataclass
from typing import Any

from werkzeug.serving import make_server

from ipuscope.profiler import Report
from ipuscope.viewer.app import create_app
from ipuscope.viewer.guard import Guard


@dataclass(frozen=True)
class Shown:
    """A viewer that runs until `close` or the end of the process; a notebook displays it.

    ``address`` is reachable from this machine only. A notebook on another machine shows a link
    instead unless the port is forwarded.
    """

    address: str
    height: int
    _server: Any

    def _repr_html_(self) -> str:
        where = html.escape(self.address)
        return (
            f"<iframe src='{where}' width='100%' height='{self.height}' style='border:0'></iframe>"
            f"<p><a href='{where}' target='_blank'>{where}</a></p>"
        )

    def close(self) -> None:
        """Stop the viewer."""
        self._server.shutdown()
        self._server.server_close()


def show(report: Report, other: Report | None = None, height: int = 800) -> Shown:
    """Show the viewer of a report (or two, compared) in a frame ``height`` pixels high."""
    app = create_app(report, other, Guard(framed=True))
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not a line a request
    server = make_server("127.0.0.1", 0, app.server, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return Shown(f"http://127.0.0.1:{server.server_port}/", height, server)
