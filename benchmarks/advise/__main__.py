"""What each piece of advice predicts, and what its compile takes: the table of docs/advice.md.

python -m benchmarks.advise demo gpt bert-large
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODELS = {
    "demo": ["examples/mnist_pipeline.py"],
    "gpt": ["benchmarks/advise/gpt.py"],
    "bert-large": ["-m", "examples.bert_pretraining", "--large", "--half", "--stages", "8"],
}
COMPILES = 1200  # seconds that all compiles of a model may take


def rows(name: str, program: list[str]) -> Iterator[str]:
    """A row of the table for each piece of advice."""
    with tempfile.TemporaryDirectory(prefix="advice-") as folder:
        _run("ipu_exec.commands.run", "--compile-only", "--profile-dir", folder, *program)
        profile = str(Path(folder) / "training")
        kept = str(Path(folder) / "tried")
        words = ["--json", "--allow", "half,samples", "-o", kept, profile, "--check", *program]
        (page,) = json.loads(_run("ipuscope.reports.cli", "advise", *words))
    for advice in page["advice"]:
        yield _row(name, advice["title"], advice, advice["came"])


def _row(name: str, title: str, advice: dict[str, Any], came: str) -> str:
    said, compiled = advice["samples_per_second"], advice["compiled"]
    off = f"{said / compiled - 1:+.1%}" if compiled else ""
    return f"| {name} | {title} | {advice['rate']} | {came} | {off} |"


def _run(module: str, *words: str) -> str:
    process = subprocess.run(
        [sys.executable, "-m", module, *words], capture_output=True, text=True, timeout=COMPILES
    )
    if process.returncode:
        raise SystemExit(process.stderr.strip())
    return process.stdout


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help="default: all")
    names = parser.parse_args().models or list(MODELS)
    print("| model | change | predicted, samples/s | compiled | off |")
    print("| --- | --- | ---: | ---: | ---: |")
    for name in names:
        for row in rows(name, MODELS[name]):
            print(row, flush=True)


if __name__ == "__main__":
    main()
