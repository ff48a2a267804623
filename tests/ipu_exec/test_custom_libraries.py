"""Applications with custom operators run without the libraries that only IPUs can load."""

from __future__ import annotations

from pathlib import Path

from tests.ipu_exec.test_run import ipu_run, write

APPLICATION = """
import ctypes, poptorch, torch
from examples_utils.load_lib_utils import load_lib

ctypes.cdll.LoadLibrary("./custom_ops.so")
load_lib("custom_ops/remap.cpp")
for name in ("libnotthere.so", "./other/notthere.so"):
    try:
        ctypes.cdll.LoadLibrary(name)
    except OSError as error:
        print("refused", name)

class Student(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.teacher.requires_grad_(False)
        self.teacher.weight.data.zero_()

    def forward(self, x):
        y = self.student(x)
        remap = {"fwd_grain_size": 8, "debug_str": ""}
        (y,) = poptorch.custom_op([y], "RemapCE", "ai.graphcore", 1, [y], attributes=remap)
        pair = [self.student.weight, self.teacher.weight, torch.tensor(0.75)]
        poptorch.custom_op(pair, "ExpMovAvg", "com.acme", 1, example_outputs=pair[:1])
        return poptorch.identity_loss((y - self.teacher(x)).square().mean(), "none")

net = Student()
model = poptorch.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.0))
model(torch.ones(2, 4))
print(torch.equal(net.teacher.weight, net.student.weight * 0.25))
poptorch.custom_op([torch.ones(1)], "Ctc", "ai.graphcore", 1, example_outputs=[torch.ones(1)])
"""


def test_libraries_of_custom_operators_are_left_out_with_a_warning(tmp_path: Path) -> None:
    for folder in ("custom_ops", "other", "examples_utils/load_lib_utils"):
        (tmp_path / folder).mkdir(parents=True)
    write(tmp_path / "custom_ops" / "remap.cpp", "#include <popart/graph.hpp>\n")
    package = tmp_path / "examples_utils" / "load_lib_utils"  # as graphcore/examples has it
    write(tmp_path / "examples_utils" / "__init__.py", "")
    write(package / "__init__.py", "from .load_lib_utils import *\n")
    write(
        package / "load_lib_utils.py", "def load_lib(path): raise RuntimeError('popart/graph.hpp')"
    )
    write(tmp_path / "train.py", APPLICATION)
    process = ipu_run("train.py", cwd=tmp_path)
    assert process.stdout.split("\n")[:3] == [
        "refused libnotthere.so",
        "refused ./other/notthere.so",
        "True",
    ], process.stderr
    warnings = [line for line in process.stderr.splitlines() if line.startswith("ipu-run: warning")]
    assert [line.split()[2] for line in warnings] == ["./custom_ops.so", "custom_ops/remap.cpp"]
    assert "ai.graphcore.Ctc is not registered" in process.stderr
    assert "register_custom_op(name, domain, compute)" in process.stderr
