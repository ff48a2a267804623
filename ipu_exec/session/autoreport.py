"""autoreport: writes a compiled model and its first runs to ``profile.pop``.

In ``<directory>/training`` or ``<directory>/inference`` (docs/libpva.md#files-of-a-run,
docs/libpva.md#engine-options); if another process writes there, or it is another model's, in
``training-2`` (``-3`` ...).
If a profile cannot be written, the run continues after one warning with the reason.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from ipu_exec.base.user_tracebacks import warn
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.rows.profile_header import header
from ipu_exec.compiler.rows.profile_rows import rows
from ipu_exec.graph import Graph
from ipu_exec.option_groups.engine_options import (
    COMMAND_VARIABLE,
    LENIENT_VARIABLE,
    LEVERS_VARIABLE,
    NO_SOURCE_VARIABLE,
    TARGET_VARIABLE,
)
from ipu_exec.options import Options
from ipu_exec.session.agreement import Peer
from ipuscope.profiler import ProfileError, ProfileTaken, ProfileWriter, pvti
from ipuscope.profiler.enums import OUT_OF_MEMORY
from ipuscope.profiler.file import records
from ipuscope.profiler.provenance import digest_of
from ipuscope.profiler.pva import debug_info

logger = logging.getLogger("ipu_exec")

MOST_BESIDE = 1000  # processes that write into one directory
PUBLISHED_AT_ONCE = 16  # runs
PUBLISHING = 0.05  # of the time, at most, for the runs after these


class Holder(NamedTuple):
    """The model that a profile is of."""

    name: str
    program: tuple[int, int]  # its cycles and operators
    session: weakref.ref[ProfileSession]  # gone as soon as the model is, or is destroyed


class ProfileSession:
    """Writes an executable's profile to ``folder`` of the options' directory, if they name one."""

    _of: ClassVar[dict[Path, Holder]] = {}  # the last of this process, by the profile's path

    def __init__(
        self,
        options: Options,
        executable: Executable,
        folder: str,
        model: str,
        peers: Sequence[Peer] = (),
        trainer: str = "",
    ) -> None:
        """``model``: its name, by default. ``peers``: the instances that the profile covers.

        ``trainer``: of `ipuscope.profiler.provenance.Provenance`.
        """
        self._wanted = options.profiling()
        self._executable = executable
        self._writer: ProfileWriter | None = None
        self._runs = 0
        self._next_publish = 0.0  # of time.monotonic()
        self._has_debug_info = False
        self._host = (0, 0)  # events and values of the host that were added
        self.path: Path | None = None
        if not self._wanted.enabled:
            return
        over = executable.overflow
        with self._or_none():
            name = options.model_name or model
            self._writer = _writer(self._wanted.directory, folder, name, self._of)
            self.path = self._writer.path
            program = executable.cycles_per_call, len(executable.graph.ops)
            if self.path in self._of and self._of[self.path].program != program:
                logger.warning(
                    "%s: an earlier %s's profile is replaced: options.modelName(...) keeps both",
                    self.path,
                    name,
                )
            self._of[self.path] = Holder(name, program, weakref.ref(self))
            self._writer.meta(
                **header(executable),
                model=name,
                torch=torch.__version__,
                python=platform.python_version(),
                made={**provenance(options.placement), "trainer": trainer},
                changed=_changed(executable.settings),
                sources=source_text(executable.graph),
                callers=callers(executable.graph),
                instances=[asdict(peer) for peer in peers],
                state="compiled" if over is None else OUT_OF_MEMORY,
            )
            for batch in rows(executable):
                self._writer.add(batch)
            if over is not None:
                self._publish(self._writer)

    def record_run(self, host_start_us: int, host_end_us: int) -> None:
        """Add a run if it is among the first `run_count`.

        It is in the partial file at once. The profile at ``path`` has the first
        `PUBLISHED_AT_ONCE` runs at once too; later it is rewritten if that takes at most
        `PUBLISHING` of the time, after the last run and by `close`.
        """
        writer = self._own_writer()
        if writer is None or not self._wanted.execution or self._runs >= self._wanted.run_count:
            return
        cycles = self._executable.cycles_per_call
        begin = self._runs * cycles + self._executable.timeline.schedule.head
        run = records.Run(self._runs, f"run {self._runs}", 0, begin, host_start_us, host_end_us)
        self._runs += 1
        with self._or_none():
            writer.add([run])
            if self._runs == 1:
                writer.meta(state="executed")
            self._add_host_events(writer)
            if self._is_due():
                self._publish(writer)
            # The host's events go on: they are added when the session is closed.
            if self._runs >= self._wanted.run_count and not pvti.recorder.channels:
                self._writer = None
                writer.close()

    def _is_due(self) -> bool:
        """Whether to publish after this run: to copy the file at every run takes ever longer."""
        if self._runs <= PUBLISHED_AT_ONCE or self._runs >= self._wanted.run_count:
            return True
        return time.monotonic() >= self._next_publish

    def _publish(self, writer: ProfileWriter) -> None:
        """Write the profile to ``path``, with its operator information beside it if requested."""
        start = time.monotonic()
        path = writer.publish()
        if self._wanted.debug_info and not self._has_debug_info:
            debug_info.write(path, self._wanted.directory)
            self._has_debug_info = True
        end = time.monotonic()
        self._next_publish = end + (end - start) / PUBLISHING

    def _add_host_events(self, writer: ProfileWriter) -> None:
        """Add the events that ``libpvti`` recorded in this process since the last time."""
        events, values = (
            pvti.recorder.events[self._host[0] :],
            pvti.recorder.values[self._host[1] :],
        )
        if events or values:
            writer.add([*events, *values])
            self._host = self._host[0] + len(events), self._host[1] + len(values)

    def publish(self) -> Path | None:
        """Write the current state to ``path``: after an explicit compile, without a run."""
        writer = self._own_writer()
        if writer is not None:
            with self._or_none():
                self._publish(writer)
        return self.path

    def close(self) -> None:
        """Publish what is not published yet, and close the file."""
        writer = self._own_writer()
        if writer is None:
            return
        with self._or_none():
            self._add_host_events(writer)
            self._publish(writer)
            self._writer = None
            writer.close()

    def _own_writer(self) -> ProfileWriter | None:
        """The open writer, if this process opened it: the profile is not a forked child's."""
        return self._writer if self._writer is not None and self._writer.is_own else None

    @contextmanager
    def _or_none(self) -> Iterator[None]:
        """Continue without a profile, after one warning, whatever goes wrong with it."""
        try:
            yield
        except Exception as error:
            writer, self._writer, self.path = self._writer, None, None
            if writer is not None:
                with suppress(Exception):
                    writer.close()
            why = error if isinstance(error, ProfileError) else f"{type(error).__name__}: {error}"
            warn(f"no profile is written: {why}")


def _writer(directory: Path, kind: str, model: str, of: Mapping[Path, Holder]) -> ProfileWriter:
    """A writer in the first of ``kind``, ``kind-2``, ... that is free; ProfileError if none is.

    A folder is not free where another process is writing, or this one has the profile of a model
    of another name, or of one that is still in use.
    """
    for number in range(1, MOST_BESIDE):
        folder = kind if number == 1 else f"{kind}-{number}"
        path = Path(os.path.abspath(directory / folder / "profile.pop"))
        if path in of and (of[path].name != model or of[path].session() is not None):
            continue
        try:
            writer = ProfileWriter(path)
        except ProfileTaken:
            continue
        if number > 1:
            first = Path(os.path.abspath(directory / kind / "profile.pop"))
            its = of.get(first)
            whose = "written by another process"
            if its is not None:
                whose = f"that of {'another ' if its.name == model else ''}{its.name}"
            logger.warning("%s is %s: the profile of %s goes to %s", first, whose, model, path)
        return writer
    return ProfileWriter(directory / kind / "profile.pop")


def _changed(settings: Mapping[str, Any]) -> list[str]:
    """The options that the script set to other values than PopTorch's defaults, by name."""
    defaults = Options().flat()
    return sorted(
        name
        for name, value in settings.items()
        if value not in (None, "") and value != defaults.get(name)
    )


# -- How the model of this process is being made, for the header of its profile ---


_CANDIDATES = "plan"  # of a plan file: everything that was not chosen


def provenance(placement: str) -> dict[str, Any]:
    """The command, the script, and each setting from outside (`ipuscope.profiler.provenance`)."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    script = os.path.abspath(main) if main and os.path.isfile(main) else ""  # no "<stdin>"
    told = json.loads(os.environ.get(COMMAND_VARIABLE, "{}"))
    return {
        "command": told.get("command", [os.path.basename(sys.executable), *sys.orig_argv[1:]]),
        "script": script,
        "digest": digest_of(script),
        "arguments": sys.argv[1:],
        "num_ipus": told.get("num_ipus", 0),
        "levers": os.environ.get(LEVERS_VARIABLE, ""),
        "target": os.environ.get(TARGET_VARIABLE, ""),
        "lenient": LENIENT_VARIABLE in os.environ,
        "placement": _placement(placement),
        "seed": torch.initial_seed(),
    }


def _placement(path: str) -> dict[str, Any]:
    """The placement file that the stages come from: it may be gone when somebody compiles again."""
    if not path:
        return {}
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    return {name: value for name, value in content.items() if name != _CANDIDATES}


# -- The text of the user's files that operators come from, for the profile's header ---


MOST_BYTES = 512 << 10  # of all files together
MOST_OF_ONE = 256 << 10


def source_text(graph: Graph) -> dict[str, str]:
    """Text by file, those with the most operators first, as far as there is room.

    Without files that cannot be read (a notebook's cells); none with ``ipu-run --no-source``.
    """
    if os.environ.get(NO_SOURCE_VARIABLE):
        return {}
    texts, room = {}, MOST_BYTES
    for file, _ in Counter(op.file for op in graph.ops if op.file).most_common():
        try:
            if os.path.getsize(file) > min(room, MOST_OF_ONE):
                continue
            text = Path(file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        texts[file] = text
        room -= len(text.encode())
    return texts


def callers(graph: Graph) -> dict[str, Any]:
    """The call stacks above the operators' lines: distinct ``texts``, and which each operator has.

    Empty where nothing calls them, or where they are more than `MOST_BYTES`.
    """
    texts = [*dict.fromkeys(op.callers for op in graph.ops)]
    number = {text: at for at, text in enumerate(texts)}
    if not any(texts) or sum(map(len, texts)) > MOST_BYTES:
        return {}
    return {"texts": texts, "of": [number[op.callers] for op in graph.ops]}
