"""Locking a profile for writing: one process at a time, by a lock that ends with the process.

The lock is the kernel's, on ``profile.pop.lock``: a killed process leaves none, and a forked child
does not inherit its parent's. It is shared within a process: a newer model takes an older one's
place. On a file system without locks, writing continues without.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ipuscope.profiler.file import schema

LOCK_SUFFIX = ".lock"
_TAKEN = (errno.EACCES, errno.EAGAIN)
_FLOCK = "hhqqi4x"  # Linux' struct flock: type, whence, start, length, process
_mutex = threading.Lock()


@dataclass
class _Lock:
    """A lock of this process (``pid``), shared by ``users``."""

    descriptor: int
    pid: int
    users: int = 1


_locks: dict[str, _Lock] = {}


def acquire(path: Path) -> bool:
    """Take the lock; False if another process has it, OSError if its directory is not writable."""
    lock = _lock_file(path)
    with _mutex:
        own_lock = _locks.get(lock)
        if own_lock is not None and own_lock.pid == os.getpid():
            own_lock.users += 1
            return True
        descriptor = _locked(lock)
        if descriptor is None:
            return False
        _locks[lock] = _Lock(descriptor, os.getpid())
        return True


def release(path: Path) -> None:
    """Release the lock; its last user in this process removes its file."""
    lock = _lock_file(path)
    with _mutex:
        own_lock = _locks.get(lock)
        if own_lock is None or own_lock.pid != os.getpid():
            return
        own_lock.users -= 1
        if not own_lock.users:
            del _locks[lock]
            # Before it is closed: whoever locks it next sees that it is gone, and makes a new one.
            with suppress(OSError):  # the directory may be gone, or no longer ours to write
                os.unlink(lock)
            os.close(own_lock.descriptor)


def is_being_written(path: Path) -> bool:
    """Whether a process is writing the file, or its partial file; False if that is unknown."""
    lock = _lock_file(path.with_name(path.name.removesuffix(schema.PARTIAL_SUFFIX)))
    with _mutex:
        own_lock = _locks.get(lock)
        if own_lock is not None and own_lock.pid == os.getpid():
            return True  # closing another descriptor of it would end the lock
        try:
            descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
            return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
        except OSError:
            return False
        finally:
            os.close(descriptor)


def _lock_file(path: Path) -> str:
    return os.path.abspath(path) + LOCK_SUFFIX


def _locked(lock: str) -> int | None:
    """A descriptor of the locked file; None where another process has it."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                os.close(descriptor)
                return None
        if _is_still_there(lock, descriptor):
            return descriptor
        os.close(descriptor)


def _is_still_there(lock: str, descriptor: int) -> bool:
    """Whether the name still refers to the locked file, which its last user may have removed."""
    try:
        return os.path.samestat(os.stat(lock), os.fstat(descriptor))
    except FileNotFoundError:
        return False
