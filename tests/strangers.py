"""Profiles as a stranger might send them.

Names that are not what names should be, and one changed cell anywhere.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

# Columns whose text a profile's writer chooses freely.
NAMES = {
    "stages": (),
    "blocks": ("name",),
    "ops": ("name", "module", "file", "plan"),
    "program_tree": ("name",),
    "compute_set_info": ("name",),
    "vertex_types": ("name",),
    "variables": ("name", "dtype"),
    "bodies": ("name",),
    "runs": ("name",),
    "target": ("name",),
}
HTML = (
    "</title><script>window.pwned = 1</script><img src=https://evil.example/x"
    " onerror='window.pwned = 1'><a href='https://evil.example/'>here</a>{%scripts%}%{x}"
)
TERMINAL = "\x1b]0;pwned\x07\x1b[31m=cmd|' /C calc'!A0\r\n\u202e"


def named(path: Path, words: str) -> Path:
    """The profile with ``words`` in front of every name in it, and in its header."""
    with sqlite3.connect(path) as base:
        for table, columns in NAMES.items():
            for column in columns:
                base.execute(f"UPDATE {table} SET {column} = ? || {column}", (words,))
        for key in ("model", "writer", "created", "kind", "state"):
            base.execute(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(words + key))
            )
        base.execute(
            "INSERT OR REPLACE INTO meta VALUES ('warnings', ?)", (json.dumps([words, words]),)
        )
        base.execute("UPDATE options SET value = ?", (json.dumps(words),))
    base.close()
    return path
