"""``PoplarExecutor``: a model that compiles for the modelled IPUs at its first call and then runs.

Real numbers come from `ipu_exec.numerics`, cycles from what `ipu_exec.compile` made, profiles are written by
`ipu_exec.autoreport`. The wrapped model's parameters are the user's own, so weights are never stale anywhere.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_flatten

from ipu_exec import numerics
from ipu_exec.enums import ConnectionType, MeanReductionStrategy
from ipu_exec.errors import Error, OutOfMemoryError
from ipu_exec.optim import SGD
from ipu_exec.options import COMPILE_ONLY_VARIABLE, Options

logger = logging.getLogger("ipu_exec")

Progress = Callable[[float, str], None]


def trainingModel(
    model: torch.nn.Module, options: Options | None = None, optimizer: torch.optim.Optimizer | None = None
) -> PoplarExecutor:
    """Wrap ``model`` for training: a call runs forward, backward and weight updates.

    The model returns its loss last (or marks it with `identity_loss`). Parameters are shared with ``model``.
    Without an optimiser, SGD with lr=0.01 is taken, as PopTorch takes it.
    """
    return PoplarExecutor(model, options, training=True, optimizer=optimizer)


def inferenceModel(model: torch.nn.Module, options: Options | None = None) -> PoplarExecutor:
    """Wrap ``model`` for inference: a call runs forward on deviceIterations x replicas micro-batches."""
    return PoplarExecutor(model, options, training=False)


class PoplarExecutor:
    """Made by `trainingModel` and `inferenceModel`. Attributes it has not are the wrapped model's.

    Compiles at the first call, or by `compile`; again when shapes, dtypes, train/eval mode or the optimiser's
    structure change, and says so in the log "ipu_exec". Holds a copy of ``options`` and freezes the given ones.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        options: Options | None,
        *,
        training: bool,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        kind = "trainingModel" if training else "inferenceModel"
        if not isinstance(model, torch.nn.Module):
            raise Error(f"{kind} takes a torch.nn.Module, not {type(model).__name__}")
        if options is not None and not isinstance(options, Options):
            raise Error(f"{kind}: options is an ipu_exec.Options, not {type(options).__name__}")
        self._model = model
        self._options = options.clone() if options is not None else Options()
        if options is not None:
            options._freeze()
        self._training = training
        self._optimizer: torch.optim.Optimizer | None = None
        self._executable: Any = None
        self._signature: dict[str, Any] = {}
        self._session: Any = None
        self._closer: weakref.finalize[..., Any] | None = None
        self._buffers = numerics.ReplicaBuffers()
        self._attached = self._seeded = self._destroyed = False
        self._compilation_seconds = 0.0
        if training:
            self.setOptimizer(optimizer if optimizer is not None else _default_optimiser(model))
        else:
            if optimizer is not None:
                raise Error("inferenceModel takes no optimiser")
            _check_inference(self._options)
        self._plan = numerics.plan_call(self._options, training)
        self._options._freeze()

    # -- running -----------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one call's micro-batches; takes what the model takes, with all of them along dimension 0."""
        if self._options.connection_type is ConnectionType.Never:
            raise Error("these options compile but do not run (ConnectionType.Never, or useOfflineIpuTarget): call "
                        "compile(...), or set connectionType(ConnectionType.Always)")  # fmt: skip
        self._prepare(args, kwargs)
        if os.environ.get(COMPILE_ONLY_VARIABLE):
            self._stop_after_compiling()
        if not self._seeded and self._options.random_seed is not None:
            torch.manual_seed(self._options.random_seed)
        self._seeded = self._attached = True
        start = time.time_ns() // 1_000
        if self._training:
            assert self._optimizer is not None
            result = numerics.train(self._model, args, kwargs, self._plan, self._optimizer, self._buffers)
        else:
            result = numerics.infer(self._model, args, kwargs, self._plan, self._buffers)
        if self._session is not None:
            self._session.record_run(start, time.time_ns() // 1_000)
        if self._options.log_cycle_count:
            logger.info("cycles of this call: %d", self._executable.cycles_per_call)
        return result

    def _stop_after_compiling(self) -> NoReturn:
        """`ipu-run --compile-only`: the profile is whole, and the script ends before any number is computed."""
        where = ""
        if self._session is not None:
            self._session.publish()
            where = f"; the profile is {self._session.path}"
        print(f"compiled, and ended there as --compile-only says{where}", file=sys.stderr)
        raise SystemExit(0)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for inputs like these, without running. Nothing happens where that was done already."""
        self._prepare(args, kwargs)
        if self._session is not None:
            self._session.publish()

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._destroyed:
            raise Error("this model was destroyed; wrap the model again with trainingModel or inferenceModel")
        numerics.check_batch((args, kwargs), self._plan)
        signature = self._sign(args, kwargs)
        if self._executable is not None and signature == self._signature:
            return
        if self._executable is not None:
            for reason in _differences(self._signature, signature):
                logger.warning("recompiling because %s", reason)
            self._release()
        self._compile(args, kwargs)
        self._signature = signature

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from ipu_exec.compile import compile_step

        start = time.perf_counter()
        taken, named = numerics.micro_batch((args, kwargs), self._plan)
        with _progress(self._options.compilation_progress_bar) as progress, torch.random.fork_rng(devices=[]):
            executable = compile_step(
                self._model, taken, named, self._options, self._optimizer, self._training, progress
            )
            progress(1.0, "done")
        self._compilation_seconds = time.perf_counter() - start
        if self._options.profiling().enabled:
            from ipu_exec.autoreport import ProfileSession

            self._session = ProfileSession(self._options, executable, self._training)
            self._closer = weakref.finalize(self, self._session.close)  # at the latest when Python ends
        try:
            executable.check_memory(str(getattr(self._session, "path", None) or ""))
        except OutOfMemoryError:
            self._release()
            raise
        self._executable = executable

    def _sign(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """What the compiled program depends on, by what to call it in a log."""
        leaves, structure = tree_flatten((args, kwargs))
        signature: dict[str, Any] = {"the structure of the inputs": str(structure)}
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                dtype = str(leaf.dtype).removeprefix("torch.")
                signature[f"input {index}"] = f"{dtype}{list(leaf.shape)}"
            else:
                signature[f"input {index}"] = repr(leaf)
        signature["the mode of the model"] = "train" if self._model.training else "eval"
        signature["which parameters require grad"] = tuple(p.requires_grad for p in self._model.parameters())
        if self._optimizer is not None:
            signature["the optimiser"] = _structure(self._optimizer)
        return signature

    # -- state -------------------------------------------------------------------------------------------

    @property
    def model(self) -> torch.nn.Module:
        """The wrapped model."""
        return self._model

    @property
    def options(self) -> Options:
        """The options it is compiled with, frozen."""
        return self._options

    @property
    def executable(self) -> Any:
        """What `ipu_exec.compile` made; None before."""
        return self._executable

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_model" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._model, name)

    def train(self, mode: bool = True) -> PoplarExecutor:
        """Put the wrapped model into train (or eval) mode."""
        self._model.train(mode)
        return self

    def eval(self) -> PoplarExecutor:
        """Put the wrapped model into eval mode."""
        return self.train(False)

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Use ``optimizer`` from now on; states (momenta) of the one before are kept where the kind is the same.

        New learning rates and such take effect at the next call and need no compiling. Error in inference, or
        where the optimiser has none of the model's parameters.
        """
        if not self._training:
            raise Error("an inference model has no optimiser")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise Error(f"setOptimizer takes a torch.optim.Optimizer, not {type(optimizer).__name__}")
        own = {id(parameter) for parameter in self._model.parameters()}
        if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
            raise Error("the optimiser has none of the model's parameters; make it from model.parameters()")
        before = self._optimizer
        if before is not None and before is not optimizer and type(before) is type(optimizer) and not optimizer.state:
            optimizer.state.update(before.state)
        self._optimizer = optimizer
        if getattr(optimizer, "accum_type", torch.float32) is torch.float16 and not getattr(
            optimizer, "use_combined_accum", False
        ):
            self._keep_running_means()

    def _keep_running_means(self) -> None:
        """float16 accumulators hold running means, so that they do not overflow (facts/poptorch.md)."""
        self._options._freeze(False)
        self._options.Training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.Running)
        self._options._freeze()
        self._plan = numerics.plan_call(self._options, self._training)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The wrapped model's."""
        return self._model.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """The wrapped model's; every replica starts from it."""
        self._buffers.forget()
        return self._model.load_state_dict(state_dict, strict)

    def copyWeightsToHost(self) -> None:
        """Nothing to do: the wrapped model's weights are the ones trained."""

    def copyWeightsToDevice(self) -> None:
        """Weights need no copying; buffers of all replicas become the model's."""
        self._buffers.forget()

    copyNamedBuffersToDevice = copyWeightsToDevice

    # -- device ------------------------------------------------------------------------------------------

    def isCompiled(self) -> bool:
        """True once compiled and not destroyed."""
        return self._executable is not None

    def isAttachedToDevice(self) -> bool:
        """True after a call or `attachToDevice`, until `detachFromDevice`."""
        return self._attached

    def attachToDevice(self) -> None:
        """Take the device; a call does so by itself. Error before compiling."""
        if not self.isCompiled():
            raise Error("attachToDevice comes after compiling: call compile(...) or the model first")
        self._attached = True

    def detachFromDevice(self) -> None:
        """Give the device back; what was compiled stays. Error where it is not attached."""
        if not self._attached:
            raise Error("detachFromDevice: the model is not attached")
        self._attached = False

    def destroy(self) -> None:
        """Finish the profile and drop what was compiled. The model cannot be called again."""
        self._release()
        self._destroyed = True

    def _release(self) -> None:
        if self._closer is not None:
            self._closer()  # closes the session, once
        self._session = self._closer = self._executable = None
        self._attached = False

    def cycleCount(self) -> int:
        """Cycles of one call, as modelled. Error before compiling."""
        if self._executable is None:
            raise Error("cycleCount comes after compiling: call the model first")
        return int(self._executable.cycles_per_call)

    @property
    def compilationTime(self) -> float:
        """Seconds that the last compilation took."""
        return self._compilation_seconds


def _default_optimiser(model: torch.nn.Module) -> torch.optim.Optimizer:
    """PopTorch's, where none is given (facts/poptorch.md)."""
    try:
        return SGD(model.parameters(), lr=0.01)
    except ValueError as error:
        raise Error(f"trainingModel: {type(model).__name__} has nothing to train: {error}") from error


def _check_inference(options: Options) -> None:
    accumulation = options.Training.gradient_accumulation
    if accumulation != 1:
        hint = (
            "; use deviceIterations to give a pipeline enough micro-batches"
            if options.execution_strategy.kind == "pipelined"
            else ""
        )
        raise Error(
            f"an inference model accumulates no gradients, but Training.gradientAccumulation is {accumulation}: use "
            f"options of its own with gradientAccumulation(1){hint}"
        )


def _structure(optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    """What of an optimiser decides which operators its step runs: everything but the values of its rates."""
    groups = []
    for group in optimizer.param_groups:
        settings = {
            name: value if isinstance(value, (bool, str, type(None))) else bool(value)
            for name, value in sorted(group.items())
            if name not in ("params", "lr", "initial_lr", "betas", "eps")
            and isinstance(value, (bool, int, float, str, type(None)))
        }
        groups.append((tuple(tuple(p.shape) for p in group["params"]), tuple(settings.items())))
    extras = {name: getattr(optimizer, name, None) for name in ("bias_correction", "max_grad_norm", "max_weight_norm")}
    return (type(optimizer).__name__, tuple(groups), tuple(extras.items()))


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            short = all(isinstance(item.get(name), str) for item in (before, after))
            yield f"{name} changed" + (f": expected {before[name]}, got {after[name]}" if short else "")


@contextmanager
def _progress(shown: bool) -> Iterator[Progress]:
    """A bar 'Graph compilation: 100%' on stderr; yields what is told the part done (0 to 1) and what is done now."""
    if not shown:
        yield lambda part, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("Graph compilation: {task.percentage:3.0f}%"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda part, what: bar.update(task, completed=part, description=what)
