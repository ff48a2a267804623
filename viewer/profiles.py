"""The profiles that a viewer may show. Whatever an address says, no other file is opened."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dash.exceptions import PreventUpdate

from ipuscope.profiler import ProfileError, Report, open_report
from ipuscope.profiler.answers import write_whole
from ipuscope.profiler.file import schema
from ipuscope.profiler.file.lock import is_being_written
from ipuscope.viewer.checks import Checks

T = TypeVar("T")
MOST_RECENT = 20
_MOST_BYTES = 1 << 17  # of their file
PROFILE = "profile.pop"
_MOST_MADE = 32  # cached results made from a report, such as lanes to be drawn
_MOST_OPEN = 4  # reports, each with its frames


class Profiles:
    """Reports by key: "0" and so on as named at the start, others by a digest of their path.

    One is opened when it is first asked for, and again if its file was rewritten since. A key that
    is not listed is the first's.
    """

    def __init__(
        self,
        reports: Sequence[Report] = (),
        script: Sequence[str] = (),
        named: Sequence[Path] = (),
        more: Sequence[Path] = (),
        opened: Callable[[Path], None] = lambda path: None,
    ) -> None:
        """``reports`` and ``named`` come first, ``more`` are those of before.

        ``script``, with its arguments: the user lets the viewer compile splits of it. ``opened`` is
        told of each file that is opened.
        """
        self.checks = Checks(script)
        first = list(dict.fromkeys([*(one.path for one in reports), *named]))
        there = {path.resolve() for path in first}
        self.named = {str(at): path for at, path in enumerate(first)}
        self.more = {_key(path): path for path in more if path.resolve() not in there}
        self._opened = opened
        self._reports = OrderedDict((str(at), report) for at, report in enumerate(reports))
        self._stamps = {key: _stamp(report) for key, report in self._reports.items()}
        self._made: OrderedDict[Hashable, Any] = OrderedDict()
        self._making: dict[Hashable, threading.RLock] = {}  # what threads are making now
        self._lock = threading.RLock()

    @property
    def listed(self) -> dict[str, Path]:
        """All profiles that may be opened, by key. Nothing else is, whatever an address says."""
        return {**self.named, **self.more}

    def __len__(self) -> int:
        return len(self.named) + len(self.more)

    def key(self, asked: object) -> str:
        """The key that an address asks for, else the first."""
        return str(asked) if str(asked) in self.listed else next(iter(self.listed), "0")

    def beside(self, profile: object, other: object) -> str:
        """The key of the profile to compare with: as asked, else the other of two; "" if none."""
        this, asked = self.key(profile), str(other)
        if asked in self.listed and asked != this:
            return asked
        two = len(self.named) == 2 and this in self.named
        rest = [key for key in self.listed if key != this] if two or asked == this else []
        return rest[0] if rest else ""

    def pair(self, profile: object, other: object) -> list[Report]:
        """Both profiles that are compared: this one and the other, but of two A and B."""
        both = [self.key(profile), self.beside(profile, other)]
        if "" in both:
            raise PreventUpdate
        return [*map(self.get, sorted(both) if both[::-1] == [*self.named] else both)]

    def get(self, asked: object = "0") -> Report:
        """The report of a key, else the first. ProfileError if its file is gone."""
        with self._lock:
            key = self.key(asked)
            report = self._reports.get(key)
            if report is None:
                path = self.listed[key]
                report = self._reports[key] = open_report(path)
                self._stamps[key] = _stamp(report)
                self._opened(path)
            self._reports.move_to_end(key)
            while len(self._reports) > _MOST_OPEN:
                self._forget(self._reports.popitem(last=False)[1])
            stamp = _stamp(report)
            if stamp is None:
                raise ProfileError(
                    report.path,
                    "the file is gone since the viewer opened it",
                    "Put it back, or start the viewer anew",
                )
            if stamp != self._stamps[key]:
                self._forget(report)
                report = self._reports[key] = open_report(report.path)
                self._stamps[key] = stamp
            return report

    def _forget(self, report: Report) -> None:
        """Drop what was made from a report."""
        for whole in [one for one, (of, _) in self._made.items() if of is report]:
            del self._made[whole]

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
                self._made[whole] = report, answer  # the report stays, and so does its id
                self._making.pop(whole, None)
                while len(self._made) > _MOST_MADE:
                    self._made.popitem(last=False)
            return answer

    def _cached(self, whole: Hashable) -> Any:
        self._made.move_to_end(whole)
        return self._made[whole][1]


class FollowedProfiles(Profiles):
    """The two newest profiles below a directory; one still being written says what it lacks."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__()
        self.directory = Path(directory)

    def get(self, asked: object = "0") -> Report:
        """The report of a key; ProfileError while there is none."""
        with self._lock:
            if not all(map(_stamp, self._reports.values())):
                self.refresh()  # a run has published its partial file, or somebody removed one
            if not self._reports:
                raise ProfileError(self.directory, "there is no profile below it", self.to_get_one)
            return super().get(asked)

    @property
    def to_get_one(self) -> str:
        """How a profile comes to be there."""
        folder = shlex.quote(str(self.directory))
        return f"One that a run writes is shown by itself: ipu-run --profile-dir {folder} train.py"

    def newer(self) -> str | None:
        """The directory of another run's newer profile; None without one. A run has one."""
        with self._lock:
            shown = [report.path.parent for report in self._reports.values()]
            newest = next(iter(_newest(self.directory)), None)
            gone = not any(map(_stamp, self._reports.values()))
            if newest is None or newest.parent in shown or gone:
                return None
            return os.path.relpath(newest.parent, self.directory)

    def refresh(self) -> str:
        """Look for new profiles; return what identifies the directory's state, "" if empty."""
        with self._lock:
            already_open = {report.path: report for report in self._reports.values()}
            newest = []
            for path in _newest(self.directory):
                with contextlib.suppress(ProfileError):  # just begun, or gone again
                    newest.append(already_open.get(path) or open_report(path))
                if len(newest) == 2:
                    break
            if [report.path for report in newest] != [*self.named.values()]:
                self.named = {str(at): report.path for at, report in enumerate(newest)}
                self._reports = OrderedDict(zip(self.named, newest, strict=True))
                self._stamps = {key: _stamp(report) for key, report in self._reports.items()}
                self._made.clear()
            return " ".join(f"{report.path}:{_stamp(report)}" for report in newest)


def _key(path: Path) -> str:
    return hashlib.blake2b(os.fsencode(path), digest_size=4).hexdigest()


def recent() -> list[Path]:
    """Profiles that this user opened in a viewer and that are still there, the latest first."""
    try:
        paths = json.loads(_state_file().read_bytes()[:_MOST_BYTES])
        shown = [Path(one) for one in paths if isinstance(one, str) and os.path.isabs(one)]
        return [path for path in shown[:MOST_RECENT] if path.is_file()]
    except (OSError, ValueError, TypeError):
        return []


def remember(path: Path) -> None:
    """Put a profile first among the recent ones; a directory that cannot be written is ignored."""
    here = path.resolve()
    paths = [here, *(one for one in recent() if one != here)][:MOST_RECENT]
    with contextlib.suppress(OSError, UnicodeEncodeError):
        _state_file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(_state_file(), json.dumps([os.fspath(one) for one in paths]).encode())


def _state_file() -> Path:
    """``ipuscope/recent.json`` in ``$XDG_STATE_HOME`` or ``~/.local/state``."""
    root = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(root, "ipuscope", "recent.json")


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
