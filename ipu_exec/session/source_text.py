"""The text of the user's files that operators come from, for the profile's header."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from ipu_exec.graph import Graph
from ipu_exec.option_groups.environment import NO_SOURCE_VARIABLE

MOST_BYTES = 512 << 10  # of all files together
MOST_OF_ONE = 256 << 10


def source_text(graph: Graph) -> dict[str, str]:
    """Text by file, those with the most operators first, as far as there is room.

    Files that cannot be read (a notebook's cells) are left out; all are where ``--no-source`` of
    `ipu-run` says so.
    """
    if os.environ.get(NO_SOURCE_VARIABLE):
        return {}
    found, room = {}, MOST_BYTES
    for file, _ in Counter(op.file for op in graph.ops if op.file).most_common():
        try:
            if os.path.getsize(file) > min(room, MOST_OF_ONE):
                continue
            text = Path(file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found[file] = text
        room -= len(text.encode())
    return found
