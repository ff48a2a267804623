"""Random numbers of replicas that instances share: each draws its own, wherever it runs.

Replica 0 draws from PyTorch's generator. The others have their own, so that a replica's dropout
does not depend on how many replicas an instance runs. A script that was not launched as instances
draws as a plain loop over its replicas would.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import torch


def seed_of_replica(seed: int, replica: int) -> int:
    """A seed for one replica, far from the others'."""
    digest = hashlib.blake2b(f"{seed} {replica}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # PyTorch's seeds are signed


class ReplicaRandomness:
    """PyTorch's generator state of each replica. It lasts from call to call."""

    def __init__(self) -> None:
        self._states: dict[int, torch.Tensor] = {}
        self._seed: int | None = None

    @contextlib.contextmanager
    def of(self, replica: int) -> Iterator[None]:
        """Inside, draw the numbers of ``replica``, which is counted over all instances."""
        if replica == 0:
            yield
            return
        before = torch.get_rng_state()
        if replica in self._states:
            torch.set_rng_state(self._states[replica])
        else:
            base = torch.initial_seed() if self._seed is None else self._seed
            fresh = torch.Generator().manual_seed(seed_of_replica(base, replica))
            torch.set_rng_state(fresh.get_state())
        try:
            yield
        finally:
            self._states[replica] = torch.get_rng_state()
            torch.set_rng_state(before)

    def restart(self, state: torch.Tensor) -> None:
        """Restart from a loaded state of PyTorch's generator."""
        digest = hashlib.blake2b(state.numpy().tobytes(), digest_size=8).digest()
        self._seed = int.from_bytes(digest, "little") >> 1
        self._states.clear()
