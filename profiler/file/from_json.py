"""JSON that may be a stranger's."""

from __future__ import annotations

import json
from typing import Any

MOST_DEPTH = 100  # of nested lists and objects, so that whatever walks them afterwards can


def loads(words: str | bytes) -> Any:
    """The value of a text; ValueError if it is not JSON, or nested too deep."""
    try:
        value = json.loads(words)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH}") from None
    inside, depth = [value], 0
    while inside:
        if depth > MOST_DEPTH:
            raise ValueError(f"it is nested deeper than {MOST_DEPTH}")
        lists = [one for one in inside if isinstance(one, list)]
        dicts = [one for one in inside if isinstance(one, dict)]
        inside = [part for one in lists for part in one if isinstance(part, (list, dict))]
        inside += [part for one in dicts for part in one.values() if isinstance(part, (list, dict))]
        depth += 1
    return value
