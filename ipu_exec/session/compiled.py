"""A wrapped model's executable: when it is compiled, and for what; its files."""

from __future__ import annotations

import logging
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from operator import attrgetter
from typing import Any, ClassVar

import torch

from ipu_exec.base import gc_pause
from ipu_exec.base import replica_groups as grouping
from ipu_exec.base.context import on_ipu, refusing, substituted
from ipu_exec.base.optimiser_attributes import STATES, accumulates_in_velocity, state_dtype
from ipu_exec.base.structures import learn
from ipu_exec.base.user_tracebacks import users_frame, without_our_frames
from ipu_exec.capture.control_flow import Contents, read_contents
from ipu_exec.capture.recording.unchanged import tensors_unchanged
from ipu_exec.compiler import passes
from ipu_exec.enums import ConnectionType, OutputMode
from ipu_exec.errors import ContentError, Error, OutOfMemoryError, UsageError
from ipu_exec.numerics import loop as numerics
from ipu_exec.numerics.collectives import connect
from ipu_exec.option_log import log_options
from ipu_exec.script_levers import asked as asked_levers
from ipu_exec.script_levers import changed_options
from ipu_exec.session import arguments
from ipu_exec.session.agreement import agree
from ipu_exec.session.applied_levers import pull_on_inputs, pull_on_model
from ipu_exec.session.call_plan import FirstCall, Taker, plan_call, samples_of
from ipu_exec.session.compilation import with_relief
from ipu_exec.session.compile_hooks import hooked
from ipu_exec.session.device_tensors import Listed, alike
from ipu_exec.session.files import executable_file as executables
from ipu_exec.session.leftovers import warn_of_leftovers
from ipu_exec.session.modes import Modes, in_modes, modes_of
from ipu_exec.session.on_device import OnDevice
from ipu_exec.session.proposed_blocks import prepare
from ipu_exec.session.torch_compile import functions_not_scripted, not_compiled_by_torch
from ipu_exec.session.wrapped_model import unwrap
from ipuscope.planner.levers.settings import Levers
from ipuscope.profiler.enums import Role
from ipuscope.waiting import waiting

logger = logging.getLogger("ipu_exec")
_TENSORS, _dtype = frozenset((torch.Tensor,)), attrgetter("dtype")
_requires_grad = attrgetter("requires_grad")
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


class Compiled(OnDevice):
    """Compiles a wrapped model for inputs like those of its first call, or loads an executable."""

    # who has the first call instead of a compile: `ipu-run --plan`, and `--sweep`
    first_call_taker: ClassVar[Taker | None] = None

    @without_our_frames
    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for inputs like these, without running, unless that was done already."""
        with gc_pause.paused():
            self._prepare(args, kwargs)
            if self._session is not None:
                self._session.publish()

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """Compile if necessary. Returns the inputs with the defaults of ``forward``."""
        self._listed.update()
        objects, shapes = self._fingerprint(args, kwargs)
        objects_before, shapes_before, defaults = self._usual
        if objects and shapes == shapes_before and alike(objects, objects_before):
            return args + defaults, {}
        streamed, named = self._checked(args, kwargs)
        if not named and alike(args, streamed[: len(args)]):
            self._usual = objects, shapes, streamed[len(args) :]
        return streamed, named

    def _checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """As `_prepare`, with a look at everything."""
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

    def _fingerprint(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Objects and shapes: with the same ones a call is like the one before; else none."""
        if kwargs or self.per_replica_params or not _TENSORS.issuperset(map(type, args)):
            return [], []
        objects: list[Any] = [self._plan, self._model.training, self._optimizer]
        objects += self._listed.parameters
        objects += map(_requires_grad, self._listed.parameters)
        objects += map(_dtype, self._listed.parameters)
        for arg in args:
            objects += (arg.dtype, arg.requires_grad, arg.is_cuda)
        shapes = [arg.shape for arg in args]
        if self._optimizer is not None:
            objects += vars(self._optimizer).values()
            for group in self._optimizer.param_groups:
                objects += [value for name, value in group.items() if name not in _VALUES]
                shapes += [one.shape for one in group["params"]]
        return objects, shapes

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
        """Compile. ``contents``: what the forward reads off tensors, else found by a run."""
        from ipu_exec.session.compilation import compile_step

        start = time.perf_counter()
        log_options(self._options)
        positional, named = numerics.micro_batches((args, kwargs), self._plan)(0)
        if levers := asked_levers():
            positional, named = self._pull(levers, (positional, named))
        groupings = self._plan.groupings
        modes = self._modes or self._settled_modes()
        if self._optimizer is not None:
            grouping.check_optimiser(self._optimizer, groupings)
        with gc_pause.paused(), _progress(self._options.compilation_progress_bar) as progress:
            for_whom = (
                self._model,
                positional,
                named,
                self._options,
                self._optimizer,
                self._training,
                progress,
            )
            try:
                with self._being_captured(modes, groupings):
                    executable = compile_step(*for_whom, contents, groupings)
            except ContentError:  # found by a run, without the fake tensors of the capture
                with self._being_captured(modes, groupings):
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
            not_compiled_by_torch(may_begin=True),
            functions_not_scripted(),
            tensors_unchanged(self._model),
            refusing(not self._options._values["lenient"]),
            hooked(),
            _naming_tensors(),
            grouping.one_replica(self._model, self._optimizer, groupings),
        ):
            yield

    def _give_away(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Pass the first call to `first_call_taker`, if one is set: a training's if one waits."""
        taker = type(self).first_call_taker
        if taker is None:
            return
        call = self._first_call(args, kwargs)
        if self._training_waits():
            taker.passed_over = taker.passed_over or call
        else:
            taker.take(call)

    def _training_waits(self) -> bool:
        """Whether this is for inference, and the script wrapped a training that did not begin."""
        return not self._training and len(self._to_train) > 0

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
            samples_of((args, kwargs)) // (self._plan.device_iterations if self._training else 1),
            numerics.micro_batches((args, kwargs), self._plan)(0),
            groupings,
            lambda: self._being_captured(modes, groupings),
        )

    def _settled_modes(self) -> Modes:
        """The train or eval mode of each module, to be compiled."""
        return modes_of(self._model)

    def _pull(self, levers: Levers, micro_batch: Any) -> Any:
        """For `ipu-run --with`: apply the levers to model and options; returns the micro-batch."""
        pull_on_model(self._model, levers, self._training)
        self._options = changed_options(self._options, levers, self._training)
        plan = plan_call(self._options, self._training)
        self._plan = replace(plan, groupings=self._plan.groupings)
        return pull_on_inputs(micro_batch, levers, samples_of(micro_batch))

    def _take(self, executable: Any) -> None:
        """Run this executable: open its profile, check its memory, find the anchored tensors."""
        if self._options.profiling().enabled and self._plan.instance == 0:
            from ipu_exec.session.autoreport import ProfileSession

            name = type(self._user_model).__name__
            self._session = ProfileSession(
                self._options, executable, self._report_folder, name, self._peers, self._looped_by
            )
            # at the latest when Python ends
            self._closer = weakref.finalize(self, self._session.close)
        self._to_train.discard(self)
        self._listed = Listed(self._model)  # a lazy module's first forward makes its parameters
        checks = self._options._Popart.settings.get("enableFloatingPointChecks")
        self._checks_numbers = bool(checks or self._options.Precision.floating_point_exceptions)
        try:
            if self.first_call_taker is None:  # else it is an evaluation before what is planned
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
                # PopTorch's log has ALL and Sum
                name = mode.name if mode is OutputMode.Sum else mode.name.upper()
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

    def _state_of_model(self) -> dict[str, Any]:
        """What the compiled program depends on besides its inputs, by its name in the log."""
        state: dict[str, Any] = {
            "the grouping of replicas": tuple(sorted(self._plan.groupings.items()))
        }
        weights = list(self._model.parameters())
        state["which parameters require grad"] = [one.requires_grad for one in weights]
        state["the shape or dtype of a weight"] = [f"{one.dtype} {[*one.shape]}" for one in weights]
        if self._optimizer is not None:
            state["the optimiser"] = _structure(self._optimizer)
        return state

    def compileAndExport(
        self,
        filename: str,
        *args: Any,
        export_model: bool = True,
        save_rng_state: bool = True,
        **kwargs: Any,
    ) -> None:
        """`compile` for inputs like these, also without a device, then `save`."""
        self.compile(*args, **kwargs)
        self.save(filename, export_model=export_model, save_rng_state=save_rng_state)

    def save(self, filename: str, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the executable for `loadExecutable` to a file (in a directory: ``model.poptorch``).

        ``export_model``: with the model, optimiser and options, for `ipu_exec.load`. Error before
        compiling.
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

    def isCompiled(self) -> bool:
        """True once compiled and not destroyed."""
        return self._executable is not None

    def compilationTime(self) -> timedelta:
        """The duration of the last compilation; Error without a compile or its progress bar."""
        if self._executable is None:
            raise UsageError("Please compile the model before obtaining compilation time.")
        if not self._options.compilation_progress_bar:
            raise UsageError(
                "Please set showCompilationProgressBar option to obtain compilation time."
            )
        return timedelta(seconds=self._compilation_seconds)

    def destroy(self) -> None:
        """Finish the profile and discard the executable; the user's module can be wrapped again."""
        self.copyWeightsToHostIfNeeded()
        self._release()
        self._to_train.discard(self)
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
        self._usual, self._remembered = ([], [], ()), None

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


@contextmanager
def _naming_tensors() -> Iterator[None]:
    """A torch error message with the user's tensors instead of their compile-time stand-ins."""
    try:
        yield
    except TypeError as error:
        error.args = tuple(
            text.replace("FakeTensor", "Tensor") if isinstance(text, str) else text
            for text in error.args
        )
        raise


def check_updatable(names: Sequence[str], model: torch.nn.Module) -> None:
    """Error if ``Options.updatableNamedBuffers`` names something other than a buffer."""
    buffers = dict(model.named_buffers())
    for name in names:
        if name not in buffers:
            raise UsageError(
                f"updatableNamedBuffers names {name!r}, which is not a buffer of the model: it has"
                f" {', '.join(map(repr, buffers)) or 'none'}"
            )


def _structure(optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    """The facts that decide which operators an optimiser's step runs: all but its rates' values."""
    groups = []
    for group in optimizer.param_groups:
        settings = {
            name: value if isinstance(value, (bool, str, type(None))) else bool(value)
            for name, value in sorted(group.items())
            if name not in _VALUES and isinstance(value, (bool, int, float, str, type(None)))
        }
        groups.append((tuple(tuple(p.shape) for p in group["params"]), tuple(settings.items())))
    extras = {name: getattr(optimizer, name, None) for name in _STRUCTURAL}
    extras |= {name: str(state_dtype(optimizer, name)) for name in STATES} | {
        "combined": accumulates_in_velocity(optimizer)
    }
    return (type(optimizer).__name__, tuple(groups), tuple(extras.items()))


_VALUES = ("params", "lr", "initial_lr", "betas", "eps")  # of a group, that choose no operator
# attributes that choose the operators
_STRUCTURAL = ("bias_correction", "max_grad_norm", "max_weight_norm", "use_tf_variant")


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            short = all(isinstance(item.get(name), str) for item in (before, after))
            yield f"{name} changed" + (
                f": expected {before[name]}, got {after[name]}" if short else ""
            )


@contextmanager
def _progress(shown: bool) -> Iterator[passes.Progress]:
    """A progress bar 'Graph compilation' on stderr, and a line at the end, as of PopTorch.

    Yields a function of the completed part (0 to 1) and the current activity.
    """
    if not shown:
        yield lambda part, what: None
        return
    start = time.perf_counter()
    with waiting("Graph compilation") as say:
        yield lambda part, what: say(what, part)
    print(f"Graph compilation: 100% ({time.perf_counter() - start:.1f} s)", file=sys.stderr)
