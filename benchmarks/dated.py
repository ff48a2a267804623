"""The commit that the figures of a page are of."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_LINE = re.compile(r"^Figures are of commit .*\n\n", re.MULTILINE)
_TITLE = re.compile(r"^# .*\n\n(<!--.*-->\n\n)?", re.MULTILINE)


def commit() -> str:
    """The commit that is checked out, with ``+`` where sources of the compiler differ from it."""
    root = Path(__file__).parents[1]

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "ipu_exec", "profiler", "planner", "examples")
    return git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")


def dated(page: str, of: str = "") -> str:
    """The page with a line under its title that names the commit; an older such line goes."""
    line = f"Figures are of commit {of or commit()}; seconds differ from machine to machine.\n\n"
    return _TITLE.sub(lambda title: title[0] + line, _LINE.sub("", page), count=1)
