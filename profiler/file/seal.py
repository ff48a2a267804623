"""The checksum in a profile's header: whether its bytes are still those that were written.

``checksum`` is "blake2b:", the BLAKE2b-128 of the file's bytes with zeros in place of its digits,
and SQLite's change counter at that time, both in hexadecimal. SQLite counts its own changes, which
tells an edit from damage. Whoever changes a file on purpose can write another checksum: it proves
nothing about a file's origin.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from hashlib import blake2b
from typing import BinaryIO

ENTRY = "checksum"
_KIND = "blake2b:"
_DIGITS, _COUNTER_DIGITS = 32, 8
BLANK = f"{_KIND}{'0' * _DIGITS}:{'0' * _COUNTER_DIGITS}"
_FORM = re.compile(rf"{_KIND}[0-9a-f]{{{_DIGITS}}}:[0-9a-f]{{{_COUNTER_DIGITS}}}")
_PIECE = 1 << 18  # stays in the processor's cache
_COUNTER = slice(24, 28)  # in the file's header (SQLite's file format, section 1.3)


class State(StrEnum):
    """What the checksum tells about a file."""

    UNKNOWN = "it has no checksum"
    INTACT = "no byte has changed"
    EDITED = "it was edited"
    DAMAGED = "bytes have changed, but not by SQLite"


def seal(path: str | os.PathLike[str]) -> None:
    """Put the checksum where a finished file has `BLANK`; nothing, unless that occurs once."""
    with open(path, "r+b") as file:
        digest, at = _digest(file, BLANK.encode(), once=True)
        if at is not None:
            counter = _counter(file)
            file.seek(at)
            file.write(f"{_KIND}{digest}:{counter}".encode())


def state(path: str | os.PathLike[str], entry: object) -> State:
    """Whether a file is as it was written. ``entry``: its header's `ENTRY`. OSError: unreadable."""
    if not isinstance(entry, str) or entry == BLANK or not _FORM.fullmatch(entry):
        return State.UNKNOWN
    with open(path, "rb") as file:
        digest, at = _digest(file, entry.encode())
        counter = _counter(file)
    if at is not None and entry == f"{_KIND}{digest}:{counter}":
        return State.INTACT
    return State.DAMAGED if entry.endswith(f":{counter}") else State.EDITED


def _counter(file: BinaryIO) -> str:
    file.seek(_COUNTER.start)
    return file.read(_COUNTER.stop - _COUNTER.start).hex()


def _digest(file: BinaryIO, words: bytes, once: bool = False) -> tuple[str, int | None]:
    """The digest of a file with `BLANK` in place of these words, and where they are; None: nowhere.

    ``once``: None too if they occur again, which takes a third longer to tell. The file is read,
    not mapped: shortening a mapped file ends the process that reads it.
    """
    digest, rest, at = blake2b(digest_size=_DIGITS // 2), b"", list[int]()
    done = 0  # bytes before ``rest``
    while piece := file.read(_PIECE):
        rest += piece
        while (once or not at) and (near := rest.find(words)) >= 0:
            at.append(done + near)
            digest.update(rest[:near] + BLANK.encode())
            done += near + len(words)
            rest = rest[near + len(words) :]
        # before what may be the words' first part
        whole = max(0, len(rest) + 1 - len(words)) if once or not at else len(rest)
        digest.update(memoryview(rest)[:whole])
        done += whole
        rest = rest[whole:]
    digest.update(rest)
    return digest.hexdigest(), at[0] if len(at) == 1 else None
