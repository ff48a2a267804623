"""The errors of this package: a profile that cannot be read or written, or is in use."""

from __future__ import annotations

import os


class ProfileError(Exception):
    """A profile that cannot be read or written: ``path``, ``problem``, and the ``remedy``."""

    def __init__(self, path: str | os.PathLike[str], problem: str, remedy: str = "") -> None:
        self.path = os.fspath(path)
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{self.path}: {problem}." + (f" {remedy}." if remedy else ""))

    def __reduce__(self) -> tuple[type[ProfileError], tuple[str, str, str]]:
        return type(self), (self.path, self.problem, self.remedy)


class ProfileTaken(ProfileError):
    """A profile that another process is writing."""
