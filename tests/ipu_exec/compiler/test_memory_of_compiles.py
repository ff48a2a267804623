"""What a process keeps of the models that it compiled and dropped."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import ipu_exec
from ipu_exec.capture.recording import fake_tensors

PAGE_BYTES = 4096


def resident() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def compile_one(width: int) -> None:
    """Compile a model whose plans no other width shares, and drop it."""
    options = ipu_exec.Options().showCompilationProgressBar(False)
    layers = (torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.Softmax(-1))
    model = ipu_exec.inferenceModel(torch.nn.Sequential(*layers, *layers[1:], *layers), options)
    model.compile(torch.zeros(4, width))
    model.destroy()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the resident size is Linux's")
def test_compiling_one_hundred_models_keeps_the_memory_of_few() -> None:
    for width in range(64, 64 + 8 * 20, 8):
        compile_one(width)
    before = resident()
    for width in range(224, 224 + 8 * 80, 8):
        compile_one(width)
    assert resident() - before < 50e6


def test_pytorchs_cache_of_operators_by_shape_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_tensors, "_MOST_ENTRIES", 0)
    compile_one(72)
    of_one = len(FakeTensorMode.cache)
    compile_one(88)
    assert 0 < len(FakeTensorMode.cache) <= of_one
