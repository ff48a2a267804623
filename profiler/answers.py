"""Answers about a profile: computed on demand, cached in the report, slow ones on the disk.

A profile holds facts. Answers follow from them by functions of an open report; `stored` marks one
that takes long enough to be worth a file in the user's cache directory. Its key is a digest of the
profile's bytes and of our sources, so another profile or other code computes anew. Nothing is
stored beside the profile, which may be a stranger's or on a disk that is not ours. An answer that
cannot be read back whole is computed again; an unwritable directory is ignored.

An answer is MessagePack (`pack`), read as the type that its function returns (`unpack`): msgspec
builds nothing else and runs nothing. We add arrays and frames to its types.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, wraps
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, get_type_hints

import numpy as np
import zstandard

import ipuscope

if TYPE_CHECKING:
    import msgspec

CALIBRATION = "IPUSCOPE_CALIBRATION"  # names a file that answers depend on
LEAST_SECONDS = 0.05  # of the thread: quicker answers are computed anew
MOST_BYTES = 512 << 20  # of everything in the directory; the least recently used goes first
MOST_OF_ONE = 64 << 20  # unpacked
STORED: dict[str, Callable[[Any], Any]] = {}  # every function that is `stored`, by its name
_DIGEST_BYTES = 16
_PACKAGES = ("ipuscope/profiler", "ipuscope/planner", "ipuscope/viewer", "ipuscope/reports")
_DTYPES = {"i": "<i8", "u": "<i8", "f": "<f8", "b": "|b1"}  # by which arrays are stored
T = TypeVar("T")
R = TypeVar("R", bound="Profile")


class File(Protocol):
    """The interface of a report's file that this module needs."""

    path: Path

    @property
    def state(self) -> tuple[int, ...]:
        """`state_of` the file when it was opened; empty if what is read differs from it."""

    def once(self, key: str, make: Callable[[], Any]) -> Any:
        """The result of ``make``, computed once in this process."""


class Profile(Protocol):
    """A report, on its file."""

    file: Any  # a `File`


def stored(function: Callable[[R], T]) -> Callable[[R], T]:
    """Mark a function of a report whose answer is worth storing.

    The report caches the answer; the disk does if it took `LEAST_SECONDS`. The annotated return
    type is its coding.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def answer(report: R) -> T:
        return report.file.once(name, lambda: answer_of(report, name, function))

    STORED[name] = answer
    return answer


def answer_of(report: R, name: str, function: Callable[[R], T]) -> T:
    """A function's answer, from the disk if it is stored there under this name, or stored then."""
    store, kind = _store_of(report), _hints(function)["return"]
    data = None if store is None else store.get(name)
    if data is not None:
        with suppress(ValueError):
            return unpack(kind, data)
    start = time.thread_time()
    made = function(report)
    if store is not None and time.thread_time() - start >= LEAST_SECONDS:
        with suppress(ValueError, TypeError):  # an answer that cannot be stored is one all the same
            store.put(name, pack(made))
    return made


def is_stored(report: Profile, function: Callable[..., Any]) -> bool:
    """Whether the answer of a `stored` function is on the disk already."""
    store = _store_of(report)
    return (
        store is not None
        and (store.folder / f"{function.__module__}.{function.__qualname__}").exists()
    )


def _store_of(report: Profile) -> Store | None:
    """The store of a report's answers; None if its file is growing or was replaced."""
    try:
        file: File = report.file
        if not file.state or state_of(file.path) != file.state:
            return None
        calibration = os.environ.get(CALIBRATION)
        return Store(content(file.path), *([content(calibration)] if calibration else ()))
    except OSError:
        return None


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
    for package in (*_PACKAGES, "ipu_exec"):
        for file in sorted(_sources(os.fspath(here / package))):
            state = os.stat(file)
            digest.update(os.fsencode(file) + f" {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _sources(folder: str) -> Iterable[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry.path
            elif not entry.name.startswith((".", "__")) and entry.is_dir():
                yield from _sources(entry.path)


def state_of(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """What tells a file from others at its path, unread; OSError if it is gone."""
    state = os.stat(path)
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def content(path: str | os.PathLike[str]) -> str:
    """A digest of a file's bytes, read and stored once per state; OSError if it cannot be read."""
    return _content(os.path.abspath(path), state_of(path))


@cache
def _content(path: str, state: tuple[int, ...]) -> str:
    store, name = Store("contents"), name_of(os.fsencode(path), repr(state))
    cached = store.get(name)
    if cached is not None:
        return cached.decode("latin-1")
    with open(path, "rb") as file:
        digest = file_digest(file, "sha256")  # most processors have instructions for it
    store.put(name, digest.hexdigest().encode())
    return digest.hexdigest()


def name_of(*words: str | bytes) -> str:
    """A name for a result, from anything that distinguishes it from the others."""
    digest = _digest()
    for one in words:
        piece = one.encode() if isinstance(one, str) else one
        digest.update(f"{len(piece)} ".encode() + piece)
    return digest.hexdigest()


class Store:
    """Bytes by name, of some content and of the code as it is now."""

    def __init__(self, *contents: str) -> None:
        self.folder = directory() / name_of(code(), *contents)

    def get(self, name: str) -> bytes | None:
        """The bytes stored under a name; None if there is nothing intact."""
        file = self.folder / name
        try:
            data = file.read_bytes()
            os.utime(file)
            digest, packed = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
            if blake2b(packed, digest_size=_DIGEST_BYTES).digest() != digest:
                return None
            return zstandard.ZstdDecompressor().decompress(packed, max_output_size=MOST_OF_ONE)
        except (OSError, zstandard.ZstdError):
            return None

    def put(self, name: str, data: bytes) -> None:
        """Store the bytes, for this user only; if that is impossible, nothing happens."""
        if len(data) > MOST_OF_ONE:
            return
        packed = zstandard.ZstdCompressor(level=1).compress(data)
        digest = blake2b(packed, digest_size=_DIGEST_BYTES).digest()
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self.folder / name, digest + packed)
            _make_room_once()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file for this user only, in one rename; OSError, without a part left behind."""
    import tempfile

    number, partial = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


@cache
def _make_room_once() -> None:
    make_room()


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


def pack(value: Any) -> bytes:
    """A value as MessagePack; TypeError if something in it cannot be stored."""
    import msgspec  # takes longer than most answers

    return msgspec.msgpack.encode(value, enc_hook=_plain)


def unpack(kind: Any, data: bytes) -> Any:
    """The value of a type; ValueError unless the bytes are what `pack` gives for one."""
    import msgspec

    try:
        return _decoder(kind).decode(data)
    except (msgspec.MsgspecError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise ValueError(f"an answer of another form ({error})") from error


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    import msgspec

    return msgspec.msgpack.Decoder(kind, dec_hook=_value)


def _plain(value: Any) -> Any:
    """What MessagePack lacks: arrays, frames and numpy's numbers."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return _plain_array(value)
    if type(value).__name__ == "DataFrame":
        columns = {name: _plain_array(value[name].to_numpy()) for name in value.columns}
        return [columns, [str(one) for one in value.dtypes]]
    raise TypeError(f"a {type(value).__name__} cannot be stored")


def _value(kind: Any, plain: Any) -> Any:
    if kind is np.ndarray:
        return _array_value(*plain)
    columns, types = plain  # pandas refuses columns of different lengths
    return kind({name: _array_value(*one) for name, one in columns.items()}).astype(
        dict(zip(columns, types, strict=True))
    )


def _plain_array(values: np.ndarray) -> list[Any]:
    """Numbers as they are; texts as their distinct values and the position of each."""
    if values.dtype.kind in "OUT":
        places: dict[str, int] = {}
        which = [places.setdefault(str(one), len(places)) for one in values.tolist()]
        return [*_plain_array(np.array(which, dtype=np.int64)), list(places)]
    dtype = _DTYPES[values.dtype.kind]
    return [dtype, list(values.shape), np.ascontiguousarray(values, dtype).tobytes()]


def _array_value(dtype: str, shape: list[int], data: bytes, words: Any = None) -> np.ndarray:
    if dtype not in _DTYPES.values():
        raise ValueError(f"an array of {dtype!r}")
    array = np.frombuffer(data, dtype).reshape(shape)
    return array if words is None else np.array([*words, None], dtype=object)[array]


def _hints(of: Any) -> dict[str, Any]:
    try:
        return get_type_hints(of)
    except NameError:  # a frame's: pandas is imported for annotations only
        import pandas as pd

        return get_type_hints(of, localns={"pd": pd})
