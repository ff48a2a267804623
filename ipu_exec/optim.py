"""PyTorch's optimisers with the extra arguments that PopTorch gives them, and LAMB.

The extra arguments say how an IPU keeps states and scales losses. They are checked and kept as
attributes; the update of a float32 weight is PyTorch's, bit for bit, before states are rounded to
the types they name (`state_dtype`), which is done by who runs the update
(`ipu_exec.numerics.precision`). A float16 weight is updated in float32 there.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch

from ipu_exec.errors import UsageError as Error
from ipu_exec.numerics import optimiser_state

logger = logging.getLogger("ipu_exec")

Params = Iterable[torch.Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, torch.Tensor]]


# What may be declared constant or variable, and the value at which PopTorch takes it for constant
# by itself.
_ATTRIBUTES: dict[str, Any] = {
    "lr": None,
    "betas": None,
    "alpha": None,
    "eps": 1e-8,
    "momentum": 0.0,
    "dampening": 0.0,
    "weight_decay": 0.0,
    "loss_scaling": 1.0,
    "velocity_scaling": 1.0,
    "max_weight_norm": None,
    "max_grad_norm": None,
}
_NEVER_CONSTANT = ("lr",)


class VariableAttributes:
    """Which attributes of an optimiser may change between calls (``optimizer.variable_attrs``).

    What nobody marked is constant where it has its default, but the learning rate is not. Only what
    was marked as constant is held to that: the executor's ``setOptimizer`` refuses another value.
    """

    def __init__(
        self, variable_attributes: Iterable[str], allowed_attributes: Iterable[str]
    ) -> None:
        self._allowed = tuple(allowed_attributes)
        self._variable = {self._known(name) for name in variable_attributes}
        self._marked: set[str] = set()

    def isConstant(self, attr: str) -> bool:
        """Whether the attribute is constant."""
        return self._known(attr) not in self._variable

    def markAsConstant(self, attr: str) -> None:
        """Its value is compiled in."""
        self._variable.discard(self._known(attr))
        self._marked.add(attr)

    def markAsVariable(self, attr: str) -> None:
        """It may change between calls."""
        self._variable.add(self._known(attr))
        self._marked.discard(attr)

    @property
    def constant(self) -> tuple[str, ...]:
        """What was marked as constant."""
        return tuple(sorted(self._marked))

    def _known(self, attr: str) -> str:
        if attr not in self._allowed:
            raise Error(
                f"{attr!r} is not an attribute of this optimiser; it has {', '.join(self._allowed)}"
            )
        return attr


class AttributeTracker:
    """Says once what is new on an optimiser since the first one.

    PopTorch ignores attributes that it does not know.

    ``relaxed`` (``Options.relaxOptimizerAttributesChecks``): in the debug log rather than as a
    warning.
    """

    def __init__(self, relaxed: bool) -> None:
        self._log = logger.debug if relaxed else logger.warning
        self._known: dict[str, set[str]] = {}
        self._said: set[str] = set()

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Compare with the first optimiser that was checked."""
        own = {
            name for name in vars(optimizer) if not name.startswith("_") and name not in _OF_TORCH
        }
        unknown = {"optimizer attribute": own, "default group variable": set(optimizer.defaults)}
        groups = {
            f"group {i} attribute": set(group) - {"params"}
            for i, group in enumerate(optimizer.param_groups)
        }
        if not self._known:
            self._known = {**unknown, "group": set().union(*groups.values())}
            return
        for what, names in {**unknown, **groups}.items():
            extra = sorted(names - self._known.get(what, self._known["group"]))
            message = f"Ignoring unexpected {what} in {type(optimizer).__name__} optimizer: {extra}"
            if extra and message not in self._said:
                self._said.add(message)
                self._log(message)


_OF_TORCH = ("defaults", "state", "param_groups", "variable_attrs", "step")


def check_supported(optimizer: torch.optim.Optimizer) -> None:
    """Error for what PopTorch has no update of, so that a script that runs here runs there."""
    for name, what in (
        ("nesterov", "Nesterov momentum"),
        ("amsgrad", "amsgrad"),
        ("maximize", "maximize=True"),
    ):
        if any(group.get(name) for group in optimizer.param_groups):
            raise Error(
                f"{what} is currently not supported by PopTorch's optimisers: leave {name}=False"
            )
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Error(
            f"{name} evaluates the model as often as the data asks for, and a weight update on an"
            " IPU is a fixed program: take SGD, Adam, AdamW or another that steps once"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise Error(f"{name} updates sparse gradients, and an IPU has no sparse tensors: take Adam")


def constants(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The values, by name, that the optimiser's ``variable_attrs`` declare constant.

    A list has one a group.
    """
    attributes = getattr(optimizer, "variable_attrs", None)
    names = attributes.constant if isinstance(attributes, VariableAttributes) else ()
    return {
        name: (
            [group[name] for group in optimizer.param_groups]
            if name in optimizer.defaults
            else getattr(optimizer, name, None)
        )
        for name in names
    }


def check_constants(optimizer: torch.optim.Optimizer, compiled: Mapping[str, Any]) -> None:
    """Error where a value that was constant when the model was compiled is another now."""
    for name, value in compiled.items():
        in_groups = name in optimizer.defaults
        now = (
            [group[name] for group in optimizer.param_groups]
            if in_groups
            else getattr(optimizer, name, None)
        )
        if now != value:
            raise Error(
                f"{name} was marked as constant when the model was compiled: expected {value} but"
                f" got {now}. Call optimizer.variable_attrs.markAsVariable({name!r}) before"
                " compiling, or destroy() the model first"
            )


class Optimizer:
    """What PopTorch's optimisers have in common: arguments of theirs that torch does not know.

    Its name and methods are those of [POPTORCH, python/optim.py]; applications ask
    ``isinstance`` of it.
    """

    loss_scaling: float | None
    variable_attrs: VariableAttributes | None = None
    bias_correction = True
    max_grad_norm: float | None = None
    _ipu_names: optimiser_state.Names | None = None  # once a model was compiled with it
    _ipu_loaded: Mapping[str, Any] | None = None  # what was loaded before

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's, with ``ipu_state`` and ``ipu_param`` (`ipu_exec.numerics.optimiser_state`)."""
        ipu: Mapping[str, Any] = self._ipu_loaded or {"ipu_state": None, "ipu_param": None}
        if self._ipu_names is not None:
            optimizer = cast(torch.optim.Optimizer, self)
            ipu = {
                "ipu_state": optimiser_state.states(optimizer, self._ipu_names),
                "ipu_param": optimiser_state.values(optimizer, self._ipu_names),
            }
        return {**ipu, **super().state_dict()}  # type: ignore[misc]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave.

        Error for the state of an optimiser of PyTorch's, as in PopTorch.
        """
        if not {"ipu_state", "ipu_param"} <= set(state_dict):
            raise Error(
                "Only IPU optimizer states can be loaded onto the IPU. This one has no ipu_state"
                " and ipu_param: it is of an optimiser of PyTorch's. To take its groups and states"
                ' all the same, load {"ipu_state": None, "ipu_param": None, **state}'
            )
        super().load_state_dict(dict(state_dict))  # type: ignore[misc]
        if state_dict["ipu_state"] is not None:
            self._ipu_loaded = {
                name: dict(state_dict[name] or {}) for name in ("ipu_state", "ipu_param")
            }
        if self._ipu_names is not None:
            attach(cast(torch.optim.Optimizer, self), self._ipu_names)

    def has_state(self) -> bool:
        """Whether there are IPU states: from a model compiled with this optimiser, or loaded."""
        return self._ipu_names is not None or self._ipu_loaded is not None

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One weight update.

        The gradients are scaled down first where their norm exceeds ``max_grad_norm``.
        """
        optimizer = cast(torch.optim.Optimizer, self)
        if self.max_grad_norm is not None and math.isfinite(self.max_grad_norm):
            every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            torch.nn.utils.clip_grad_norm_(every, self.max_grad_norm)
        if self.bias_correction:
            return super().step(closure)  # type: ignore[misc]
        loss = closure() if closure is not None else None
        _update_without_correction(optimizer, decoupled=isinstance(optimizer, torch.optim.AdamW))
        return loss

    def _keep(self, **extras: Any) -> None:
        for name, value in extras.items():
            if name.endswith("accum_type") and value not in (torch.float32, torch.float16):
                raise Error(
                    f"{type(self).__name__}: {name} is torch.float32 or torch.float16, not"
                    f" {value!r}"
                )
            least = (
                0 if name == "max_weight_norm" else math.ulp(0.0)
            )  # a bound of 0 is none: LAMB is Adam
            if name in (
                "loss_scaling",
                "velocity_scaling",
                "max_weight_norm",
                "max_grad_norm",
            ) and not (value is None or (isinstance(value, (int, float)) and value >= least)):
                raise Error(f"{type(self).__name__}: {name} is a number above 0, not {value!r}")
            setattr(self, name, value)
        self._extra_names = (*extras, "variable_attrs")
        defaults = cast(torch.optim.Optimizer, self).defaults
        values = {
            name: defaults[name] if name in defaults else getattr(self, name, None)
            for name in _ATTRIBUTES
        }
        allowed = [name for name in _ATTRIBUTES if name in defaults or name in extras]
        variable = [n for n in allowed if n in _NEVER_CONSTANT or values[n] != _ATTRIBUTES[n]]
        self.variable_attrs = VariableAttributes(variable, allowed)

    def __getstate__(self) -> dict[str, Any]:
        """Torch's state and PopTorch's arguments.

        Torch drops attributes that it does not know from a copy.
        """
        pickled = {
            name: getattr(self, name)
            for name in (*self._extra_names, "_extra_names", "_ipu_loaded")
        }
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        return {**state, **pickled}


class SGD(Optimizer, torch.optim.SGD):
    """`torch.optim.SGD`; ``loss_scaling`` multiplies the loss and divides the gradients."""

    def __init__(  # noqa: PLR0913 - PopTorch's signature
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        loss_scaling: float | None = 1.0,
        velocity_scaling: float = 1.0,
        use_combined_accum: bool = False,
        accum_type: torch.dtype = torch.float32,
        velocity_accum_type: torch.dtype = torch.float32,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            momentum,
            dampening,
            weight_decay,
            nesterov,
            maximize=maximize,
            foreach=foreach,
            differentiable=differentiable,
        )
        self._keep(
            loss_scaling=loss_scaling,
            velocity_scaling=velocity_scaling,
            use_combined_accum=use_combined_accum,
            accum_type=accum_type,
            velocity_accum_type=velocity_accum_type,
            max_grad_norm=max_grad_norm,
        )


class Adam(Optimizer, torch.optim.Adam):
    """`torch.optim.Adam` with PopTorch's arguments."""

    def __init__(  # noqa: PLR0913 - PopTorch's signature
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        loss_scaling: float | None = 1.0,
        accum_type: torch.dtype = torch.float32,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
        bias_correction: bool = True,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize
        )
        _check_without_correction(self, bias_correction)
        self._keep(
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
            bias_correction=bias_correction,
            max_grad_norm=max_grad_norm,
        )


class AdamW(Optimizer, torch.optim.AdamW):
    """`torch.optim.AdamW` with PopTorch's arguments."""

    def __init__(  # noqa: PLR0913 - PopTorch's signature
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        loss_scaling: float | None = 1.0,
        accum_type: torch.dtype = torch.float32,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
        bias_correction: bool = True,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize
        )
        _check_without_correction(self, bias_correction)
        self._keep(
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
            bias_correction=bias_correction,
            max_grad_norm=max_grad_norm,
        )


class RMSprop(Optimizer, torch.optim.RMSprop):
    """`torch.optim.RMSprop` with PopTorch's arguments.

    ``use_tf_variant``: TensorFlow's update, with eps inside the root, the learning rate inside the
    momentum and a mean square that starts at 1: ``m = momentum m + lr g / sqrt(mean square +
    eps)``, ``w = w - m``.
    """

    def __init__(  # noqa: PLR0913 - PopTorch's signature
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        loss_scaling: float | None = 1.0,
        accum_type: torch.dtype = torch.float32,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
        use_tf_variant: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            alpha,
            eps,
            weight_decay,
            momentum,
            centered,
            foreach=foreach,
            maximize=maximize,
        )
        self._keep(
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
            use_tf_variant=use_tf_variant,
        )

    use_tf_variant: bool

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One weight update."""
        if not self.use_tf_variant:
            return super().step(closure)
        loss = closure() if closure is not None else None
        _tensorflow_rmsprop(self)
        return loss


class _OneByOne(Optimizer, torch.optim.Optimizer):
    """An optimiser that PyTorch does not have: `_update` says what becomes of one parameter."""

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
    ``max_weight_norm`` bounds ||w||; the ratio is 1 where a norm or the bound is 0 [POPART,
    willow/src/popx/op/adamvarupdatex.cpp]. A group of parameters may have a bound of its own:
    Graphcore's BERT gives its biases 0, which is Adam for them. ``bias_correction`` as in Adam.
    """

    def __init__(  # noqa: PLR0913 - PopTorch's signature
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        bias_correction: bool = True,
        loss_scaling: float | None = 1.0,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype = torch.float32,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise Error(
                "LAMB: lr, eps and weight_decay are 0 or more and betas in 0 ... 1 (exclusive),"
                f" not lr={lr}, eps={eps}, weight_decay={weight_decay}, betas={betas}"
            )
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        self._keep(
            loss_scaling=loss_scaling,
            bias_correction=bias_correction,
            max_weight_norm=max_weight_norm,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )

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
        # torch.where, not a branch on data: the update must be the same program whatever the
        # numbers are.
        usable = (weight_norm > 0) & (direction_norm > 0)
        if bound is not None and math.isfinite(bound):
            weight_norm = weight_norm.clamp(max=bound)
        trust = torch.where(usable, weight_norm / direction_norm, torch.ones_like(weight_norm))
        parameter.sub_(direction * (trust * group["lr"]))


def _check_without_correction(optimizer: torch.optim.Optimizer, bias_correction: bool) -> None:
    if not bias_correction and (optimizer.defaults["amsgrad"] or optimizer.defaults["maximize"]):
        raise Error(
            f"{type(optimizer).__name__}: bias_correction=False goes with neither amsgrad nor"
            " maximize"
        )


@torch.no_grad()
def _update_without_correction(optimizer: torch.optim.Optimizer, decoupled: bool) -> None:
    """Adam's update without bias correction; AdamW's where ``decoupled``."""
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = optimizer.state[parameter]
            if not state:
                state["step"] = torch.tensor(0.0)  # unused here; other optimisers' states have it
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            gradient = parameter.grad
            if decoupled:
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
            elif group["weight_decay"]:
                gradient = gradient.add(parameter, alpha=group["weight_decay"])
            state["step"] += 1
            state["exp_avg"].lerp_(gradient, 1 - beta1)
            state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            parameter.addcdiv_(
                state["exp_avg"], state["exp_avg_sq"].sqrt().add_(group["eps"]), value=-group["lr"]
            )


@torch.no_grad()
def _tensorflow_rmsprop(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = optimizer.state[parameter]
            if not state:
                state["step"] = torch.tensor(0.0)
                state["square_avg"] = torch.ones_like(parameter)
                if group["momentum"]:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                if group["centered"]:
                    state["grad_avg"] = torch.zeros_like(parameter)
            gradient, square = parameter.grad, state["square_avg"]
            if group["weight_decay"]:
                gradient = gradient.add(parameter, alpha=group["weight_decay"])
            state["step"] += 1
            square.mul_(group["alpha"]).addcmul_(gradient, gradient, value=1 - group["alpha"])
            variance = square
            if group["centered"]:
                state["grad_avg"].lerp_(gradient, 1 - group["alpha"])
                variance = square.addcmul(state["grad_avg"], state["grad_avg"], value=-1)
            moved = group["lr"] * gradient / variance.add(group["eps"]).sqrt()
            if group["momentum"]:
                moved = state["momentum_buffer"].mul_(group["momentum"]).add_(moved)
            parameter.sub_(moved)


def attach(optimizer: torch.optim.Optimizer, names: optimiser_state.Names) -> None:
    """Tell one of PopTorch's optimisers its parameters' names in the compiled model.

    The states that were loaded before go to them.
    """
    if isinstance(optimizer, Optimizer):
        optimizer._ipu_names = names
        if optimizer._ipu_loaded is not None:
            optimiser_state.load(optimizer, names, optimizer._ipu_loaded["ipu_state"])
            optimizer._ipu_loaded = None


class LARS(_OneByOne):
    """Layer-wise adaptive rates on SGD with momentum (You et al., arXiv:1708.03888, algorithm 1).

    A parameter of two dimensions or more moves at ``lr`` times its own rate, ``trust_coefficient``
    ||w|| / (||g|| + ``weight_decay`` ||w|| + ``eps``), which is 1 where either norm is 0. Vectors
    (biases, scales of norms) take plain steps without decay, as in MLPerf's ResNet-50 [MLP]. Error
    where an argument is out of range.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        trust_coefficient: float = 1e-3,
        eps: float = 0.0,
        loss_scaling: float | None = 1.0,
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
        super().__init__(params, {**settings, "momentum": momentum})
        self._keep(loss_scaling=loss_scaling, accum_type=accum_type)

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
