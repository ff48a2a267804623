"""Answers about a profile: computed when asked, remembered in the report, slow ones on the disk.

A profile holds facts. What follows from them is a function of an open report; `stored` marks one
that takes long enough to be worth a file in the user's cache directory. There an answer lies under
a digest of the profile's bytes and of our sources, so that another profile or other code asks
anew. Nothing is ever stored beside the profile, which may be a stranger's or on a disk that is not
ours. What cannot be read back whole is computed again, and a directory that cannot be written is
ignored.

An answer is coded by the type that its function returns (`pack`): numbers, texts, enumerations,
dataclasses, tuples, lists, dicts, arrays and frames of these. Reading one (`unpack`) builds nothing
else and runs nothing: kinds, lengths and finiteness are checked.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, wraps
from hashlib import blake2b, file_digest
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import zstandard

import ipuscope

LEAST_SECONDS = 0.05  # of the thread: what is quicker is computed anew
MOST_BYTES = 512 << 20  # of everything in the directory; the least recently used goes first
MOST_OF_ONE = 64 << 20  # unpacked
STORED: dict[str, Callable[[Any], Any]] = {}  # every function that is `stored`, by its name
_DIGEST_BYTES = 16
_PACKAGES = ("ipuscope/profiler", "ipuscope/planner", "ipuscope/viewer", "ipuscope/reports")
_DTYPES = {"i": "<i8", "u": "<i8", "f": "<f8", "b": "|b1"}  # by which arrays are stored
_SCALARS = (bool, int, float, str, NoneType)
T = TypeVar("T")
R = TypeVar("R", bound="Profile")


class Profile(Protocol):
    """What is asked of a report."""

    path: Path

    @property
    def state(self) -> tuple[int, ...]:
        """`state_of` the file when it was opened; empty where what is read differs from it."""

    def once(self, key: str, make: Callable[[], Any]) -> Any:
        """The result of ``make``, computed once in this process."""


def stored(function: Callable[[R], T]) -> Callable[[R], T]:
    """Mark a function of a report whose answer is worth storing.

    Its answer is remembered in the report, and stored if it took `LEAST_SECONDS`. The type that it
    says it returns is how it is coded.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def answer(report: R) -> T:
        return report.once(name, lambda: _found_or_made(report, name, function))

    STORED[name] = answer
    return answer


def _found_or_made(report: R, name: str, function: Callable[[R], T]) -> T:
    store, kind = _store_of(report), _hints(function)["return"]
    data = None if store is None else store.get(name)
    if data is not None:
        with suppress(ValueError):
            found: T = unpack(kind, data)
            return found
    start = time.thread_time()
    made = function(report)
    if store is not None and time.thread_time() - start >= LEAST_SECONDS:
        with suppress(ValueError, TypeError):  # an answer that cannot be stored is one all the same
            store.put(name, pack(kind, made))
    return made


def _store_of(report: Profile) -> Store | None:
    """Where answers about a report are; None where its file grows, or is another by now."""
    try:
        if not report.state or state_of(report.path) != report.state:
            return None
        return Store(content(report.path))
    except OSError:
        return None


# -- the directory ---


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
    """What tells a file from others at its path, unread. OSError where it is gone."""
    state = os.stat(path)
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def content(path: str | os.PathLike[str]) -> str:
    """A digest of a file's bytes, read once while the file stays as it is: its name is stored.

    OSError where it cannot be read.
    """
    return _content(os.path.abspath(path), state_of(path))


@cache
def _content(path: str, state: tuple[int, ...]) -> str:
    store, name = Store("contents"), name_of(os.fsencode(path), repr(state))
    known = store.get(name)
    if known is not None:
        return known.decode("latin-1")
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
        """The bytes stored under a name; None where there is nothing intact."""
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
            _make_room_once()


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


# -- the codec ---


def pack(kind: Any, value: Any) -> bytes:
    """A value of a type as bytes: JSON with the arrays behind it.

    TypeError where the type cannot be stored or the value is of another; ValueError where a number
    is not finite.
    """
    arrays: list[np.ndarray] = []
    plain = _coder(kind).plain(value, arrays)
    head = json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()
    return b"".join([len(head).to_bytes(8, "little"), head, *(one.tobytes() for one in arrays)])


def unpack(kind: Any, data: bytes) -> Any:
    """The value. ValueError where the bytes are not what `pack` gives of one of this type."""
    length = int.from_bytes(data[:8], "little")
    try:
        plain, rest = json.loads(data[8 : 8 + length]), _Rest(memoryview(data)[8 + length :])
        value = _coder(kind).value(plain, rest)
    except (TypeError, LookupError, RecursionError, OverflowError) as error:
        raise ValueError(f"an answer of another form ({error})") from error
    if rest.data:
        raise ValueError("an answer with bytes behind its end")
    return value


class _Rest:
    """The bytes of arrays, taken from the front."""

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def take(self, dtype: Any, shape: list[Any]) -> np.ndarray:
        if dtype not in _DTYPES.values() or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"an array of {dtype!r} and the shape {shape!r}")
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size > len(self.data):
            raise ValueError(f"an array of {size:,} bytes, of which {len(self.data):,} are there")
        array = np.frombuffer(self.data[:size], dtype).reshape(shape)
        self.data = self.data[size:]
        return array


@dataclass(frozen=True)
class _Coder:
    """How values of one type become JSON and arrays, and JSON and arrays values."""

    plain: Callable[[Any, list[np.ndarray]], Any]
    value: Callable[[Any, _Rest], Any]


@cache
def _coder(kind: Any) -> _Coder:
    if kind in _SCALARS:
        return _of_scalars(kind)
    if (of := _COMPOUND.get(get_origin(kind) or kind)) is not None:
        return of(kind)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return _of_records(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _Coder(lambda value, arrays: kind(value).value, lambda plain, rest: kind(plain))
    if getattr(kind, "__name__", "") == "DataFrame":
        return _Coder(_plain_frame, lambda plain, rest: _frame_value(kind, plain, rest))
    raise TypeError(f"a {kind} cannot be stored")


def _of_scalars(kind: type) -> _Coder:
    return _Coder(
        lambda value, _: _scalar(kind, value.item() if isinstance(value, np.generic) else value),
        lambda plain, _: _scalar(kind, plain),
    )


def _of_unions(kind: Any) -> _Coder:
    """The first alternative that a value fits."""
    coders = [_coder(one) for one in get_args(kind)]

    def first(name: str, said: Any, arrays: Any) -> Any:
        for coder in coders:
            with suppress(TypeError, ValueError):
                return getattr(coder, name)(said, arrays)
        raise TypeError(f"a {type(said).__name__} in place of a {kind}")

    return _Coder(
        lambda value, arrays: first("plain", value, arrays),
        lambda plain, rest: first("value", plain, rest),
    )


def _of_items(kind: Any) -> _Coder:
    """Tuples, lists and frozen sets."""
    origin, parts = get_origin(kind), get_args(kind)
    alike = origin is not tuple or parts[-1] is Ellipsis

    def coders(items: Any) -> Iterable[tuple[_Coder, Any]]:
        kinds = (parts[0],) * len(items) if alike else parts
        return zip(map(_coder, kinds), items, strict=True)

    return _Coder(
        lambda value, arrays: [
            coder.plain(one, arrays) for coder, one in coders(_a(origin, value))
        ],
        lambda plain, rest: origin(
            coder.value(one, rest) for coder, one in coders(_a(list, plain))
        ),
    )


def _of_mappings(kind: Any) -> _Coder:
    key, item = map(_coder, get_args(kind))
    return _Coder(
        lambda value, arrays: [
            [key.plain(one, arrays), item.plain(other, arrays)]
            for one, other in _a(dict, value).items()
        ],
        lambda plain, rest: {
            key.value(one, rest): item.value(other, rest) for one, other in _a(list, plain)
        },
    )


def _of_records(kind: Any) -> _Coder:
    """Dataclasses and named tuples, by the names of their fields."""
    hints = _hints(kind)
    names = getattr(kind, "_fields", None) or [one.name for one in fields(kind)]
    coders = {name: _coder(hints[name]) for name in names}

    def value_of(plain: Any, rest: _Rest) -> Any:
        if not isinstance(plain, dict) or set(plain) != set(coders):
            raise ValueError(f"not the fields of a {kind.__name__}")
        return kind(**{name: coder.value(plain[name], rest) for name, coder in coders.items()})

    return _Coder(
        lambda value, arrays: {
            name: coder.plain(getattr(_a(kind, value), name), arrays)
            for name, coder in coders.items()
        },
        value_of,
    )


def _scalar(kind: Any, value: Any) -> Any:
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise TypeError(f"a {type(value).__name__} in place of a {kind.__name__}")
    if kind is float and not math.isfinite(value):
        raise ValueError("a number that is not finite")
    return value


def _plain_array(values: np.ndarray, arrays: list[np.ndarray]) -> list[Any]:
    """Numbers as they are; of texts, the distinct ones and which of them each is."""
    dtype = _a(np.ndarray, values).dtype.kind
    if dtype in "OUT":
        places: dict[str, int] = {}
        which = [places.setdefault(_scalar(str, str(one)), len(places)) for one in values.tolist()]
        return [*_plain_array(np.array(which, dtype=np.int64), arrays), list(places)]
    if dtype == "f" and not np.isfinite(values).all():
        raise ValueError("a number that is not finite")
    arrays.append(np.ascontiguousarray(values, _DTYPES[dtype]))
    return [_DTYPES[dtype], list(values.shape)]


def _array_value(plain: Any, rest: _Rest) -> np.ndarray:
    dtype, shape, *words = _a(list, plain)
    array = rest.take(dtype, _a(list, shape))
    if dtype == _DTYPES["f"] and not np.isfinite(array).all():
        raise ValueError("a number that is not finite")
    if dtype == _DTYPES["b"] and (array.view(np.uint8) > 1).any():
        raise ValueError("neither true nor false")
    if not words:
        return array
    texts = [_scalar(str, one) for one in _a(list, words[0])]
    if array.size and not 0 <= array.min() <= array.max() < len(texts):
        raise ValueError("a text that is not there")
    return np.array([*texts, None], dtype=object)[array]


def _plain_frame(frame: Any, arrays: list[np.ndarray]) -> dict[str, Any]:
    columns = {name: _plain_array(frame[name].to_numpy(), arrays) for name in frame.columns}
    return {"rows": len(frame), "columns": columns, "types": [str(one) for one in frame.dtypes]}


def _frame_value(kind: Any, plain: Any, rest: _Rest) -> Any:
    if set(_a(dict, plain)) != {"rows", "columns", "types"}:
        raise ValueError("not a frame")
    columns = {name: _array_value(one, rest) for name, one in _a(dict, plain["columns"]).items()}
    if any(one.shape != (plain["rows"],) for one in columns.values()):
        raise ValueError("columns of different lengths")
    types = dict(zip(columns, plain["types"], strict=True))
    if not {*types.values()} <= {"int64", "float64", "bool", "object", "str"}:
        raise ValueError("columns of an unknown type")
    return kind(columns).astype(types)


def _a(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} in place of a {kind.__name__}")
    return value


def _hints(of: Any) -> dict[str, Any]:
    try:
        return get_type_hints(of)
    except NameError:  # a frame's: pandas is imported for annotations only
        import pandas as pd

        return get_type_hints(of, localns={"pd": pd})


_COMPOUND: dict[Any, Callable[[Any], _Coder]] = {
    **dict.fromkeys((tuple, list, frozenset), _of_items),
    **dict.fromkeys((dict, Mapping), _of_mappings),
    **dict.fromkeys((Union, UnionType), _of_unions),
    np.ndarray: lambda _: _Coder(_plain_array, _array_value),
}
