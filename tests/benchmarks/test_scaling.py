"""The page of scaling: what it counts from predictions, and that configurations are whole."""

from __future__ import annotations

import pytest

from benchmarks.fidelity import models
from benchmarks.scaling import page
from benchmarks.scaling.__main__ import Result
from benchmarks.scaling.cases import PUBLISHED, System, row, sweep


def result(ipus: int, throughput: float, published: float | None) -> Result:
    system = System(f"POD{ipus}", ipus, "ResNet-50", published)
    return Result("a model", system, throughput, {"compute": 750, "sync": 250}, "")


def test_efficiency_is_throughput_an_ipu_over_the_first_row() -> None:
    table = page.table([result(16, 100, 80), result(64, 300, 160)])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert rows[0][-2:] == ["compute %", "sync %"]
    assert rows[2][3:] == ["100", "80", "1.25", "100.0%", "100.0%", "75.0", "25.0"]
    assert rows[3][3:] == ["300", "160", "1.88", "75.0%", "50.0%", "75.0", "25.0"]


def test_what_was_not_published_is_left_empty() -> None:
    cells = page.table([result(16, 100, 80), result(64, 300, None)]).splitlines()[3].split("|")
    assert [cell.strip() for cell in cells[5:7]] == ["", ""]


@pytest.mark.parametrize(
    "system", [s for systems in PUBLISHED.values() for s in systems], ids=lambda s: s.case[:24]
)
def test_configurations_use_the_ipus_of_their_pod(system: System) -> None:
    options, _ = models.configured(row(system))
    assert models.find(system.case) is not None
    assert int(options.replication_factor) * models.ipus(row(system)) == system.ipus


def test_the_sweep_goes_from_one_replica_to_256_ipus() -> None:
    assert [s.ipus for model, s in sweep() if "ResNet" in model] == [1 << k for k in range(9)]
    assert [s.ipus for model, s in sweep() if "BERT" in model] == [4 << k for k in range(7)]
