"""Planning a first call: from a wrapped model and a question to a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ipu_exec.capture.overlap import modes
from ipu_exec.compiler.batch_norms import any_over_samples
from ipu_exec.compiler.placement.machines import USUAL_PROPORTION
from ipu_exec.errors import Error, UsageError
from ipu_exec.graph import Graph
from ipu_exec.options import Options
from ipu_exec.planning.captured import Captured
from ipu_exec.planning.engine import Compiles
from ipu_exec.planning.workers import workers_of
from ipu_exec.session.call_plan import FirstCall
from ipu_exec.session.executor import PoplarExecutor, inferenceModel, trainingModel
from ipuscope.planner.mappings import Key, Plan, Question
from ipuscope.planner.mappings.compile_search import plan, verified
from ipuscope.planner.mappings.compile_waves import keys_of
from ipuscope.planner.mappings.question import (
    OBJECTIVES,
    RECOMPUTE,
    QuestionError,
    parse_fixed,
    shard_counts,
    usual_micro_batches,
)
from ipuscope.planner.mappings.search_state import EngineLost, News, NoMapping
from ipuscope.profiler.timeline.links import MAX_IPUS

USUAL_PROPORTIONS = (0.2, 0.6)  # beside the script's own: public configurations' and Poplar's


@dataclass(frozen=True)
class Asked:
    """What the command, or `plan_model`, asks for; 0 and empty: as the script has it, or usual."""

    ipus: int
    global_batch: int = 0
    micro_batches: tuple[int, ...] = ()
    proportions: tuple[float, ...] = ()
    fixed: tuple[str, ...] = ()
    objective: str = OBJECTIVES[0]
    budget: float = 0.0
    verify: int = 0
    workers: int | None = None  # processes that compile; None: this one alone
    ray: str | None = None  # an address, or "local"
    command: str = ""
    keep: bool = field(default=True, repr=False)  # costs on the disk


def no_news(news: News) -> None:
    """A listener that ignores all news."""


def plan_call(call: FirstCall, asked: Asked, on_news: Callable[[News], None] = no_news) -> Plan:
    """The best mappings of a first call's model. Error where there is none, or nothing to cut."""
    if not 1 <= asked.ipus <= MAX_IPUS:
        raise UsageError(f"a plan is for 1 to {MAX_IPUS} IPUs, not {asked.ipus}")
    if call.options.Distributed.numProcesses > 1:
        raise UsageError("a plan is made in one process: run it without --instances")
    captured = Captured(call, asked.ipus)
    try:
        if call.trainer and any(size % captured.samples for size in asked.micro_batches):
            raise UsageError(
                f"--micro-batches: a Trainer joins its loader's batches of {captured.samples}, and"
                " does not cut them. Give it multiples of that, or the loader another batch_size"
            )
        stays = "" if asked.micro_batches else why_one_micro_batch(captured)
        question = question_of(call, captured.samples, asked, stays)
        if overlaps := _overlaps(captured):
            if question.fixed.get("p", 1) > 1:
                raise UsageError("--fix p: PopTorch refuses host I/O beside compute in a pipeline")
            question = replace(question, fixed={**question.fixed, "p": 1})
        workers = workers_of(asked.workers, asked.ray)
        stages = 1 if question.fixed.get("p") == 1 else asked.ipus
        engine = Compiles(captured, stages, workers, asked.keep)
        try:
            best_plan = plan(question, engine, keys_of(question), on_news)
            if asked.verify:
                best_plan = verified(best_plan, engine, asked.verify, on_news)
        finally:
            workers.close()
    except (NoMapping, QuestionError, EngineLost) as error:
        raise Error(str(error)) from None
    why = [f"the micro-batch stays: {stays} (--micro-batches tries others)"] if stays else []
    if call.trainer and not why:
        why = [f"micro-batches join batches of the script's loader, of {captured.samples} samples"]
    return replace(
        best_plan,
        notes=(*best_plan.notes, *why),
        modules=captured.modules,
        model=type(call.model).__name__,
        command=asked.command,
        cached=engine.cached,
        compiles=best_plan.compiles - engine.cached,
        script_samples=call.samples,
        trainer=call.trainer,
        overlaps=overlaps,
    )


def question_of(call: FirstCall, micro_batch: int, asked: Asked, stays: str = "") -> Question:
    """The question, with the script's own settings where nothing is said.

    ``stays``: why the micro-batch is the script's, or "".
    """
    fixed = parse_fixed(list(asked.fixed))
    if (ipus := prod(fixed.get(name, 1) for name in "tpr")) > asked.ipus:
        words = " ".join(asked.fixed)
        raise QuestionError(f"--fix {words}: that takes {ipus} IPUs, of {asked.ipus} (t x p x r)")
    options, batch = call.options, asked.global_batch or call.samples
    others = usual_micro_batches(micro_batch, batch)
    if call.trainer:
        others = tuple(size for size in others if size % micro_batch == 0)
    if stays:
        others = tuple(size for size in others if size == micro_batch)
    sizes = asked.micro_batches or others
    if not sizes:
        raise QuestionError(
            f"--global-batch {batch} is not a multiple of the script's micro-batch of"
            f" {micro_batch}: give --micro-batches numbers that divide it"
        )
    if all(batch % size for size in sizes):
        raise QuestionError(
            f"--micro-batches {','.join(map(str, sizes))}: none divides the {batch} samples of a"
            " weight update. Give divisors, or another --global-batch"
        )
    sharding = options.tensor_sharding
    planned = sharding.shards > 1 or sharding.plan != "auto"
    return Question(
        asked.ipus,
        batch,
        tuple(sizes),
        _proportions(options, asked, fixed.get("proportion")),
        shard_counts(sharding.shards, planned, asked.ipus, fixed.get("t")),
        fixed,
        asked.objective,
        asked.budget,
        call.training,
        tuple(name for name, given in given_of(asked, fixed).items() if not given),
        *_last_stage(call, fixed),
    )


def why_one_micro_batch(captured: Captured) -> str:
    """Why micro-batches of another size would not compute the same; "" where they do."""
    call = captured.call
    tensors = [one for one in tree_leaves(call.micro_batch) if isinstance(one, torch.Tensor)]
    sizes = {tensor.shape[0] for tensor in tensors if tensor.dim()}
    if len(sizes) > 1:
        return (
            f"inputs have {' and '.join(map(str, sorted(sizes)))} rows, so that no row is a sample"
        )
    few = max(2, captured.samples)
    graph = _graph(captured, few)
    if graph is not None and call.training and any_over_samples(graph):
        return "batch norms take their statistics over it"
    larger = _graph(captured, 2 * few) if graph is not None else None
    if graph is None or larger is None:
        return ""
    # samples meet where a tensor grows faster than their number, as scores of all with all do
    now, twice = ([prod(one.shape) for one in some.values.values()] for some in (graph, larger))
    if len(now) == len(twice) and any(b > 2 * a for a, b in zip(now, twice, strict=True)):
        return "its samples meet in a tensor that grows with their square"
    return ""


def _graph(captured: Captured, samples: int) -> Graph | None:
    """The graph of such a micro-batch; None where it does not run: the search says why."""
    try:
        return captured.graph(Key(captured.call.options.tensor_sharding.shards, samples))
    except (Error, RuntimeError, TypeError, ValueError):
        return None


def _overlaps(captured: Captured) -> bool:
    """Whether host I/O runs beside compute, which PopTorch refuses in a pipeline."""
    graph, options = _graph(captured, captured.samples), captured.options(Key(1, captured.samples))
    return graph is not None and bool(modes(graph)) and not options.explicit_ir


def given_of(asked: Asked, fixed: Mapping[str, Any]) -> dict[str, bool]:
    """Whether micro-batches, proportions and shards were asked for, or are to be suggested."""
    return {
        "micro_batch": bool(asked.micro_batches),
        "proportion": bool(asked.proportions) or "proportion" in fixed,
        "shards": "t" in fixed,
    }


def _last_stage(call: FirstCall, fixed: Mapping[str, Any]) -> tuple[tuple[bool, ...], bool]:
    """Whether it may keep what the options have it recompute; recompute where they say nothing."""
    recomputes = getattr(call.options._Popart, "autoRecomputation", None)
    again = fixed.get(RECOMPUTE)
    if not call.training or not recomputes:
        return (False,), call.training and again is not False
    return (False, True) if again is None else (not again,), False


def _proportions(options: Options, asked: Asked, fixed: float | None) -> tuple[float, ...]:
    """The script's own proportions, that of most IPUs first, and the usual ones."""
    if fixed is not None:
        return (fixed,)
    own = Counter(options.available_memory_proportion.values()) or Counter([USUAL_PROPORTION])
    by_ipus = [share for share, _ in own.most_common()]
    return asked.proportions or tuple(dict.fromkeys([*by_ipus, *USUAL_PROPORTIONS]))


def plan_model(  # noqa: PLR0913 - what the command has options for
    model: torch.nn.Module | PoplarExecutor,
    inputs: Any,
    ipus: int,
    *,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    training: bool = True,
    global_batch: int = 0,
    micro_batches: Sequence[int] = (),
    proportions: Sequence[float] = (),
    fix: Sequence[str] = (),
    objective: str = OBJECTIVES[0],
    budget: float = 0.0,
    verify: int = 0,
    workers: int | None = None,
    ray: str | None = None,
    progress: Callable[[News], None] = no_news,
) -> Plan:
    """The best mappings of a model onto so many IPUs, best first (docs/plan.md).

    ``model``: a module that returns its loss last, or a wrapped model; ``inputs``: what a call
    takes, a tensor, a tuple or a dict, whose first dimension counts the samples of a weight update
    (times device iterations). ``fix``: as ``ipu-run --plan --fix`` takes it, ("p=4",). ``budget``:
    seconds. ``verify``: so many of the first are compiled in full. ``workers``: processes. Error
    where nothing fits, a model has no Blocks and none can be proposed, or inputs have no batch
    dimension.
    """
    if objective not in OBJECTIVES:
        raise UsageError(f"objective is one of {', '.join(OBJECTIVES)}, not {objective!r}")
    if isinstance(model, PoplarExecutor):
        executor = model
    elif training:
        executor = trainingModel(model, options, optimizer)
    else:
        executor = inferenceModel(model, options)
    args, kwargs = _as_arguments(inputs)
    asked = Asked(
        ipus,
        global_batch,
        tuple(micro_batches),
        tuple(proportions),
        tuple(fix),
        objective,
        budget,
        verify,
        workers,
        ray,
    )
    call = executor.first_call(*args, **kwargs)
    try:
        return plan_call(call, asked, progress)
    finally:
        if executor is not model:
            executor.destroy()


def _as_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}
