"""Errors with PopTorch's ``message``, ``type``, ``location``: docs/poptorch-semantics.md#errors."""

from __future__ import annotations


class Error(RuntimeError):
    """An error that the engine raises on purpose: ``message``, with the fix, and ``location``."""

    def __init__(self, message: str, *, type: str | None = None, location: str = "") -> None:
        super().__init__(f"{message} [{location}]" if location else message)
        self.message = message
        self.type = type or self.__class__.__name__
        self.location = location


class UsageError(Error, AssertionError, TypeError, ValueError):
    """A call or an argument that is rejected: each kind of error that PopTorch raises for one."""


class PipelineDepthError(UsageError):
    """A call has too few micro-batches to fill the pipeline; ``least`` are needed."""

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message)
        self.least = least


class FrozenError(Error, AttributeError):
    """An attempt to change options that are in use."""


class RecoverableError(Error):
    """Resetting the device and trying again may help."""


class UnrecoverableError(Error):
    """Trying again will not help."""


class OutOfMemoryError(Error):
    """A tile holds more than its memory. The profile was saved first: ``profile_path``."""

    def __init__(self, message: str, *, profile_path: str = "", location: str = "") -> None:
        super().__init__(message, location=location)
        self.profile_path = profile_path


class ContentError(Error):
    """The model reads the content of a tensor whose content is unknown."""


class LoweringError(Error):
    """No lowering is registered for an operator of the model."""
