"""Log levels by PopTorch's names, and its questions about hardware."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from ipu_exec import machine
from ipu_exec.errors import UsageError
from ipu_exec.options import Options

TRACE = 5
_LEVELS = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "OFF": logging.CRITICAL + 10,
}
_NUMBERS = ("TRACE", "DEBUG", "INFO", "WARN", "ERR")
LEVEL_VARIABLE = "POPTORCH_LOG_LEVEL"

logger = logging.getLogger("ipu_exec")
_POPART_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERR", "OFF")


class _OnStderr(logging.StreamHandler[TextIO]):
    """Writes to the ``sys.stderr`` of the moment, which pytest replaces for each test."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        pass


class _AsPopTorch(logging.Formatter):
    """Lines in PopTorch's format: ``[12:00:00.250] [ipu_exec] [debug] ...``."""

    default_time_format = "%H:%M:%S"
    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("[%(asctime)s] [ipu_exec] [%(level)s] %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.level = record.levelname.lower()
        return super().format(record)


def setLogLevel(level: str | int) -> None:
    """Show messages of that level and above on stderr, as ``POPTORCH_LOG_LEVEL`` does.

    Levels are TRACE (0), DEBUG, INFO, WARN, ERR (4) and OFF.
    """
    if isinstance(level, int):
        if not 0 <= level < len(_NUMBERS):
            raise UsageError(f"Invalid log level integer: {level} is not in 0 (TRACE) ... 4 (ERR)")
        level = _NUMBERS[level]
    if level not in _LEVELS:
        names = sorted(_LEVELS)
        raise UsageError(
            f"Unknown log level: {level}. Valid values are {', '.join(names[:-1])} and {names[-1]}"
        )
    if not logger.handlers:
        handler = _OnStderr()
        handler.setFormatter(_AsPopTorch())
        logger.addHandler(handler)
    logger.setLevel(_LEVELS[level])


def setPopartLogLevel(level: str) -> None:
    """The level is checked but has no effect, because there is no PopART."""
    if level not in _POPART_LEVELS:
        raise UsageError(f"Level must be one of {', '.join(_POPART_LEVELS)}, not {level!r}")


def from_environment() -> None:
    """Set the level that ``POPTORCH_LOG_LEVEL`` requests."""
    if os.environ.get(LEVEL_VARIABLE):
        try:
            setLogLevel(os.environ[LEVEL_VARIABLE])
        except UsageError as error:
            logger.warning("%s has no effect: %s", LEVEL_VARIABLE, error)


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """True: the modelled machine replaces the hardware, for scripts that would skip their work."""
    return True


def hasMLIRSupportOnPlatform() -> bool:
    """True: models are captured by running them, as by PopTorch's dispatcher, not traced."""
    return True


def ipuHardwareVersion() -> int:
    """The modelled generation: 2 (Mk2, C600, Bow), or 1 after ``ipu-run --target mk1``.

    Applications stop if it is not theirs [EX, nlp/bert/pytorch/ipu_options.py].
    """
    return int(machine.target(Options().target_name).architecture.removeprefix("ipu"))
