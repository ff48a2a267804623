"""Which function lowers which ATen operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipu_exec.errors import LoweringError
from ipu_exec.lowering.operator_info import OperatorInfo, describe, info, packet
from ipu_exec.lowering.plan import OpSpec, Plan
from ipu_exec.machine import Machine

Lowering = Callable[[OpSpec, Machine], Plan]

_LOWERINGS: dict[str, Lowering] = {}


def lowering(*aten_names: str, **facts: Any) -> Callable[[Lowering], Lowering]:
    """Decorator: lower these operators with the function, ``f(spec, machine) -> Plan``.

    ``facts``: fields of `ipu_exec.lowering.operator_info.OperatorInfo` that hold for all of them. A
    name with an overload (``"aten.relu.default"``) covers that one, a name without
    (``"aten.relu"``) all overloads. The last registration wins: call it before compiling to replace
    ours.
    """

    def register(function: Lowering) -> Lowering:
        for name in aten_names:
            _LOWERINGS[name] = function
        describe(*aten_names, **facts)
        return function

    return register


def has_lowering(aten_name: str) -> bool:
    """True where somebody registered one for the operator or all its overloads."""
    return aten_name in _LOWERINGS or packet(aten_name) in _LOWERINGS


def find(aten_name: str) -> Lowering:
    """The lowering of an operator; LoweringError says how to register one."""
    registered = _LOWERINGS.get(aten_name) or _LOWERINGS.get(packet(aten_name))
    if registered is None:
        raise LoweringError(
            f"no lowering for {aten_name}: register one with"
            f" @ipu_exec.lowering.lowering({aten_name!r}), a function of (OpSpec, Machine) that"
            " returns a Plan, or let it be guessed, and marked so in the profile:"
            " Options.estimateUnknownOperators()"
        )
    return registered


def by_users() -> tuple[tuple[str, str], ...]:
    """Users' lowerings, sorted: name, the function's place and code, and facts if it has any."""
    by_users = []
    for name, function in sorted(_LOWERINGS.items()):
        if not function.__module__.startswith("ipu_exec."):
            code = getattr(function, "__code__", None)
            body = code.co_code.hex() if code else repr(function)
            facts = "" if info(name) == OperatorInfo() else f" {info(name)}"
            by_users.append((name, f"{function.__module__} {body}{facts}"))
    return tuple(by_users)


def registered() -> tuple[str, ...]:
    """Names with a lowering, sorted."""
    return tuple(sorted(_LOWERINGS))
