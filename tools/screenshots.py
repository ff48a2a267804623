"""Pictures of every page of the viewer, light and dark.

``python -m tools.screenshots demo/training -o gallery/demo`` needs playwright, pillow and
chromium.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from werkzeug.serving import make_server

from ipuscope.profiler import ProfileError, open_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
SIZE: Any = {"width": 1440, "height": 900}


def find_browser() -> str | None:
    """The path of a chromium on this machine."""
    return next((path for path in map(shutil.which, BROWSERS) if path), None)


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The app on a free port of this machine, for as long as the block lasts; its address."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not a line a request
    server = make_server("127.0.0.1", 0, app.server, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(timeout=10)


def settled(page: Any, timeout: float = 30_000, pause: float = 200) -> None:
    """Wait until the page has been drawn.

    There is content, no callback is running, figures have their axes, and controls and tables are
    there.
    """
    page.wait_for_function(
        """() => {
            const main = document.querySelector('#page');
            const empty = !main || !main.children.length;
            if (empty || document.title.startsWith('Updating')) { return false; }
            if (document.querySelector('[data-dash-is-loading=true]')) { return false; }
            if (document.querySelector('.awaited:empty')) { return false; }
            const all = (what) => Array.from(document.querySelectorAll(what));
            if (all('.control').some((one) => one.childElementCount < 2)) { return false; }
            const grids = all('[class^=ag-theme-quartz]');
            const rows = '.ag-cell, .ag-overlay-no-rows-wrapper, .ag-overlay-no-rows-center';
            const filled = (one) => one.querySelector('.ag-root')
              && (!one.offsetHeight || one.querySelector(rows));  // no height: folded away
            if (!grids.every(filled)) { return false; }
            const plots = Array.from(document.querySelectorAll('.dash-graph'));
            return plots.every((plot) => {
              const drawn = plot.querySelector('.main-svg')
                && plot.querySelector('.js-plotly-plot');
              // an annotation says why there is no data
              return drawn && (drawn.data?.length || drawn.layout?.annotations?.length);
            });
        }""",
        timeout=timeout,
        polling=50,  # not by frames: a page at rest draws none
    )
    page.wait_for_timeout(pause)


def whole_page(page: Any, file: Path) -> None:
    """A picture of the page in a window as high as the page.

    (In a lower window chromium leaves out of a full-page picture what was never visible.)
    """
    for _ in range(2):  # what comes into sight may make it higher
        high = page.evaluate("() => document.documentElement.scrollHeight")
        page.set_viewport_size({**SIZE, "height": max(high, SIZE["height"])})
        settled(page)
    page.screenshot(path=file)
    smaller(file)
    page.set_viewport_size(SIZE)


EXACT, SPREAD = 160, 96  # colours: most of a page has few, scales and letters' edges have many


def smaller(file: Path) -> None:
    """The picture in 256 colours: its most frequent as they are, others spread over the rest."""
    import numpy as np
    from PIL import Image

    with Image.open(file) as opened:
        picture = opened.convert("RGB")
    pixels = np.asarray(picture).reshape(-1, 3)
    colours, index, count = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    spread = picture.quantize(SPREAD, method=Image.Quantize.MAXCOVERAGE).getpalette() or []
    rest = np.array(spread[: 3 * SPREAD]).reshape(-1, 3)
    palette = np.concatenate([colours[np.argsort(-count)[:EXACT]], rest]).astype(np.uint8)
    given, chosen = colours.astype(np.float32), palette.astype(np.float32)
    apart = (chosen**2).sum(axis=1) - 2 * given @ chosen.T  # less the same of each row
    few = Image.fromarray(apart.argmin(axis=1).astype(np.uint8)[index].reshape(picture.size[::-1]))
    few.putpalette(palette.tobytes())
    few.save(file, optimize=True)


def take(
    address: str,
    pages: Sequence[tuple[str, str]],
    folder: Path,
    browser: str,
    timeout: float = 30_000,
) -> list[Path]:
    """Take a picture of each (path, name) in each theme: ``name-light.png`` and ``name-dark.png``.

    ``timeout``: milliseconds that a page may take.
    """
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=browser, args=list(FLAGS))
        for theme in ("light", "dark"):
            page = chromium.new_page(viewport=SIZE, color_scheme=theme)
            for path, name in pages:
                page.goto(address + path, timeout=timeout)
                settled(page, timeout)
                file = folder / f"{name}-{theme}.png"
                whole_page(page, file)
                paths.append(file)
        chromium.close()
    return paths


def main(argv: Sequence[str] | None = None) -> int:
    """Take the pictures; return 1 with a message if that is not possible."""
    from ipuscope.viewer.app import PAGES, create_app

    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=__doc__)
    parser.add_argument(
        "profile",
        nargs="?",
        default="demo/training",
        help="default: demo/training (see 'make demo')",
    )
    parser.add_argument(
        "other",
        nargs="?",
        default="demo/inference",
        help="compared with it; default: demo/inference",
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("gallery/demo"), help="default: gallery/demo"
    )
    args = parser.parse_args(argv)
    browser = find_browser()
    if browser is None:
        print(
            f"no browser: none of {', '.join(BROWSERS)} is installed (apt-get install chromium)",
            file=sys.stderr,
        )
        return 1
    try:
        with (
            open_report(args.profile) as report,
            open_report(args.other) as other,
            serving(create_app(report, other)) as address,
        ):
            pages = [(page.path, page.path.strip("/") or "summary") for page in PAGES]
            for file in take(address, pages, args.output, browser):
                print(file)
    except ProfileError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
