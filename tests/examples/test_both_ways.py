"""Each example runs as a file and by ``-m``: users try both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("how", ["file", "module"])
@pytest.mark.parametrize("name", ["mnist_pipeline", "vit"])
def test_an_example_runs_both_ways(name: str, how: str, tmp_path: Path) -> None:
    script = (
        [str(ROOT / "examples" / f"{name}.py")] if how == "file" else ["-m", f"examples.{name}"]
    )
    cwd = tmp_path if how == "file" else ROOT  # as a file, from any folder
    done = subprocess.run([sys.executable, *script, "--help"], cwd=cwd, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_every_script_has_its_way_in() -> None:
    for path in (ROOT / "examples").glob("*.py"):
        source = path.read_text()
        if '__name__ == "__main__"' in source and "from examples" in source:
            assert "if not __package__:" in source, path.name
