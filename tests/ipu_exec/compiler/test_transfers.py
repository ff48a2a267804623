"""Cycles and bytes of transfers between IPU, host, streaming memory and other IPUs, by hand."""

from __future__ import annotations

from math import ceil

import pytest
import torch

import ipu_exec
from ipu_exec import PipelinedExecution, Stage
from ipu_exec.compiler.emission.bodies import OFF_CHIP, Body, ProgramStep
from ipu_exec.compiler.executable import Executable
from ipu_exec.session.compilation import compile_step
from ipuscope.profiler.enums import Purpose
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import schedule_types
from tests.models import Mlp

CLOCK = 1.33e9
WIDTH, MICRO = 64, 4
ACTIVATION = MICRO * WIDTH * 4  # bytes of an input, an activation, the labels


def options(ipus: int = 2) -> ipu_exec.Options:
    opts = ipu_exec.Options().showCompilationProgressBar(False).autoRoundNumIPUs(True)
    opts.setExecutionStrategy(PipelinedExecution(*(Stage(f"L{i}").ipu(i) for i in range(ipus))))
    opts.Training.gradientAccumulation(2 * ipus)
    return opts


def compiled(opts: ipu_exec.Options, ipus: int = 2) -> Executable:
    model = Mlp([WIDTH] * (ipus + 1))
    batch = torch.randn(MICRO, WIDTH), torch.randn(MICRO, WIDTH)
    return compile_step(model, batch, {}, opts, torch.optim.Adam(model.parameters(), lr=0.1), True)


@pytest.fixture(scope="module")
def two() -> Executable:
    return compiled(options())


def the_body(executable: Executable, task: int, ipu: int) -> Body:
    (one,) = (b for b in executable.tree.bodies if (b.task, b.ipu) == (task, ipu))
    return one


def summed(step: ProgramStep) -> tuple[int, int]:
    """Bytes in and out over all tiles."""
    assert step.bytes_in is not None
    assert step.bytes_out is not None
    return int(step.bytes_in.sum()), int(step.bytes_out.sum())


def cycles_of_stream(latency: float, nbytes: int, rate: float = 5.5e9) -> int:
    return ceil((latency + nbytes / rate) * CLOCK)


def test_inputs_come_after_the_hosts_latency_at_its_rate(two: Executable) -> None:
    stream = the_body(two, schedule_types.STREAM_IN, 0)
    begin, mid, end = stream.steps
    assert (begin.type, mid.type, end.type) == (
        records.STREAM_COPY_BEGIN,
        records.STREAM_COPY_MID,
        records.STREAM_COPY_END,
    )
    assert begin.cycles == end.cycles == 257
    assert mid.cycles == cycles_of_stream(9e-6, ACTIVATION) == 12_218  # 11,970 of latency
    assert summed(mid) == (ACTIVATION, 0)
    assert {step.purpose for step in stream.steps} == {Purpose.STREAM_IN}
    (move,) = mid.moves
    assert (move.bytes, move.source, move.target) == (ACTIVATION, OFF_CHIP, 0)
    assert move.storage == mid.tensor
    assert stream.touched[move.storage] == (0, 2)  # there while it comes
    assert (stream.stage, stream.name) == (0, "stage 0 inputs from host")
    assert mid.name.startswith("copyFromHost/")


def test_outputs_leave_from_the_stage_that_makes_them(two: Executable) -> None:
    stream = the_body(two, schedule_types.STREAM_OUT, 1)
    mid = stream.steps[1]
    out, loss = ACTIVATION, 4
    assert mid.cycles == cycles_of_stream(9e-6, out + loss)
    assert summed(mid) == (0, out + loss)
    assert {(m.bytes, m.source, m.target) for m in mid.moves} == {
        (out, 1, OFF_CHIP),
        (loss, 1, OFF_CHIP),
    }
    assert mid.tensor == -1  # several
    assert (stream.stage, stream.name) == (1, "stage 1 outputs to host")
    assert mid.name.startswith("copyToHost/")
    # the labels come to the last stage
    assert the_body(two, schedule_types.STREAM_IN, 1).steps[1].cycles == 12_218


def test_micro_batches_that_the_host_has_ready_come_without_latency() -> None:
    opts = options()
    opts._Popart.set("defaultBufferingDepth", 2)
    executable = compiled(opts)
    mid = the_body(executable, schedule_types.STREAM_IN, 0).steps[1]
    assert mid.cycles == cycles_of_stream(0, ACTIVATION) == 248


def test_copies_between_ipus_go_both_ways_at_once(two: Executable) -> None:
    for ipu in (0, 1):
        body = the_body(two, schedule_types.COPY, ipu)
        (copy,) = body.steps
        assert copy.type == records.GLOBAL_EXCHANGE
        # 0.7 us, and an activation out while a gradient comes: 1024 bytes at 55 GB/s
        assert copy.cycles == ceil(0.7e-6 * CLOCK + ACTIVATION / 55e9 * CLOCK) == 956
        assert summed(copy) == (ACTIVATION, ACTIVATION)
        assert {(m.bytes, m.source, m.target) for m in copy.moves} == {
            (ACTIVATION, 0, 1),
            (ACTIVATION, 1, 0),
        }
        assert copy.name == f"copies of IPU {ipu} with IPU {1 - ipu}"
        assert (copy.purpose, copy.tensor, body.stage) == (Purpose.COPY, -1, -1)
        assert set(body.touched.values()) == {(0, 0)}


def test_the_ipu_between_two_copies_to_both(two: Executable) -> None:
    executable = compiled(options(3), 3)
    (middle,) = the_body(executable, schedule_types.COPY, 1).steps
    assert middle.name == "copies of IPU 1 with IPU 0 and 2"
    assert summed(middle) == (2 * ACTIVATION, 2 * ACTIVATION)
    assert middle.cycles == ceil(0.7e-6 * CLOCK + 2 * ACTIVATION / 55e9 * CLOCK)


def test_one_ipu_copies_to_none() -> None:
    executable = compiled(options(1), 1)
    assert not [b for b in executable.tree.bodies if b.task == schedule_types.COPY]


def test_state_off_the_chip_comes_and_goes_at_the_rate_of_streaming_memory() -> None:
    opts = options()
    place = ipu_exec.TensorLocationSettings().useOnChipStorage(False)
    opts.TensorLocations.setOptimizerLocation(place.minElementsForOffChip(100))
    executable = compiled(opts)
    update = the_body(executable, schedule_types.UPDATE, 0)
    state = 2 * WIDTH * WIDTH * 4  # both moments of the weight; the bias has 64 elements
    mids = {
        purpose: [
            s for s in update.steps if s.purpose is purpose and s.type == records.STREAM_COPY_MID
        ]
        for purpose in (Purpose.REMOTE_LOAD, Purpose.REMOTE_STORE)
    }
    loads, stores = mids[Purpose.REMOTE_LOAD], mids[Purpose.REMOTE_STORE]
    assert sum(s.cycles for s in loads) == cycles_of_stream(0, state, 5e9)
    assert sum(s.cycles for s in stores) == cycles_of_stream(0, state, 5e9)
    assert sum(summed(s)[0] for s in loads) == state
    assert sum(summed(s)[1] for s in stores) == state
    assert {(m.source, m.target) for s in loads for m in s.moves} == {(OFF_CHIP, 0)}
    assert {(m.source, m.target) for s in stores for m in s.moves} == {(0, OFF_CHIP)}
