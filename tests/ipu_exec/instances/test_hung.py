"""The instance that the others wait for is named, and where it is."""

from __future__ import annotations

import logging
import threading
import time

import pytest
import torch

from ipu_exec.numerics import hung_instances
from ipu_exec.numerics.hung_instances import Watch


def test_who_waits_names_who_does_not_come_and_where_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hung_instances, "PATIENCE", 0.2)
    monkeypatch.setattr(hung_instances, "LOOKS", 0.05)
    store = torch.distributed.HashStore()
    first, third = Watch(store, 0, 3), Watch(store, 2, 3)
    hung = Watch(store, 1, 3)
    ends = threading.Event()

    def waits(watch: Watch) -> None:
        with watch.exchange():
            ends.wait(60)

    def loads_its_data_slowly() -> None:
        deadline = time.monotonic() + 60
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.05)

    with caplog.at_level(logging.WARNING, "ipu_exec"):
        some = [threading.Thread(target=waits, args=(watch,)) for watch in (first, third)]
        for one in some:
            one.start()
        loads_its_data_slowly()
        time.sleep(0.5)
    ends.set()
    for one in some:
        one.join()
    (record,) = caplog.records
    assert "instance 0, 2 has waited" in record.message
    assert "for instance 1, and goes on waiting" in record.message
    assert "loads_its_data_slowly" in record.message
    assert hung is not None


def test_an_exchange_that_goes_on_is_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hung_instances, "PATIENCE", 0.5)
    monkeypatch.setattr(hung_instances, "LOOKS", 0.05)
    watches = [Watch(torch.distributed.HashStore(), 0, 2)]
    with caplog.at_level(logging.WARNING, "ipu_exec"):
        for _ in range(4):
            with watches[0].exchange():
                time.sleep(0.2)
    assert not caplog.records
