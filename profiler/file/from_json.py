"""JSON that may be a stranger's."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

MOST_DEPTH = 100  # of nested lists and objects, so that whatever walks them afterwards can


def loads(words: str | bytes) -> Any:
    """The value of a text; ValueError if it is not JSON, or nested too deep."""
    try:
        value = json.loads(words)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH}") from None
    text = words if isinstance(words, bytes) else words.encode()
    if text.count(b"[") + text.count(b"{") <= MOST_DEPTH:  # most lists are long, and hold no other
        return value
    inside: list[Any] = [[value]]
    depth = -1
    while inside:
        if depth > MOST_DEPTH:
            raise ValueError(f"it is nested deeper than {MOST_DEPTH}")
        parts = chain.from_iterable(one.values() if type(one) is dict else one for one in inside)
        inside = [part for part in parts if type(part) in (list, dict)]
        depth += 1
    return value
