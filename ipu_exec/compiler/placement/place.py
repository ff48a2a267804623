"""Placement of ops, stages and copies between stages: docs/poptorch-semantics.md#placement."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import accumulate
from typing import Any

from ipu_exec.base.user_tracebacks import warn_once
from ipu_exec.compiler.options import CompileOptions, Execution, StageOptions, StrategyOptions
from ipu_exec.compiler.placement.reads import read_values
from ipu_exec.enums import AutoStage
from ipu_exec.errors import Error, PipelineDepthError, UsageError
from ipu_exec.graph import BlockInfo, Graph, OpNode
from ipu_exec.lowering import info, is_view
from ipu_exec.lowering.plan import ITEM_BYTES
from ipuscope.profiler.enums import OF_WEIGHTS, Direction, Role
from ipuscope.profiler.timeline import closed_forms
from ipuscope.profiler.timeline.links import IPUS_OF_A_PROCESS, MAX_IPUS

logger = logging.getLogger("ipu_exec")

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # buffers of a batch norm
_AT_HOME = (*OF_WEIGHTS, Role.INPUT)


@dataclass(frozen=True, slots=True)
class StagePlace:
    """One forward stage: its IPU and the names of its Blocks."""

    ipu: int
    blocks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A storage that is copied between stages, hop by hop over every cut it crosses."""

    storage: int
    direction: Direction  # forward or backward
    source: int  # stage that makes it
    target: int  # furthest stage that needs it
    away: int  # furthest of those on another IPU: as far as it travels; the source where none is


@dataclass(frozen=True)
class Placement:
    """The stage of each operator (``op_stage``), persistent storage and input (``home``)."""

    pipelined: bool
    stages: tuple[StagePlace, ...]
    op_stage: tuple[int, ...]
    home: Mapping[int, int]
    transfers: tuple[Transfer, ...]
    phases: tuple[int, ...] = ()  # of phased execution: the phase of each stage
    attached_ipus: int = 1  # of one replica, a power of two, with all that share a stage's tensors

    @cached_property
    def ipus(self) -> tuple[int, ...]:
        """The IPUs that have a stage, ascending."""
        return tuple(stage.ipu for stage in self.stages)

    @cached_property
    def num_ipus(self) -> int:
        """IPUs of one replica: the highest used and all below it."""
        return max(self.ipus) + 1

    def stages_on(self, ipu: int) -> list[int]:
        """The stages that an IPU runs, in order."""
        return [stage for stage, runs in enumerate(self.ipus) if runs == ipu]

    def over_cuts(self, direction: str, nbytes: Callable[[int], Any]) -> list[Any]:
        """What crosses the cut behind each stage a micro-batch, by the bytes of each storage."""
        changes: list[Any] = [0] * len(self.stages)
        for one in self.transfers:
            if one.direction == direction:
                begin, end = sorted((one.source, one.target))
                changes[begin] = changes[begin] + nbytes(one.storage)
                changes[end] = changes[end] - nbytes(one.storage)
        return list(accumulate(changes))

    def cut_bytes(self, graph: Graph, direction: str) -> list[int]:
        """Bytes per micro-batch that cross the cut behind each stage."""
        return self.over_cuts(direction, partial(storage_bytes, graph))


def storage_bytes(graph: Graph, storage: int) -> int:
    """Bytes of a storage on the device (64-bit types are narrowed to 32 bits, as PopTorch does)."""
    item = graph.storages[storage]
    return item.elements * ITEM_BYTES[item.dtype]


def place_model(graph: Graph, options: CompileOptions) -> Placement:
    """Run the pass: the strategy's stages, the stage of each operator, and the transfers.

    Error if replicas would have to agree on a buffer, a Block is not placed or is placed against
    the model's order, a pipeline is not deep enough, or no system has so many IPUs.
    """
    strategy = options.strategy
    check_buffers(graph, options)
    check_blocks(graph, strategy)
    stages = resolve_stages(strategy, graph.blocks, begins_outside(graph))
    accumulate_where_made(graph, stages, strategy.execution is Execution.PHASED)
    pipelined = strategy.execution is Execution.PIPELINED and len(stages) > 1
    if pipelined:
        check_uses(graph.blocks, stages)
    phased = strategy.execution is Execution.PHASED
    phases = [phase for phase, _ in _named_places(strategy, graph.blocks)] if phased else ()
    if strategy.pipelined_phases:
        pipelined = True
        check_stages_of_phases(stages, phases)
    placement = replace(place(graph, stages, pipelined), phases=tuple(phases))
    if placement.phases:
        check_phases(graph, placement)
    attached = round_ipus(placement.num_ipus, options.auto_round_ipus) * options.shards
    check_pod(attached, options)
    of_process = attached * options.replicas // options.instances
    power_of_two(of_process, options.auto_round_ipus)
    if of_process > IPUS_OF_A_PROCESS:
        warn_of_ipus(of_process)
    if pipelined and not phased:
        name = "Training.gradientAccumulation" if options.training else "deviceIterations"
        check_depth(len(stages), options.micro_batches, options.training, name)
    return replace(placement, attached_ipus=attached)


def check_pod(attached: int, options: CompileOptions) -> None:
    """Error if shards, stages and replicas need more IPUs than the largest system has."""
    shards, total = options.shards, attached * options.replicas
    if shards > 1 and total > MAX_IPUS:
        raise UsageError(
            f"tensorSharding({shards}) of {attached // shards} IPUs in"
            f" {options.replicas} replicas are {shards} x {attached // shards} x {options.replicas}"
            f" = {total} IPUs, and the largest system has {MAX_IPUS}. Take fewer shards, stages or"
            " replicas"
        )


@cache
def warn_of_ipus(total: int) -> None:
    """Warn of so many IPUs once in a process: a plan compiles for them many times."""
    logger.warning(
        "this process compiles for %d IPUs. PopTorch reserves at most %d for a process: on"
        " hardware the model runs in %d instances or more (poprun)",
        total,
        IPUS_OF_A_PROCESS,
        -(-total // IPUS_OF_A_PROCESS),
    )


def check_buffers(graph: Graph, options: CompileOptions) -> None:
    """Error if replicas must agree on a written buffer other than a batch norm's statistics."""
    if options.replicas == 1 or not options.broadcast_buffers:
        return
    for name, (op, _) in written_buffers(graph).items():
        raise Error(
            "PopTorch does not support broadcasting buffers. If your model is able to tolerate"
            " buffers becoming out of sync between replicas, you can disable buffer broadcasting"
            f" using poptorch.Options.broadcastBuffers(False). The buffer is {name!r}, and"
            f" {op.name} writes it",
            location=f"{op.file}:{op.line}" if op.file else "",
        )


def written_buffers(graph: Graph) -> dict[str, tuple[OpNode, int]]:
    """What writes each buffer in the forward, and its rows; no statistics of batch norms."""
    return {
        storage.name: (op, (*graph.values[value].shape, 0)[0])
        for op in graph.ops
        for value in (op.writes if op.direction == Direction.FORWARD else ())
        if (storage := graph.storage_of(value)).role == Role.BUFFER
        and not storage.name.endswith(_STATISTICS)
    }


def place(graph: Graph, stages: Sequence[StagePlace], pipelined: bool) -> Placement:
    """Give every op its stage and find the transfers.

    Error if a stage goes back along the model, a Block is in no stage or a Stage names no Block.
    """
    stages = tuple(stages) or (StagePlace(0, ()),)
    block_stage = _block_stages(graph, stages)
    if pipelined:
        _check_order(graph, block_stage)
    op_stage, home = _place_ops(graph, len(stages), block_stage)
    return Placement(
        pipelined, stages, op_stage, home, _find_transfers(graph, op_stage, home, stages)
    )


def accumulate_where_made(graph: Graph, stages: Sequence[StagePlace], phased: bool) -> None:
    """Put each gradient's addition to its accumulator into the Block that makes the gradient.

    For a tied weight that is not the weight's own Block: a language model's head reads the
    embedding's. PopART's accumulation takes the stage of the gradient's product ([POPART,
    willow/src/patterns/optimizerdecompose.cpp], ``gradAccum``, and
    willow/src/transforms/serializematmuls.cpp, ``serializeVarUpdate``): stages of one IPU add to
    one accumulator, and no gradient waits for the weight's stage. A Block on another IPU sends
    its gradient to the weight's; with phases the accumulator stays with its weight. Rows of an
    embedding's gradient stay with the embedding (``TiedGatherAccumulatePattern``).
    """
    at = {-1: stages[0].ipu if stages else 0}  # the IPU of each Block; what is in none comes first
    for stage in () if phased else stages:
        at |= {block.id: stage.ipu for block in graph.blocks if block.name in stage.blocks}
    makers: dict[int, int] = {}  # storage -> Block
    weights: dict[int, int] = {}  # weight -> the first Block that reads it
    for index, op in enumerate(graph.ops):
        if op.direction == Direction.FORWARD:
            for value in read_values(op):
                weights.setdefault(graph.values[value].storage, op.block)
        written = [graph.storage_of(value) for value in op.writes]
        adds_to = [s.parameter for s in written if s.role == Role.ACCUMULATOR]
        added = op.direction == Direction.BACKWARD and info(op.aten).addition
        if added and adds_to and adds_to[0] in weights:
            made = [makers.get(graph.values[v].storage, -1) for v in op.inputs]
            home, maker = weights[adds_to[0]], max(made, default=-1)
            together = home in at and at[home] == at.get(maker)
            if maker not in (-1, home):
                graph.ops[index] = replace(op, block=maker if together else home)
        for storage in graph.results(op) if not op.writes else ():
            makers.setdefault(storage, op.block)


def _block_stages(graph: Graph, stages: Sequence[StagePlace]) -> list[int]:
    by_name = {name: index for index, stage in enumerate(stages) for name in stage.blocks}
    block_stage = []
    for block in graph.blocks:
        if block.name not in by_name:
            named = ", ".join(repr(name) for name in by_name) or "none"
            raise UsageError(
                f"Block {block.name!r} is in no Stage of the strategy or placement file: they name"
                f" {named}. Add it to a Stage"
            )
        block_stage.append(by_name[block.name])
    used = {block.name for block in graph.blocks}
    for name in by_name:
        if name not in used:
            raise UsageError(
                f"a Stage names Block {name!r}, but the model opens no such Block; it opens"
                f" {', '.join(repr(n) for n in sorted(used)) or 'none'}. Correct the name or remove"
                " it from the Stage"
            )
    return block_stage


def _check_order(graph: Graph, block_stage: list[int]) -> None:
    """Error if an op reads the result of a later stage.

    A Block that is opened again (an embedding that the decoder also uses, Hugging Face's
    Pipelined Bart) keeps its stage ([POPTORCH, python/options.py], ``getStage``) and may read
    earlier results.
    """
    # storage -> the stage and the Block that wrote it last
    writers: dict[int, tuple[int, str]] = {}
    for op in graph.ops:
        if op.direction != Direction.FORWARD:
            continue
        stage, name = (
            (block_stage[op.block], graph.blocks[op.block].name) if op.block >= 0 else (0, "")
        )
        for value in read_values(op) if name else ():
            later, at = writers.get(graph.values[value].storage, (0, ""))
            if later > stage:
                raise _backwards(op, name, stage, at, later, "stage", "stages of a pipeline")
        for storage in graph.results(op) if not is_view(op.aten) else ():
            if graph.storages[storage].role not in OF_WEIGHTS:
                writers[storage] = (stage, name)


def _check_phase_order(graph: Graph, block_phase: list[int]) -> None:
    """Error if a Block begins after its phase is over."""
    furthest, at = 0, ""
    for op in graph.ops:
        if op.direction != Direction.FORWARD or op.block < 0:
            continue
        phase, name = block_phase[op.block], graph.blocks[op.block].name
        if phase < furthest:
            raise _backwards(op, name, phase, at, furthest, "phase", "phases")
        furthest, at = phase, name


def _backwards(
    op: OpNode, name: str, place: int, at: str, furthest: int, word: str, words: str
) -> UsageError:
    return UsageError(
        f"Block {name!r} ({word} {place}) runs after Block {at!r} ({word} {furthest}): {words} must"
        f" not go back along the model. Put it in {word} {furthest} or later",
        location=f"{op.file}:{op.line}" if op.file else "",
    )


def _place_ops(
    graph: Graph, stages: int, block_stage: list[int]
) -> tuple[tuple[int, ...], dict[int, int]]:
    """The stage of each operator, and of each persistent storage and input."""
    op_stage: list[int] = []
    home: dict[int, int] = {}
    made_at: dict[int, int] = {}
    for op in graph.ops:
        if op.direction == Direction.UPDATE:
            stage = _update_stage(graph, op, home, made_at)
        elif op.block >= 0:
            stage = block_stage[op.block]
        else:
            stage = 0 if op.direction == Direction.FORWARD or op.forward_op >= 0 else stages - 1
        op_stage.append(stage)
        for value in op.inputs:
            storage = graph.storage_of(value)
            if storage.role in _AT_HOME:
                # an accumulator is its weight's, whichever stage adds to it first
                home.setdefault(storage.id, home.get(storage.parameter, stage))
        for made in graph.results(op):
            made_at.setdefault(made, stage)
    return tuple(op_stage), home


def _update_stage(
    graph: Graph, op: OpNode, home: Mapping[int, int], made_at: Mapping[int, int]
) -> int:
    """The stage of an update op: its weight's, or that of the update ops whose results it reads."""
    operands = [graph.storage_of(value) for value in op.inputs]
    for storage in operands:
        if storage.owner in home:
            return home[storage.owner]
    return next((made_at[storage.id] for storage in operands if storage.id in made_at), 0)


def _find_transfers(
    graph: Graph, op_stage: Sequence[int], home: Mapping[int, int], stages: Sequence[StagePlace]
) -> tuple[Transfer, ...]:
    """The storages that one stage needs, also for its backward, and another computes."""
    makers: dict[int, tuple[int, Direction]] = {}
    wanted: dict[tuple[int, Direction, int, bool], int] = {}
    away: dict[tuple[int, Direction, int, bool], int] = {}
    for op, stage in zip(graph.ops, op_stage, strict=True):
        for value in read_values(op):
            storage = graph.values[value].storage
            if graph.storages[storage].role == Role.ACCUMULATOR:
                continue  # stages of the IPU that has it add to it
            source, direction = makers.get(storage, (home.get(storage, stage), Direction.FORWARD))
            if source != stage and op.direction != Direction.UPDATE:
                key = (storage, direction, source, stage > source)
                further = max if stage > source else min
                wanted[key] = further(wanted.get(key, stage), stage)
                if stages[stage].ipu != stages[source].ipu:
                    away[key] = further(away.get(key, stage), stage)
        for storage in graph.results(op):
            makers.setdefault(storage, (stage, op.direction))
    return tuple(
        Transfer(key[0], key[1], key[2], target, away.get(key, key[2]))
        for key, target in wanted.items()
    )


def begins_outside(graph: Graph) -> bool:
    """Whether the forward computes something before its first Block."""
    return any(
        op.direction == Direction.FORWARD and op.block < 0 and not is_view(op.aten)
        for op in graph.ops
    )


def check_phases(graph: Graph, placement: Placement) -> None:
    """Error if the model goes back to a phase that is over."""
    block_phase = {
        name: placement.phases[k]
        for k, stage in enumerate(placement.stages)
        for name in stage.blocks
    }
    _check_phase_order(graph, [block_phase[block.name] for block in graph.blocks])


def check_stages_of_phases(stages: Sequence[StagePlace], phases: Sequence[int]) -> None:
    """Error if two stages of a pipelined phase are on one IPU."""
    names: dict[tuple[int, int], str] = {}
    for stage, phase in zip(stages, phases, strict=True):
        blocks = ", ".join(map(repr, stage.blocks))
        first = names.setdefault((phase, stage.ipu), blocks)
        if first != blocks:
            raise UsageError(
                f"PipelinedExecution: in phase {phase} the stages of {first} and of {blocks} are"
                f" both on IPU {stage.ipu}; a phase has one stage on an IPU. Make them one stage,"
                " or give one another IPU with Stage.ipu(n)"
            )


def check_blocks(graph: Graph, strategy: StrategyOptions) -> None:
    """Error with AutoIncrement, else a warning, if an op follows a ``with Block`` and is in none.

    PopTorch refuses it with every strategy. Here the op belongs to the preceding Block.
    """
    if graph.outside < 0:
        return
    op = graph.ops[graph.outside]
    where = f"{op.file}:{op.line}" if op.file else ""
    message = (
        f"No active Block: {op.name} runs after the end of a `with Block` and before the next one"
        " begins. Put it into a Block, or begin Blocks with BeginBlock or Block.start, which last"
        " until the next one"
    )
    if not strategy.stages and strategy.auto_stage is AutoStage.AutoIncrement:
        raise UsageError(message, location=where)
    warn_once(
        f"{message}. PopTorch refuses this; here it belongs to {graph.blocks[op.block].name!r}"
        f" [{where}]"
    )


def check_depth(stages: int, micro_batches: int, training: bool, name: str) -> None:
    """Error, with the smallest depth that works, if a pipeline is not deep enough to fill."""
    least = closed_forms.pipeline_stages(stages, training)
    if micro_batches < least:
        doubled = (
            f" Please note that a model with {stages} pipeline stages in PopTorch will have an"
            f" additional {least - stages} stages when training."
        )
        raise PipelineDepthError(
            f"poptorch.Options().{name} must be greater than or equal to the number of pipeline"
            f" stages ({least}) when using"
            f" poptorch.PipelinedExecution.{doubled if training else ''} It is {micro_batches}: set"
            f" {name}({least}) or more, or use fewer stages",
            least,
        )


def resolve_stages(
    strategy: StrategyOptions, blocks: Sequence[BlockInfo], begins_outside: bool = False
) -> list[StagePlace]:
    """The forward stages of a strategy for the Blocks that a model opened.

    Stages given by name take their ``.ipu(n)`` or IPUs 0, 1, 2 ... in order. SameAsIpu: a Block's
    stage is its ipu_id; AutoIncrement: a new stage for each Block. Neighbouring stages on one IPU
    merge. ``begins_outside``: the model computes before its first Block, which AutoStage puts on
    IPU 0. See docs/poptorch-semantics.md#placement.
    """
    if strategy.execution is Execution.PHASED:
        return [place for _, place in _named_places(strategy, blocks)]
    if strategy.stages:
        places = [place for _, place in _named_places(strategy, blocks)]
    else:
        places = _automatic_stages(strategy.auto_stage, blocks)
        if begins_outside and places and places[0].ipu:
            places.insert(0, StagePlace(0, ()))
    merged: list[StagePlace] = []
    for stage in places:
        if merged and merged[-1].ipu == stage.ipu:
            merged[-1] = StagePlace(stage.ipu, merged[-1].blocks + stage.blocks)
        else:
            merged.append(stage)
    return merged or [StagePlace(0, ())]


def check_uses(blocks: Sequence[BlockInfo], stages: Sequence[StagePlace]) -> None:
    """Error if a pipeline begins a Block on several IPUs: a Block belongs to one stage."""
    ipus = {name: stage.ipu for stage in stages for name in stage.blocks}
    first: dict[str, int] = {}
    for block in blocks:
        ipu = ipus.get(block.name, first.get(block.user_id, 0))
        if first.setdefault(block.user_id, ipu) != ipu:
            raise UsageError(
                f"Block {block.user_id!r} begins on IPU {first[block.user_id]} and on IPU {ipu}: in"
                " a pipeline a Block is a part of one stage, and a stage is on one IPU. Give the"
                " second use a user_id of its own, or use poptorch.ShardedExecution"
            )


def _named_places(
    strategy: StrategyOptions, blocks: Sequence[BlockInfo]
) -> list[tuple[int, StagePlace]]:
    """The stages that the strategy names, each with its phase."""
    named = {name for stage in strategy.stages for name in stage.blocks}
    uses: dict[str, list[BlockInfo]] = {}
    for block in blocks:
        uses.setdefault(block.name if block.name in named else block.user_id, []).append(block)
    pipelined = strategy.execution is Execution.PIPELINED
    return [
        (stage.phase, place)
        for stage in strategy.stages
        for place in _places(stage, uses, pipelined)
    ]


def _places(
    stage: StageOptions, uses: Mapping[str, Sequence[BlockInfo]], pipelined: bool
) -> list[StagePlace]:
    """A named stage on its IPU: the strategy's, else its Blocks', else the next in order.

    Outside pipelines a stage covers all IPUs on which its Blocks begin.
    """
    own: list[BlockInfo] = []
    for name in stage.blocks:
        own += uses.get(name, [BlockInfo(-1, name, None)])
    asked = [block.ipu_id for block in own if block.ipu_id is not None]
    default = next(iter(asked), stage.default_ipu)
    ipus: dict[int, list[BlockInfo]] = {}
    for block in own:
        wanted = default if block.ipu_id is None else block.ipu_id
        ipus.setdefault(wanted if stage.ipu is None else stage.ipu, []).append(block)
    if pipelined and len(ipus) > 1:
        (one, (first, *_)), (two, (second, *_)) = list(ipus.items())[:2]
        raise UsageError(
            f"{stage} is on two IPUs: Block {first.user_id!r} asks for IPU {one}, Block"
            f" {second.user_id!r} for IPU {two}. Give the stage its IPU with .ipu(n), or put the"
            " Blocks into two stages"
        )
    return [StagePlace(ipu, tuple(block.name for block in on)) for ipu, on in ipus.items()]


def _automatic_stages(auto: AutoStage, blocks: Sequence[BlockInfo]) -> list[StagePlace]:
    ipus: list[int] = []
    for block in blocks:
        ipus.append(block.ipu_id if block.ipu_id is not None else (ipus[-1] if ipus else 0))
    if auto == AutoStage.AutoIncrement:
        return [StagePlace(ipu, (block.name,)) for block, ipu in zip(blocks, ipus, strict=True)]
    by_ipu: dict[int, tuple[str, ...]] = {}
    for block, ipu in zip(blocks, ipus, strict=True):
        by_ipu[ipu] = (*by_ipu.get(ipu, ()), block.name)
    return [StagePlace(ipu, by_ipu[ipu]) for ipu in sorted(by_ipu)]


def round_ipus(num_ipus: int, auto_round: bool) -> int:
    """IPUs to attach for a replica. Error as `power_of_two`, and where no system has so many."""
    if num_ipus > MAX_IPUS:
        raise UsageError(
            f"the model runs on {num_ipus} IPUs of a replica, and the largest system has {MAX_IPUS}"
        )
    return power_of_two(num_ipus, auto_round)


def power_of_two(num_ipus: int, auto_round: bool) -> int:
    """The power of two that has room for them. Error if they are none and rounding is off."""
    power = 1 << (num_ipus - 1).bit_length()
    if power != num_ipus and not auto_round:
        raise UsageError(
            f"placement: The model specifies the use of {num_ipus} IPUs, however PopTorch must"
            f" reserve a minimum of {power} in order to allow the model to run, because PopTorch"
            f" must reserve a power of 2 or maximum of {IPUS_OF_A_PROCESS} IPUs per process. Please"
            " reconfigure your model to use a different number of IPUs or set"
            f" poptorch.Options().autoRoundNumIPUs(True). {power - num_ipus} would be idle"
        )
    return power
