"""What a script's instances must have in common, checked before their first call.

Each sends a hash; the values are sent only if these differ, to name the difference.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ipu_exec.errors import UsageError
from ipu_exec.instances import launch
from ipu_exec.numerics.collectives import Instances, host_name
from ipu_exec.options import Options

logger = logging.getLogger("ipu_exec")

# options that are an instance's own: its number, and where and how much it logs
_OWN = (
    "Distributed.processId",
    "profilingDirectory",
    "profilingEnabled",
    "logDir",
    "logCycleCount",
    "compilationProgressBar",
    "executableCache",
    "maxRepeatLogs",
    "ipuId",
)


@dataclass(frozen=True, slots=True)
class Peer:
    """An instance as the profile names it: its host and the replicas that it runs."""

    instance: int
    host: str
    node: int  # the host's number in the launch: two launchers on one machine are two
    first_replica: int
    replicas: int


def agree(
    together: Instances,
    options: Options,
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    optimiser: object,
) -> tuple[Peer, ...]:
    """All instances, once they agree on script and options; UsageError names what differs.

    ``inputs``: kinds and shapes; ``optimiser``: its structure. Weights and buffers become those
    of instance 0, with a warning if they differed.
    """
    facts = _facts(options, model, inputs, optimiser)
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    own_launch = launch()
    node = 0 if own_launch is None else own_launch.node
    gathered = together.gather((digest, host_name(), node, int(options.replication_factor)))
    if len({digest for digest, *_ in gathered}) > 1:
        _refuse(together.gather(facts))
    _share_weights(together, model)
    counts = [count for *_, count in gathered]
    return tuple(
        Peer(instance, host, node, sum(counts[:instance]), count)
        for instance, (_, host, node, count) in enumerate(gathered)
    )


def _facts(
    options: Options, model: torch.nn.Module, inputs: Mapping[str, Any], optimiser: object
) -> dict[str, str]:
    """The compared values, by their names in an error message."""
    flat = {f"option {k}": repr(v) for k, v in options.flat().items() if k not in _OWN}
    tensors = [
        (name, tuple(tensor.shape), str(tensor.dtype))
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    ]
    return flat | {
        "the script": _script(),
        "the model's parameters and buffers": repr(tensors),
        "the model's inputs": repr(sorted(inputs.items())),
        "the optimiser": repr(optimiser),
        "PyTorch's version": torch.__version__,
    }


def _script() -> str:
    """Name and hash of the script that runs."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None or not os.path.isfile(main):
        return "no file"
    path = Path(main)
    return f"{path.name} with SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


def _refuse(facts: list[dict[str, str]]) -> None:
    first = facts[0]
    for instance, theirs in enumerate(facts):
        for name in {**first, **theirs}:
            one, other = first.get(name, "not there"), theirs.get(name, "not there")
            if one != other:
                raise UsageError(
                    f"instances have to agree: {name} is {_short(one)} in instance 0 and"
                    f" {_short(other)} in instance {instance}. Run the same script with the same"
                    " options in all of them"
                )


def _short(words: str) -> str:
    return words if len(words) <= 200 else f"{words[:200]} ..."


def _share_weights(together: Instances, model: torch.nn.Module) -> None:
    """Copy instance 0's weights to the others, so that replicas start with equal weights."""
    tensors = dict((*model.named_parameters(), *model.named_buffers()))
    digests = {name: _digest(tensor) for name, tensor in tensors.items()}
    everyone = together.gather(digests)
    differing = [name for name in tensors if len({theirs[name] for theirs in everyone}) > 1]
    if not differing:
        return
    logger.warning(
        "instances began with different values of %s%s: all take those of instance 0. Set"
        " torch.manual_seed before the model is made",
        ", ".join(differing[:3]),
        f" and {len(differing) - 3} more" if len(differing) > 3 else "",
    )
    with torch.no_grad():
        for name in differing:
            together.broadcast(tensors[name])


def _digest(tensor: torch.Tensor) -> str:
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    return hashlib.blake2b(data.numpy().tobytes(), digest_size=16).hexdigest()
