"""One application: how it is started, and what its end means."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_HERE = Path(__file__).resolve().parent
_START = "import sys; from ipuscope.commands import ipu_run; sys.exit(ipu_run())"
_PICTURES = 600  # of each of two classes
_WORDS = "the quick brown fox jumps over the lazy dog\n" * 2000
_MOST_CHARACTERS = 300


@dataclass(frozen=True)
class Outcome:
    """How a run ended: exit status (-1: out of time), profile, last line and seconds."""

    status: int
    profiled: bool
    last: str
    seconds: int


@dataclass(frozen=True)
class Application:
    """A row of applications.toml."""

    name: str
    folder: str
    run: str
    library: str = ""
    needs: tuple[str, ...] = ()
    obstacle: dict[str, str] | None = None

    def verdict(self, outcome: Outcome) -> str:
        """``compiles``, the kind of its obstacle where the end matches it, or ``undecided``."""
        told = outcome.last.startswith("ipu-run: compiled only,")  # then it ends its workers
        if outcome.profiled and (outcome.status == 0 or told):
            return "compiles"
        if self.obstacle is not None and re.search(self.obstacle["error"], outcome.last):
            return self.obstacle["kind"]
        return "undecided"


def applications() -> list[Application]:
    """All rows, in the order of the file."""
    rows = tomllib.loads((_HERE / "applications.toml").read_text())["application"]
    return [Application(**row) for row in rows]


def run(one: Application, checkout: Path, libraries: Sequence[Path], seconds: int) -> Outcome:
    """Start it in its folder of the checkout, offline; its process and their children are ended."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        words = shlex.split(one.run.format(**_generated(place, one.run), out=place / "out"))
        words[0] = _script(checkout / one.folder / words[0], place)
        flags = ["--compile-only", "--profile-dir", str(place / "profiles")]
        if one.library:
            (checkout / one.folder / one.library).parent.mkdir(exist_ok=True)
            (checkout / one.folder / one.library).touch()
        needed = _installed(one.needs, place / "needed")
        began = time.monotonic()
        with (place / "log").open("w+") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _START, *flags, *words],
                cwd=checkout / one.folder,
                env=_environment([*needed, *libraries]),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = -1
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        text = (place / "log").read_text(errors="replace")
        profiled = any((place / "profiles").rglob("profile.pop"))
        return Outcome(status, profiled, _last(text), round(time.monotonic() - began))


def _installed(needs: Sequence[str], folder: Path) -> list[Path]:
    """The folder in which such releases are, for this application alone."""
    if needs:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, *needs], check=True)
    return [folder] if needs else []


def _environment(libraries: Sequence[Path]) -> dict[str, str]:
    paths = [str(_HERE / "generated"), str(ROOT), *map(str, libraries)]
    offline = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **offline, "PYTHONPATH": os.pathsep.join(paths)}


def _generated(place: Path, run: str) -> dict[str, Path]:
    """What the command names in braces: a folder of pictures as ImageNet's, a text."""
    text, images = place / "text.txt", place / "images"
    if "{text}" in run:
        text.write_text(_WORDS)
    if "{images}" in run:
        from PIL import Image

        for part in ("train", "validation", "val"):
            for kind in ("n0", "n1"):
                folder = images / part / kind
                folder.mkdir(parents=True)
                for number in range(_PICTURES):
                    Image.effect_noise((64, 64), number).convert("RGB").save(
                        folder / f"{number}.JPEG"
                    )
    return {"text": text, "images": images}


def _script(path: Path, place: Path) -> str:
    """The script's name; of a notebook a script of its cells, without its shell's lines."""
    if path.suffix != ".ipynb":
        return path.name
    cells = json.loads(path.read_text())["cells"]
    lines = [
        line.rstrip("\n")
        for cell in cells
        if cell["cell_type"] == "code"
        for line in cell["source"]
    ]
    lines = [f"pass  # {line}" if line.startswith(("!", "%")) else line for line in lines]
    script = place / f"{path.stem}.py"
    script.write_text("\n".join([f"import sys; sys.path.insert(0, {str(path.parent)!r})", *lines]))
    return str(script)


def _last(text: str) -> str:
    """The last line that names an error, or else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit|Found)\b.*", line)]
    return ([*lines[-1:], *named] or [""])[-1][:_MOST_CHARACTERS]
