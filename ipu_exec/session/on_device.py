"""A wrapped model and what the device has of it: weights, buffers, optimiser and random numbers.

The parameters are the user's model's own; `ipu_exec.session.device_tensors` tracks those for
which the device has other values.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.parameter import UninitializedParameter

from ipu_exec import optimiser_log
from ipu_exec.annotations import module_repr
from ipu_exec.base.optimiser_attributes import accumulates_in_velocity, complete, loss_scaling
from ipu_exec.base.replica_groups import GroupedParameter
from ipu_exec.capture.rewrites.casts import casting
from ipu_exec.enums import ConnectionType, MeanReductionStrategy, OutputMode
from ipu_exec.errors import Error, UsageError
from ipu_exec.instances import launched
from ipu_exec.numerics import loop as numerics
from ipu_exec.numerics import optimiser_state
from ipu_exec.numerics.collectives import Instances
from ipu_exec.numerics.precision import LossScaler, Precision
from ipu_exec.numerics.randomness import ReplicaRandomness
from ipu_exec.optim import (
    SGD,
    AttributeTracker,
    attach,
    check_constants,
    check_supported,
    constants,
    detach,
    poptorchs,
)
from ipu_exec.option_groups.engine_options import COMPILE_ONLY_VARIABLE
from ipu_exec.options import Options
from ipu_exec.session import arguments, devices
from ipu_exec.session.agreement import Peer
from ipu_exec.session.call_plan import plan_call
from ipu_exec.session.device_tensors import DeviceTensors, Listed
from ipu_exec.session.modes import Modes
from ipu_exec.session.proposed_blocks import is_for_another
from ipu_exec.session.torch_compile import NO_EFFECT, without_torch_compile
from ipu_exec.session.wrapped_model import (
    ALREADY_WRAPPED,
    is_wrapped,
    shallow_copy,
    trainer_of,
    wrap,
)

if TYPE_CHECKING:
    from ipu_exec.numerics.anchors import Anchor

logger = logging.getLogger("ipu_exec")

FINAL_LOSS_SCALE = "finalLossScale"  # PopART's name of what automatic loss scaling came to


class OnDevice:
    """The state of a wrapped model, and the calls that copy it to the device and back."""

    any_wrapped = False  # whether a script wrapped a model yet, for `ipu-run`
    _to_train: ClassVar[weakref.WeakSet[OnDevice]] = weakref.WeakSet()  # not compiled yet
    _looped_by = ""  # whose loop runs the model (`Provenance.trainer`)
    _wraps_a_copy = True  # of the user's module (`ipu_exec.session.wrapped_model`)
    _checks_numbers = False  # of each operator, as the options may ask for
    _compilation_seconds = 0.0
    # what `_fingerprint` was in the last call, and the defaults of `forward` in that
    _usual: tuple[Any, Any, tuple[Any, ...]] = [], [], ()
    _remembered: tuple[list[Any], ...] | None = None  # of a call (`ipu_exec.session.repeated_call`)

    def __init__(
        self,
        model: torch.nn.Module | OnDevice,
        options: Options | None = None,
        training: bool = False,
        poptorch_version: str = "",
        optimizer: torch.optim.Optimizer | None = None,
        user_model: torch.nn.Module | None = None,
    ) -> None:
        kind = "trainingModel" if training else "inferenceModel"
        if isinstance(model, OnDevice):
            model = model.model
        model = without_torch_compile(model)
        _check_wrapped(kind, model, options)
        original = user_model if user_model is not None else model
        if training and self._wraps_a_copy and is_wrapped(original):
            raise Error(ALREADY_WRAPPED)
        trainer = trainer_of(original)
        self._trainer = weakref.ref(trainer) if trainer is not None else None
        self._model = shallow_copy(model) if self._wraps_a_copy else model
        own = not training and self._wraps_a_copy
        self._user_model: torch.nn.Module = self._model if own else original
        self._options = _own_options(options, training, self._model)
        self._training = training
        self._modes: Modes = ()  # of the modules, once compiled
        self._report_folder = self._options.model_name or ("inference", "training")[training]
        self._optimizer: torch.optim.Optimizer | None = None
        self._attributes = AttributeTracker(bool(self._options.relax_optimizer_checks))
        self._told: tuple[str, ...] = ()  # what the device was last told of the optimiser
        self._executable: Any = None
        self._inputs: dict[str, Any] = {}
        self._state: dict[str, Any] = {}
        self._session: Any = None
        self._closer: weakref.finalize[..., Any] | None = None
        own_draws = ReplicaRandomness() if launched(self._options) else None
        self._buffers = numerics.ReplicaBuffers(own_draws)
        self._together: Instances | None = None  # once they have met
        self._peers: tuple[Peer, ...] = ()
        self._anchors: dict[str, Anchor] = {}
        self._anchored: dict[str, torch.Tensor] = {}
        self._constants: dict[str, Any] = {}
        self._precision: Precision | None = None
        # name -> what `replicaGrouping` was told
        self.per_replica_params: dict[str, tuple[Any, Any, Any]] = {}
        self._attached = self._seeded = self._ran = self._was_quick = False
        self._rng: torch.Tensor | None = None  # the device's, if it is not PyTorch's
        self._device, self._listed = DeviceTensors(), Listed(self._model)
        self._host_is_behind, self._host_weights_version = False, 0
        self._compiles_only = bool(os.environ.get(COMPILE_ONLY_VARIABLE))
        if training:
            self.setOptimizer(optimizer if optimizer is not None else _default_optimiser(model))
        else:
            _check_inference(self._options, optimizer)
        self._plan = plan_call(self._options, training)
        self._options._freeze()
        if training and self._wraps_a_copy:
            wrap(self._user_model, self)
        OnDevice.any_wrapped = True
        if training:
            OnDevice._to_train.add(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({module_repr(self._model)})"

    def _need_executable(self, what: str) -> None:
        if self._executable is None:
            raise UsageError(
                f"Model has not been compiled or has been destroyed. {what} comes after compiling:"
                " call compile(...) or the model first"
            )

    @property
    def model(self) -> torch.nn.Module:
        """The wrapped model."""
        return self._user_model

    @property
    def options(self) -> Options:
        """The options it is compiled with, frozen."""
        return self._options

    @property
    def executable(self) -> Any:
        """The result of `ipu_exec.compiler.passes`; None before compiling."""
        return self._executable

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_model" not in self.__dict__:
            raise AttributeError(name)
        if name == "_torchdynamo_orig_callable":  # torch.compile asks for it first
            raise UsageError(NO_EFFECT)
        attribute = getattr(self._user_model, name)
        return (
            GroupedParameter(self.per_replica_params, name, attribute)
            if isinstance(attribute, torch.nn.Parameter)
            else attribute
        )

    def isAttachedToDevice(self) -> bool:
        """True once compiled or attached, until `detachFromDevice`; False without a device."""
        return self._attached

    def attachToDevice(self) -> None:
        """Attach to the device with the model's weights; a call does so by itself.

        Error before compiling, without a device (`ConnectionType.Never`) and if already attached.
        """
        self._need_executable("attachToDevice")
        if self._options.connection_type is ConnectionType.Never:
            raise UsageError("Trying to attach to an offline device (ConnectionType.Never)")
        if self._attached:
            raise Error("Device is already attached")
        self._attach(self._executable)

    def _attach(self, executable: Any) -> None:
        devices.acquire(self, self._options.ipu_id, executable.placement.attached_ipus)
        self._attached = True
        trainer = self._trainer() if self._trainer is not None else None
        if trainer is not None:
            trainer.copyWeightsToHostIfNeeded()
        self._send_weights()
        self._attach_optimiser()
        self._write_optimiser_state()
        if self._seeded:
            self._log_writing_of_seeds()

    def _send_weights(self) -> None:
        self._buffers.forget()
        logger.debug("Writing weights from host to IPU memory")
        self._device.copy_to_device(self._listed.update().host)

    def detachFromDevice(self) -> None:
        """Release the device; the executable stays. Error if it is not attached."""
        self._need_executable("detachFromDevice")
        if not self._attached:
            raise Error("Device is not attached")
        self.copyWeightsToHostIfNeeded()
        self._log_reading_of_seeds()
        self._detach()

    @staticmethod
    def _log_reading_of_seeds() -> None:
        logger.debug("Reading random seed")
        logger.debug("Reading RNG state")

    @staticmethod
    def _log_writing_of_seeds() -> None:
        logger.debug("Setting random seed to: %d", torch.initial_seed())
        logger.debug("Setting RNG state")

    def _detach(self) -> None:
        self._attached = False
        detach(self._optimizer)
        self._device.release()
        self._buffers.spent.clear()
        devices.give_back(self)
        logger.debug("Detached from device")

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The wrapped model's state."""
        return self._user_model.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load the wrapped model's state; every replica starts from it."""
        loaded = self._user_model.load_state_dict(state_dict, strict)
        self._buffers.forget()
        if self._attached:
            logger.debug("load_state_dict: implicit copyWeightsToDevice()")
            self.copyWeightsToDevice()
        return loaded

    def copyWeightsToHost(self) -> None:
        """Copy the device's weights and buffers to the model. Error before compiling."""
        self._need_executable("copyWeightsToHost")
        logger.debug("Writing weights from IPU to host")
        if not self._host_is_behind:  # else the host has them, and what its user wrote since
            self._device.copy_to_host(self._listed.update().host)
        self._host_is_behind = False
        self._host_weights_version += 1

    def copyWeightsToHostIfNeeded(self) -> bool:
        """`copyWeightsToHost` if the weights were trained since; returns whether they were."""
        if not self._host_is_behind or self._executable is None:
            return False
        logger.debug("Implicit copyWeightsToHost()")
        self.copyWeightsToHost()
        return True

    def copyWeightsToDevice(self) -> None:
        """Copy the model's weights and buffers to the device and its replicas.

        Error before compiling. Attaching does this too; later changes require a call.
        """
        self._need_executable("copyWeightsToDevice")
        host = self._listed.update().host
        if self._host_is_behind and not self._device.differing(host):
            logger.warning(
                "copyWeightsToDevice: the model was trained since, and nothing was written to its"
                " weights. On an IPU, the host's older weights would overwrite the trained ones:"
                " call copyWeightsToHost() first. Here the trained weights are kept"
            )
        self._host_is_behind = False
        self._buffers.forget()
        logger.debug("Writing weights from host to IPU memory")
        if self._attached:
            self._device.copy_to_device(host)

    def copyNamedBuffersToDevice(self) -> None:
        """Copy `Options.updatableNamedBuffers` to the device. Error if uncompiled, or if none."""
        self._need_executable("copyNamedBuffersToDevice")
        names = self._options.updatable_named_buffers
        if not names:
            raise Error("No named buffers marked as updatable via updatableNamedBuffers option")
        buffers = dict(self._model.named_buffers())
        self._buffers.forget(names)
        if self._attached:
            self._device.copy_to_device({name: buffers[name] for name in names})

    def _take_trained_weights(self) -> None:
        """In inference: take over the weights that the model's training has changed since."""
        trainer = self._trainer() if self._trainer is not None else None
        if self._training or trainer is None:
            return
        trainer.copyWeightsToHostIfNeeded()
        if self._host_weights_version != trainer._host_weights_version:
            logger.debug("Implicit copyWeightsToDevice()")
            self.copyWeightsToDevice()
            self._host_weights_version = trainer._host_weights_version

    def _on_device(self) -> AbstractContextManager[None]:
        """Inside, the model has the device's weights and buffers."""
        if self._training:
            return self._device.training(self._listed.host)
        return self._device.inference(self._listed.host, self._listed.buffers)

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Use ``optimizer`` from now on; it takes over the states of one of the same kind.

        New learning rates and the like take effect at the next call, without compiling. Error in
        inference, or if the optimiser has none of the model's parameters.
        """
        if not self._training:
            raise UsageError("an inference model has no optimiser")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise UsageError(
                f"setOptimizer takes a torch.optim.Optimizer, not {type(optimizer).__name__}"
            )
        own = {id(parameter) for parameter in self._model.parameters()}
        if not any(
            id(parameter) in own
            for group in optimizer.param_groups
            for parameter in group["params"]
        ):
            raise UsageError(
                "the optimiser has none of the model's parameters; make it from model.parameters()"
            )
        check_supported(optimizer)
        if getattr(
            optimizer, "accum_type", torch.float32
        ) is torch.float16 and not accumulates_in_velocity(optimizer):
            self._use_running_means()
        self._attributes.check(optimizer)
        if self._executable is not None and self._optimizer is not None:
            check_constants(optimizer, self._constants)
        else:
            self._constants = constants(optimizer)
        before = self._optimizer
        if before is not optimizer:
            detach(before)
        if (
            before is not None
            and before is not optimizer
            and type(before) is type(optimizer)
            and not optimizer.state
        ):
            optimizer.state.update(before.state)
            complete(optimizer)
        self._optimizer = optimizer
        if before is not optimizer or self._executable is None:
            self._attach_optimiser()
        elif self._attached:
            self._tell()

    def _use_running_means(self) -> None:
        """Let float16 accumulators hold running means: docs/poptorch-semantics.md#gradients."""
        strategy = self._options.Training.mean_accumulation_and_replication_reduction_strategy
        if self._executable is not None and strategy is not MeanReductionStrategy.Running:
            raise UsageError(
                "Invalid optimizer: its accum_type is float16, which would require changing"
                " options.Training.meanAccumulationAndReplicationReductionStrategy to Running, but"
                f" the model is already compiled with {strategy.name}. destroy() the model first,"
                " or keep accum_type in float32"
            )
        self._options._freeze(False)
        self._options.Training.setMeanAccumulationAndReplicationReductionStrategy(
            MeanReductionStrategy.Running
        )
        self._options._freeze()
        self._plan = plan_call(self._options, self._training)

    def _attach_optimiser(self) -> None:
        """Pass the optimiser to the device, if any, and parameter names to the optimiser."""
        if self._executable is None or self._optimizer is None or not self._attached:
            return
        self._tell()
        rows = {name: grouped.rows for name, grouped in self._plan.groupings.items()}
        names = {p: (name, rows.get(name, 0)) for name, p in self._model.named_parameters()}
        attach(self._optimizer, names, self._loss_scale if self._scales_automatically else None)

    def _write_optimiser_state(self) -> None:
        """Write the optimiser state that was loaded since the last call to the device."""
        optimizer = poptorchs(self._optimizer)
        if optimizer is not None and optimizer.ipu_state_is_dirty:
            self.copyWeightsToHostIfNeeded()
            optimizer.write_ipu_state()

    def _optimiser_went_on(self) -> None:
        optimizer = poptorchs(self._optimizer)
        if optimizer is not None:
            optimizer.host_state_is_dirty = True

    def _optimiser_tensors(self) -> dict[str, torch.Tensor]:
        """The device's tensors of the optimiser, by PopART's names."""
        if self._optimizer is None:
            return {}
        own: dict[torch.Tensor, tuple[str, int]] = {
            parameter: (name, 0) for name, parameter in self._model.named_parameters()
        }
        scale = self._loss_scale() if self._scales_automatically else None
        tensors = optimiser_state.states(self._optimizer, own, scale)
        tensors |= optimiser_state.on_device(self._optimizer, own)
        return tensors if scale is None else {**tensors, FINAL_LOSS_SCALE: torch.tensor(scale)}

    @property
    def _scales_automatically(self) -> bool:
        return self._training and bool(self._options.Training.automatic_loss_scaling)

    def _tell(self) -> None:
        """Log the optimiser settings sent to the device if they have changed."""
        assert self._optimizer is not None
        told = optimiser_log.described(self._optimizer, self._scales_automatically)
        if told != self._told:
            optimiser_log.log(told)
            self._told = told

    def _loss_scale(self) -> float:
        """The current factor of automatic loss scaling."""
        scaler = self._float16().scaler
        assert scaler is not None
        return scaler.scale

    def _float16(self) -> Precision:
        """The float16 handling that the options ask for, with its state from call to call."""
        if self._precision is None:
            training, options = self._training, self._options
            seed = options.random_seed if options.random_seed is not None else torch.initial_seed()
            scale = loss_scaling(self._optimizer) if self._optimizer is not None else 1.0
            scaled = training and options.Training.automatic_loss_scaling
            rounded = training and options.Precision.stochastic_rounding
            self._precision = Precision(
                LossScaler.of(scale, options._Popart.settings) if scaled else None,
                torch.Generator().manual_seed(seed) if rounded else None,
                casting(
                    options.Precision.half_float_casting,
                    options.Precision.running_statistics_always_float,
                    self._executable.graph.promotes,
                ),
            )
        return self._precision

    @property
    def rng_state(self) -> list[int]:
        """State of random operators' generator, PyTorch's unless set. Error before compiling."""
        self._need_executable("rng_state")
        own = torch.get_rng_state() if self._rng is None else self._rng
        return list(own.tolist())

    @rng_state.setter
    def rng_state(self, state: Sequence[int]) -> None:
        loaded = torch.tensor(list(state), dtype=torch.uint8)
        self._rng = loaded
        if self._buffers.randomness is not None:
            self._buffers.randomness.restart(loaded)
        self._seeded = True  # randomSeed does not overwrite it at the first call

    def _seed(self) -> None:
        if not self._seeded and self._options.random_seed is not None:
            logger.debug("Setting random seed to: %d", self._options.random_seed)
            self._rng = torch.Generator().manual_seed(self._options.random_seed).get_state()
        self._seeded = True

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Inside, PyTorch's generator has the state of the device's own."""
        assert self._rng is not None
        host = torch.get_rng_state()
        torch.set_rng_state(self._rng)
        try:
            yield
        finally:
            self._rng = torch.get_rng_state()
            torch.set_rng_state(host)


def _own_options(given: Options | None, training: bool, model: torch.nn.Module) -> Options:
    """A copy of the given options for the model, in use from here on."""
    options = given.clone() if given is not None else Options()
    if given is not None:
        given._freeze()
    if is_for_another(options, model):
        logger.warning(
            "the placement %s is for another model: %s keeps the stages of the script",
            options.placement,
            type(model).__name__,
        )
        options._without_placement()
    if options.defaultOutputMode():
        options.outputMode(OutputMode.Final if training else OutputMode.All)
    options.follow_plan("training" if training else "inference")
    wanted = options.placement_accumulation  # of a script that sets none
    if training and wanted is not None and options.Training.gradient_accumulation == 1:
        options.Training._set(gradient_accumulation=wanted)
    return options


def _check_wrapped(kind: str, model: Any, options: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"{kind} takes a torch.nn.Module, not {type(model).__name__}")
    for name, one in model.named_modules():
        if isinstance(one, torch.jit.ScriptModule):
            raise UsageError(
                f"{kind}: {name or 'the model'} was scripted or traced by torch.jit, whose modules"
                " cannot be captured: wrap the Python module that it was made from"
            )
    for name, weight in model.named_parameters():
        if weight.device.type == "cuda":
            raise UsageError(f"{kind}: the weight {name} is on a GPU. {arguments.NO_GPU}")
        if isinstance(weight, UninitializedParameter):
            raise UsageError(
                f"{kind}: the lazy weight {name} has no shape yet: call {type(model).__name__} once"
                f" on a batch, before the optimiser and {kind}"
            )
    if options is not None and not isinstance(options, Options):
        raise UsageError(f"{kind}: options is an ipu_exec.Options, not {type(options).__name__}")


def _default_optimiser(model: torch.nn.Module) -> torch.optim.Optimizer:
    """PopTorch's default optimiser (docs/poptorch-semantics.md#optimisers)."""
    try:
        return SGD(model.parameters(), lr=0.01)
    except ValueError as error:
        raise Error(
            f"trainingModel: {type(model).__name__} has nothing to train: {error}"
        ) from error


def _check_inference(options: Options, optimizer: object) -> None:
    if optimizer is not None:
        raise UsageError("inferenceModel takes no optimiser")
    accumulation = options.Training.gradient_accumulation
    if accumulation != 1:
        pipelined = options.execution_strategy.kind == "pipelined"
        hint = (
            " Use poptorch.Options().deviceIterations to process a sufficient number of batches"
            " each run for pipelined execution instead."
        )
        raise UsageError(
            "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its"
            " default value (1) when running a"
            f" poptorch.inferenceModel().{hint if pipelined else ''} It is {accumulation}: clone"
            " the training options and set gradientAccumulation(1)"
        )
