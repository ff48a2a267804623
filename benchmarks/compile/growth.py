"""How compiling grows, and what it takes beside a bare capture: CPU seconds, in one run."""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

import ipu_exec
from benchmarks.memory import configure, optimiser
from examples.models import bert, split
from examples.models import gpt3 as gpt3_model

ACCUMULATION = 64
TIMES = 5
LAYERS_OF_GPT3 = (24, 48, 96)
STAGES, REPLICAS, ACCUMULATIONS = (4, 8, 16), (1, 4, 16), (64, 512, 4096)


def cpu() -> float:
    """CPU seconds of this process so far."""
    times = os.times()
    return times.user + times.system


def gpt3(layers: int) -> dict[str, float]:
    """GPT-3 on 256 IPUs, from start to written profile, without importing PyTorch and IPUscope.

    ``built``: of them those behind building and wrapping the model.
    """
    from examples import gpt3_175b

    began = cpu()
    with tempfile.TemporaryDirectory() as folder:
        config = replace(gpt3_model.GPT3, layers=layers)
        model, inputs = gpt3_175b.wrapped(config, 256, ACCUMULATION, Path(folder))
        built = cpu()
        model.compile(*inputs)
        return {**measured(cpu() - began, folder), "built": cpu() - built}


def bert_large(
    stages: int = 4, replicas: int = 1, accumulation: int = ACCUMULATION
) -> dict[str, float]:
    """BERT-Large in half precision, as `gpt3`, without weights too."""
    began = cpu()
    with ipu_exec.no_weights():
        example = bert.example(bert.LARGE)
        module = example.module.half()
    with tempfile.TemporaryDirectory() as folder:
        options = ipu_exec.Options(profile_dir=folder).showCompilationProgressBar(False)
        options.replicationFactor(replicas).Training.gradientAccumulation(accumulation)
        options.setExecutionStrategy(split(example, stages))
        configure(options, "bert-large", stages)
        model = ipu_exec.trainingModel(module, options, optimiser(module, True))
        inputs = example.inputs(example.micro_batch * accumulation * replicas)
        built = cpu()
        try:
            model.compile(*(x.half() if x.is_floating_point() else x for x in inputs))
        except ipu_exec.OutOfMemoryError:
            pass  # its profile is written all the same
        return {**measured(cpu() - began, folder), "built": cpu() - built}


def imported() -> None:
    """Import what a first compile imports, so that no case counts it."""
    import numpy.ma  # noqa: F401
    import rich.progress  # noqa: F401
    import torch._dynamo
    import torch.distributed.tensor.parallel  # noqa: F401
    from torch.testing._internal.distributed import fake_pg  # noqa: F401

    import ipu_exec.session.autoreport
    import ipu_exec.session.compilation  # noqa: F401
    from examples import gpt3_175b  # noqa: F401


def bare_capture(of_gpt3: int = 0) -> dict[str, float]:
    """One training step under fake tensors: every operator seen, nothing kept.

    Of BERT-Large, or of GPT-3 with 96 layers.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        example = gpt3_model.example(gpt3_model.GPT3) if of_gpt3 else bert.example(bert.LARGE)
        steps = torch.optim.AdamW(example.module.parameters(), foreach=False)
        inputs = example.inputs(example.micro_batch)
        began = cpu()
        with Seen() as seen:
            returned = example.module(*inputs)
            loss = returned[-1] if isinstance(returned, (tuple, list)) else returned
            loss.sum().backward()
            steps.step()
    return {"built": cpu() - began, "operators": float(seen.operators)}


class Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.operators += 1
        return func(*args, **(kwargs or {}))


def measured(seconds: float, folder: str) -> dict[str, float]:
    """The seconds, the profile's size and the most memory of the process."""
    profile = Path(folder) / "training" / "profile.pop"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": seconds, "mb": profile.stat().st_size / 1e6, "gib": peak}


CASES: dict[str, Callable[..., dict[str, float]]] = {
    "gpt3": gpt3,
    "bert_large": bert_large,
    "bare_capture": bare_capture,
}


def alone(case: str, *words: int) -> dict[str, float]:
    """A case in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.compile.growth", case]
    command += map(str, words)
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    answer: dict[str, float] = json.loads(output.strip().splitlines()[-1])
    return answer


# Compiles and the bare captures of the same models, in the words of `alone`.
BESIDE = {
    "BERT-Large on 4 IPUs, compile / bare capture": (("bert_large",), ("bare_capture",)),
    "GPT-3 on 256 IPUs, compile / bare capture of GPT-3": (("gpt3", 96), ("bare_capture", 1)),
}


def beside_captures(times: int) -> dict[str, tuple[dict[str, float], dict[str, float]]]:
    """Of each model of `BESIDE` the compile and the bare capture with the least CPU seconds.

    Both from a built model on, in processes that have imported all and cached nothing. What else
    the machine does only adds to a process: the least of runs in turn, which meet the same machine.
    """
    runs = [
        [alone(case, *words) for both in BESIDE.values() for case, *words in both]
        for _ in range(times)
    ]
    least = [min(each, key=lambda run: run["built"]) for each in zip(*runs, strict=True)]
    return dict(zip(BESIDE, zip(least[::2], least[1::2], strict=True), strict=True))


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The exponent between the two largest sizes: 1 is linear growth."""
    return math.log(seconds[-1] / seconds[-2]) / math.log(sizes[-1] / sizes[-2])


def lines() -> list[str]:
    """The section of the page."""
    (base, bare), (largest, bare_gpt3) = beside_captures(TIMES).values()
    layers = [*(alone("gpt3", count) for count in LAYERS_OF_GPT3[:-1]), largest]
    stages = [alone("bert_large", count, 1, ACCUMULATION) for count in STAGES]
    replicas = [alone("bert_large", 4, count, ACCUMULATION) for count in REPLICAS]
    accumulations = [alone("bert_large", 4, 1, count) for count in ACCUMULATIONS]
    grown = (
        ("layers of GPT-3 on 256 IPUs", LAYERS_OF_GPT3, layers),
        ("stages of BERT-Large", STAGES, stages),
        ("replicas of BERT-Large", REPLICAS, replicas),
        ("accumulation of BERT-Large", ACCUMULATIONS, accumulations),
    )
    rows = []
    for name, sizes, all_measured in grown:
        seconds = [one["seconds"] for one in all_measured]
        cells = ", ".join(f"{a}: {b:.1f} s" for a, b in zip(sizes, seconds, strict=True))
        rows.append(f"| {name} | {cells} | {exponent(sizes, seconds):.2f} |")
    return [
        "## At a pod's size",
        "",
        "CPU seconds from building the model without weights to the written profile"
        " (`python -m benchmarks.compile --growth` writes this part), all in one run; imports are"
        " left out.",
        "",
        f"- GPT-3 with 96 layers on 256 IPUs takes {largest['seconds']:.1f} s and BERT-Large on 4"
        f" {base['seconds']:.1f} s: {largest['seconds'] / base['seconds']:.1f} times as long."
        f" GPT-3's profile has {largest['mb']:.0f} MB, and the process {largest['gib']:.2f} GiB.",
        *(_beside(*both) for both in (("BERT-Large", base, bare), ("GPT-3", largest, bare_gpt3))),
        "",
        "| growing with | CPU seconds | exponent, of the last two |",
        "| --- | --- | ---: |",
        *rows,
    ]


def _beside(name: str, compiled: dict[str, float], bare: dict[str, float]) -> str:
    return (
        f"- A bare capture of {name}'s step under fake tensors, {bare['operators']:,.0f} operators,"
        f" takes {bare['built']:.2f} s; compile and profile take {compiled['built']:.2f} s:"
        f" {compiled['built'] / bare['built']:.2f} times as long, both without building the model"
        f" (the least of {TIMES} runs of both)."
    )


if __name__ == "__main__":
    _, case, *words = sys.argv
    imported()
    print(json.dumps(CASES[case](*map(int, words))))
