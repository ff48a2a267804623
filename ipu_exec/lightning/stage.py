"""One of a LightningModule's steps, compiled for each shape and path that it meets."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ipu_exec.base import host_clock
from ipu_exec.base.structures import joined
from ipu_exec.capture.control_flow import path, read_contents
from ipu_exec.capture.step import capture
from ipu_exec.compiler.placement import place
from ipu_exec.errors import ContentError, PipelineDepthError, UsageError
from ipu_exec.lightning.logged import Logged, collected, give
from ipu_exec.lightning.step import StepModule, loss_of
from ipu_exec.options import Options
from ipu_exec.session.compile_options import strategy_options
from ipu_exec.session.stepped import SteppedExecutor

logger = logging.getLogger("ipu_exec")
MOST_PATHS = 16  # of one step; more are computed and not compiled

Shapes = tuple[tuple[torch.dtype, torch.Size], ...]


class StageModel:
    """Training, validation, test or prediction.

    Lightning's loop computes numbers through `run`; executors say what an IPU would need for
    them. ``options``: from micro-batches of a weight update to compile options.
    ``around_compiling``: entered while compiling.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        step: str,
        folder: str,
        options: Callable[[int], Options],
        optimizer: torch.optim.Optimizer | None,
        accumulation: int,
        around_compiling: Callable[[], Any],
    ) -> None:
        self.step = StepModule.of(module, step)
        self._folder, self._options, self._optimizer = folder, options, optimizer
        self._around_compiling = around_compiling
        self._made = 0
        self._accumulation = accumulation
        self._compiled: dict[tuple[int, Shapes, Any], SteppedExecutor] = {}
        self._last: dict[tuple[int, Shapes], SteppedExecutor] = {}
        self._replica_buffers: dict[int, dict[str, torch.Tensor]] = {}
        self.executor = self._new(accumulation)
        self._looked_at: SteppedExecutor | None = None
        self._seen: tuple[Any, ...] = ()
        self._weights: list[torch.nn.Parameter] = []
        self._steps = self._begun = 0
        self._recorded = False
        self.micro_batch = 1  # samples of the last step, of one replica

    # -- compiling ---

    def _new(self, accumulation: int) -> SteppedExecutor:
        self._made += 1
        folder = self._folder if self._made == 1 else f"{self._folder}-{self._made}"
        return SteppedExecutor(self.step, self._options(accumulation), folder, self._optimizer)

    def prepare(
        self, tensors: list[torch.Tensor], accumulation: int, shapes: Shapes
    ) -> SteppedExecutor:
        """The compiled executor for a micro-batch like this one, which has these shapes."""
        executor = self._last.get((accumulation, shapes))
        if executor is self._looked_at and executor is not None and self._state() == self._seen:
            return executor
        if executor is None:
            executor = self._another(shapes, accumulation)
            self._compile(executor, tensors, accumulation, shapes)
        elif self._compile(executor, tensors, accumulation, shapes):
            self._forget(executor)
        self.executor = self._last[accumulation, shapes] = executor
        self._weights = list(self.step.parameters())
        self._looked_at, self._seen = executor, self._state()
        return executor

    def _state(self) -> tuple[Any, ...]:
        """The compiled-in state that may change from step to step.

        The executor checks more (optimiser structure) once an epoch: that takes a forward's time.
        """
        epoch = int(vars(self.step)["_lightning"].current_epoch)
        trained = [weight.requires_grad for weight in self._weights]
        return epoch, self.step.training, trained

    def _another(self, shapes: Shapes, accumulation: int) -> SteppedExecutor:
        """An executor for a new shape or path; says why it is needed."""
        if not self._last:
            if accumulation == self._accumulation:
                return self.executor
        elif accumulation not in {count for count, _ in self._last}:
            logger.warning(
                "compiling anew because accumulate_grad_batches changed: expected %d, got %d",
                *(self._accumulation, accumulation),
            )
        else:
            (_, expected), *_ = self._last
            logger.warning(
                "compiling anew because the shape of the batch changed: expected %s, got %s"
                " (drop_last=True in the data loader leaves the smaller last batch out)",
                [list(shape) for _, shape in expected],
                [list(shape) for _, shape in shapes],
            )
        self._accumulation = accumulation
        return self._new(accumulation)

    def _compile(
        self,
        executor: SteppedExecutor,
        tensors: list[torch.Tensor],
        accumulation: int,
        shapes: Shapes,
    ) -> bool:
        """Compile if necessary; returns whether it did."""
        before = executor.executable
        # anomalies are looked for in numbers, and there are none yet
        plainly = torch.autograd.set_detect_anomaly(False)
        with plainly, self.step.compiling(), self._around_compiling():
            try:
                executor.prepare(*tensors)
            except PipelineDepthError as error:
                if self._optimizer is not None:
                    raise PipelineDepthError(
                        f"{type(self.step).__name__} makes a pipeline that needs at least"
                        f" {error.least} micro-batches a weight update: say"
                        f" Trainer(accumulate_grad_batches={error.least}) or more. {error}",
                        error.least,
                    ) from None
                executor.deepen(error.least)
                executor.prepare(*tensors)
        if executor.executable is before:
            return False
        self._compiled[accumulation, shapes, (self.step.path, executor.path)] = executor
        return True

    def _forget(self, executor: SteppedExecutor) -> None:
        """Discard other paths after a recompile for another mode or other weights."""
        self._compiled = {
            key: compiled for key, compiled in self._compiled.items() if compiled is executor
        }

    # -- running ---

    def run(
        self,
        parts: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
        accumulation: int,
        until_backward: contextlib.ExitStack,
    ) -> Any:
        """Compute the step for the micro-batch of each replica; returns the result of one device.

        ``parts``: the step's arguments. The caller closes ``until_backward`` after the backward.
        """
        args, kwargs = parts[0]
        tensors = self.step.arguments(args, kwargs)
        # of every replica: they share a batch equally
        shapes = tuple([(tensor.dtype, tensor.shape) for tensor in tensors])
        executor = self.prepare(tensors, accumulation, shapes)
        self.micro_batch = tensors[0].shape[0] if tensors and tensors[0].dim() else 1
        if self._steps == 0:
            self._begun = host_clock.now_ns() // 1_000
        if self._optimizer is not None:
            until_backward.enter_context(executor.copying_before_changes())
        if len(parts) == 1:
            with executor.precision.model(0):
                return self._follow(executor, tensors, accumulation, shapes)
        trainer = vars(self.step)["_lightning"].trainer
        returned: list[Any] = []
        logs: list[Sequence[Logged]] = []
        for replica, (args, kwargs) in enumerate(parts):
            tensors = self.step.arguments(args, kwargs)
            with collected(trainer) as logged, executor.precision.model(replica):
                buffers = self._buffers_of(replica)
                returned.append(self._follow(executor, tensors, accumulation, shapes, buffers))
            logs.append(logged)
        give(trainer, logs)
        return joined(returned, _join)

    def _buffers_of(self, replica: int) -> dict[str, torch.Tensor] | None:
        """A replica's running statistics; None: the model's (first replica, inference)."""
        buffers = dict(self.step.named_buffers())
        if replica == 0 or not buffers or self._optimizer is None:
            return None
        return self._replica_buffers.setdefault(
            replica, {name: buffer.clone() for name, buffer in buffers.items()}
        )

    def _follow(
        self,
        executor: SteppedExecutor,
        tensors: list[torch.Tensor],
        accumulation: int,
        shapes: Shapes,
        buffers: dict[str, torch.Tensor] | None = None,
    ) -> Any:
        """Run, and compile again if the run took a path that was not compiled."""
        with executor.running() as contents:
            returned = (
                self.step(*tensors)
                if buffers is None
                else torch.func.functional_call(self.step, buffers, tuple(tensors))
            )
        if self.step.name == "training_step" and loss_of(returned) is None:
            raise UsageError(
                f"{type(self.step).__name__}.training_step returned no loss. Return the loss times"
                " 0 to leave a batch out: an IPU updates its weights at each"
            )
        branches = (self.step.path, path(tuple(contents)))
        compiled = self._compiled.get((accumulation, shapes, branches))
        if compiled is None and len(self._compiled) < MOST_PATHS:
            compiled = self._new_path(tensors, accumulation, shapes)
            self._compiled[accumulation, shapes, branches] = compiled
        if compiled is not None and compiled is not executor:
            self.executor = self._last[accumulation, shapes] = compiled
        return returned

    def _new_path(
        self, tensors: list[torch.Tensor], accumulation: int, shapes: Shapes
    ) -> SteppedExecutor:
        logger.warning(
            "compiling anew because %s.%s branches, and took a path that was not compiled yet",
            type(self.step).__name__,
            self.step.name,
        )
        executor = self._new(accumulation)
        self._compile(executor, tensors, accumulation, shapes)
        return executor

    # -- the profile ---

    def count(self, steps_per_call: int) -> None:
        """Count a computed step. After the steps of a call, the call goes into the profile."""
        self._steps += 1
        if self._steps >= steps_per_call:
            self._record()

    def _record(self) -> None:
        self.executor.record_call(self._begun, host_clock.now_ns() // 1_000)
        self._steps, self._recorded = 0, True

    def close(self) -> list[str]:
        """Complete the profiles; if no call was filled, the steps so far count as one. Paths."""
        if self._steps and not self._recorded and self.executor.isCompiled():
            self._record()
        paths = []
        for executor in {id(compiled): compiled for compiled in self._compiled.values()}.values():
            paths += [executor.profile] * bool(executor.profile)
            executor.destroy()
        return paths


def _join(column: Sequence[Any]) -> Any:
    """One device's result: the mean of floats, sum of counts, or tensors along dimension 0."""
    first = column[0]
    if not isinstance(first, torch.Tensor):
        return first
    if first.dim():
        return torch.cat(list(column))
    stacked = torch.stack(list(column))
    return stacked.mean() if first.is_floating_point() else stacked.sum()


# -- How many IPUs a replica takes, from the Blocks of a step before it is compiled ---


def stages_of(model: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> int:
    """The IPUs of a forward of ``model``, with the strategy of default options."""
    with torch.random.fork_rng(devices=[]):
        try:
            graph = capture(model, tuple(tensors), {})
        except ContentError:
            contents = read_contents(model, tuple(tensors), {}, False)
            graph = capture(model, tuple(tensors), {}, contents=contents)
    strategy = strategy_options(Options().execution_strategy)
    outside = place.begins_outside(graph)
    stages = place.resolve_stages(strategy, graph.blocks, outside)
    return len({stage.ipu for stage in stages})


def depth_of(module: Any, step: str, batch: Any) -> int:
    """The stages of a LightningModule's step, run on fake tensors like those of ``batch``."""
    model = StepModule.of(module, step)
    tensors = model.arguments((batch, 0), {})
    before, module._current_fx_name = module._current_fx_name, step  # it may log
    try:
        with model.compiling():
            return stages_of(model, tensors)
    finally:
        module._current_fx_name = before


def replicas_of(devices: int, stages: int) -> int:
    """Replicas on so many IPUs, each of ``stages`` rounded up to a power of two; at least one."""
    attached = 1 << (stages - 1).bit_length()
    return max(1, devices // attached)
