"""Pictures of large profiles in docs/images: BERT-Large on 8 IPUs and GPT-3 on 256.

``python -m benchmarks.viewer.pictures`` compiles BERT-Large, into a directory that it removes, and
takes the pictures (`tools.screenshots`). ``--bert-large`` takes a profile that is there
already; ``--gpt3`` that of examples/gpt3_175b.py, whose compile is left to the caller.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ipuscope.profiler import open_report
from ipuscope.viewer.app import create_app
from tools.screenshots import find_browser, serving, take

ROOT = Path(__file__).parents[2]
BERT_LARGE = ("/", "/timeline", "/memory", "/costs")
GPT3 = ("/", "/timeline", "/timeline?from=20000000000&to=20200000000")
PATIENCE = 300_000  # ms for a page


def bert_large(folder: Path) -> Path:
    """The profile of BERT-Large in half precision, compiled for 8 IPUs."""
    script = [sys.executable, "examples/bert_pretraining.py", "--large", "--half", "--compile-only"]
    subprocess.run([*script, "--profile-dir", str(folder)], cwd=ROOT, check=True)
    return folder / "training" / "profile.pop"


def main(argv: Sequence[str] | None = None) -> int:
    """Take the pictures; returns 1 if there is no browser."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.viewer.pictures", description=__doc__
    )
    parser.add_argument("--bert-large", type=Path, help="its profile, if it is there already")
    parser.add_argument("--gpt3", type=Path, help="its profile; without, no picture of it")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "images")
    args = parser.parse_args(argv)
    browser = find_browser()
    if browser is None:
        print("no chromium is installed (apt-get install chromium)", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wanted = [
            ("bert-large", args.bert_large or bert_large(folder / "bert-large"), BERT_LARGE),
            *([("gpt3", args.gpt3, GPT3)] if args.gpt3 else []),
        ]
        for prefix, profile, paths in wanted:
            named = [(path, f"{prefix}-{_name(path)}") for path in paths]
            with open_report(profile) as report, serving(create_app(report)) as address:
                for file in take(address, named, args.output, browser, PATIENCE):
                    print(file)
    return 0


def _name(path: str) -> str:
    part = "-part" if "from=" in path else ""
    return (path.partition("?")[0].strip("/") or "summary") + part


if __name__ == "__main__":
    sys.exit(main())
