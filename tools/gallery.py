"""Profiles of well-known models as HTML reports, and a page that lists them.

``python -m tools.gallery`` (`make gallery`) compiles the examples at full size, one after another,
into gallery/: each model's profile, its report, and index.html. ``--tiny`` takes toys of them.
"""

from __future__ import annotations

import argparse
import html
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ipuscope.profiler import analysis, open_report, units
from ipuscope.reports.cli import main as report_command
from ipuscope.reports.cli.common import find_one

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Exhibit:
    """An example, with the arguments that make it the model in the title."""

    title: str
    example: str
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its files."""
        return self.title.lower()


EXHIBITS = (
    Exhibit("ResNet-50", "resnet50_synthetic"),
    Exhibit("BERT-Large", "bert_pretraining", ("--large", "--half")),
    Exhibit("GPT-2", "gpt2_small"),
    Exhibit("ViT", "vit"),
)
TINY = ("--tiny", "--stages", "2", "--accumulation", "4")

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>IPUscope: gallery</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid #8884; }}
:root {{ color-scheme: light dark; }}
</style>
<h1>Gallery</h1>
<p>Models compiled for modelled IPUs by <code>python -m tools.gallery</code>. All times are
predictions. Each report opens offline.</p>
<table><tr><th>model</th><th>machine</th><th>a weight update</th><th>speed</th>
<th>slowest stage</th></tr>
{rows}
</table></html>
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Compile, write the reports and the page that lists them."""
    parser = argparse.ArgumentParser(prog="python -m tools.gallery", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="toys of the models")
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "gallery", help="default: gallery"
    )
    args = parser.parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    for exhibit in EXHIBITS:
        print(f"{exhibit.title}: compiling", flush=True)
        compile_it(exhibit, args.output / exhibit.name, TINY if args.tiny else exhibit.words)
        file = args.output / f"{exhibit.name}.html"
        report_command(["html", str(args.output / exhibit.name), "-o", str(file)])
    rows = "\n".join(row(exhibit, args.output) for exhibit in EXHIBITS)
    (args.output / "index.html").write_text(PAGE.format(rows=rows), encoding="utf-8")
    print(f"the gallery is at {args.output / 'index.html'}")
    return 0


def compile_it(exhibit: Exhibit, folder: Path, words: Sequence[str]) -> None:
    """Write the profile of the example below ``folder``; CalledProcessError where it fails."""
    command = [sys.executable, "-m", f"examples.{exhibit.example}", *words]
    command += ["--compile-only", "--profile-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


def row(exhibit: Exhibit, folder: Path) -> str:
    """The exhibit's row of the page."""
    cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in facts(folder / exhibit.name))
    return f'<tr><td><a href="{exhibit.name}.html">{exhibit.title}</a></td>{cells}</tr>'


def facts(profile: Path) -> Iterator[str]:
    """Machine, time of a weight update, speed, slowest stage."""
    with open_report(find_one(str(profile))) as report:
        pace, target = analysis.pace(report), report.target
        yield f"{units.count(target.num_ipus, 'IPU')}, {target.name}"
        yield f"{pace.cycles:,} cycles, {units.seconds(pace.cycles / target.clock_hz)}"
        yield f"{units.per_second(pace.samples_per_second)} samples/s"
        slowest = report.stages.iloc[int(report.stages["cycles"].to_numpy().argmax())]
        yield f"{slowest['stage']} ({units.shortened(str(slowest['blocks']))})"


if __name__ == "__main__":
    sys.exit(main())
