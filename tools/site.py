"""Builds the documentation's site into site/, and stops at a warning: ``python -m tools.site``.

Pages that repeat what is elsewhere (the commands' options, docstrings, CONTRIBUTING.md) are made
while it builds, by `tools.site_pages`, so that they cannot lag behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main() -> int:
    """The exit code of mkdocs."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--quiet"]
    # the banner says what mkdocs' maintainers plan: nothing about this site
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if code == 0:
        print(f"the site is at {ROOT / 'site' / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
