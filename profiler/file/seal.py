"""The checksum in a profile's header: whether its bytes are still those that were written.

``checksum`` is "blake2b:", the BLAKE2b-128 of the file's bytes with zeros in place of its digits,
and SQLite's change counter of then, both in hexadecimal. SQLite counts each change of its own, so
that an edit is told from damage. Whoever changes a file on purpose can write another checksum: it
says nothing about where a file is from.
"""

from __future__ import annotations

import mmap
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
_PIECE = 1 << 20
_COUNTER = slice(24, 28)  # in the file's header (SQLite's file format, section 1.3)


class State(StrEnum):
    """What the checksum says about a file."""

    UNKNOWN = "it has no checksum"
    INTACT = "no byte has changed"
    EDITED = "it was edited"
    DAMAGED = "bytes have changed, but not by SQLite"


def seal(path: str | os.PathLike[str]) -> None:
    """Put the checksum where a finished file has `BLANK`; nothing, if that is not there once."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        at = _only(data, BLANK.encode())
        if at is not None:
            said = f"{_KIND}{_digest(data, at)}:{data[_COUNTER].hex()}"
            data[at : at + len(BLANK)] = said.encode()


def state(path: str | os.PathLike[str], said: object) -> State:
    """Whether a file is as it was written. ``said``: its header's `ENTRY`. OSError: unreadable."""
    if not isinstance(said, str) or said == BLANK or not _FORM.fullmatch(said):
        return State.UNKNOWN
    digest, counter = said.removeprefix(_KIND).split(":")
    with open(path, "rb") as file:
        if _digest_without(file, said.encode()) == digest:
            return State.INTACT
        file.seek(_COUNTER.start)
        counted = file.read(_COUNTER.stop - _COUNTER.start).hex()
    return State.DAMAGED if counted == counter else State.EDITED


def _digest_without(file: BinaryIO, words: bytes) -> str:
    """The digest of a file with `BLANK` in place of these words; "" unless they are there once.

    It is read, not mapped: who shortens a mapped file ends the process that reads it.
    """
    digest, times, rest = blake2b(digest_size=_DIGITS // 2), 0, b""
    while piece := file.read(_PIECE):
        rest += piece
        while (at := rest.find(words)) >= 0:
            times += 1
            digest.update(rest[:at] + BLANK.encode())
            rest = rest[at + len(words) :]
        whole = max(0, len(rest) + 1 - len(words))  # before what may be the words' first part
        digest.update(rest[:whole])
        rest = rest[whole:]
    digest.update(rest)
    return digest.hexdigest() if times == 1 else ""


def _only(data: mmap.mmap, words: bytes) -> int | None:
    """Where the words are; None unless they are there exactly once."""
    at = data.find(words)
    return at if at >= 0 and data.find(words, at + 1) < 0 else None


def _digest(data: mmap.mmap, at: int) -> str:
    """The digest of a file whose checksum is ``at`` this byte."""
    digest = blake2b(digest_size=_DIGITS // 2)
    with memoryview(data) as every:
        for piece in (every[:at], BLANK.encode(), every[at + len(BLANK) :]):
            digest.update(piece)
    return digest.hexdigest()
