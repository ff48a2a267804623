"""The longest waits in words: which IPUs wait, for what, and for which tensors."""

from __future__ import annotations

from pathlib import Path

from ipuscope import profiler
from ipuscope.profiler.analysis.waits import longest_waits


def test_the_demo_waits_for_the_host_and_for_its_slowest_stage(demo: Path) -> None:
    report = profiler.open_report(demo / "training")
    rows = longest_waits(report)
    assert rows["cycles"].is_monotonic_decreasing
    first, second = rows["what"].tolist()[:2]
    assert first.startswith("from the host: input.0 ")
    assert second.startswith("stage 1 computes; most in layer2/conv/")
    copies = next(words for words in rows["what"] if words.startswith("copies between IPU"))
    assert copies.startswith("copies between IPU 1 and IPUs 0 and 2: layer1/relu:0 ")


def test_what_a_step_moves_adds_up_to_its_bytes(demo: Path) -> None:
    """`moved_tensors` agrees with the bytes over tiles, for streams and copies between IPUs."""
    report = profiler.open_report(demo / "training")
    steps = report.program_steps().set_index("step")
    by_step = report.sequence.moved_tensors.groupby("step")["bytes"].sum()
    assert len(by_step) > 4
    for step, nbytes in by_step.items():
        row = steps.loc[step]
        assert nbytes == row["bytes_in"] + row["bytes_out"], row["name"]
