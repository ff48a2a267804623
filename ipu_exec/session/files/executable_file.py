"""Compiled models as files: written by ``compileAndExport``, ``save`` and the executable cache.

A file is a zip archive: ``header.json`` (format, versions, how it was compiled), ``program.json``
and ``arrays.bin`` (the compiled program, its inputs and the random state, see
`ipu_exec.session.files.plain_values`) and optionally ``model.pt`` (model, optimiser and options).

Reading a program runs no code of the file and takes at most `MOST_BYTES`. A model is a pickle,
which may run whatever its writer put there: `read_model` warns of that, and only `ipu_exec.load`
calls it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import logging
import os
import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from ipu_exec.base.sources import fingerprint
from ipu_exec.base.user_tracebacks import warn
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.options import CompileOptions
from ipu_exec.errors import Error
from ipu_exec.graph import Graph
from ipu_exec.lowering import registry
from ipu_exec.session.files.plain_values import arrays_of, put_together, taken_apart

FORMAT, VERSION = "ipuscope executable", 3
SUFFIX = ".ipuexec"
_HEADER, _PROGRAM, _ARRAYS, _MODEL = "header.json", "program.json", "arrays.bin", "model.pt"
# Deflate shrinks to a thousandth at most: what says more is no such member. A program of 12 encoder
# layers expands 7 times, with a value in each byte of it compressed: each may take 100 bytes.
_DEFLATE, _EXPANDS, MOST_VALUES, _FEW = 1100, {_PROGRAM: 64}, 8, 1 << 12
MOST_BYTES = {_HEADER: 1 << 20, _PROGRAM: 1 << 28, _ARRAYS: 1 << 32, _MODEL: 1 << 40}


@dataclasses.dataclass(frozen=True)
class Stored:
    """The contents of a file without its model."""

    header: dict[str, Any]
    executable: Any  # without the user's options
    inputs: dict[str, Any]  # as arguments.describe gives them
    state: dict[str, Any]  # what else the program depends on, see PoplarExecutor
    rng_state: list[int] | None


def write(
    path: str | os.PathLike[str], stored: Stored, model: dict[str, Any] | None = None
) -> Path:
    """Write a file in one step: readers of the path get the old file or the whole new one.

    A directory stands for ``model.poptorch`` in it. ``model``: what `read_model` returns. Error
    if it cannot be written or pickled.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "model.poptorch"
    header = {
        **stored.header,
        "format": FORMAT,
        "version": VERSION,
        "torch": torch.__version__,
        "compiler": fingerprint(),
        "model": model is not None,
    }
    bare = dataclasses.replace(stored.executable, settings={})
    try:
        plain = taken_apart((bare, stored.inputs, stored.state, stored.rng_state))
        buffer = io.BytesIO()
        if model is not None:
            torch.save(model, buffer)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Error(
            f"{path} cannot be written: {error}. A model's class has to be at the top of a module"
            " to be pickled; export_model=False leaves the model out"
        ) from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
            made.writestr(_HEADER, json.dumps(header))
            program = {"nodes": plain.nodes, "arrays": plain.table(), "root": plain.root}
            made.writestr(_PROGRAM, json.dumps(program, separators=(",", ":")))
            with made.open(_ARRAYS, "w", force_zip64=True) as file:
                for array in plain.arrays:
                    file.write(array.tobytes())
            if model is not None:
                made.writestr(_MODEL, buffer.getvalue(), zipfile.ZIP_STORED)
        os.replace(partial, path)
    except OSError as error:
        raise Error(f"{path} cannot be written: {error.strerror}") from error
    return path


def read(path: str | os.PathLike[str]) -> Stored:
    """The compiled program of a file. Error if it has none or another compiler wrote it."""
    header, program, content = _open(path, _PROGRAM, _ARRAYS)
    if header["compiler"] != fingerprint():
        raise Error(
            f"{path} was compiled by another version of IPUscope: compile it again, with"
            " compileAndExport"
        )
    try:
        parsed = json.loads(program)
        arrays = arrays_of(parsed["arrays"], memoryview(content))
        whole = put_together(parsed["nodes"], arrays, parsed["root"])
        executable, inputs, state, rng_state = _parts(whole)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Error(
            f"{path} is broken, or not what it says it is: {error}. Compile it again"
        ) from error
    return Stored(header, executable, inputs, state, rng_state)


def _parts(whole: Any) -> tuple[Executable, dict[str, Any], dict[str, Any], list[int] | None]:
    """The parts of a program. ValueError if they are not those of a program."""
    if not isinstance(whole, tuple) or len(whole) != 4:
        raise ValueError("it is not a compiled program")
    *parts, rng_state = whole
    bytes_only = rng_state is None or (
        isinstance(rng_state, list)
        and all(type(one) is int and 0 <= one < 256 for one in rng_state)
    )
    if not bytes_only or not all(map(isinstance, parts, (Executable, dict, dict))):
        raise ValueError("it is not a compiled program")
    return whole


def read_model(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Model, optimiser, options and kind; warns that it unpickles. Error if the file has none."""
    _, content = _open(path, _MODEL)
    if not content:
        raise Error(
            f"{path} was written with export_model=False and holds the executable only: wrap the"
            " model with trainingModel or inferenceModel and call its loadExecutable"
        )
    warn(
        f"{path} holds a pickled model. Unpickling runs code that the file's writer chose: load"
        " only files of people you trust"
    )
    return torch.load(io.BytesIO(content), weights_only=False)


def importPoptorchMetadataFromFile(filename: str | os.PathLike[str]) -> bytes:
    """The pickled model, optimiser and options of a file, not unpickled; empty if it has none.

    Error if the file is not a compiled model.
    """
    _, content = _open(filename, _MODEL)
    return bytes(content)


def _open(path: str | os.PathLike[str], *members: str) -> tuple[Any, ...]:
    """The header and members of the archive; a missing member is empty."""
    name = os.fspath(path)
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(_member(archive, _HEADER))
            _check_header(name, header)
            return (header, *(_member(archive, member) for member in members))
    except OSError as error:
        raise Error(f"{name} cannot be read: {error.strerror or error}") from error
    except (
        zipfile.BadZipFile,
        KeyError,
        ValueError,
        NotImplementedError,
        RuntimeError,
        EOFError,
        zlib.error,
        RecursionError,
    ) as error:
        raise Error(
            f"{name} is not a compiled model ({error}). Write one with compileAndExport"
        ) from error


def _member(archive: zipfile.ZipFile, member: str) -> bytes:
    """A member's content; ValueError if its stated size is over the limit."""
    if member not in archive.namelist():
        return b""
    info = archive.getinfo(member)
    most = min(MOST_BYTES[member], _EXPANDS.get(member, _DEFLATE) * info.compress_size + 1024)
    if info.file_size > most:
        raise ValueError(f"{member} says to have {info.file_size:,} bytes, and may have {most:,}")
    with archive.open(info) as file:
        content = file.read(info.file_size)
    if member == _PROGRAM:
        values = content.count(b",") + content.count(b"[") + content.count(b"{")
        if values > MOST_VALUES * (info.compress_size + _FEW):
            raise ValueError(f"{member} has {values:,} values in {info.compress_size:,} bytes")
    return content


def _check_header(name: str, header: Any) -> None:
    """Error if the file is not one of ours, of this version."""
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise Error(f"{name} is not a compiled model. Write one with compileAndExport")
    if header.get("version") != VERSION:
        raise Error(
            f"{name} has version {header.get('version')!r}; this IPUscope reads {VERSION}. Compile"
            " it again, with compileAndExport"
        )
    if type(header.get("training")) is not bool or type(header.get("compiler")) is not str:
        raise Error(f"{name} is broken: its header lacks what it must say. Compile it again")


# -- the cache ---


def key(*parts: Any) -> str:
    """The name of a cache entry for values with a complete ``repr``, under this compiler."""
    digest = hashlib.sha256(fingerprint().encode())
    for part in parts:
        digest.update(repr(part).encode())
    return digest.hexdigest()[:40]


# -- The executable cache (``Options.enableExecutableCaching``): a directory of compiled models ---
# Entries are keyed by all inputs of the compilation. A cache that does not work is only a warning.


logger = logging.getLogger("ipu_exec")


def from_cache(
    directory: str, graph: Graph, options: CompileOptions, compiled: Callable[[], Executable]
) -> Executable:
    """The directory's executable of ``graph``, or that of ``compiled``, which is then stored."""
    name = key(graph, options, registry.by_users())
    path = Path(directory) / f"{name}{SUFFIX}"
    cached = _read(path)
    if cached is None:
        with _alone(path):
            cached = _read(path)
            if cached is None:
                return _compile(path, options, compiled)
    logger.info("taken from the cache: %s", path)
    return cached


def _compile(path: Path, options: CompileOptions, compiled: Callable[[], Executable]) -> Executable:
    executable = compiled()
    stored = Stored({"training": options.training}, executable, {}, {}, None)
    try:
        write(path, stored)
    except Error as error:
        logger.warning("nothing is stored in the cache: %s", error)
    return executable


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one of the processes that want an executable compile it while the others wait for it.

    The kernel's lock ends with a process, its file once there is an executable to read.
    """
    lock = FileLock(f"{path}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        logger.warning("the cache is not locked: %s", error.strerror)
        yield
        return
    logger.debug("cache file locked: %s", path)
    try:
        yield
    finally:
        logger.debug("released the cache lock: %s", path)
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _read(path: Path) -> Executable | None:
    if not path.exists():
        return None
    try:
        return read(path).executable
    except Error as error:
        logger.warning("the cached executable is not taken: %s", error)
        return None
