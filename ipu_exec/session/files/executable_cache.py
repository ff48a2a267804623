"""The executable cache (``Options.enableExecutableCaching``): a directory of compiled models.

Entries are keyed by all inputs of the compilation. A cache that does not work is only a warning.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock

from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.options import CompileOptions
from ipu_exec.errors import Error
from ipu_exec.graph import Graph
from ipu_exec.lowering import registry
from ipu_exec.session.files import executable_file

logger = logging.getLogger("ipu_exec")


def from_cache(
    directory: str, graph: Graph, options: CompileOptions, compiled: Callable[[], Executable]
) -> Executable:
    """The directory's executable of ``graph``, or that of ``compiled``, which is then stored."""
    name = executable_file.key(graph, options, registry.by_users())
    path = Path(directory) / f"{name}{executable_file.SUFFIX}"
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
    stored = executable_file.Stored({"training": options.training}, executable, {}, {}, None)
    try:
        executable_file.write(path, stored)
    except Error as error:
        logger.warning("nothing is kept in the cache: %s", error)
    return executable


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one of the processes that want an executable compile it while the others wait for it.

    The lock is the kernel's, so that a dead process holds none. Its file goes once there is an
    executable to read: whoever waits at the old file finds that.
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
        executable: Executable = executable_file.read(path).executable
    except Error as error:
        logger.warning("the cached executable is not taken: %s", error)
        return None
    return executable
