"""Runs docs/tutorial.md: its commands, its figures, its pictures. ``python -m tools.tutorial``.

Each ``console`` block is run; each line of the ``text`` block after it has to be in what that
printed. The pictures go to docs/images. ``--tiny`` has a toy of the model instead, without figures
and pictures: a test runs that.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
PROGRAMS = {"ipu-run": "ipu_exec.commands.run", "ipu-report": "ipuscope.reports.cli"}
# The same path through a model of four layers.
TINY = {
    "--large --half": "--tiny --stages 4 --accumulation 8",
    " --accumulation 256": "",
    "1-4-4-3-3-3-3-3-2 --stage-ipus 0,1,2,3,4,5,6,7,0": "1-2-2-1 --stage-ipus 0,1,2,0",
}
TIMEOUT = 300_000  # milliseconds for a page, on a busy machine
# Name of a picture, profile, and the viewer's page.
PICTURES = (
    ("tutorial-before-pipeline", "before", "/timeline"),
    ("tutorial-rebalance", "before", "/rebalance"),
    ("tutorial-after-pipeline", "after", "/timeline"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the page; 1 where a figure on it is not what its command prints."""
    parser = argparse.ArgumentParser(prog="python -m tools.tutorial", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a toy of the model, no pictures")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="tutorial-") as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        missing = list(run_page(PAGE.read_text(), Path(folder), args.tiny))
        if not args.tiny:
            take_pictures(Path(folder))
    for line in missing:
        print(f"not printed by its command: {line}", file=sys.stderr)
    return 1 if missing else 0


def run_page(words: str, folder: Path, tiny: bool = False) -> Iterator[str]:
    """Run the page's commands one after another; lines of its ``text`` that they did not print."""
    said = ""
    for language, block in re.findall(r"^```(console|text)\n(.*?)^```", words, re.M | re.S):
        if language == "console":
            said = "".join(run(line, folder, tiny) for line in block.splitlines())
            print(said, flush=True)
        elif not tiny:
            yield from (line for line in block.splitlines() if squeezed(line) not in squeezed(said))


def run(line: str, folder: Path, tiny: bool) -> str:
    """The output of a command of the page. Raises CalledProcessError if it fails."""
    for whole, part in TINY.items() if tiny else ():
        line = line.replace(whole, part)
    words = shlex.split(line)
    command = [sys.executable, "-W", "ignore", "-m", PROGRAMS[words[0]], *words[1:]]
    paths = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"}
    process = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return process.stdout


def squeezed(words: str) -> str:
    """Words separated by single spaces, since tables are as wide as the terminal."""
    return " ".join(words.split())


def take_pictures(folder: Path) -> None:
    """The pictures of the page, light and dark."""
    from ipuscope.profiler import open_report
    from ipuscope.reports.cli.common import find_one
    from ipuscope.viewer import create_app
    from tools.screenshots import find_browser, serving, take

    browser = find_browser()
    if browser is None:
        raise SystemExit("no chromium, hence no pictures: make browser")
    for name, profile, path in PICTURES:
        report_path = find_one(str(folder / profile))
        with open_report(report_path) as report, serving(create_app(report)) as address:
            for file in take(address, [(path, name)], ROOT / "docs" / "images", browser, TIMEOUT):
                print(file)
    make_tour()


def make_tour() -> None:
    """The light pictures one after another, as the README's moving one."""
    from PIL import Image

    images = ROOT / "docs" / "images"
    frames = []
    for name, _, _ in PICTURES:
        picture = Image.open(images / f"{name}-light.png").convert("RGB")
        picture = picture.crop((0, 0, picture.width, min(picture.height, 900)))
        page = Image.new("RGB", (1440, 900), "white")
        page.paste(picture)
        frames.append(page.resize((960, 600)).quantize(64))
    frames[0].save(
        images / "tour.gif", save_all=True, append_images=frames[1:], duration=3000, loop=0
    )


if __name__ == "__main__":
    sys.exit(main())
