"""PyTorch's optimisers with the extra arguments that PopTorch adds, and LAMB.

The extra arguments set how an IPU stores states and scales losses. The update of a float32 weight
is PyTorch's, bit for bit. The caller then rounds the states to their types (``state_dtype``) and
updates float16 weights in float32 (`ipu_exec.numerics.precision`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, cast

import torch

from ipu_exec.errors import UsageError as Error
from ipu_exec.numerics import optimiser_state
from ipu_exec.numerics.update_rules import tensorflow_rmsprop, update_without_correction

logger = logging.getLogger("ipu_exec")
Params = Iterable[torch.Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, torch.Tensor]]


class VariableAttributes:
    """Which attributes of an optimiser may change between calls (``optimizer.variable_attrs``).

    Those passed to its constructor. ``setOptimizer`` refuses only those marked as constant.
    """

    def __init__(
        self, variable_attributes: Iterable[str], allowed_attributes: Iterable[str]
    ) -> None:
        self._variable_attributes = list(variable_attributes)
        self._allowed_attributes = list(allowed_attributes)
        self._marked: set[str] = set()

    def isConstant(self, attr: str) -> bool:
        """Whether the attribute is constant."""
        return attr not in self._variable_attributes

    def markAsConstant(self, attr: str) -> None:
        """Mark its value as compiled in."""
        self._check_allowed(attr)
        self._variable_attributes = [name for name in self._variable_attributes if name != attr]
        self._marked.add(attr)

    def markAsVariable(self, attr: str) -> None:
        """Mark it as allowed to change between calls."""
        self._check_allowed(attr)
        self._variable_attributes.append(attr)
        self._marked.discard(attr)

    @property
    def constant(self) -> tuple[str, ...]:
        """The attributes that were marked as constant."""
        return tuple(sorted(self._marked))

    def _check_allowed(self, attr: str) -> None:
        if attr not in self._allowed_attributes:
            raise Error(f"Unknown attribute {attr}, allowed values: {self._allowed_attributes}")


class AttributeTracker:
    """Reports, once, attributes that the first optimiser did not have: PopTorch ignores those.

    ``relaxed`` (``Options.relaxOptimizerAttributesChecks``): in the debug log, not as a warning.
    """

    def __init__(self, relaxed: bool) -> None:
        self._log = logger.debug if relaxed else logger.warning
        self._expected: dict[str, set[str]] = {}
        self._reported: set[str] = set()

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Compare with the first optimiser that was checked."""
        own = {name for name in vars(optimizer) if not _is_ours(optimizer, name)}
        unknown = {"optimizer attribute": own, "default group variable": set(optimizer.defaults)}
        groups = {
            f"group {i} attribute": set(group) - {"params"}
            for i, group in enumerate(optimizer.param_groups)
        }
        if not self._expected:
            self._expected = {**unknown, "group": set().union(*groups.values())}
            return
        for what, names in {**unknown, **groups}.items():
            extra = sorted(names - self._expected.get(what, self._expected["group"]))
            message = f"Ignoring unexpected {what} in {type(optimizer).__name__} optimizer: {extra}"
            if extra and message not in self._reported:
                self._reported.add(message)
                self._log(message)


def _is_ours(optimizer: torch.optim.Optimizer, name: str) -> bool:
    """Whether an attribute is PyTorch's, PopTorch's or its own, rather than a script's."""
    if name == "step":  # a learning rate scheduler puts its own in its place
        return callable(optimizer.step)
    return name.startswith("_") or name in _OWN


_OWN = (
    *("defaults", "state", "param_groups"),  # PyTorch's
    *("variable_attrs", "ipu_state_is_dirty", "host_state_is_dirty"),  # PopTorch's
)


def check_supported(optimizer: torch.optim.Optimizer) -> None:
    """Error for settings that PopTorch cannot update, so that what runs here runs there too."""
    for name, what in (("amsgrad", "amsgrad"), ("maximize", "maximize=True")):
        if any(group.get(name) for group in optimizer.param_groups):
            raise Error(
                f"{what} is currently not supported by PopTorch's optimisers: leave {name}=False"
            )
    name = type(optimizer).__name__
    ours = {torch.optim.Optimizer, Optimizer, _AdamArguments, _OneByOne}
    bases = ours & set(type(optimizer).__bases__)
    if not bases and not type(optimizer).__module__.startswith("torch.optim."):
        logger.warning(
            "Optimizer `%s` subclassed from classes in poptorch.optim or torch.optim are unlikely"
            " to behave as intended. Poptorch does not run Python optimizer code directly: an IPU"
            " runs its own code for the class that was subclassed. Here the Python code runs",
            name,
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Error(
            f"{name} evaluates the model as often as the data asks for, and a weight update on an"
            " IPU is a fixed program: take SGD, Adam, AdamW or another that steps once"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise Error(f"{name} updates sparse gradients, and an IPU has no sparse tensors: take Adam")


def constants(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The values, by name, that ``variable_attrs`` declares constant; lists have one per group."""
    attributes = getattr(optimizer, "variable_attrs", None)
    names = attributes.constant if isinstance(attributes, VariableAttributes) else ()
    return {name: _value(optimizer, name) for name in names}


def _value(optimizer: torch.optim.Optimizer, name: str) -> Any:
    """An attribute's value; a list of each group's, if groups have it."""
    if name in optimizer.defaults:
        return [group[name] for group in optimizer.param_groups]
    return getattr(optimizer, name, None)


def check_constants(optimizer: torch.optim.Optimizer, compiled: Mapping[str, Any]) -> None:
    """Error if a value that was constant when the model was compiled has changed."""
    for name, value in compiled.items():
        now = _value(optimizer, name)
        if now != value:
            raise Error(
                f"{name} was marked as constant when the model was compiled: expected {value} but"
                f" got {now}. Call optimizer.variable_attrs.markAsVariable({name!r}) before"
                " compiling, or destroy() the model first"
            )


class Optimizer:
    """Common part of PopTorch's optimisers: the arguments that torch does not have (``_own``).

    Name and methods are of [POPTORCH, python/optim.py]; applications test with ``isinstance``.
    """

    _own: ClassVar[dict[str, Any]] = {}
    loss_scaling: float
    variable_attrs: VariableAttributes
    bias_correction = True
    max_grad_norm: float = math.inf
    ipu_state_is_dirty = False  # the device has not taken what was loaded
    host_state_is_dirty = False  # the device has gone on since it was read
    _ipu_names: optimiser_state.Names | None = None  # while a model trains with it
    _ipu_scale: Callable[[], float] | None = None  # automatic loss scaling's
    _ipu_loaded: optimiser_state.Loaded | None = None  # the device's, if not as the groups say
    _ipu_groups: list[tuple[float, ...]] | None = None  # the groups' settings as they were loaded
    _state_dict: Mapping[str, Any] = MappingProxyType({"ipu_state": None, "ipu_param": None})

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's, with ``ipu_state`` and ``ipu_param`` (`ipu_exec.numerics.optimiser_state`)."""
        self.read_ipu_state()
        return self.get_state_dict()

    def get_state_dict(self) -> dict[str, Any]:
        """The same, as last read or loaded."""
        return {**self._state_dict, **super().state_dict()}  # type: ignore[misc]

    def read_ipu_state(self) -> None:
        """Update the host's copy of the device's state, if a device has one."""
        if self._ipu_names is None or not self.host_state_is_dirty:
            if self._ipu_names is not None or self.has_state():
                logger.debug("Using cached optimiser state dict")
            return
        logger.info("Writing optimiser state tensors from IPU to host.")
        optimizer = cast(torch.optim.Optimizer, self)
        scale = self._ipu_scale() if self._ipu_scale is not None else None
        self._state_dict = {
            "ipu_state": optimiser_state.states(optimizer, self._ipu_names, scale),
            "ipu_param": dict(optimiser_state.on_device(optimizer, self._ipu_names)),
        }
        self.host_state_is_dirty = False

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a `state_dict` for the next call; Error, as in PopTorch, for a torch optimiser's."""
        self.set_state_dict(state_dict)
        super().load_state_dict(dict(state_dict))  # type: ignore[misc]
        self._ipu_groups = optimiser_state.settings(cast(torch.optim.Optimizer, self))

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load ``ipu_state`` and ``ipu_param`` of a `state_dict`."""
        if not state:
            raise Error("Cannot load optimizer state dictionary because it is empty.")
        if not {"ipu_state", "ipu_param"} <= set(state):
            raise Error(
                "Only IPU optimizer states can be loaded onto the IPU. This one has no ipu_state"
                " and ipu_param: a PyTorch optimiser made it. To take its groups and states all"
                ' the same, load {"ipu_state": None, "ipu_param": None, **state}'
            )
        self._state_dict = {name: state[name] for name in ("ipu_state", "ipu_param")}
        self._ipu_groups = optimiser_state.settings(cast(torch.optim.Optimizer, self))
        self.ipu_state_is_dirty, self.host_state_is_dirty = True, False

    def has_state(self) -> bool:
        """Whether there are IPU states: read from a device, or loaded."""
        return all(self._state_dict[name] is not None for name in ("ipu_state", "ipu_param"))

    def write_ipu_state(self) -> bool:
        """Send the loaded state to the device; returns whether there was any."""
        if self._ipu_names is None or not self.ipu_state_is_dirty:
            return False
        self.ipu_state_is_dirty = False
        if not self.has_state():
            return False
        logger.info("Writing optimiser state tensors from host to IPU memory.")
        optimizer = cast(torch.optim.Optimizer, self)
        optimiser_state.load(optimizer, self._ipu_names, self._state_dict["ipu_state"])
        given = self._state_dict["ipu_param"]
        if self._ipu_groups not in (None, optimiser_state.settings(optimizer)):
            # Changed since then, as by a scheduler that was made after: as in PyTorch, they count.
            given = {name: given[name] for name in given if "___specific___" not in name}
        self._ipu_loaded = optimiser_state.loaded(optimizer, self._ipu_names, given)
        if self._ipu_loaded is not None:
            logger.warning(
                "the loaded ipu_param differs from the optimiser's groups: the device trains with"
                " ipu_param until a setting of the groups changes"
            )
        return True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One weight update, after scaling gradients down to a norm of ``max_grad_norm``."""
        optimizer = cast(torch.optim.Optimizer, self)
        if math.isfinite(self.max_grad_norm):
            every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            torch.nn.utils.clip_grad_norm_(every, self.max_grad_norm)
        if self.bias_correction:
            return super().step(closure)  # type: ignore[misc]
        loss = closure() if closure is not None else None
        update_without_correction(optimizer, decoupled=isinstance(optimizer, torch.optim.AdamW))
        return loss

    def _make(self, params: Params, arguments: Mapping[str, Any]) -> None:
        """Initialise torch's optimiser with a constructor's ``arguments`` and store PopTorch's.

        None means that an argument was not passed. Those that were passed may change later.
        """
        passed = {
            name: value
            for name, value in arguments.items()
            if value is not None and name not in ("self", "params", "__class__")
        }
        super().__init__(  # type: ignore[call-arg]
            params, **{name: value for name, value in passed.items() if name not in self._own}
        )
        self._store(passed)

    def _store(self, given: Mapping[str, Any]) -> None:
        for name, default in self._own.items():
            value = given.get(name, default)
            _check_own(type(self).__name__, name, value)
            setattr(self, name, value)
        defaults = cast(torch.optim.Optimizer, self).defaults
        allowed = [*defaults, *(name for name in _GLOBAL if name in self._own)]
        self.variable_attrs = VariableAttributes(given, allowed)

    def __getstate__(self) -> dict[str, Any]:
        """Torch's state and PopTorch's arguments, which torch would drop from a copy."""
        if self._ipu_names is not None and self.host_state_is_dirty:
            self.read_ipu_state()
        names = (*self._own, "variable_attrs")
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        return {
            **state,
            **{name: getattr(self, name) for name in names},
            "_state_dict": dict(self._state_dict),
            "ipu_state_is_dirty": self.has_state(),
        }


_GLOBAL = ("loss_scaling", "max_weight_norm")  # of PopTorch's, what may change between calls


def _check_own(kind: str, name: str, value: Any) -> None:
    if name.endswith("accum_type") and value not in (torch.float32, torch.float16):
        raise Error(
            f"{kind}: {name} is torch.float32 or torch.float16, not {value!r}. Accumulation types"
            " must be either torch.float32 or torch.float16"
        )
    numbers = ("loss_scaling", "velocity_scaling", "max_weight_norm", "max_grad_norm")
    least = 0 if name == "max_weight_norm" else math.ulp(0.0)  # a bound of 0 is none: LAMB is Adam
    number = isinstance(value, (int, float)) and value >= least
    if name in numbers and not number and value is not None:
        raise Error(f"{kind}: {name} is a number above 0, not {value!r}")


_ACCUMULATION: dict[str, Any] = {
    "loss_scaling": 1.0,
    "accum_type": torch.float32,
    "first_order_momentum_accum_type": torch.float32,
    "second_order_momentum_accum_type": torch.float32,
}


class SGD(Optimizer, torch.optim.SGD):
    """`torch.optim.SGD`; ``loss_scaling`` multiplies the loss and divides the gradients.

    With ``use_combined_accum`` a group may have a ``velocity_scaling``.
    """

    _own: ClassVar = {
        "loss_scaling": 1.0,
        "velocity_scaling": 1.0,
        "use_combined_accum": False,
        "accum_type": torch.float32,
        "velocity_accum_type": torch.float32,
        "max_grad_norm": math.inf,
    }
    velocity_scaling: float
    use_combined_accum: bool

    def __init__(  # noqa: PLR0913 - PopTorch's signature
        self,
        params: Params,
        lr: float | None = None,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self._make(params, locals())
        if self.use_combined_accum:
            self.defaults["velocity_scaling"] = self.velocity_scaling
            for group in self.param_groups:
                group.setdefault("velocity_scaling", self.velocity_scaling)
        elif velocity_scaling is not None:
            logger.warning(
                "velocity_scaling value ignored when using the separate variant"
                " (use_combined_accum=False)"
            )


class _AdamArguments(Optimizer):
    """Adam's arguments, which AdamW has too."""

    _own: ClassVar = {**_ACCUMULATION, "bias_correction": True, "max_grad_norm": math.inf}

    def __init__(  # noqa: PLR0913 - PopTorch's signature
        self,
        params: Params,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        bias_correction: bool | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self._make(params, locals())
        defaults = cast(torch.optim.Optimizer, self).defaults
        if not self.bias_correction and (defaults["amsgrad"] or defaults["maximize"]):
            raise Error(
                f"{type(self).__name__}: bias_correction=False goes with neither amsgrad nor"
                " maximize"
            )


class Adam(_AdamArguments, torch.optim.Adam):
    """`torch.optim.Adam` with PopTorch's arguments."""


class AdamW(_AdamArguments, torch.optim.AdamW):
    """`torch.optim.AdamW` with PopTorch's arguments."""


class RMSprop(Optimizer, torch.optim.RMSprop):
    """`torch.optim.RMSprop` with PopTorch's arguments.

    ``use_tf_variant``: TensorFlow's update, with eps inside the root, the learning rate inside the
    momentum and a mean square that starts at 1: ``m = momentum m + lr g / sqrt(mean square +
    eps)``, ``w = w - m``.
    """

    _own: ClassVar = {**_ACCUMULATION, "use_tf_variant": False}

    def __init__(  # noqa: PLR0913 - PopTorch's signature
        self,
        params: Params,
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
    ) -> None:
        self._make(params, locals())

    use_tf_variant: bool

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One weight update."""
        if not self.use_tf_variant:
            return super().step(closure)
        loss = closure() if closure is not None else None
        tensorflow_rmsprop(self)
        return loss


class _OneByOne(Optimizer, torch.optim.Optimizer):
    """An optimiser that PyTorch does not have: `_update` updates one parameter."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One weight update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError


class LAMB(_OneByOne):
    """Layer-wise adaptive moments for large batches (You et al., arXiv:1904.00962, algorithm 2).

    Adam's direction plus weight decay, scaled per parameter by ||w|| / ||direction||, where
    ``max_weight_norm`` bounds ||w||; the ratio is 1 if a norm or the bound is 0 [POPART,
    willow/src/popx/op/adamvarupdatex.cpp]. A group may have its own bound: Graphcore's BERT sets
    0 for biases, which makes it Adam for them. ``bias_correction`` as in Adam.
    """

    _own: ClassVar = {**_ACCUMULATION, "bias_correction": True, "max_weight_norm": None}

    def __init__(  # noqa: PLR0913 - PopTorch's signature
        self,
        params: Params,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool | None = None,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if value is not None}
        groups: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}
        groups["weight_decay"] = 1e-2
        groups |= {name: arguments[name] for name in groups if name in arguments}
        least = min(groups[name] for name in ("lr", "eps", "weight_decay"))
        if least < 0 or not all(0 <= beta < 1 for beta in groups["betas"]):
            raise Error(
                "LAMB: lr, eps and weight_decay are 0 or more and betas in 0 ... 1 (exclusive),"
                f" not {groups}"
            )
        torch.optim.Optimizer.__init__(self, params, groups)
        self._store(arguments)

    max_weight_norm: float | None

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.lerp_(parameter.grad, 1 - beta1)
        second.mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
        unbias1 = 1 - beta1 ** state["step"] if self.bias_correction else 1.0
        unbias2 = 1 - beta2 ** state["step"] if self.bias_correction else 1.0
        direction = (first / unbias1) / ((second / unbias2).sqrt() + group["eps"])
        direction = direction.add(parameter, alpha=group["weight_decay"])
        bound = group.get("max_weight_norm", self.max_weight_norm)
        if bound == 0:
            parameter.sub_(direction * group["lr"])
            return
        weight_norm, direction_norm = parameter.norm(), direction.norm()
        # torch.where instead of a branch on data: the program must not depend on the numbers
        usable = (weight_norm > 0) & (direction_norm > 0)
        if bound is not None and math.isfinite(bound):
            weight_norm = weight_norm.clamp(max=bound)
        trust = torch.where(usable, weight_norm / direction_norm, torch.ones_like(weight_norm))
        parameter.sub_(direction * (trust * group["lr"]))


def poptorchs(optimizer: Any) -> Optimizer | None:
    """The optimiser if it is one of PopTorch's, and so has a state on the device."""
    return optimizer if isinstance(optimizer, Optimizer) else None


def attach(
    optimizer: torch.optim.Optimizer,
    names: Mapping[Any, tuple[str, int]],
    scale: Callable[[], float] | None = None,
) -> None:
    """Connect one of PopTorch's optimisers to the device that trains with it.

    ``names``: its parameters' in the compiled model. ``scale``: automatic loss scaling's factor.
    The device takes loaded states, if any; otherwise the host may read its states.
    """
    ours = poptorchs(optimizer)
    if ours is None:
        return
    trains = ours._ipu_names is not None
    ours._ipu_names, ours._ipu_scale = names, scale
    if not trains:
        ours.ipu_state_is_dirty = ours.has_state()
        ours.host_state_is_dirty = not ours.has_state()
        ours.write_ipu_state()


def detach(optimizer: torch.optim.Optimizer | None) -> None:
    """The device is released: the host takes its states."""
    ours = poptorchs(optimizer)
    if ours is not None and ours._ipu_names is not None:
        if ours.host_state_is_dirty:
            ours.read_ipu_state()
        ours._ipu_names = ours._ipu_scale = ours._ipu_loaded = None


class LARS(_OneByOne):
    """Layer-wise adaptive rates on SGD with momentum (You et al., arXiv:1708.03888, algorithm 1).

    A parameter of two dimensions or more moves at ``lr`` times its own rate,
    ``trust_coefficient`` ||w|| / (||g|| + ``weight_decay`` ||w|| + ``eps``), which is 1 if either
    norm is 0. Vectors (biases, scales of norms) take plain steps without decay, as in MLPerf's
    ResNet-50 [MLP].
    """

    _own: ClassVar = {"loss_scaling": 1.0, "accum_type": torch.float32}

    def __init__(
        self,
        params: Params,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        trust_coefficient: float = 1e-3,
        eps: float = 0.0,
        loss_scaling: float = 1.0,
        accum_type: torch.dtype = torch.float32,
    ) -> None:
        settings = {
            "lr": lr,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "eps": eps,
        }
        if min(settings.values()) < 0 or not 0 <= momentum < 1:
            raise Error(
                f"LARS: momentum is in 0 ... 1 (exclusive) and the rest 0 or more, not {momentum=},"
                f" {settings}"
            )
        torch.optim.Optimizer.__init__(self, params, {**settings, "momentum": momentum})
        self._store({**settings, "loss_scaling": loss_scaling, "accum_type": accum_type})

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        gradient = cast(torch.Tensor, parameter.grad)
        if parameter.dim() > 1:
            weight_norm, gradient_norm = parameter.norm(), gradient.norm()
            rate = group["trust_coefficient"] * weight_norm
            rate = rate / (gradient_norm + group["weight_decay"] * weight_norm + group["eps"])
            usable = (weight_norm > 0) & (gradient_norm > 0)
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
            gradient = gradient * torch.where(usable, rate, torch.ones_like(rate))
        state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
        parameter.add_(state["momentum_buffer"], alpha=-group["lr"])
