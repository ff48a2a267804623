"""Benchmarks and tools, which run seldom, go on importing what they need."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.paths import ROOT

FILES = sorted(path for room in ("benchmarks", "tools") for path in (ROOT / room).rglob("*.py"))
# packages that not every installation has, and what only ``ipu-run`` answers
OPTIONAL = {"lightning", "playwright", "poptorch"}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", [module_of(path) for path in FILES])
def test_a_module_imports(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] not in OPTIONAL:
            raise
        pytest.skip(f"{error.name} is not installed")
    assert module.__doc__ or Path(str(module.__file__)).stat().st_size == 0
