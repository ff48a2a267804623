"""The words in a profile's columns, as enums whose values are stored."""

from __future__ import annotations

from enum import StrEnum

OUT_OF_MEMORY = "out of memory"  # the state of a profile of what does not fit


class Role(StrEnum):
    """The purpose of a variable in the model; code and the like have the role ``PROGRAM``."""

    WEIGHT = "weight"
    BUFFER = "buffer"
    ACCUMULATOR = "accumulator"
    OPTIMISER_STATE = "optimiser state"
    STASH = "stash"
    INPUT = "input"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    TEMPORARY = "temporary"
    STREAM_BUFFER = "stream buffer"
    PROGRAM = "program"


# Weights and what belongs to them: they stay from one update to the next.
OF_WEIGHTS = (Role.WEIGHT, Role.BUFFER, Role.ACCUMULATOR, Role.OPTIMISER_STATE)


class Direction(StrEnum):
    """The part of a training step of a piece of the program; "" for copies, syncs and waits."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    UPDATE = "update"


class PipelinePhase(StrEnum):
    """The phase of a device iteration that a pipeline cycle belongs to."""

    RAMP_UP = "ramp-up"
    STEADY = "steady"
    RAMP_DOWN = "ramp-down"
    UPDATE = "update"


class BodyTask(StrEnum):
    """The task of a body, numbered in this order by `ipuscope.profiler.timeline.schedules`."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    STREAM_IN = "stream in"  # a micro-batch's inputs from the host
    STREAM_OUT = "stream out"  # its outputs to the host
    COPY = "copy"  # between IPUs, at the end of a pipeline cycle
    REDUCE = "reduce"  # of gradients over replicas
    SYNC = "sync"  # of IPUs
    IDLE = "idle"
    RECOMPUTE = "recompute"
    LOAD = "load"  # as STREAM_IN, over I/O tiles, beside what the others do
    UNLOAD = "unload"  # as STREAM_OUT, over I/O tiles
    ENTER = "enter forward"  # a pipeline's phase: what comes for all micro-batches of its forward
    RETURN = "enter backward"  # ... of its backward
    LEAVE = "leave backward"  # ... and what goes when they are through
    # streaming memory over I/O tiles, beside what the others do: of each micro-batch ...
    LOAD_FORWARD = "load for forward"
    STORE_FORWARD = "store of forward"
    LOAD_BACKWARD = "load for backward"
    STORE_BACKWARD = "store of backward"
    # ... and once for all micro-batches of a pipeline's phase
    LOAD_ENTER = "load for enter forward"
    LOAD_RETURN = "load for enter backward"
    STORE_LEAVE = "store of leave backward"


class Purpose(StrEnum):
    """The purpose of a program step. The sync of tiles before an exchange has the exchange's."""

    OPERATOR = "operator"  # what an operator computes, and the exchanges that takes
    STASH = "stash"  # a tensor into its slot of the stash
    RESTORE = "restore"  # ... and back
    STREAM_IN = "stream in"  # from the host
    STREAM_OUT = "stream out"
    FROM_IO_TILES = "from I/O tiles"  # to those that compute
    TO_IO_TILES = "to I/O tiles"
    REMOTE_LOAD = "remote load"  # from streaming memory
    REMOTE_STORE = "remote store"
    ALL_REDUCE = "all-reduce"  # over replicas, as the next two
    REDUCE_SCATTER = "reduce-scatter"
    ALL_GATHER = "all-gather"
    GATHER_SHARDS = "all-gather over shards"  # the IPUs that share a stage's tensors
    SHARD = "shard"  # take this replica's part of a tensor that it has whole
    COPY = "copy"  # between the IPUs of a replica
    EXTERNAL_SYNC = "external sync"  # of IPUs


REMOTE = (str(Purpose.REMOTE_LOAD), str(Purpose.REMOTE_STORE))
# tasks of streaming memory
_STREAMS = ("enter", "leave", "load ", "store ")
STREAMS = tuple(str(one) for one in BodyTask if one.startswith(_STREAMS))
