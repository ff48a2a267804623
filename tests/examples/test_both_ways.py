"""Each example runs as a file and by ``-m``: users try both."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import forked
from tests.paths import ROOT


@pytest.mark.parametrize("name", ["mnist_pipeline", "vit"])
def test_an_example_runs_both_ways(name: str, tmp_path: Path) -> None:
    ways = {tmp_path: [f"{ROOT}/examples/{name}.py"], ROOT: ["-m", f"examples.{name}"]}
    for cwd, script in ways.items():  # as a file, from any folder
        done = forked.run([sys.executable, *script, "--help"], cwd=cwd)
        assert done.returncode == 0, done.stderr


def test_every_script_has_its_way_in() -> None:
    for path in (ROOT / "examples").glob("*.py"):
        source = path.read_text()
        if '__name__ == "__main__"' in source and "from examples" in source:
            assert "if not __package__:" in source, path.name
