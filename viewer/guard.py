"""Who may ask the viewer, and what a page may do: the boundary between a profile and a browser.

A request must name a host that the viewer was told of (otherwise a page elsewhere could read the
profile by pointing its own name at this machine), come from the viewer's own pages, be small, and
carry the token of the printed address. A page may only run scripts that carry the nonce of its
answer or come from the viewer, and may fetch nothing from elsewhere. See docs/security.md.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import ipaddress
import logging
import os
import re
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from dash import Dash
from flask import Response, g, redirect, request
from werkzeug.exceptions import HTTPException

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN_VARIABLE = "IPUSCOPE_VIEWER_TOKEN"
MAX_BODY_BYTES = 1 << 20  # a callback's request is a few kilobytes, mostly a figure's state
_EVERYWHERE = ("0.0.0.0", "::")
_MAX_AGE_SECONDS = 7 * 24 * 3600
_SCRIPT = re.compile(r"<script(?=[\s>])", re.IGNORECASE)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Guard:
    """Who the viewer answers.

    ``hosts``: names allowed in a request's Host, without ports; ``token``: has to be in the
    address, "" if none is needed, as in tests; ``framed``: pages on this machine's other ports,
    such as a notebook, may frame the viewer.
    """

    hosts: frozenset[str] = field(default_factory=lambda: frozenset(LOOPBACK))
    token: str = ""
    framed: bool = False

    @classmethod
    def bound_to(cls, address: str, more: Iterable[str] = ()) -> Guard:
        """The guard of a viewer that listens at an address, which also answers to ``more`` names.

        Its token is fresh, as other users of this machine reach its ports too, or the one in
        `TOKEN_VARIABLE`, known to whoever started this process. If it listens everywhere
        ("0.0.0.0", "::"), this machine's names and all numeric addresses are hosts: only a name can
        be pointed at another machine.
        """
        names = {address, *more}
        if is_loopback(address) or address in _EVERYWHERE:
            names |= {*LOOPBACK, *({socket.gethostname()} if address in _EVERYWHERE else ())}
        token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        return cls(frozenset(host.strip("[]").lower() for host in names), token)

    def knows(self, host: str | None) -> bool:
        """Whether a request's Host (or an origin's) is allowed."""
        name = host_name(host)
        everywhere = not self.hosts.isdisjoint(_EVERYWHERE)
        return name in self.hosts or (everywhere and _is_number(name))

    @property
    def cookie(self) -> str:
        """The name of the token's cookie: two viewers on one host do not share it."""
        return f"ipuscope-{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"


def is_loopback(address: str) -> bool:
    """Whether a viewer listening at this address is reachable from this machine only."""
    if address.lower() == "localhost":
        return True
    return _is_number(address) and ipaddress.ip_address(address).is_loopback


def host_name(host: str | None) -> str:
    """The lower-case name in ``name:port`` or ``[address]:port``; "" if there is none."""
    try:
        return (urlsplit(f"//{host or ''}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class GuardedDash(Dash):
    """A Dash app that escapes its frame and puts the answer's nonce on inline scripts."""

    def interpolate_index(self, *, title: str = "", **parts: Any) -> str:  # type: ignore[override]
        """The page's HTML, with an escaped title and a nonce on its scripts."""
        # A brace would be taken for one of the frame's own places.
        words = html.escape(str(title)).replace("{", "&#123;")
        words = words.encode("utf-8", "replace").decode()  # a directory's name may not be text
        page: str = super().interpolate_index(title=words, **parts)
        return _SCRIPT.sub(f'<script nonce="{_nonce()}"', page)


def protect(app: Dash, guard: Guard) -> None:
    """Guard an app: checks before each request, headers after, no tracebacks."""
    app.server.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES

    @app.server.before_request
    def admit() -> Response | None:
        return _refusal(guard) or _taken_token(guard)

    app.server.after_request(compressed)  # registered first, it comes last
    app.server.after_request(lambda response: _headers(response, guard.framed))
    app.server.register_error_handler(Exception, _answer_to)


def _refusal(guard: Guard) -> Response | None:
    """The answer to a refused request, saying what to do about it; None if it is allowed."""
    if not guard.knows(request.headers.get("Host")):
        return _plain(
            "This viewer does not answer to this name. Open the address that it printed, or start"
            " it with --allow-host NAME.",
            403,
        )
    origin = request.headers.get("Origin")
    if origin is not None and not _is_own(origin):
        return _plain("This viewer answers only its own pages: this request is from another.", 403)
    length = request.content_length
    if length is not None and length > MAX_BODY_BYTES:
        return _plain(f"A request may have {MAX_BODY_BYTES:,} bytes, and this has {length:,}.", 413)
    expected = guard.token
    token = request.args.get("token", "") or request.cookies.get(guard.cookie, "")
    if expected and not secrets.compare_digest(token.encode(), expected.encode()):
        return _plain(
            "This viewer wants the token in the address: open the whole address that it printed"
            " when it was started.",
            403,
        )
    return None


def _is_own(origin: str) -> bool:
    """Whether an Origin matches the requested address; another port is somebody else's."""
    try:
        return urlsplit(origin).netloc.lower() == (request.headers.get("Host") or "").lower() != ""
    except ValueError:
        return False


def _taken_token(guard: Guard) -> Response | None:
    """Move a token from the address, where histories and links would keep it, into a cookie."""
    if not guard.token or "token" not in request.args or request.method != "GET":
        return None
    query = "&".join(
        part
        for part in request.query_string.decode("latin-1").split("&")
        if not part.startswith("token=")
    )
    # "//name/" would be another host: the path begins with one slash.
    path = "/" + request.path.lstrip("/\\")
    answer: Any = redirect(path + (f"?{query}" if query else ""))
    answer.set_cookie(
        guard.cookie, guard.token, max_age=_MAX_AGE_SECONDS, httponly=True, samesite="Strict"
    )
    return answer


def _nonce() -> str:
    if "nonce" not in g:
        g.nonce = secrets.token_urlsafe(16)
    return g.nonce


# Whose pages may frame a notebook's viewer: this machine's, on any port.
_OWN_MACHINE = "http://127.0.0.1:* http://localhost:* https://127.0.0.1:* https://localhost:*"


def _headers(response: Response, framed: bool = False) -> Response:
    """Keep other origins from framing the viewer (except a notebook) or learning from it.

    Its own pages fetch nothing from elsewhere. Styles may be inline: plotly and the tables set
    them, and with nothing to fetch they leak nothing.
    """
    policy = (
        "default-src 'none'",
        f"script-src 'self' 'nonce-{_nonce()}'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        f"frame-ancestors 'self' {_OWN_MACHINE}" if framed else "frame-ancestors 'self'",
    )
    response.headers["Content-Security-Policy"] = "; ".join(policy)
    response.headers["X-Content-Type-Options"] = "nosniff"
    if not framed:
        response.headers["X-Frame-Options"] = "SAMEORIGIN"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
    return response


def _answer_to(error: Exception) -> Response:
    """The failure in a line; 400 if Dash cannot read a request: callbacks show their own errors."""
    if isinstance(error, HTTPException):
        return _plain(error.description or error.name, error.code or 500)
    _log.debug("a request to %s was refused", request.path, exc_info=error)
    return _plain(f"This request cannot be answered ({type(error).__name__}).", 400)


def _plain(words: str, code: int) -> Response:
    return Response(words + "\n", code, mimetype="text/plain")


_LEAST = 1400  # bytes: fewer fit one packet anyway
_OF_TEXT = ("text/html", "text/css", "text/plain", "application/json", "image/svg+xml")
_OF_SCRIPTS = ("text/javascript", "application/javascript")


def compressed(response: Response) -> Response:
    """The answer, compressed if it is long text: figures quickly, scripts once."""
    script = response.mimetype in _OF_SCRIPTS
    if response.status_code != 200 or not (script or response.mimetype in _OF_TEXT):
        return response
    response.vary.add("Accept-Encoding")
    if not request.accept_encodings.quality("gzip") or "Content-Encoding" in response.headers:
        return response
    response.direct_passthrough = False  # a file's bytes are read here
    body = response.get_data()
    if len(body) < _LEAST:
        return response
    response.set_data(_script(body) if script else gzip.compress(body, 1, mtime=0))
    response.headers["Content-Encoding"] = "gzip"
    return response


@lru_cache(maxsize=64)
def _script(body: bytes) -> bytes:
    return gzip.compress(body, 6, mtime=0)
