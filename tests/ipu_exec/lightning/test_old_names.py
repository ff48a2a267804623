"""Scripts of Lightning's IPU guide, and of lightning-graphcore, run under ``ipu-run`` unchanged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("lightning")

from ipuscope.profiler import open_report
from tests import forked
from tests.paths import ROOT

# The words of the guide: two copies of Lightning, each with its own IPUStrategy; the plugin and the
# flag from before 1.6; the modules of lightning-graphcore.
SCRIPT = """
import warnings
import poptorch
import lightning.pytorch as pl
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.accelerators import IPUAccelerator
from lightning.pytorch.strategies import IPUStrategy
from lightning.pytorch.strategies.ipu import IPUStrategy as Same
from lightning_graphcore import IPUPrecision
from lightning_graphcore.strategy import IPUStrategy as Graphcores
from lightning_graphcore.utils import _LightningModuleWrapperBase
assert IPUStrategy is Same is Graphcores

quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
training_opts = poptorch.Options().deviceIterations(2)
inference_opts = poptorch.Options().deviceIterations(4)
strategy = IPUStrategy(training_opts=training_opts, inference_opts=inference_opts)
trainer = pl.Trainer(accelerator="ipu", devices=1, max_steps=4, strategy=strategy, **quiet)
trainer.fit(BoringModel())
assert trainer.strategy.training_opts is training_opts
print("guide", trainer.global_step)

trainer = pl.Trainer(ipus=2, fast_dev_run=2, **quiet)
trainer.fit(BoringModel())
assert isinstance(trainer.accelerator, IPUAccelerator)
print("ipus", trainer.num_devices, trainer.strategy.replication_factor)

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    pl.Trainer(accelerator="cpu", **quiet)
trainer = pl.Trainer(**quiet)
print("auto", isinstance(trainer.accelerator, IPUAccelerator), trainer.num_devices)
trainer = pl.Trainer(strategy="ddp", devices=1, **quiet)
print("auto", isinstance(trainer.accelerator, IPUAccelerator), trainer.num_devices)

print("idle", any("IPU available but not used" in str(warning.message) for warning in said))

import pytorch_lightning
from pytorch_lightning.demos.boring_classes import BoringModel as Boring
from pytorch_lightning.plugins import IPUPlugin
assert IPUPlugin is pytorch_lightning.strategies.IPUStrategy is not IPUStrategy
plugin = IPUPlugin(device_iterations=2)
trainer = pytorch_lightning.Trainer(plugins=plugin, devices=1, max_steps=3, **quiet)
trainer.fit(Boring())
print("plugin", trainer.strategy is plugin, trainer.global_step)
"""


def test_scripts_of_the_guide(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "ipu_exec.commands.run", str(script)]
    process = forked.run(command, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    said = [line for line in process.stdout.splitlines() if line.startswith(_WORDS)]
    assert said == [
        "guide 4",
        "ipus 2 2",
        "auto True 4",
        "auto False 1",
        "idle True",
        "plugin True 3",
    ]


_WORDS = ("guide", "ipus", "auto", "idle", "plugin")


FIT = """
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
Trainer(accelerator="ipu", devices=1, logger=False).fit(BoringModel())
print("trained")
"""


def test_only_compiling_ends_with_the_profile_of_training(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FIT)
    command = [sys.executable, "-m", "ipu_exec.commands.run", "--compile-only", "--autoreport"]
    process = forked.run([*command, str(tmp_path), str(script)], cwd=ROOT)
    assert process.returncode == 0, process.stderr
    assert "trained" not in process.stdout
    with open_report(tmp_path / "training") as report:
        assert report.meta["state"] == "compiled"
