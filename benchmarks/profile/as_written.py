"""Profiles as the code that is here writes them.

A large profile holds answers of the code that wrote it (`ipuscope.planner.worked_out`), which
another version does not take: benchmarks of profiles that are there already measure a copy with its
own.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from multiprocessing import get_context
from pathlib import Path

from ipuscope.planner.worked_out import answers
from ipuscope.profiler.file import schema, seal
from ipuscope.profiler.file.reader import find_profile
from ipuscope.profiler.file.writer import store_answers


def as_written(path: Path, folder: Path) -> Path:
    """A copy of a profile in a folder, with the answers of this code.

    Worked out in a process of its own: a process that is begun by a large one counts as large.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copy = Path(shutil.copy(find_profile(path), folder / "profile.pop"))
    process = get_context("spawn").Process(target=_answered, args=(copy,))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{path}: its answers could not be worked out")
    return copy


def _answered(copy: Path) -> None:
    connection = sqlite3.connect(copy)
    with connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in names.fetchall():
            if name.startswith(f"{schema.WORKED_OUT_TABLE}_"):
                connection.execute(f"DROP TRIGGER {name}")
        connection.execute(f"DROP TABLE IF EXISTS {schema.WORKED_OUT_TABLE}")
        connection.execute(
            "UPDATE meta SET value = ? WHERE key = ?", (json.dumps(seal.BLANK), seal.ENTRY)
        )
    connection.close()
    store_answers(copy, answers(copy))
    seal.seal(copy)
