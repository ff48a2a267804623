"""What the tests of instances launch: a small training that says what it sees.

``script.py FOLDER [what]``: "raise" and "kill" end instance 1 in its second call, "sleep" all of
them wait in it, "differ" has instance 1 ask for other options, "group" makes a group of its own.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import popdist
import popdist.poptorch
import poptorch
import torch

folder, what = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
popdist.init()
hvd.init()
mine = popdist.getInstanceIndex()
if what == "group":
    torch.distributed.init_process_group("gloo")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

    def forward(self, x, y):
        out = self.b(torch.relu(self.a(x)))
        return out, torch.nn.functional.cross_entropy(out, y)


torch.manual_seed(mine if what == "group" else 0)  # instance 0's weights count
model = Model()
options = popdist.poptorch.Options().deviceIterations(1 + (what == "differ" and mine == 1))
options.showCompilationProgressBar(False)
options.outputMode(poptorch.OutputMode.All)
trained = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))

total, local = popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas()
first = popdist.getReplicaIndexOffset()
calls = int(options.device_iterations)
generator = torch.Generator().manual_seed(3)
for call in range(3):
    x, y = torch.randn(total, 2, 4, generator=generator), torch.arange(total * 2) % 2
    part = slice(first, first + local)
    out, loss = trained(
        x[part].reshape(-1, 4).repeat(calls, 1), y.view(total, 2)[part].reshape(-1).repeat(calls)
    )
    if what == "sleep":
        print("waiting", flush=True)
        time.sleep(60)
    if call == 1 and mine == 1 and what == "raise":
        raise ValueError("this one fails")
    if call == 1 and mine == 1 and what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)

ran = popdist.execute_on_instances({0}, lambda word: word, "ran")
own = torch.ones(1)
if what == "group":
    torch.distributed.all_reduce(own)
seen = {
    "set": popdist.isPopdistEnvSet(),
    "instance": [mine, popdist.getNumInstances(), hvd.rank(), hvd.size(), hvd.local_rank()],
    "replicas": [total, local, first, popdist.getNumIpusPerReplica(), popdist.getDeviceId()],
    "options": [
        options.replication_factor,
        options.Distributed.processId,
        options.Distributed.numProcesses,
        poptorch.Options().Distributed.processId,
        options.ipus_per_replica,
    ],
    "ran": ran,
    "own": own.item(),
    "broadcast": hvd.broadcast(torch.tensor([mine + 5.0]), 0).tolist(),
    "mean": hvd.allreduce(torch.tensor([float(mine)])).tolist(),
    "sum": hvd.allreduce(torch.tensor([mine + 1]), average=False).tolist(),
    "gathered": hvd.allgather(torch.full((mine + 1,), mine)).tolist(),
    "object": hvd.broadcast_object({"from": mine}, 0),
    "rows": len(out),
    "weights": [parameter.tolist() for parameter in model.parameters()],
}
(folder / f"{mine}.json").write_text(json.dumps(seen))
print(f"instance {mine} is done")
popdist.finalizeDistributed()
