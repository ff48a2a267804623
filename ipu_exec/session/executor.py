"""``PoplarExecutor``: a model that compiles for the modelled IPUs at its first call and then runs.

Numbers come from `ipu_exec.numerics.loop`, cycles from `ipu_exec.compiler.passes`, and
`ipu_exec.session.autoreport` writes profiles. The parameters are the user's model's own;
`ipu_exec.session.device_tensors` tracks those for which the device has other values.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from ipu_exec.base import host_clock
from ipu_exec.base.context import (
    NOTHING,
    check_weights,
    copying_before_changes,
    on_ipu,
    substituted,
)
from ipu_exec.base.user_tracebacks import without_our_frames
from ipu_exec.capture.control_flow import PathWatch
from ipu_exec.capture.recording.devices import Devices
from ipu_exec.enums import ConnectionType
from ipu_exec.errors import UsageError
from ipu_exec.numerics import loop as numerics
from ipu_exec.options import Options
from ipu_exec.session.files import executable_file as executables
from ipu_exec.session.modes import in_modes
from ipu_exec.session.repeated_call import RepeatedCall
from ipu_exec.session.torch_compile import not_compiled_by_torch
from ipuscope.waiting import PATIENCE, waiting

if TYPE_CHECKING:
    from ipu_exec.numerics.anchors import Watch

logger = logging.getLogger("ipu_exec")


def trainingModel(
    model: torch.nn.Module | PoplarExecutor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Wrap ``model`` for training: a call runs forward, backward and weight updates.

    The model returns its loss last (or marks it with `identity_loss`). Parameters are shared with
    ``model``. The default optimiser is SGD with lr=0.01, as in PopTorch.
    """
    return PoplarExecutor(model, options, training=True, optimizer=optimizer)


def inferenceModel(
    model: torch.nn.Module | PoplarExecutor, options: Options | None = None
) -> PoplarExecutor:
    """Wrap ``model`` for inference: a call runs deviceIterations x replicas micro-batches."""
    return PoplarExecutor(model, options, training=False)


def load(
    filename: str | os.PathLike[str], edit_opts_fn: Callable[[Options], object] | None = None
) -> PoplarExecutor:
    """The compiled model of a file that ``compileAndExport`` or ``save`` wrote with its model.

    ``edit_opts_fn`` may change the options first. Warns that it unpickles: trust the file's
    author.
    """
    exported = executables.read_model(filename)
    options = exported["options"]
    # it was compiled without a device, to run with one
    if options.connection_type is ConnectionType.Never:
        options.connectionType(ConnectionType.Always)
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    training = exported["optimizer"] is not None
    executor = PoplarExecutor(exported["model"], options, training, optimizer=exported["optimizer"])
    executor.per_replica_params |= exported.get("groupings", {})
    executor.loadExecutable(os.fspath(filename))
    return executor


class PoplarExecutor(RepeatedCall):
    """A compiled model, created by `trainingModel` or `inferenceModel`.

    Other attributes are the wrapped model's; its parameters have a ``replicaGrouping``
    (`ipu_exec.base.replica_groups`). Stores a copy of ``options`` and freezes the ones passed to
    it.

    Compiles at the first call, or by `compile`, for inputs like those: others are an error.
    Compiles again, and logs that in the log "ipu_exec", when trained parameters or the
    optimiser's structure change. Train or eval is fixed at that point (`ipu_exec.session.modes`).
    """

    @without_our_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call's micro-batches: the model's arguments, batched along dimension 0."""
        fast = NotImplemented if self._remembered is None or kwargs else self._repeat(args)
        return self._call(args, kwargs) if fast is NotImplemented else fast

    def _call(self, given: tuple[Any, ...], given_by_name: dict[str, Any]) -> Any:
        if not self._attached and self._options.connection_type is ConnectionType.Never:
            raise UsageError(
                "Trying to run a model on an offline device: these options compile but do not"
                " run (ConnectionType.Never, or useOfflineIpuTarget). Call compile(...), or set"
                " connectionType(ConnectionType.Always)"
            )
        args, kwargs = self._prepare(given, given_by_name)
        if self._compiles_only:
            self._stop_after_compiling()
        if not self._ran:
            check_weights(self._model)
        if not self._attached:
            self.attachToDevice()
        self._take_trained_weights()
        self._write_optimiser_state()
        self._seed()
        watch = self._watch() if self._anchors or self._checks_numbers else None
        # A program that read nothing off its tensors never does, given its mode and inputs' shapes.
        contents = self._executable.contents
        followed = PathWatch(self._model, contents) if contents else None
        self._check_norm_group(watching=watch is not None)
        start = host_clock.now_ns() // 1_000
        with (
            self._shown(),
            self._on_device(),
            on_ipu(),
            Devices() if self._executable.graph.names_ipu else NOTHING,
            in_modes(self._modes),
            copying_before_changes(self._executable.graph.mutates),
            substituted(),
            not_compiled_by_torch(),
            NOTHING if self._rng is None else self._own_random_numbers(),
            NOTHING if followed is None else followed,
        ):
            if self._training:
                assert self._optimizer is not None
                result = numerics.train(
                    self._model,
                    args,
                    kwargs,
                    self._plan,
                    self._optimizer,
                    self._buffers,
                    self._float16(),
                    watch,
                    self._together,
                    self._listed.parameters,
                )
            else:
                result = numerics.infer(
                    self._model, args, kwargs, self._plan, self._buffers, self._float16(), watch
                )
        if followed is not None and followed.left is not None:
            self._follow(args, kwargs, followed.left)
        end = host_clock.now_ns() // 1_000
        self._ran, self._was_quick = True, end - start < PATIENCE * 1e6
        self._host_is_behind = self._training
        self._optimiser_went_on()
        if watch is not None:
            self._anchored = watch.result()
        if self._session is not None:
            self._session.record_run(start, end)
        self._remember(given, given_by_name or kwargs, args)
        if self._options._values["log_cycle_count"]:
            logger.info("Total number of IPU cycles: %d", self._executable.cycles_per_call)
        return result

    def _shown(self) -> AbstractContextManager[object]:
        """Show on stderr that the call takes time, unless the one before was quick."""
        if self._was_quick:
            return NOTHING
        which = "a" if self._ran else "the first"
        return waiting(f"{self._report_folder}: the numbers of {which} call, by PyTorch")

    def _watch(self) -> Watch:
        """The watch on the tensors of a call."""
        from ipu_exec.numerics.anchors import Watch

        names = self._optimiser_tensors()
        wanted = any(anchor.name in names for anchor in self._anchors.values())
        others = self._optimiser_tensors if wanted else None
        checks = self._checks_numbers
        return Watch(self._model, self._anchors, self._plan, self._training, checks, others)

    def _check_norm_group(self, watching: bool) -> None:
        """UsageError for options that do not work with batch norms over several replicas."""
        if self._plan.norm_group == 1:
            return
        reasons = {
            "anchored tensors and checks of floating-point exceptions": watching,
            "replicaGrouping": bool(self._plan.groupings),
            "a model that branches on data": bool(self._executable.contents),
        }
        for reason, holds in reasons.items():
            if holds:
                raise UsageError(
                    "distributedBatchNormReplicaGroupSize: replicas take turns at each batch norm,"
                    f" and {reason} cannot follow that. Leave one of the two out"
                )

    def _stop_after_compiling(self) -> None:
        """End the script with a complete profile, for `ipu-run --compile-only`.

        An evaluation before the training goes on: the training's profile is what is asked for.
        """
        if self._training_waits():
            return
        where = "--profile-dir DIR writes its profile"
        if self._session is not None:
            self._session.publish()
            where = f"the profile is {self._session.path}"
        print(f"ipu-run: compiled only, as asked; {where}", file=sys.stderr)
        raise SystemExit(0)

    def getTensorNames(self) -> list[str]:
        """Names that `Options.anchorTensor` takes, the optimiser's too. Error before compiling."""
        from ipu_exec.numerics.anchors import tensor_names

        self._need_executable("getTensorNames")
        return [*tensor_names(self._executable.graph), *self._optimiser_tensors()]

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """What ``Options.anchorTensor(short_name, ...)`` stored in the last call; else an Error."""
        if short_name not in self._anchored:
            names = ", ".join(map(repr, self._options.anchored_tensors)) or "none"
            asked = short_name in self._options.anchored_tensors
            when = "call the model first" if asked else f"there are {names}"
            raise UsageError(f"getAnchoredTensor: no tensor {short_name!r} was anchored: {when}")
        return self._anchored[short_name]

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """When the last call's inputs and outputs were requested and complete, in modelled seconds.

        ``["input"][i][step]``, "input_complete", "output", "output_complete", each from the
        call's start; see `ipu_exec.session.latencies`. Empty lists before the first call.
        """
        from ipu_exec.session import latencies as counters

        if self._executable is None or not self._ran:
            return counters.none()
        return counters.counters(self._executable, self._plan.output_mode, self._plan.output_period)

    def _latency(
        self, first: str, of_first: Any, last: str, of_last: Any
    ) -> tuple[float, float, float]:
        from ipu_exec.session import latencies as counters

        return counters.latency(self.getPerfCounters(), first, of_first, last, of_last)

    def getHostIpuLatency(self) -> tuple[float, float, float]:
        """Modelled seconds (least, most, mean) from the first input asked for to the last in."""
        return self._latency("input", min, "input_complete", max)

    def getComputeLatency(self) -> tuple[float, float, float]:
        """Modelled seconds (least, most, mean) from the last input to the last output."""
        return self._latency("input_complete", max, "output", max)

    def getIpuHostLatency(self) -> tuple[float, float, float]:
        """Modelled seconds (least, most, mean) from the first output ready to the last arrived."""
        return self._latency("output", min, "output_complete", max)

    def getLatency(self) -> tuple[float, float, float]:
        """Seconds (least, most, mean) from the request for the first input to the last output."""
        return self._latency("input", min, "output_complete", max)

    def train(self, mode: bool = True) -> PoplarExecutor:
        """Set the user's model's mode, not the compiled program's (`ipu_exec.session.modes`)."""
        self._model.train(mode)
        return self

    def eval(self) -> PoplarExecutor:
        """Put the user's model into eval mode."""
        return self.train(False)

    def cycleCount(self) -> int:
        """Modelled cycles of one call; ``executable.cycles_per_call`` once the model is compiled.

        Error before the first call and without ``Options.logCycleCount(True)``, as in PopTorch.
        """
        if not self._options.log_cycle_count:
            raise UsageError(
                "Cycle count logging is disabled. Please set option logCycleCount to True to"
                " enable. What a call is modelled to take is executable.cycles_per_call"
            )
        if self._executable is None or not self._ran:
            raise UsageError(
                "Please run the model at least once before obtaining cycle count. Once it is"
                " compiled, executable.cycles_per_call has it"
            )
        return int(self._executable.cycles_per_call)
