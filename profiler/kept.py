"""A cache of results computed from a profile, in the user's cache directory.

Results are stored by the content of the file and by the code that computed them: another file or
other code gives another folder. They are never stored beside the profile, which may be a stranger's
or on a disk that is not ours. What cannot be read back whole is computed again, and a directory
that cannot be written is ignored.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import cache, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import zstandard

import ipuscope

MOST_BYTES = 512 << 20  # of everything that is kept; the longest unused goes first
MOST_OF_ONE = 64 << 20  # unpacked
MOST_OF_ANSWER = 1 << 23  # of one that a file holds, unpacked
_LEVEL = 9  # of what is packed once and read often
_DIGEST_BYTES = 16
_READ = 1 << 20


def directory() -> Path:
    """``$IPUSCOPE_CACHE``, else ``ipuscope`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    named = os.environ.get("IPUSCOPE_CACHE")
    if named:
        return Path(named)
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "ipuscope"


@cache
def code() -> str:
    """A digest of the code that computes the results: sizes and times of its files."""
    here = Path(ipuscope.__file__).parents[1]
    digest = _digest()
    packages = ("profiler", "planner", "viewer", "reports")
    for folder in (*(Path("ipuscope", package) for package in packages), Path("ipu_exec")):
        for file in sorted((here / folder).rglob("*.py")):
            state = file.stat()
            words = f"{file.relative_to(here)} {state.st_size} {state.st_mtime_ns}\n"
            digest.update(words.encode())
    return digest.hexdigest()


@cache
def source() -> str:
    """A digest of the sources of `profiler`, which is the same wherever they lie.

    "" where they are not there: it is nobody's digest then.
    """
    digest, here = _digest(), Path(__file__).parent
    files = sorted(here.rglob("*.py"))
    for file in files:
        digest.update(f"{file.relative_to(here).as_posix()}\n".encode() + file.read_bytes())
    return digest.hexdigest() if files else ""


def content(path: str | os.PathLike[str]) -> str:
    """A digest of a file's bytes, read once while the file stays as it is.

    OSError where it cannot be read.
    """
    state = os.stat(path)
    return _content(os.fspath(path), state.st_ino, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=64)
def _content(path: str, *_state: int) -> str:
    digest = _digest()
    with open(path, "rb") as file:
        while piece := file.read(_READ):
            digest.update(piece)
    return digest.hexdigest()


def name_of(*words: str | bytes) -> str:
    """A name for a result, from anything that distinguishes it from the others."""
    digest = _digest()
    for one in words:
        piece = one.encode() if isinstance(one, str) else one
        digest.update(f"{len(piece)} ".encode() + piece)
    return digest.hexdigest()


def as_json(answer: Any) -> bytes:
    """An answer as a file holds it: JSON, compressed."""
    words = json.dumps(answer, default=int, separators=(",", ":")).encode()
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(words)


def from_json(packed: bytes) -> Any:
    """The answer; None where it is none, or larger than any."""
    try:
        if not 0 <= zstandard.frame_content_size(packed) <= MOST_OF_ANSWER:
            return None
        words = zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
        return json.loads(words)
    except (ValueError, RecursionError, zstandard.ZstdError):
        return None


class Kept:
    """Cached bytes by name, for some profiles in their present state."""

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        """OSError where a profile cannot be read."""
        self.folder = directory() / name_of(code(), *(content(path) for path in paths))

    def get(self, name: str) -> bytes | None:
        """The bytes stored under a name; None where there is nothing intact."""
        file = self.folder / name
        try:
            data = file.read_bytes()
            os.utime(file)
            said, packed = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
            if blake2b(packed, digest_size=_DIGEST_BYTES).digest() != said:
                return None
            return zstandard.ZstdDecompressor().decompress(packed, max_output_size=MOST_OF_ONE)
        except (OSError, zstandard.ZstdError):
            return None

    def put(self, name: str, data: bytes) -> None:
        """Store it, for this user only; if that is impossible, nothing happens."""
        if len(data) > MOST_OF_ONE:
            return
        packed = zstandard.ZstdCompressor(level=1).compress(data)
        digest = blake2b(packed, digest_size=_DIGEST_BYTES).digest()
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            number, partial = tempfile.mkstemp(dir=self.folder)
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(digest + packed)
                os.replace(partial, self.folder / name)
            except BaseException:
                os.unlink(partial)
                raise


def make_room(most: int = MOST_BYTES) -> None:
    """Remove the least recently used results until the rest fits."""
    files = []
    with suppress(OSError):
        for file in directory().rglob("*"):
            if file.is_file() and not file.is_symlink():
                state = file.stat()
                files.append((state.st_mtime_ns, state.st_size, file))
    total = sum(size for _, size, _ in files)
    for _, size, file in sorted(files):
        if total <= most:
            return
        with suppress(OSError):
            file.unlink()
            total -= size
            file.parent.rmdir()  # where it was the last


def _digest() -> blake2b:
    return blake2b(digest_size=_DIGEST_BYTES)
