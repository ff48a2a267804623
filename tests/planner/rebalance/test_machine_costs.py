"""Copies between IPUs on one board and on two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.rebalance.random_costs import random_costs
from ipuscope.planner.costs.cuts import Cuts
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.profiler.timeline import schedule_types


def test_copies_between_boards_are_as_slow_as_their_links() -> None:
    """Six stages on boards of two IPUs, by hand."""
    costs = random_costs(np.random.default_rng(4), 6, 4, stages=6)
    costs = replace(
        costs,
        cuts=Cuts(np.full(6, 4_100), np.full(6, 8_200)),
        machine=replace(
            costs.machine,
            link_latency=931,
            link_bytes_per_cycle=41.0,
            board_link_bytes_per_cycle=20.5,
            ipus_per_board=2,
            ipus_per_rack=64,
            rack_link_bytes_per_cycle=4.1,
            gateway_latency=1_000,
        ),
    )
    schedule = what_if(costs, Assignment(tuple(range(6)), tuple(range(6)))).schedule
    copies = {ipu: set() for ipu in range(6)}
    for ipu, kind, start, end in zip(
        schedule.ipu, schedule.kind, schedule.start, schedule.end, strict=True
    ):
        if kind == schedule_types.COPY:
            copies[int(ipu)].add(int(end - start))
    # At the ends 8,200 bytes come over a board's link; between, 400 cycles of a slow link and 100
    # of a fast one.
    assert [copies[k] for k in range(6)] == [{1131}, {1431}, {1431}, {1431}, {1431}, {1131}]
