"""Small whole programs, trained: none may get 5 % further from what the vendor says than it is."""

from __future__ import annotations

import math

import pytest

from benchmarks.fidelity import store
from benchmarks.fidelity.__main__ import HERE, read, registered
from benchmarks.fidelity.running import run
from benchmarks.fidelity.store import Result

WORSE = 0.05  # of ln(predicted / published), beyond the stored prediction's
SMALL = [row.id for row in read(HERE / "small.csv") if row.unit == "cycles"] + ["pipeline-update"]


@pytest.fixture(scope="module")
def known() -> dict[str, Result]:
    return {result.row.id: result for result in store.load(registered())}


@pytest.mark.parametrize("name", SMALL)
def test_no_small_program_gets_worse(name: str, known: dict[str, Result]) -> None:
    """If a change is right and this fails, `python -m benchmarks.fidelity --only ID` stores it."""
    (now,) = run([known[name].row])
    before = known[name]
    assert before.error < math.inf
    assert now.error <= before.error + WORSE, (
        f"{now.ratio:.3f} of the published, {before.ratio:.3f} was"
    )
