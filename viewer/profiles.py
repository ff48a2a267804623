"""The one or two profiles a viewer shows. Whatever an address says, no other file is opened."""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ipuscope.profiler import ProfileError, Report, open_report
from ipuscope.profiler.file import schema
from ipuscope.profiler.file.lock import is_being_written
from ipuscope.viewer.checks import Checks

T = TypeVar("T")
PROFILE = "profile.pop"
_KEPT = 32  # cached results made from a report, such as lanes to be drawn


class Profiles:
    """Reports by position. One whose file was rewritten since is opened again."""

    def __init__(self, reports: list[Report], script: Sequence[str] = ()) -> None:
        """``script``, with its arguments: the user lets the viewer compile splits of it."""
        self.checks = Checks(script)
        self._reports = reports
        self._stamps = [_stamp(report) for report in reports]
        self._made: OrderedDict[Hashable, Any] = OrderedDict()
        self._making: dict[Hashable, threading.RLock] = {}  # what threads are making now
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._reports)

    def get(self, position: int = 0) -> Report:
        """The report at a position, else the first. ProfileError if its file is gone."""
        with self._lock:
            at = position if 0 <= position < len(self._reports) else 0
            report = self._reports[at]
            stamp = _stamp(report)
            if stamp is None:
                raise ProfileError(
                    report.path,
                    "the file is gone since the viewer opened it",
                    "Put it back, or start the viewer anew",
                )
            if stamp != self._stamps[at]:
                report = self._reports[at] = open_report(report.path)
                self._stamps[at] = stamp
                self._made.clear()
            return report

    def made(self, report: Report, key: Hashable, make: Callable[[], T]) -> T:
        """The result of ``make``, cached for the latest keys; a thread waits for the same only."""
        whole = (id(report), key)
        with self._lock:
            if whole in self._made:
                return self._cached(whole)
            making = self._making.setdefault(whole, threading.RLock())
        with making:
            with self._lock:
                if whole in self._made:
                    return self._cached(whole)
            answer = make()
            with self._lock:
                self._made[whole] = answer
                self._making.pop(whole, None)
                while len(self._made) > _KEPT:
                    self._made.popitem(last=False)
            return answer

    def _cached(self, whole: Hashable) -> Any:
        self._made.move_to_end(whole)
        return self._made[whole]


class FollowedProfiles(Profiles):
    """The two newest profiles below a directory; one still being written says what it lacks."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__([])
        self.directory = Path(directory)

    def get(self, position: int = 0) -> Report:
        """The report at a position; ProfileError while there is none."""
        with self._lock:
            if not all(map(_stamp, self._reports)):
                self.refresh()  # a run has published its partial file, or somebody removed one
            if not self._reports:
                raise ProfileError(self.directory, "there is no profile below it", self.to_get_one)
            return super().get(position)

    @property
    def to_get_one(self) -> str:
        """How a profile comes to be there."""
        folder = shlex.quote(str(self.directory))
        return f"One that a run writes is shown by itself: ipu-run --profile-dir {folder} train.py"

    def newer(self) -> str | None:
        """The directory of another run's newer profile; None without one. A run has one."""
        with self._lock:
            shown = [report.path.parent for report in self._reports]
            newest = next(iter(_newest(self.directory)), None)
            gone = not any(map(_stamp, self._reports))
            if newest is None or newest.parent in shown or gone:
                return None
            return os.path.relpath(newest.parent, self.directory)

    def refresh(self) -> str:
        """Look for new profiles; return what identifies the directory's state, "" if empty."""
        with self._lock:
            already_open = {report.path: report for report in self._reports}
            newest = []
            for path in _newest(self.directory):
                with contextlib.suppress(ProfileError):  # just begun, or gone again
                    newest.append(already_open.get(path) or open_report(path))
                if len(newest) == 2:
                    break
            if [report.path for report in newest] != list(already_open):
                self._reports = newest
                self._stamps = [_stamp(report) for report in newest]
                self._made.clear()
            return " ".join(f"{report.path}:{_stamp(report)}" for report in newest)


def _newest(directory: Path) -> list[Path]:
    """Profiles below a directory, except in hidden folders, newest first."""
    times: dict[Path, int] = {}
    for here, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(".")]
        name = next((one for one in (PROFILE, f"{PROFILE}.partial") if one in files), None)
        if name is not None:
            with contextlib.suppress(OSError):
                times[Path(here, name)] = os.stat(Path(here, name)).st_mtime_ns
    return sorted(times, key=lambda path: -times[path])


def _stamp(report: Report) -> tuple[int, ...] | None:
    """A version of a file, None without one; a partial file's changes as its run ends."""
    try:
        state = os.stat(report.path)
    except OSError:
        return None
    partial = report.path.name.endswith(schema.PARTIAL_SUFFIX)
    going_on = partial and is_being_written(report.path)
    return state.st_ino, state.st_mtime_ns, state.st_size, going_on
