"""Progress of a command: a bar on a terminal, a line every ten seconds in a log."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from ipuscope.words import one_line

if TYPE_CHECKING:
    import logging

    from rich.console import Console
    from rich.progress import Progress

PATIENCE = 1.0  # seconds of work until a terminal is told
EVERY = 10.0  # seconds between two lines in a log
PROGRESS_LINE = re.compile(r"(.*) \(\d+ s\)")
EVERY_VARIABLE = "IPUSCOPE_PROGRESS_SECONDS"  # the same, of a process whose lines another one shows


class Say(Protocol):
    """Reports the current work and, if known, the part of the whole (0 to 1) that is done."""

    def __call__(self, what: str, part: float | None = None) -> None:
        """Show it."""


class _Display:
    """The state of one piece of work, and the thread that shows it."""

    def __init__(self, words: str, alone_on: TextIO | None = None) -> None:
        self._words, self._what = one_line(words), ""
        self._alone_on = alone_on  # a stream; None: standard error, under what is printed meanwhile
        self._part: float | None = None
        self._start = time.monotonic()
        self._ended = threading.Event()
        self._bar: Progress | None = None
        self._logs: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []
        self._one_at_a_time = threading.Lock()

    def say(self, what: str, part: float | None = None) -> None:
        self._what, self._part = one_line(what), part
        self._draw()

    def show(self, after: float | None) -> None:
        """Show it after ``after`` seconds (None: a bar only once there are words)."""
        if self._ended.wait(after or 0):
            return
        if after is not None:
            self._draw()
        every = float(os.environ.get(EVERY_VARIABLE, EVERY))
        while not self._ended.wait(every - self._seconds % every):
            if self._bar is None:
                print(f"{self} ({self._seconds:.0f} s)", file=sys.stderr, flush=True)

    def show_until(self, enough: Callable[[], bool]) -> None:
        """A bar on a terminal until it is ended, or it is ``enough``."""
        while not self._ended.wait(0.1):
            if enough():
                self.end()
            elif self._seconds > PATIENCE:
                self._draw()

    def end(self) -> None:
        self._ended.set()
        with self._one_at_a_time:
            if self._bar is not None:
                self._bar.stop()
            for handler, stream in self._logs:
                handler.setStream(stream)

    def __str__(self) -> str:
        part = f" {self._part:.0%}" if self._part is not None else ""
        return f"{self._words}:{part} {self._what}".rstrip(": ")

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._start

    def _draw(self) -> None:
        from rich.console import Console

        with self._one_at_a_time:
            if self._bar is None:
                console = Console(stderr=True, file=self._alone_on, highlight=False, markup=False)
                if not console.is_terminal or self._ended.is_set():
                    return
                self._bar = self._started(console)
            total = None if self._part is None else 1.0
            self._bar.update(
                self._bar.task_ids[0], description=str(self), completed=self._part or 0, total=total
            )

    def _started(self, console: Console) -> Progress:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(20),
            TimeElapsedColumn(),
        )
        before = sys.stdout, sys.stderr
        beside = self._alone_on is None
        bar = Progress(
            *columns,
            console=console,
            transient=True,
            redirect_stdout=beside,
            redirect_stderr=beside,
        )
        task = bar.add_task(str(self), total=None)
        bar.tasks[task].start_time = bar.get_time() - self._seconds
        bar.start()  # what is printed meanwhile, warnings too, may go above the bar; so may logs:
        through = dict(zip(before, (sys.stdout, sys.stderr), strict=True))
        self._logs = [(one, one.stream) for one in _log_handlers() if one.stream in through]
        for handler, stream in self._logs:
            handler.setStream(through[stream])
        return bar


def _log_handlers() -> Iterator[logging.StreamHandler[TextIO]]:
    """Handlers that write to a stream, which they took when they were made."""
    import logging

    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        handlers = logger.handlers if isinstance(logger, logging.Logger) else []
        yield from (one for one in handlers if isinstance(one, logging.StreamHandler))


@contextmanager
def waiting(words: str, after: float | None = PATIENCE) -> Iterator[Say]:
    """Show progress on standard error while this lasts; call what it yields to update it.

    A terminal shows it from the first update on or after ``after`` seconds (None: only from an
    update on), so that quick work passes without a flicker; a log gets a line every `EVERY`
    seconds.
    """
    display = _Display(words)
    thread = threading.Thread(target=display.show, args=(after,), daemon=True)
    thread.start()
    try:
        yield display.say
    finally:
        display.end()


class _EndsDisplay:
    """A stream of this process whose first use ends a display.

    ``input`` only flushes it: with a terminal, C writes the prompt.
    """

    def __init__(self, stream: TextIO, display: _Display) -> None:
        self._stream, self._process = stream, os.getpid()
        self._display: _Display | None = display

    def write(self, text: str) -> int:
        self._end()
        return self._stream.write(text)

    def flush(self) -> None:
        self._end()
        self._stream.flush()

    def _end(self) -> None:
        if self._display is not None and os.getpid() == self._process:  # a fork has no threads
            self._display.end()
            self._display = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def waiting_for_output(words: str, enough: Callable[[], bool]) -> Iterator[None]:
    """A bar on a terminal until the program that runs meanwhile prints, or it is ``enough``."""
    if not sys.stderr.isatty():
        yield
        return
    before = sys.stdout, sys.stderr
    display = _Display(words, alone_on=sys.stderr)
    own = tuple(_EndsDisplay(stream, display) for stream in before)
    sys.stdout, sys.stderr = own
    threading.Thread(target=display.show_until, args=(enough,), daemon=True).start()
    try:
        yield
    finally:
        display.end()
        if (sys.stdout, sys.stderr) == own:  # the program may have others by now
            sys.stdout, sys.stderr = before
