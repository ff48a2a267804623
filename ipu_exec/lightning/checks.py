"""Checks for what cannot run on IPUs under Lightning, before compiling, with a way out."""

from __future__ import annotations

from typing import Any

from ipu_exec.lightning.library import Library
from ipu_exec.options import Options

# Hooks that run on the host around what is one program on an IPU.
_BESIDE = (
    "backward",
    "configure_gradient_clipping",
    "on_before_optimizer_step",
    "optimizer_step",
    "optimizer_zero_grad",
)


def check_module(lib: Library, trainer: Any) -> None:
    """MisconfigurationException for what cannot be compiled; warns of hooks not in the profile."""
    module = trainer.lightning_module
    if trainer.num_nodes > 1:
        raise lib.MisconfigurationException(
            f"num_nodes={trainer.num_nodes}: a Trainer on IPUs runs in one process, on one host:"
            " leave num_nodes out, and let devices count all IPUs"
        )
    if trainer.state.fn != lib.TrainerFn.FITTING:
        return
    name = type(module).__name__
    if not module.automatic_optimization:
        raise lib.MisconfigurationException(
            f"{name} sets automatic_optimization = False, and IPUs currently only support one"
            " optimizer, stepped by Lightning: forward, backward and weight update are one program,"
            " which calls of manual_backward and optimizer.step would take apart. Return the loss"
            " from training_step with one optimiser (several learning rates are its parameter"
            " groups), or train with accelerator='cpu'"
        )
    hooks = [hook for hook in _BESIDE if lib.is_overridden(hook, module)]
    if hooks:
        lib.rank_zero_warn(
            f"{name} overrides {', '.join(hooks)}: this runs on the host with the gradients of each"
            " weight update, and the profile has neither its cost nor the gradients' way there"
        )


def moves_batches(lib: Library, trainer: Any) -> bool:
    """Whether the module or its data module overrides the hooks that move a batch."""
    hooks = ("transfer_batch_to_device", "on_after_batch_transfer")
    owners = (trainer.lightning_module, trainer.datamodule)
    return any(
        lib.is_overridden(hook, owner) for owner in owners if owner is not None for hook in hooks
    )


def check_optimizers(lib: Library, trainer: Any, optimizers: list[Any]) -> None:
    """MisconfigurationException unless there is one optimiser, of the module's weights."""
    name = type(trainer.lightning_module).__name__
    own = {id(weight) for weight in trainer.lightning_module.parameters()}
    if len(optimizers) > 1:
        raise lib.MisconfigurationException(
            f"IPUs currently only support one optimizer. {name}.configure_optimizers gives"
            f" {len(optimizers)}: put their weights into parameter groups of one, each with its own"
            " rate"
        )
    updated = [p for optimizer in optimizers for g in optimizer.param_groups for p in g["params"]]
    if not any(id(weight) in own for weight in updated):
        raise lib.MisconfigurationException(
            f"{name}.configure_optimizers gives no optimiser of its weights, and an IPU's training"
            " program ends in a weight update: return one, or run validate, test or predict"
        )


def check_options(lib: Library, options: Options, kind: str) -> None:
    """MisconfigurationException for options that a Trainer cannot honour."""
    if options.anchored_tensors:
        raise lib.MisconfigurationException(
            f"{kind}: anchorTensor keeps a tensor for getAnchoredTensor of a poptorch model, which"
            " a Trainer does not call. Take it off, and self.log what you want to see"
        )
    if options.Precision.floating_point_exceptions:
        raise lib.MisconfigurationException(
            f"{kind}: enableFloatingPointExceptions looks at every operator of a poptorch model."
            " Under a Trainer use detect_anomaly=True"
        )


def check_accumulation(lib: Library, options: Options, asked: int) -> int:
    """Micro-batches of a weight update; Error if ``training_opts`` and ``asked`` disagree."""
    own = int(options.Training.gradient_accumulation)
    if own > 1 and asked > 1 and own != asked:
        raise lib.MisconfigurationException(
            f"training_opts has gradientAccumulation({own}) and the Trainer"
            f" accumulate_grad_batches={asked}: say one of them, or the same"
        )
    return max(own, asked)


def warn_of_device_iterations(lib: Library, options: Options, schedulers: list[Any]) -> None:
    """Warn that on hardware a call uses the learning rates it began with."""
    steps = [config for config in schedulers if config.interval == "step"]
    if options.device_iterations > 1 and steps:
        lib.rank_zero_warn(
            f"a learning-rate scheduler steps at each weight update, and a call has"
            f" {options.device_iterations} (device_iterations): an IPU would keep the rate of the"
            " call's first. Here each update has its own, as on one device"
        )
