"""The sources that compile: a digest which says whether two files come of the same compiler."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import torch

import ipuscope


@lru_cache(maxsize=1)
def fingerprint() -> str:
    """A digest of PyTorch's version and of every source that can change what is compiled."""
    digest = hashlib.sha256(torch.__version__.encode())
    for source in compiling():
        digest.update(source.read_bytes())
    return digest.hexdigest()


def compiling() -> list[Path]:
    """Every source that can change what is compiled."""
    rest = Path(ipuscope.__file__).parent
    folders = Path(__file__).parents[1], rest / "profiler"
    files = sorted(one for folder in folders for one in folder.rglob("*"))
    return [one for one in files if one.suffix in (".py", ".csv")]
