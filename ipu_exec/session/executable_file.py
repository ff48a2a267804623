"""Compiled models as files.

What ``compileAndExport`` and ``save`` write and the executable cache keeps.

A file is a zip archive: ``header.json`` (format, versions, how it was compiled),
``executable.pickle`` (the compiled program, its inputs and the random state) and, where asked for,
``model.pt`` (model, optimiser and options).

Unpickling may run whatever its writer put there. ``executable.pickle`` is read by an unpickler that
makes nothing but this project's plain records, arrays and numbers. A model is a user's class and
cannot be read like that: `read_model` says so with a warning, and nothing reads a model unless it
was asked to.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import importlib
import io
import json
import os
import pickle
import warnings
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ipu_exec.errors import Error

FORMAT, VERSION = "ipuscope executable", 1
SUFFIX = ".ipuexec"
_HEADER, _EXECUTABLE, _MODEL = "header.json", "executable.pickle", "model.pt"
_PLAIN = {
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("builtins", "complex"),
    ("builtins", "range"),
    ("builtins", "slice"),
    ("collections", "OrderedDict"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
    ("torch", "Size"),
}


@dataclasses.dataclass(frozen=True)
class Stored:
    """What a file holds but for its model."""

    header: dict[str, Any]
    executable: Any  # without the user's options
    inputs: dict[str, Any]  # as arguments.describe gives them
    state: dict[str, Any]  # what else the program depends on, see PoplarExecutor
    rng_state: list[int] | None


def write(
    path: str | os.PathLike[str], stored: Stored, model: dict[str, Any] | None = None
) -> Path:
    """Write a file at once: whoever reads the path meets the old file or the whole new one.

    A directory stands for ``model.poptorch`` in it. ``model``: what `read_model` gives back. Error
    where it cannot be written or pickled.
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
        content = pickle.dumps((bare, stored.inputs, stored.state, stored.rng_state), protocol=5)
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
            made.writestr(_EXECUTABLE, content)
            if model is not None:
                made.writestr(_MODEL, buffer.getvalue(), zipfile.ZIP_STORED)
        os.replace(partial, path)
    except OSError as error:
        raise Error(f"{path} cannot be written: {error.strerror}") from error
    return path


def read(path: str | os.PathLike[str]) -> Stored:
    """The compiled program of a file. Error where there is none, or another compiler wrote it."""
    header, content = _open(path, _EXECUTABLE)
    if header["compiler"] != fingerprint():
        raise Error(
            f"{path} was compiled by another version of IPUscope: compile it again, with"
            " compileAndExport"
        )
    try:
        executable, inputs, state, rng_state = _Reader(io.BytesIO(content)).load()
    except (
        pickle.UnpicklingError,
        AttributeError,
        EOFError,
        ImportError,
        TypeError,
        ValueError,
    ) as error:
        raise Error(
            f"{path} is broken, or not what it says it is: {error}. Compile it again"
        ) from error
    return Stored(header, executable, inputs, state, rng_state)


def read_model(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Model, optimiser, options and kind of a file.

    Warns that it unpickles. Error where the file has no model.
    """
    header, content = _open(path, _MODEL)
    if not header["model"]:
        raise Error(
            f"{path} was written with export_model=False and holds the executable only: wrap the"
            " model with trainingModel or inferenceModel and call its loadExecutable"
        )
    warnings.warn(
        f"{path} holds a pickled model. Unpickling runs code that the file's writer chose: load"
        " only files of people you trust",
        stacklevel=3,
    )
    made: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=False)
    return made


def _open(path: str | os.PathLike[str], member: str) -> tuple[dict[str, Any], bytes]:
    """The header and a member of the archive; empty where it has no such member."""
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read(_HEADER))
            content = archive.read(member) if member in archive.namelist() else b""
    except OSError as error:
        raise Error(f"{os.fspath(path)} cannot be read: {error.strerror}") from error
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise Error(
            f"{os.fspath(path)} is not a compiled model ({error}). Write one with compileAndExport"
        ) from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise Error(f"{os.fspath(path)} is not a compiled model. Write one with compileAndExport")
    if header.get("version") != VERSION:
        raise Error(
            f"{os.fspath(path)} has version {header.get('version')!r}; this IPUscope reads"
            f" {VERSION}"
        )
    return header, content


class _Reader(pickle.Unpickler):
    """Creates this project's dataclasses and enums, arrays and plain values, nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
        if module.split(".")[0] in ("ipu_exec", "profiler") and "." not in name:
            found = getattr(importlib.import_module(module), name, None)
            if isinstance(found, type) and found.__module__ == module and _is_record(found):
                return found
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which no compiled model has")


def _is_record(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum)


# -- the cache ---


@lru_cache(maxsize=1)
def fingerprint() -> str:
    """Of the sources that decide what is compiled: another compiler's executables are not taken."""
    digest = hashlib.sha256(torch.__version__.encode())
    root = Path(__file__).parents[1]
    for source in sorted([*root.rglob("*.py"), *(root.parent / "profiler").glob("*.py")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def key(*parts: Any) -> str:
    """Name of a cache entry for values whose ``repr`` says all, under this compiler."""
    digest = hashlib.sha256(fingerprint().encode())
    for part in parts:
        digest.update(repr(part).encode())
    return digest.hexdigest()[:40]
