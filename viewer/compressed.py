"""Answers of the viewer's server, compressed for browsers that take gzip."""

from __future__ import annotations

import gzip
from functools import lru_cache

from flask import Response, request

LEAST = 1400  # bytes: fewer fit one packet anyway
_KINDS = ("text/html", "text/css", "text/plain", "application/json", "image/svg+xml")
_SCRIPTS = ("text/javascript", "application/javascript")


def compressed(response: Response) -> Response:
    """The answer, compressed if it is long text: figures quickly, scripts once."""
    script = response.mimetype in _SCRIPTS
    if response.status_code != 200 or not (script or response.mimetype in _KINDS):
        return response
    response.vary.add("Accept-Encoding")
    if not request.accept_encodings.quality("gzip") or "Content-Encoding" in response.headers:
        return response
    response.direct_passthrough = False  # a file's bytes are read here
    body = response.get_data()
    if len(body) < LEAST:
        return response
    response.set_data(_script(body) if script else gzip.compress(body, 1, mtime=0))
    response.headers["Content-Encoding"] = "gzip"
    return response


@lru_cache(maxsize=64)
def _script(body: bytes) -> bytes:
    return gzip.compress(body, 6, mtime=0)
