"""A forked process is to a command what a process of its own is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

SEES = """
import json, os, sys
mine = sys.modules["__main__"].__dict__ is globals()
print(json.dumps([__name__, mine, sys.argv, os.getcwd(), os.environ.get("ONE")]))
print("ü", file=sys.stderr)
"""
ENDS = {
    "pass": 0,
    "raise SystemExit": 0,
    "import sys; sys.exit(7)": 7,
    "import sys; sys.exit('no')": 1,
    "raise ValueError('no')": 1,
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)": -15,
    "import atexit; atexit.register(print, 'at the end')": 0,
    "import sys; own = sys.stdout; sys.stdout = sys.stderr; own.write('here')": 0,
}


@pytest.mark.parametrize("how", ["script", "-c", "-m"])
def test_it_sees_what_a_process_of_its_own_sees(tmp_path: Path, how: str) -> None:
    (tmp_path / "sees.py").write_text(SEES)
    words = {"script": ["sees.py"], "-c": ["-c", SEES], "-m": ["-m", "sees"]}[how]
    command = [sys.executable, *words, "--a", "b c"]
    env = {**os.environ, "ONE": "1", "PYTHONIOENCODING": "utf-8"}
    ways = [subprocess.run, forked.run]
    own, ours = (
        way(command, cwd=tmp_path, env=env, capture_output=True, text=True)  # type: ignore[operator]
        for way in ways
    )
    assert own.returncode == 0, own.stderr
    assert (ours.returncode, ours.stdout, ours.stderr) == (0, own.stdout, own.stderr)


def test_it_ends_as_a_process_of_its_own_ends() -> None:
    for code, ended in ENDS.items():
        command = [sys.executable, "-c", code]
        own = subprocess.run(command, capture_output=True, text=True)
        ours = forked.run(command)
        assert own.returncode == ours.returncode == ended, code
        assert own.stdout == ours.stdout
        assert own.stderr.splitlines()[-1:] == ours.stderr.splitlines()[-1:]


def test_a_check_fails_and_time_ends() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        forked.run([sys.executable, "-c", "raise SystemExit(3)"], check=True)
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.5)


def test_processes_leave_each_other_alone() -> None:
    first = "import os, torch; torch.manual_seed(7); torch.answer = 42; os.environ['A'] = 'b'"
    forked.run([sys.executable, "-c", first], check=True)
    second = "import os, torch; print(hasattr(torch, 'answer'), 'A' in os.environ)"
    assert forked.run([sys.executable, "-c", second]).stdout.split() == ["False", "False"]
    third = "import torch; print(torch.initial_seed() == 7)"
    assert forked.run([sys.executable, "-c", third]).stdout == "False\n"
