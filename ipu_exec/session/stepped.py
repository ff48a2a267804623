"""A compiled model whose numbers another loop computes, one micro-batch at a time.

For a trainer with its own loop (`ipu_exec.lightning`), the executor compiles when due, provides
the contexts around a forward, and records calls in the profile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from ipu_exec.base.context import copying_before_changes, on_ipu
from ipu_exec.capture.control_flow import Reads, path
from ipu_exec.errors import UsageError
from ipu_exec.numerics.precision import Precision
from ipu_exec.options import Options
from ipu_exec.session.call_plan import FirstCall
from ipu_exec.session.executor import PoplarExecutor
from ipu_exec.session.modes import Modes
from ipuscope.profiler.provenance import LIGHTNING


class SteppedExecutor(PoplarExecutor):
    """``report_folder``: the profile's folder in the options' directory.

    `prepare`, `running` and `record_call` replace a call; the options set its number of
    micro-batches (``replicas``, ``device_iterations``, accumulation), which is compiled.
    """

    _looped_by = LIGHTNING
    _wraps_a_copy = False  # its trainer runs the module itself

    def __init__(
        self,
        model: torch.nn.Module,
        options: Options,
        report_folder: str,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        super().__init__(model, options, optimizer is not None, optimizer=optimizer)
        if optimizer is not None and self._plan.instances > 1:
            raise UsageError(
                f"{self._plan.instances} instances share a training by poptorch.trainingModel only:"
                " a trainer with a loop of its own would train them apart. Start the script without"
                " --instances, and take replicas (devices) instead"
            )
        if self._plan.norm_group > 1:
            raise UsageError(
                "distributedBatchNormReplicaGroupSize is for poptorch.trainingModel: a trainer with"
                " a loop of its own runs its replicas one after another. Leave it at 1"
            )
        self._report_folder = report_folder
        self.replicas = int(self._options.replication_factor)
        self.device_iterations = int(options.device_iterations)
        # what `prepare` is given is one micro-batch
        self._plan = replace(
            self._plan, device_iterations=1, accumulation=1, replicas=1, input_replicas=1
        )

    def prepare(self, *micro_batch: torch.Tensor) -> bool:
        """Compile if necessary; returns whether it did. Error for an unlike micro-batch."""
        before = self._executable
        self._prepare(micro_batch, {})
        if self._compiles_only:
            self._stop_after_compiling()
        return self._executable is not before

    def deepen(self, device_iterations: int) -> None:
        """Set the number of micro-batches per replica and call, before the model is compiled."""
        self._options._freeze(False)
        self._options.deviceIterations(device_iterations)
        self.device_iterations = device_iterations
        self._options._freeze()

    def _first_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FirstCall:
        """Of all micro-batches of an update; their size is that of the trainer's batches."""
        call, options = super()._first_call(args, kwargs), self._options
        count = int(options.Training.gradient_accumulation) if self._training else 1
        return replace(
            call,
            samples=call.samples * count * int(options.replication_factor),
            trainer=self._looped_by,
        )

    def _send_weights(self) -> None:
        """Do nothing: its trainer trains the module's own weights."""

    def _settled_modes(self) -> Modes:
        """None: its trainer runs the module itself, in the mode that it has at each step."""
        return ()

    def _state_of_model(self) -> dict[str, Any]:
        mode = "train" if self._model.training else "eval"
        return {"the mode of the model": mode, **super()._state_of_model()}

    @property
    def path(self) -> tuple[bool | int | str, ...]:
        """The values that the compiled forward reads from tensors and that decide its path."""
        return path(self._executable.contents)

    @property
    def profile(self) -> str:
        """The path of its profile; "" without."""
        return str(getattr(self._session, "path", None) or "")

    @property
    def precision(self) -> Precision:
        """The float16 handling that the options ask for. Only after compiling."""
        return self._float16()

    @contextlib.contextmanager
    def running(self) -> Iterator[list[bool | int | float]]:
        """Entered around a forward; yields its reads of tensors if the compiled program has any."""
        self._attached = True
        self._optimiser_went_on()
        if self._executable.contents:
            with on_ipu(), Reads() as reads:
                yield reads.values
        else:
            with on_ipu():
                yield []
        self._ran = True

    def copying_before_changes(self) -> contextlib.AbstractContextManager[Any]:
        """Entered around forward and backward of a micro-batch."""
        return copying_before_changes(self._executable.graph.mutates)

    def record_call(self, host_start_us: int, host_end_us: int) -> None:
        """Record a call whose micro-batches were computed between these host times."""
        if self._session is not None:
            self._session.record_run(host_start_us, host_end_us)

    @property
    def seconds_per_call(self) -> float:
        """Modelled seconds per call."""
        return int(self._executable.cycles_per_call) / float(self._executable.target.clock_hz)
