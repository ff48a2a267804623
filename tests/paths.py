"""Where things are: the checkout's root, for tests in folders below it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"

# pages that tools/site_pages.py makes while the site is built
MADE = {ROOT / "docs" / "reference" / name for name in ("commands.md", "python.md")}
