"""Compiling rows and reading their predictions, in this process or in one of several."""

from __future__ import annotations

import gc
from collections.abc import Iterable

from benchmarks import dated
from benchmarks.fidelity.cases import CannotRun, Compiled, Row, compiled, predict
from benchmarks.fidelity.store import Result
from ipu_exec.errors import Error


def run(rows: Iterable[Row]) -> list[Result]:
    """Predict every row; adjacent rows of the same case are compiled once, and nothing is kept."""
    results, commit = [], dated.commit()
    last: tuple[str, ...] = ()
    case: Compiled | str = ""
    for row in rows:
        key = (row.case, row.machine, row.dtype)
        if key != last:
            last, case = key, ""
            if " IPU" in row.case:
                gc.collect()  # executables refer to themselves, and those of pods take gigabytes
            try:
                case = compiled(row)
            except (CannotRun, Error) as error:
                case = str(error)
        if isinstance(case, str):
            results.append(Result(row, None, 0.0, case, commit))
            continue
        try:
            results.append(Result(row, predict(row, case), case.fullest, case.note, commit))
        except CannotRun as error:
            results.append(Result(row, None, case.fullest, str(error), commit))
    return results
