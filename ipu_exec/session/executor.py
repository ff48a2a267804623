"""``PoplarExecutor``: a model that compiles for the modelled IPUs at its first call and then runs.

Numbers come from `ipu_exec.numerics.loop` and cycles from the result of `ipu_exec.compiler.passes`;
profiles are written by `ipu_exec.session.autoreport`. The wrapped model's parameters are the user's
own; `ipu_exec.session.device_tensors` keeps track of those for which the device holds other values.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from ipu_exec import optimiser_log
from ipu_exec.annotations import module_repr
from ipu_exec.base import gc_pause
from ipu_exec.base import replica_groups as grouping
from ipu_exec.base.context import (
    check_weights,
    keeping_what_is_saved,
    on_ipu,
    refusing,
    substituted,
)
from ipu_exec.base.optimiser_attributes import (
    STATES,
    accumulates_in_velocity,
    complete,
    loss_scaling,
    state_dtype,
)
from ipu_exec.base.replica_groups import GroupedParameter
from ipu_exec.base.structures import learn
from ipu_exec.base.user_tracebacks import users_frame, without_our_frames
from ipu_exec.capture.control_flow import Contents, PathWatch, read_contents
from ipu_exec.capture.recording.devices import Devices
from ipu_exec.capture.recording.unchanged import tensors_unchanged
from ipu_exec.capture.rewrites.casts import casting
from ipu_exec.enums import ConnectionType, MeanReductionStrategy, OutputMode
from ipu_exec.errors import ContentError, Error, OutOfMemoryError, UsageError
from ipu_exec.instances import launched
from ipu_exec.numerics import loop as numerics
from ipu_exec.numerics import optimiser_state
from ipu_exec.numerics.collectives import Instances, connect
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
from ipu_exec.option_log import log_options
from ipu_exec.options import COMPILE_ONLY_VARIABLE, Options
from ipu_exec.script_levers import Levers, changed_options
from ipu_exec.script_levers import asked as asked_levers
from ipu_exec.session import arguments, devices
from ipu_exec.session.agreement import Peer, agree
from ipu_exec.session.applied_levers import pull_on_inputs, pull_on_model
from ipu_exec.session.call_plan import plan_call, samples_of
from ipu_exec.session.device_tensors import DeviceTensors, tensors_of
from ipu_exec.session.files import executable_file as executables
from ipu_exec.session.first_call import FirstCall, Taker
from ipu_exec.session.leftovers import warn_of_leftovers
from ipu_exec.session.modes import Modes, in_modes, modes_of
from ipu_exec.session.out_of_memory import with_relief
from ipu_exec.session.proposed_blocks import prepare
from ipu_exec.session.torch_compile import not_compiled_by_torch, without_torch_compile
from ipu_exec.session.wrapped_model import (
    ALREADY_WRAPPED,
    is_wrapped,
    shallow_copy,
    trainer_of,
    unwrap,
    wrap,
)
from ipuscope.profiler.enums import Role
from ipuscope.waiting import waiting

if TYPE_CHECKING:
    from ipu_exec.numerics.anchors import Anchor, Watch

logger = logging.getLogger("ipu_exec")

FINAL_LOSS_SCALE = "finalLossScale"  # PopART's name of what automatic loss scaling came to

Progress = Callable[[float, str], None]


def trainingModel(
    model: torch.nn.Module | PoplarExecutor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Wrap ``model`` for training: a call runs forward, backward and weight updates.

    The model returns its loss last (or marks it with `identity_loss`). Parameters are shared with
    ``model``. Without an optimiser, SGD with lr=0.01 is used, as in PopTorch.
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

    ``edit_opts_fn`` may change the options first. Warns that it unpickles the model: load files
    only from people you trust.
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


class PoplarExecutor:
    """A compiled model, created by `trainingModel` or `inferenceModel`.

    Attributes that it does not have are the wrapped model's; a parameter of it comes with
    ``replicaGrouping`` (`ipu_exec.base.replica_groups`).

    Compiles at the first call, or by `compile`, for inputs like those: others are an error.
    Compiles again, and logs that in the log "ipu_exec", when trained parameters or the optimiser's
    structure change. Train or eval is fixed at that point (`ipu_exec.session.modes`). Holds a copy
    of ``options`` and freezes the ones passed to it.
    """

    any_wrapped = False  # whether a script wrapped a model yet, for `ipu-run`
    # who has the first call instead of a compile: `ipu-run --plan`, and `--sweep`
    first_call_taker: ClassVar[Taker | None] = None
    _wraps_a_copy = True  # of the user's module (`ipu_exec.session.wrapped_model`)

    def __init__(
        self,
        model: torch.nn.Module | PoplarExecutor,
        options: Options | None = None,
        training: bool = False,
        poptorch_version: str = "",
        optimizer: torch.optim.Optimizer | None = None,
        user_model: torch.nn.Module | None = None,
    ) -> None:
        kind = "trainingModel" if training else "inferenceModel"
        if isinstance(model, PoplarExecutor):
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
        self._options = _own_options(options, training)
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
        self.per_replica_params: dict[
            str, tuple[Any, Any, Any]
        ] = {}  # name -> what `replicaGrouping` was told
        self._attached = self._seeded = self._ran = False
        self._rng: torch.Tensor | None = None  # the device's, if it is not PyTorch's
        self._device = DeviceTensors()
        self._host_is_behind, self._host_weights_version = False, 0
        self._compilation_seconds = 0.0
        if training:
            self.setOptimizer(optimizer if optimizer is not None else _default_optimiser(model))
        else:
            _check_inference(self._options, optimizer)
        self._plan = plan_call(self._options, training)
        self._options._freeze()
        if training and self._wraps_a_copy:
            wrap(self._user_model, self)
        PoplarExecutor.any_wrapped = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({module_repr(self._model)})"

    # -- running ---

    @without_our_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one call's micro-batches.

        Takes the model's arguments, with all micro-batches along dimension 0.
        """
        if self._options.connection_type is ConnectionType.Never:
            raise UsageError(
                "Trying to run a model on an offline device: these options compile but do not"
                " run (ConnectionType.Never, or useOfflineIpuTarget). Call compile(...), or set"
                " connectionType(ConnectionType.Always)"
            )
        args, kwargs = self._prepare(args, kwargs)
        if os.environ.get(COMPILE_ONLY_VARIABLE):
            self._stop_after_compiling()
        if not self._ran:
            check_weights(self._model)
        if not self._attached:
            self.attachToDevice()
        self._take_trained_weights()
        self._write_optimiser_state()
        self._seed()
        watch = self._watch()
        self._check_norm_group(watching=watch is not None)
        start = time.time_ns() // 1_000
        with (
            self._shown_at_first(),
            self._on_device(),
            on_ipu(),
            Devices() if self._executable.graph.names_ipu else nullcontext(),
            in_modes(self._modes),
            keeping_what_is_saved(self._executable.graph.mutates),
            substituted(),
            not_compiled_by_torch(),
            nullcontext() if self._rng is None else self._own_random_numbers(),
            PathWatch(self._model, self._executable.contents) as followed,
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
                    watch=watch,
                    precision=self._float16(),
                    together=self._together,
                )
            else:
                result = numerics.infer(
                    self._model, args, kwargs, self._plan, self._buffers, watch, self._float16()
                )
        if followed.left is not None:
            self._follow(args, kwargs, followed.left)
        self._ran = True
        self._host_is_behind = self._training
        self._optimiser_went_on()
        if watch is not None:
            self._anchored = watch.result()
        if self._session is not None:
            self._session.record_run(start, time.time_ns() // 1_000)
        if self._options.log_cycle_count:
            logger.info("Total number of IPU cycles: %d", self._executable.cycles_per_call)
        return result

    def _shown_at_first(self) -> AbstractContextManager[object]:
        """Inside, standard error says what lasts: in one call, for that of the others is alike."""
        if self._ran:
            return nullcontext()
        return waiting(f"{self._report_folder}: the numbers of the first call, by PyTorch")

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

    def _seed(self) -> None:
        if not self._seeded and self._options.random_seed is not None:
            logger.debug("Setting random seed to: %d", self._options.random_seed)
            self._rng = torch.Generator().manual_seed(self._options.random_seed).get_state()
        self._seeded = True

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Inside, PyTorch's generator is in the state of the device's, which was given one."""
        assert self._rng is not None
        host = torch.get_rng_state()
        torch.set_rng_state(self._rng)
        try:
            yield
        finally:
            self._rng = torch.get_rng_state()
            torch.set_rng_state(host)

    def _watch(self) -> Watch | None:
        """The watch on the tensors of a call, if the options ask for one."""
        exceptions = bool(
            self._options.Precision.floating_point_exceptions
            or self._options._Popart.settings.get("enableFloatingPointChecks")
        )
        if not self._anchors and not exceptions:
            return None
        from ipu_exec.numerics.anchors import Watch

        known = self._optimiser_tensors()
        wanted = any(anchor.name in known for anchor in self._anchors.values())
        others = self._optimiser_tensors if wanted else None
        return Watch(self._model, self._anchors, self._plan, self._training, exceptions, others)

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

    def _on_device(self) -> AbstractContextManager[None]:
        """Inside, the model has the device's weights and buffers."""
        host = tensors_of(self._model)
        if self._training:
            return self._device.training(host)
        return self._device.inference(host, dict(self._model.named_buffers()))

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

    def _follow(self, args: tuple[Any, ...], kwargs: dict[str, Any], contents: Contents) -> None:
        """Recompile for the path that the data of this call took."""
        logger.warning(
            "recompiling because the model branches on data, and this call took another path than"
            " was compiled"
        )
        inputs, state = self._inputs, self._state
        self._drop_executable()
        self._compile(args, kwargs, contents)
        self._inputs, self._state = inputs, state

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

    def _stop_after_compiling(self) -> NoReturn:
        """End the script after compiling, for `ipu-run --compile-only`.

        The profile is complete, and no number is computed.
        """
        where = ""
        if self._session is not None:
            self._session.publish()
            where = f"; the profile is {self._session.path}"
        print(f"compiled, and ended there as --compile-only says{where}", file=sys.stderr)
        raise SystemExit(0)

    @without_our_frames
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for inputs like these, without running.

        Does nothing if that was done already.
        """
        with gc_pause.paused():
            self._prepare(args, kwargs)
            if self._session is not None:
                self._session.publish()

    def _prepare(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Compile if necessary. Returns the inputs with the defaults of ``forward``."""
        bound = arguments.bind(self._model, args, kwargs, self._training)
        learn((bound.args, bound.kwargs))
        groupings = grouping.resolve(
            self._model, self.per_replica_params, self._plan.total_replicas
        )
        if groupings != self._plan.groupings:
            self._plan = replace(self._plan, groupings=groupings)
        inputs = arguments.describe(bound.arguments)
        if self._executable is not None:
            arguments.check(self._inputs, inputs, bound.signature)
        streamed, named = numerics.as_streamed((bound.args, bound.kwargs), self._model)
        if self._executable is None:
            self._fill_pipeline((streamed, named))
        numerics.check_batch((streamed, named), self._plan)
        state = self._state_of_model()
        if self._executable is not None and state != self._state:
            for reason in _differences(self._state, state):
                logger.warning("recompiling because %s", reason)
            self._drop_executable()
        self._meet(inputs)
        if self._executable is None:
            if self._training and self._wraps_a_copy:
                warn_of_leftovers(users_frame(), self._model)
            self._give_away(streamed, named)
        if self._executable is None:
            try:
                self._compile(streamed, named)
            except Exception as error:
                arguments.in_the_users_numbers(error, bound, self._plan.factor)
                raise
            self._inputs, self._state = inputs, state
        return streamed, named

    def _fill_pipeline(self, inputs: Any) -> None:
        """Apply the Blocks and micro-batches that `ipu-run --num-ipus` chose, if it did."""
        options = prepare(self._model, self._options, self._training, inputs)
        if options is not None:
            self._options = options
            plan = plan_call(options, self._training)
            self._plan = replace(plan, groupings=self._plan.groupings)

    def _meet(self, inputs: dict[str, Any]) -> None:
        """Connect to the other instances before the first call if any share the training."""
        options = self._options
        offline = options.connection_type is ConnectionType.Never
        if self._plan.instances == 1 or not self._training or offline or self._together:
            return
        assert self._optimizer is not None
        together = connect(self._plan.instance, self._plan.instances)
        structure = _structure(self._optimizer)
        self._peers = agree(together, options, self._model, inputs, structure)
        self._together = together

    def _compile(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], contents: Contents = ()
    ) -> None:
        """Compile. ``contents``: the values that the forward reads from tensors.

        If it reads any, they are found by running it.
        """
        from ipu_exec.session.compilation import compile_step

        start = time.perf_counter()
        log_options(self._options)
        positional, named = numerics.micro_batch((args, kwargs), self._plan)
        if levers := asked_levers():
            positional, named = self._pull(levers, (positional, named))
        groupings = self._plan.groupings
        modes = self._modes or self._settled_modes()
        if self._optimizer is not None:
            grouping.check_optimiser(self._optimizer, groupings)
        with (
            gc_pause.paused(),
            _progress(self._options.compilation_progress_bar) as progress,
        ):
            for_whom = (
                self._model,
                positional,
                named,
                self._options,
                self._optimizer,
                self._training,
                progress,
            )
            with self._being_captured(modes, groupings):
                try:
                    executable = compile_step(*for_whom, contents, groupings)
                except ContentError:
                    contents = read_contents(self._model, positional, named, self._training)
                    executable = compile_step(*for_whom, contents, groupings)
            self._compilation_seconds = time.perf_counter() - start
            progress(1.0, "profile")
            self._take(executable)
        self._modes = modes

    @contextmanager
    def _being_captured(self, modes: Modes, groupings: grouping.Groupings) -> Iterator[None]:
        """Inside, the model is prepared for compilation."""
        with (
            torch.random.fork_rng(devices=[]),
            on_ipu(),
            in_modes(modes),
            substituted(),
            not_compiled_by_torch(),
            tensors_unchanged(self._model),
            refusing(not self._options._values["lenient"]),
            _hooked(),
            _said_of_tensors(),
            grouping.one_replica(self._model, self._optimizer, groupings),
        ):
            yield

    def _give_away(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Pass the first call to `first_call_taker`, if one is set."""
        taker = PoplarExecutor.first_call_taker
        if taker is not None:
            taker.take(self._first_call(args, kwargs))

    def first_call(self, *args: Any, **kwargs: Any) -> FirstCall:
        """What a call with these inputs would compile, for callers that compile it differently."""
        bound = arguments.bind(self._model, args, kwargs)
        streamed, named = numerics.as_streamed((bound.args, bound.kwargs), self._model)
        numerics.check_batch((streamed, named), self._plan)
        return self._first_call(streamed, named)

    def _first_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FirstCall:
        groupings = self._plan.groupings
        modes = self._settled_modes()
        return FirstCall(
            self._model,
            self._options,
            self._optimizer,
            self._training,
            samples_of((args, kwargs)) // self._plan.device_iterations,
            numerics.micro_batch((args, kwargs), self._plan),
            groupings,
            lambda: self._being_captured(modes, groupings),
        )

    def _settled_modes(self) -> Modes:
        """The train or eval mode of each module, to be compiled and kept."""
        return modes_of(self._model)

    def _pull(self, levers: Levers, micro_batch: Any) -> Any:
        """For `ipu-run --with`: apply the levers to model and options; returns the micro-batch."""
        pull_on_model(self._model, levers, self._training)
        self._options = changed_options(self._options, levers, self._training)
        plan = plan_call(self._options, self._training)
        self._plan = replace(plan, groupings=self._plan.groupings)
        return pull_on_inputs(micro_batch, levers, samples_of(micro_batch))

    def _take(self, executable: Any) -> None:
        """Make it the executable that runs.

        Opens its profile, checks its memory and finds the anchored tensors.
        """
        if self._options.profiling().enabled and self._plan.instance == 0:
            from ipu_exec.session.autoreport import ProfileSession

            name = type(self._user_model).__name__
            self._session = ProfileSession(
                self._options, executable, self._report_folder, name, self._peers
            )
            self._closer = weakref.finalize(
                self, self._session.close
            )  # at the latest when Python ends
        try:
            executable.check_memory(str(getattr(self._session, "path", None) or ""))
        except OutOfMemoryError as error:
            self._release()
            raise with_relief(error) from None
        if self._options.anchored_tensors:
            from ipu_exec.numerics.anchors import Anchor, canonical, tensor_names

            self._executable = executable
            names = {*tensor_names(executable.graph), *self._optimiser_tensors()}
            for anchor in self._options.anchored_tensors.values():
                mode, period = anchor["mode"] or self._plan.output_mode, anchor["period"]
                name = (
                    mode.name if mode is OutputMode.Sum else mode.name.upper()
                )  # PopTorch's log has ALL and Sum
                logger.debug(
                    "anchored: %s %s/%d",
                    anchor["name"],
                    name,
                    period if mode is OutputMode.EveryN else 1,
                )
            self._anchors = {
                short: Anchor(canonical(anchor["name"], names), anchor["mode"], anchor["period"])
                for short, anchor in self._options.anchored_tensors.items()
            }
        try:
            check_updatable(self._options.updatable_named_buffers, self._model)
            if not self._attached and self._options.connection_type is not ConnectionType.Never:
                self._attach(executable)
        except Error:
            self._release()
            raise
        self._executable = executable
        self._attach_optimiser()

    def _attach_optimiser(self) -> None:
        """Pass the optimiser to the device, and the parameter names to the optimiser.

        Offline there is no device, and so no optimiser state on one.
        """
        if self._executable is None or self._optimizer is None or not self._attached:
            return
        self._tell()
        rows = {name: grouped.rows for name, grouped in self._plan.groupings.items()}
        names = {p: (name, rows.get(name, 0)) for name, p in self._model.named_parameters()}
        attach(self._optimizer, names, self._loss_scale if self._scales_automatically else None)

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

    def _state_of_model(self) -> dict[str, Any]:
        """What the compiled program depends on besides its inputs, by its name in the log."""
        state: dict[str, Any] = {
            "the grouping of replicas": tuple(sorted(self._plan.groupings.items()))
        }
        state["which parameters require grad"] = tuple(
            p.requires_grad for p in self._model.parameters()
        )
        if self._optimizer is not None:
            state["the optimiser"] = _structure(self._optimizer)
        return state

    # -- files ---

    def compileAndExport(
        self,
        filename: str,
        *args: Any,
        export_model: bool = True,
        save_rng_state: bool = True,
        **kwargs: Any,
    ) -> None:
        """`compile` for inputs like these, then `save`.

        Also works without a device (``useOfflineIpuTarget``).
        """
        self.compile(*args, **kwargs)
        self.save(filename, export_model=export_model, save_rng_state=save_rng_state)

    def save(self, filename: str, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the executable to a file, for `loadExecutable`.

        In a directory the file is ``model.poptorch``.

        ``export_model``: include the model, optimiser and options, for `ipu_exec.load`. Error
        before compiling.
        """
        self._need_executable("save")
        if self._attached:
            self._log_reading_of_seeds()
        # Without a device there is no generator of one.
        offline = self._options.connection_type is ConnectionType.Never
        rng_state = self.rng_state if save_rng_state and not offline else None
        stored = executables.Stored(
            {"training": self._training}, self._executable, self._inputs, self._state, rng_state
        )
        model = {
            "model": self._user_model,
            "optimizer": self._optimizer,
            "options": self._options.clone(),
            "groupings": self.per_replica_params,
        }
        executables.write(filename, stored, model if export_model else None)

    def loadExecutable(self, filename: str) -> None:
        """Load an executable that `save` or `compileAndExport` wrote for such a model.

        Nothing is compiled then.

        Error if the file contains none, or one for the other use (training, inference).
        """
        stored = executables.read(filename)
        if stored.header["training"] != self._training:
            kinds = ("inferenceModel", "trainingModel")
            raise UsageError(
                f"{filename} was compiled by {kinds[stored.header['training']]} and cannot be"
                f" loaded into {kinds[self._training]}"
            )
        graph, shards = stored.executable.graph, stored.executable.options.shards
        weights = {
            s.name: s.elements * (shards if s.id in graph.shares else 1)
            for s in graph.storages.values()
            if s.role == Role.WEIGHT
        }
        own = {name: p.numel() for name, p in self._model.named_parameters(remove_duplicate=False)}
        for name, grouped in grouping.resolve(
            self._model, self.per_replica_params, self._plan.total_replicas
        ).items():
            own[name] //= grouped.rows
        strange = sorted(name for name, elements in weights.items() if own.get(name) != elements)
        if strange:
            raise UsageError(
                f"{filename} was compiled for another model: it has {', '.join(strange[:3])}, which"
                f" are not in {type(self._model).__name__} or have another size there. Load it into"
                " the model it was made from"
            )
        self._release()
        self._inputs, self._state = stored.inputs, stored.state
        self._modes = self._settled_modes()
        self._take(replace(stored.executable, settings=self._options.flat()))
        if stored.rng_state is not None:
            self.rng_state = stored.rng_state
            self._log_writing_of_seeds()
        elif self._attached:
            self._seed()

    @property
    def rng_state(self) -> list[int]:
        """State of the generator that random operators draw from.

        PyTorch's, unless `Options.randomSeed` or a loaded state gives the device one of its own.
        Error before compiling.
        """
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

    # -- tensors ---

    def getTensorNames(self) -> list[str]:
        """Names of the optimiser's tensors and of all that `Options.anchorTensor` can keep.

        Error before compiling.
        """
        from ipu_exec.numerics.anchors import tensor_names

        self._need_executable("getTensorNames")
        return [*tensor_names(self._executable.graph), *self._optimiser_tensors()]

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """The values that ``Options.anchorTensor(short_name, ...)`` kept in the last call.

        Error if it kept none.
        """
        if short_name not in self._anchored:
            known = ", ".join(map(repr, self._options.anchored_tensors)) or "none"
            when = (
                "call the model first"
                if short_name in self._options.anchored_tensors
                else f"there are {known}"
            )
            raise UsageError(f"getAnchoredTensor: no tensor {short_name!r} was anchored: {when}")
        return self._anchored[short_name]

    # -- times ---

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """The times at which the last call's inputs and outputs were requested and complete.

        In modelled seconds since its start.

        ``["input"][i][step]``, "input_complete", "output", "output_complete"; see
        `ipu_exec.session.latencies`. Empty lists before the first call.
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
        """Modelled seconds (least, most, mean) in which inputs reach the IPU.

        From the request for the first to the arrival of the last.
        """
        return self._latency("input", min, "input_complete", max)

    def getComputeLatency(self) -> tuple[float, float, float]:
        """Modelled seconds (least, most, mean) from the last input to the last output."""
        return self._latency("input_complete", max, "output", max)

    def getIpuHostLatency(self) -> tuple[float, float, float]:
        """Modelled seconds (least, most, mean) in which outputs reach the host.

        From the first output being ready to the arrival of the last.
        """
        return self._latency("output", min, "output_complete", max)

    def getLatency(self) -> tuple[float, float, float]:
        """Seconds (least, most, mean) from the request for the first input to the last output."""
        return self._latency("input", min, "output_complete", max)

    def _need_executable(self, what: str) -> None:
        if self._executable is None:
            raise UsageError(
                f"Model has not been compiled or has been destroyed. {what} comes after compiling:"
                " call compile(...) or the model first"
            )

    # -- state ---

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
        attribute = getattr(self._user_model, name)
        return (
            GroupedParameter(self.per_replica_params, name, attribute)
            if isinstance(attribute, torch.nn.Parameter)
            else attribute
        )

    def train(self, mode: bool = True) -> PoplarExecutor:
        """Put the user's model into train (or eval) mode.

        The compiled program keeps its mode (`ipu_exec.session.modes`).
        """
        self._model.train(mode)
        return self

    def eval(self) -> PoplarExecutor:
        """Put the user's model into eval mode."""
        return self.train(False)

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Use ``optimizer`` from now on.

        States (momenta) of the previous one are kept if it is of the same kind.

        New learning rates and similar values take effect at the next call without compiling. Error
        in inference, or if the optimiser has none of the model's parameters.
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
            self._keep_running_means()
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

    def _keep_running_means(self) -> None:
        """Let float16 accumulators hold running means, so that they do not overflow.

        See docs/poptorch-semantics.md#gradients.

        Error if compiled with another strategy already.
        """
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
        """Copy the device's weights and buffers to the model. Error before compiling.

        Reading the weights of a trained model does this implicitly.
        """
        self._need_executable("copyWeightsToHost")
        logger.debug("Writing weights from IPU to host")
        if not self._host_is_behind:  # else the host has them, and what its user wrote since
            self._device.copy_to_host(tensors_of(self._model))
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
        """Copy the model's weights and buffers to the device and its replicas. Error if uncompiled.

        Attaching a device does this too; later changes of the model's weights require a call.
        """
        self._need_executable("copyWeightsToDevice")
        if self._host_is_behind:
            logger.warning(
                "copyWeightsToDevice: the model was trained since the host had its weights. On an"
                " IPU those older weights overwrite the trained ones: call copyWeightsToHost()"
                " first. Here the trained weights are kept"
            )
        self._host_is_behind = False
        self._buffers.forget()
        logger.debug("Writing weights from host to IPU memory")
        if self._attached:
            self._device.copy_to_device(tensors_of(self._model))

    def copyNamedBuffersToDevice(self) -> None:
        """Copy the buffers that ``Options.updatableNamedBuffers`` names to the device.

        Error before compiling, and if it names none.
        """
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

    # -- device ---

    def isCompiled(self) -> bool:
        """True once compiled and not destroyed."""
        return self._executable is not None

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
        self._device.copy_to_device(tensors_of(self._model))

    def detachFromDevice(self) -> None:
        """Release the device; what was compiled is kept. Error if it is not attached."""
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
        devices.give_back(self)
        logger.debug("Detached from device")

    def destroy(self) -> None:
        """Finish the profile and discard what was compiled.

        A call compiles again, for whatever inputs it gets; the user's module can be wrapped again.
        """
        self.copyWeightsToHostIfNeeded()
        self._release()
        self._modes = ()
        unwrap(self._user_model)

    def _release(self) -> None:
        """Discard what was compiled, and release the device."""
        self._drop_executable()
        if self._attached:
            self._detach()
        self._ran = False

    def _drop_executable(self) -> None:
        if self._closer is not None:
            self._closer()  # closes the session, once
        self._session = self._closer = self._executable = None
        self._inputs, self._state, self._anchors, self._anchored = {}, {}, {}, {}

    def cycleCount(self) -> int:
        """Modelled cycles of one call.

        Error before the first call and without ``Options.logCycleCount(True)``, as in PopTorch;
        ``executable.cycles_per_call`` is available once the model is compiled.
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

    def compilationTime(self) -> timedelta:
        """The duration of the last compilation.

        Error before compiling and if ``showCompilationProgressBar`` is off, as in PopTorch.
        """
        if self._executable is None:
            raise UsageError("Please compile the model before obtaining compilation time.")
        if not self._options.compilation_progress_bar:
            raise UsageError(
                "Please set showCompilationProgressBar option to obtain compilation time."
            )
        return timedelta(seconds=self._compilation_seconds)


_BEFORE_COMPILING: dict[int, Callable[[], Any]] = OrderedDict()
_AFTER_COMPILING: dict[int, Callable[[], Any]] = OrderedDict()


def registerPreCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call ``hook`` before each compile. The handle's ``remove`` ends that."""
    return _register(_BEFORE_COMPILING, hook, "Pre-compile hook must be callable")


def registerPostCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call ``hook`` after each compile. The handle's ``remove`` ends that."""
    return _register(_AFTER_COMPILING, hook, "Post-compile hook must be callable")


def _register(hooks: dict[int, Callable[[], Any]], hook: Any, says: str) -> RemovableHandle:
    if not callable(hook):
        raise UsageError(says)
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


@contextmanager
def _hooked() -> Iterator[None]:
    for hook in list(_BEFORE_COMPILING.values()):
        hook()
    try:
        yield
    finally:
        for hook in list(_AFTER_COMPILING.values()):
            hook()


@contextmanager
def _said_of_tensors() -> Iterator[None]:
    """A torch error message with the user's tensors instead of their compile-time stand-ins."""
    try:
        yield
    except TypeError as error:
        error.args = tuple(
            text.replace("FakeTensor", "Tensor") if isinstance(text, str) else text
            for text in error.args
        )
        raise


def _own_options(given: Options | None, training: bool) -> Options:
    """A copy of the given options, in use from here on."""
    options = given.clone() if given is not None else Options()
    if given is not None:
        given._freeze()
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
    moved = [name for name, one in model.named_parameters() if one.device.type == "cuda"]
    if moved:
        raise UsageError(f"{kind}: the weight {moved[0]} is on a GPU. {arguments.NO_GPU}")
    if options is not None and not isinstance(options, Options):
        raise UsageError(f"{kind}: options is an ipu_exec.Options, not {type(options).__name__}")


def check_updatable(names: Sequence[str], model: torch.nn.Module) -> None:
    """Error if ``Options.updatableNamedBuffers`` names something other than a buffer."""
    known = dict(model.named_buffers())
    for name in names:
        if name not in known:
            raise UsageError(
                f"updatableNamedBuffers names {name!r}, which is no buffer of the model: it has"
                f" {', '.join(map(repr, known)) or 'none'}"
            )


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


def _structure(optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    """The facts that decide which operators an optimiser's step runs: all but its rates' values."""
    groups = []
    for group in optimizer.param_groups:
        settings = {
            name: value if isinstance(value, (bool, str, type(None))) else bool(value)
            for name, value in sorted(group.items())
            if name not in ("params", "lr", "initial_lr", "betas", "eps")
            and isinstance(value, (bool, int, float, str, type(None)))
        }
        groups.append((tuple(tuple(p.shape) for p in group["params"]), tuple(settings.items())))
    extras = {name: getattr(optimizer, name, None) for name in _STRUCTURAL}
    extras |= {name: str(state_dtype(optimizer, name)) for name in STATES} | {
        "combined": accumulates_in_velocity(optimizer)
    }
    return (type(optimizer).__name__, tuple(groups), tuple(extras.items()))


_STRUCTURAL = (
    "bias_correction",
    "max_grad_norm",
    "max_weight_norm",
    "use_tf_variant",
)  # they choose the operators


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            short = all(isinstance(item.get(name), str) for item in (before, after))
            yield f"{name} changed" + (
                f": expected {before[name]}, got {after[name]}" if short else ""
            )


@contextmanager
def _progress(shown: bool) -> Iterator[Progress]:
    """A progress bar 'Graph compilation' on stderr, and a line at the end, as of PopTorch.

    Yields a function that takes the completed part (0 to 1) and the current activity.
    """
    if not shown:
        yield lambda part, what: None
        return
    start = time.perf_counter()
    with waiting("Graph compilation") as say:
        yield lambda part, what: say(what, part)
    print(f"Graph compilation: 100% ({time.perf_counter() - start:.1f} s)", file=sys.stderr)
