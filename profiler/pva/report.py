"""``openReport`` and the report it gives (docs/libpva.md#report)."""

from __future__ import annotations

import os
import warnings
from typing import ClassVar

from ipuscope import __version__
from ipuscope.profiler.file import schema
from ipuscope.profiler.pva.compilation import CompilationReport
from ipuscope.profiler.pva.enums import ComputeInstrumentation, ExchangeInstrumentation
from ipuscope.profiler.pva.execution import ExecutionReport
from ipuscope.profiler.pva.lists import Shown, plain, set_print_length
from ipuscope.profiler.pva.model import Model
from ipuscope.profiler.report import DAMAGED, open_report


@plain
class Version(Shown):
    """``major.minor.point``."""

    major: int
    minor: int
    point: int

    @property
    def string(self) -> str:
        """The version as text."""
        return f"{self.major}.{self.minor}.{self.point}"


class FileVersion(Version):
    """The version of the file's format; formats only ever grow, so `isUnstableFormat` is False."""

    __slots__ = ()
    isUnstableFormat = False


class PoplarVersion(Version):
    """The version of this IPUscope, where libpva has the SDK's: no Poplar is involved."""

    __slots__ = ("_writer",)
    _shown = ("string",)

    def __init__(self, writer: str) -> None:
        numbers = [int(part) if part.isdigit() else 0 for part in __version__.split(".")[:3]]
        super().__init__(*[*numbers, 0, 0, 0][:3])
        self._writer = writer

    @property
    def string(self) -> str:
        """The version as text."""
        return f"{super().string} ({self._writer})"

    packageHash = ""  # no SDK is involved


class InstrumentationSettings(Shown):
    """What was measured: here all of it is modelled, tile by tile."""

    ComputeInstrumentation: ClassVar = ComputeInstrumentation
    ExternalExchangeInstrumentation: ClassVar = ExchangeInstrumentation
    compute = ComputeInstrumentation.Tile
    externalExchange = ExchangeInstrumentation.Tile
    _shown = ("compute", "externalExchange")


class Report(Shown):
    """One profile in libpva's form."""

    _shown = ("version", "compilation", "execution")

    def __init__(self, model: Model) -> None:
        self._model = model
        self.compilation = CompilationReport(model)
        self.execution = ExecutionReport(model)
        self.version = FileVersion(schema.VERSION, 0, 0)
        self.poplarVersion = PoplarVersion(str(model.report.meta["writer"]))
        self.instrumentationSettings = InstrumentationSettings()

    def listPrintLength(self, entries: int) -> None:
        """Set how many entries of lists are shown when objects are printed (of all reports)."""
        set_print_length(entries)


def openReport(path: str | os.PathLike[str], debug: str | os.PathLike[str] | None = None) -> Report:
    """Open a ``profile.pop``; `ipuscope.profiler.ProfileError` if this version cannot read it.

    ``debug`` may name a ``debug.cbor`` and is not read: a profile has its own debug information.
    """
    report = open_report(path)
    if report.file.damaged:
        warnings.warn(f"{report.path}: {DAMAGED}", stacklevel=2)
    return Report(Model(report))
