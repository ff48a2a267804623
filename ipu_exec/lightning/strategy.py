"""``IPUStrategy``: Lightning's loop over a LightningModule that is compiled for modelled IPUs.

Lightning computes on the host, in the order of one device: weights, logged values, callbacks and
checkpoints are those of a CPU. The first batch compiles what an IPU would need for them
(`ipu_exec.lightning.stage`) into the profile.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch

from ipu_exec.base.context import on_ipu
from ipu_exec.base.optimiser_attributes import loss_scaling
from ipu_exec.enums import HalfFloatCastingBehavior, OutputMode
from ipu_exec.lightning import checks
from ipu_exec.lightning.library import Library
from ipu_exec.lightning.loaders import are_tensors, as_given, for_replicas, part, sample
from ipu_exec.lightning.logged import log_predictions, logging_predictions, spare_device_search
from ipu_exec.lightning.progress import Progress
from ipu_exec.lightning.stage import StageModel, depth_of, replicas_of
from ipu_exec.options import Options
from ipu_exec.session.stepped import SteppedExecutor

# Lightning's names of what a run is at, and the step that it calls.
_STEPS = {
    "train": "training_step",
    "sanity_check": "validation_step",
    "validate": "validation_step",
    "test": "test_step",
    "predict": "predict_step",
}


class StrategyOnIpu:
    """``IPUStrategy``, before `ipu_exec.lightning.names` joins Lightning's ``ParallelStrategy``.

    ``device_iterations``: weight updates of a call. ``profile_dir``: write a profile of each of
    training, validation, test and predict below it (``autoreport=True, autoreport_dir=`` too).
    ``training_opts``, ``inference_opts``: options instead of those made from the Trainer's.
    """

    lib: ClassVar[Library]
    strategy_name = "ipu_strategy"
    num_nodes = 1  # as the Trainer was told
    # of Lightning's class
    accelerator: Any
    precision_plugin: Any
    parallel_devices: Any
    lightning_module: Any
    lr_scheduler_configs: Any
    optimizers: Any

    def __init__(  # noqa: PLR0913 -- lightning-graphcore's ten, and one of ours
        self,
        accelerator: Any = None,
        device_iterations: int = 1,
        autoreport: bool | None = None,
        autoreport_dir: str | os.PathLike[str] | None = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        training_opts: Options | None = None,
        inference_opts: Options | None = None,
        profile_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(  # type: ignore[call-arg]
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
        )
        for kind, opts in (("training_opts", training_opts), ("inference_opts", inference_opts)):
            if opts is not None:
                checks.check_options(self.lib, opts, kind)
        self.device_iterations = device_iterations
        directory = autoreport_dir if profile_dir is None else profile_dir
        self.autoreport = directory is not None if autoreport is None else autoreport
        self.autoreport_dir = directory
        self.poptorch_models: dict[Any, SteppedExecutor] = {}
        self._given = {True: training_opts, False: inference_opts}
        self._made: dict[bool, Options] = {}
        self._depth = 1  # stages of a replica, once a batch has told
        self._stages: dict[Any, StageModel] = {}
        self._loaders: list[Any] = []
        self.predicted: Any = None  # what predict_step logged
        self._moves_batches = True  # a hook may
        self._progress = Progress()
        self._forward_contexts = contextlib.ExitStack()

    # -- options ---

    @property
    def training_opts(self) -> Options:
        """Compile options of training."""
        return self._opts(True)

    @property
    def inference_opts(self) -> Options:
        """Compile options of validation, test and prediction."""
        return self._opts(False)

    def _opts(self, training: bool) -> Options:
        own = self._given[training]
        if own is not None and own.placement_mapping is None:
            return own
        if training not in self._made:
            options = self._trainers_options(training) if own is None else own.clone()
            options.follow_plan("training" if training else "inference")
            self._made[training] = options
        return self._made[training]

    def _trainers_options(self, training: bool) -> Options:
        options = Options().deviceIterations(self.device_iterations)
        options.replicationFactor(self._replicas(training))
        if training:
            options.Training.gradientAccumulation(self._trainer.accumulate_grad_batches)
        if os.environ.get("PL_GLOBAL_SEED"):
            options.randomSeed(int(os.environ["PL_GLOBAL_SEED"]))
        return options

    def _compile_options(self, training: bool, accumulation: int) -> Options:
        """`training_opts` or `inference_opts` with the Trainer's own settings added."""
        options = self._opts(training).clone()
        options.showCompilationProgressBar(False)
        # A LightningModule is written for any device: one forward may use tensors that another
        # made (a demo of Lightning's own does), which a later compile takes for the CPU's.
        options.lenient()
        if training:
            options.Training.gradientAccumulation(accumulation)
            if options.output_mode is OutputMode.Default:
                options.outputMode(OutputMode.All)  # each micro-batch's values are logged
        if not options.model_name:
            options.modelName(type(self.lightning_module).__name__)
        if self.autoreport:
            options.autoreport = True
            options.autoreport_dir = os.fspath(self.autoreport_dir or Path())
        mixed = self.precision_plugin.precision == "16-mixed"
        if mixed and options.Precision.half_float_casting is HalfFloatCastingBehavior.Default:
            options.Precision.halfFloatCasting(HalfFloatCastingBehavior.FloatDowncastToHalf)
        return options

    def _replicas(self, training: bool) -> int:
        options = self._given[training]
        if options is None:
            options = self._given[not training]
        if options is not None:
            return int(options.replication_factor)
        devices = len(self.parallel_devices) if self.parallel_devices else 1
        return replicas_of(devices, self._depth)

    @property
    def replication_factor(self) -> int:
        """Replicas of the Trainer's current stage."""
        if self.lightning_module is None:
            return self._replicas(True)
        model = self.poptorch_models.get(self._trainer.state.stage)
        return self._replicas(True) if model is None else int(model.options.replication_factor)

    @property
    def replicas(self) -> int:
        """Replicas in training."""
        return int(self.training_opts.replication_factor)

    @property
    def _trainer(self) -> Any:
        return self.lightning_module.trainer

    # -- setting up ---

    def setup(self, trainer: Any) -> None:
        """Reject what cannot run, and wrap each step that will."""
        fitting = trainer.state.fn == self.lib.TrainerFn.FITTING
        checks.check_module(self.lib, trainer)
        if fitting and (own := self._given[True]) is not None:
            asked = trainer.accumulate_grad_batches
            trainer.accumulate_grad_batches = checks.check_accumulation(self.lib, own, asked)
        self._close()
        self._made, self._depth, self._stages = {}, 1, {}
        if fitting and (options := self._opts(True)) is not self._given[True]:
            # a placement may have another accumulation than the Trainer
            trainer.accumulate_grad_batches = int(options.Training.gradient_accumulation)
        super().setup(trainer)  # type: ignore[misc]
        self._moves_batches = checks.moves_batches(self.lib, trainer)
        spare_device_search(self.lib, trainer)
        self._wrap()
        self._progress.attach(self.lib, trainer)

    def setup_optimizers(self, trainer: Any) -> None:
        """Set up Lightning's optimisers, at most one."""
        super().setup_optimizers(trainer)  # type: ignore[misc]
        checks.check_optimizers(self.lib, trainer, self.optimizers)
        checks.warn_of_device_iterations(self.lib, self._opts(True), self.lr_scheduler_configs)

    def _wrap(self) -> None:
        """Make a model of each step that this run has, with the replicas determined so far."""
        stage, function = self.lib.RunningStage, self.lib.TrainerFn
        trainer = self._trainer
        self._close()
        wrapped: dict[Any, StageModel] = {}
        if trainer.state.fn == function.FITTING:
            wrapped[stage.TRAINING] = self._stage(stage.TRAINING, "training")
            if trainer.enable_validation:
                wrapped[stage.VALIDATING] = self._stage(stage.VALIDATING, "validation")
                if SteppedExecutor.first_call_taker is not None:
                    trainer.num_sanity_val_steps = 0  # the training is planned
                if trainer.num_sanity_val_steps > 0:
                    wrapped[stage.SANITY_CHECKING] = wrapped[stage.VALIDATING]
        elif trainer.state.fn == function.VALIDATING:
            wrapped[stage.VALIDATING] = self._stage(stage.VALIDATING, "validation")
        elif trainer.state.fn == function.TESTING:
            wrapped[stage.TESTING] = self._stage(stage.TESTING, "test")
        elif trainer.state.fn == function.PREDICTING:
            wrapped[stage.PREDICTING] = self._stage(stage.PREDICTING, "predict")
        self._stages = wrapped
        self.poptorch_models = {kind: model.executor for kind, model in wrapped.items()}

    def _stage(self, stage: Any, folder: str) -> StageModel:
        training = stage == self.lib.RunningStage.TRAINING
        return StageModel(
            self.lightning_module,
            _STEPS[stage.value],
            folder,
            lambda accumulation: self._compile_options(training, accumulation),
            self.optimizers[0] if training else None,
            self._trainer.accumulate_grad_batches if training else 1,
            self._compiling_training if training else self._progress.compiling,
        )

    @contextlib.contextmanager
    def _compiling_training(self) -> Iterator[None]:
        """Clip gradients in the captured weight update as Lightning clips them."""
        value = self._trainer.gradient_clip_val
        by = self._trainer.gradient_clip_algorithm
        with self._progress.compiling():
            if not value:
                yield
                return
            by_value = getattr(by, "value", by) == "value"

            def clip(optimizer: torch.optim.Optimizer, *about: Any) -> None:
                weights = [p for group in optimizer.param_groups for p in group["params"]]
                if by_value:
                    torch.nn.utils.clip_grad_value_(weights, value)
                else:
                    torch.nn.utils.clip_grad_norm_(weights, value)

            handle = self.optimizers[0].register_step_pre_hook(clip)
            try:
                yield
            finally:
                handle.remove()

    def process_dataloader(self, dataloader: Any) -> Any:
        """A loader that returns a batch for each replica."""
        stage = self._trainer.state.stage or self.lib.RunningStage.TRAINING
        if self._given[True] is None and self._given[False] is None:
            self._find_depth(stage, dataloader)
        training = stage == self.lib.RunningStage.TRAINING
        kind = "training" if training else "inference"
        loader = for_replicas(dataloader, self._opts(training), kind)
        self._loaders.append(loader)
        return loader

    def _find_depth(self, stage: Any, dataloader: Any) -> None:
        """Find how many IPUs a replica takes, with a batch built for that purpose."""
        if not self.parallel_devices or len(self.parallel_devices) == 1:
            return
        with _random_state_restored():
            batch = sample(dataloader)
            if batch is None:
                return
            step = _STEPS[stage.value]
            if stage == self.lib.RunningStage.PREDICTING:
                self.on_predict_start()
            batch = self.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
            batch = self.batch_to_device(batch)
            depth = depth_of(self.lightning_module, step, batch)
        if depth != self._depth:
            self._depth, self._made = depth, {}
            if self._stages:
                self._wrap()

    # -- running ---

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """Apply the module's transfer hooks on the host, then convert to types an IPU takes."""
        if self.lightning_module is not None and (self._moves_batches or not are_tensors(batch)):
            batch = super().batch_to_device(batch, device, dataloader_idx)  # type: ignore[misc]
        return self.precision_plugin.to_device(batch)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Compute a micro-batch of each replica, with what its backward needs."""
        stage = self.lib.RunningStage.TRAINING
        loop = self._trainer.fit_loop.epoch_loop.automatic_optimization
        if loop._skip_backward:  # a pass for running statistics (StochasticWeightAveraging)
            return self.lightning_module.training_step(*args, **kwargs)
        with self.precision_plugin.train_step_context():
            accumulation = int(self._trainer.accumulate_grad_batches)
            return self._step(stage, accumulation, args, kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Compute a micro-batch of each replica."""
        with self.precision_plugin.val_step_context():
            return self._step(self.lib.RunningStage.VALIDATING, 1, args, kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Compute a micro-batch of each replica."""
        with self.precision_plugin.test_step_context():
            return self._step(self.lib.RunningStage.TESTING, 1, args, kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Compute a micro-batch of each replica."""
        module = self.lightning_module
        logging = logging_predictions(module, self.predicted, args[0])
        with self.precision_plugin.predict_step_context(), logging:
            return self._step(self.lib.RunningStage.PREDICTING, 1, args, kwargs)

    def on_predict_start(self) -> None:
        """Collect what predict_steps log, since Lightning's loop drops it."""
        self.predicted = self.lib.ResultCollection(training=False)

    def on_predict_end(self) -> None:
        """Pass the collected values to callbacks and loggers."""
        log_predictions(self._trainer, self.predicted)

    def _step(
        self, stage: Any, accumulation: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        start = time.perf_counter()
        model = self._stages[stage]
        replicas = model.executor.replicas
        parts = [(args, kwargs)]
        if replicas > 1:
            batch, *rest = args
            parts = [((part(batch, r, replicas), *rest), kwargs) for r in range(replicas)]
        self._forward_contexts.close()
        returned = model.run(parts, accumulation, self._forward_contexts)
        executor = self.poptorch_models[stage] = model.executor
        steps = executor.device_iterations * accumulation
        model.count(steps)
        samples = replicas * model.micro_batch
        if stage == self.lib.RunningStage.TRAINING or self._trainer.state.fn != "fit":
            predicted = samples * steps / executor.seconds_per_call
            self._progress.ran(samples, time.perf_counter() - start, predicted)
        return returned

    def backward(self, closure_loss: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Lightning's, as the forward ran."""
        executor = self._stages[self.lib.RunningStage.TRAINING].executor
        with on_ipu(), executor.precision.counting(), executor.precision.model(0):
            loss = super().backward(closure_loss, optimizer, *args, **kwargs)  # type: ignore[misc]
        self._forward_contexts.close()
        if self._trainer.accumulate_grad_batches > 1:
            weights = (p for group in optimizer.param_groups for p in group["params"])
            executor.precision.accumulate(self.optimizers[0], weights)
        return loss

    def loss_scale(self) -> float:
        """The factor of the loss before it is differentiated."""
        precision = self._stages[self.lib.RunningStage.TRAINING].executor.precision
        return precision.scaler.scale if precision.scaler else loss_scaling(self.optimizers[0])

    @contextlib.contextmanager
    def updating(self, optimizer: Any) -> Iterator[None]:
        """Clip and update inside: gradients are scaled back, float16 weights are in float32."""
        plain = getattr(optimizer, "_optimizer", optimizer)
        scale = self.loss_scale()
        precision = self._stages[self.lib.RunningStage.TRAINING].executor.precision
        weights = [p for group in plain.param_groups for p in group["params"]]
        if precision.scaler:
            precision.scaler.update([p.grad for p in weights if p.grad is not None])
        with precision.update(plain):
            if scale != 1:
                for weight in weights:
                    if weight.grad is not None:
                        weight.grad.div_(scale)
            yield

    # -- one process ---

    @property
    def root_device(self) -> torch.device:
        """The device of the host's tensors."""
        return torch.device("cpu")

    def model_to_device(self) -> None:
        """Does nothing: the weights stay where the host computes."""

    @property
    def is_global_zero(self) -> bool:
        """Always true: one process has all IPUs."""
        return True

    @property
    def world_size(self) -> int:
        """The number of processes, not of IPUs."""
        return 1

    def block_backward_sync(self) -> contextlib.AbstractContextManager[None]:
        """Does nothing between micro-batches: no process waits for another."""
        return contextlib.nullcontext()

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the value: replicas were already combined."""
        return tensor

    def barrier(self, name: str | None = None) -> None:
        """Does nothing: there is no other process."""

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Returns the value: there is no other process."""
        return tensor

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Returns the object: there is no other process."""
        return obj

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Returns the decision of the only process."""
        return decision

    def teardown(self) -> None:
        """Complete the profiles and say where they are, and restore the loaders."""
        for path in self._close():
            self.lib.rank_zero_info(f"The profile: ipu-report insights {path}")
        for loader in self._loaders:
            as_given(loader)
        self._loaders = []
        self._progress.detach()
        super().teardown()  # type: ignore[misc]

    def _close(self) -> list[str]:
        self._forward_contexts.close()
        models = {id(model): model for model in self._stages.values()}
        return [path for model in models.values() for path in model.close()]

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Register it for ``Trainer(strategy="ipu_strategy")``."""
        strategy_registry.register(cls.strategy_name, cls, description=cls.__name__, override=True)


@contextlib.contextmanager
def _random_state_restored() -> Iterator[None]:
    """Inside, random draws do not affect the run's random state."""
    import random

    import numpy as np

    python, arrays = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
