"""The parts of a schedule: kinds of tasks, the costs of stages, and the tasks in time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipuscope.profiler.enums import BodyTask, PipelinePhase

# The kinds of tasks. FORWARD and BACKWARD have a stage and a micro-batch, the others may not. What
# a backward recomputes is part of it until the trace is laid out. Those in BESIDE are transfers of
# I/O tiles, which overlap the work of the other tiles.
TASKS = tuple(BodyTask)
(
    FORWARD,
    BACKWARD,
    UPDATE,
    STREAM_IN,
    STREAM_OUT,
    COPY,
    REDUCE,
    SYNC,
    IDLE,
    RECOMPUTE,
    LOAD,
    UNLOAD,
    ENTER,
    RETURN,
    LEAVE,
    LOAD_FORWARD,
    STORE_FORWARD,
    LOAD_BACKWARD,
    STORE_BACKWARD,
    LOAD_ENTER,
    LOAD_RETURN,
    STORE_LEAVE,
) = range(len(TASKS))
# Loads and stores of streaming memory over I/O tiles, by the task that needs them.
LOADS_BESIDE = {
    FORWARD: LOAD_FORWARD,
    BACKWARD: LOAD_BACKWARD,
    ENTER: LOAD_ENTER,
    RETURN: LOAD_RETURN,
}
STORES_BESIDE = {FORWARD: STORE_FORWARD, BACKWARD: STORE_BACKWARD, LEAVE: STORE_LEAVE}
BESIDE = (LOAD, UNLOAD, *LOADS_BESIDE.values(), *STORES_BESIDE.values())
# With fewer micro-batches a phase would load what the one before has not yet stored.
LEAST_BESIDE = 3


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of one micro-batch on each stage, and the fixed costs of every pipeline cycle.

    ``forward``/``backward`` per stage (``backward`` includes recomputation; empty for inference).
    ``update`` and ``reduce`` (all-reduce over replicas) per IPU, once a weight update.
    ``stream_in``/``stream_out``: (stage, cycles) of the host transfers; ``stream_out_once``: at the
    end of a device iteration rather than per micro-batch. ``copies``: per IPU, the exchange between
    IPUs that ends a pipeline cycle; it lasts as long as the longest.

    ``load``/``unload``: (stage, cycles) of host transfers over I/O tiles: a micro-batch's input
    comes in the pipeline cycle before its forward, its output leaves in the one after it.
    ``across``: the first input of the next device iteration overlaps the last pipeline cycle and
    the weight update, and the last output of the one before overlaps the first pipeline cycle.
    ``host_sync``: for each IPU the group with which it waits for the host; empty: all are one
    group. ``weights``: per stage the gradients of weights, if an `Order` separates them from
    ``backward``; empty: they are part of it.
    """

    ipus: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...] = ()
    update: tuple[int, ...] = ()
    reduce: tuple[int, ...] = ()
    stream_in: tuple[tuple[int, int], ...] = ()
    stream_out: tuple[tuple[int, int], ...] = ()
    stream_out_once: bool = False
    copies: tuple[int, ...] = ()
    sync: int = 0  # external sync before each phase in which IPUs meet
    load: tuple[tuple[int, int], ...] = ()
    unload: tuple[tuple[int, int], ...] = ()
    across: bool = False
    host_sync: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()

    @property
    def num_ipus(self) -> int:
        """Number of IPUs of one replica."""
        return max(self.ipus) + 1


@dataclass(frozen=True, slots=True)
class Schedule:
    """One device iteration: tasks (arrays of equal length, by IPU and start) and pipeline cycles.

    Tasks cover each IPU's time from 0 to ``total`` without gap or overlap; waiting is a task of
    kind IDLE. Tasks of the kinds in `BESIDE` overlap with these, but not with each other.
    """

    kind: np.ndarray
    ipu: np.ndarray
    stage: np.ndarray  # -1: none
    micro_batch: np.ndarray  # -1: none
    cycle: np.ndarray  # pipeline cycle
    start: np.ndarray
    end: np.ndarray
    phases: tuple[PipelinePhase, ...]  # of each pipeline cycle
    cycle_start: np.ndarray
    cycle_end: np.ndarray
    slowest_ipu: np.ndarray
    # which of a backward's parts (`split_backward`); None: no backward is split
    part: np.ndarray | None = None
    # cycles before the first device iteration of a call, for its first inputs
    head: int = 0
    # the same after the last, for its last outputs. Both are 0 except with `Costs.across`, where
    # this device iteration is one amid others: the first and last may be shorter, by the transfer
    # of a neighbour that they lack.
    tail: int = 0

    @property
    def total(self) -> int:
        """Cycles up to the end of the last pipeline cycle."""
        return int(self.cycle_end[-1]) if len(self.cycle_end) else 0
