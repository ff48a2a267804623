"""Which function lowers which ATen operator."""

from __future__ import annotations

from collections.abc import Callable

from ipu_exec.errors import LoweringError
from ipu_exec.lowering.plan import OpSpec, Plan
from ipu_exec.machine import Machine

Lowering = Callable[[OpSpec, Machine], Plan]

_LOWERINGS: dict[str, Lowering] = {}


def words(text: str) -> tuple[str, ...]:
    """The words of a text: a readable way to write long lists of operators."""
    return tuple(text.split())


# Free on the IPU: a view is another way to index the same elements, and the compiler resolves it.
_VIEWS = frozenset(
    words(
        """
        view _unsafe_view _reshape_alias reshape t transpose swapaxes permute movedim expand
        expand_as view_as slice select narrow split split_with_sizes chunk unsafe_split unsafe_chunk
        unsafe_split_with_sizes unbind squeeze unsqueeze detach detach_ alias as_strided unfold
        flatten unflatten diagonal view_as_real view_as_complex lift_fresh lift numpy_T mT
        resolve_conj resolve_neg real transpose_ squeeze_ unsqueeze_ t_ set_ _conj hsplit vsplit
        tensor_split
    """
    )
)


def packet(aten_name: str) -> str:
    """``"aten.add.Tensor"`` -> ``"aten.add"``; a name without overload is itself."""
    parts = aten_name.split(".")
    return ".".join(parts[:2])


def is_view(aten_name: str) -> bool:
    """True for operators whose outputs only alias their input: they cost nothing."""
    namespace, _, rest = aten_name.partition(".")
    return namespace == "aten" and rest.split(".")[0] in _VIEWS


def lowering(*aten_names: str) -> Callable[[Lowering], Lowering]:
    """Decorator: lower these operators with the function, ``f(spec, machine) -> Plan``.

    A name with an overload (``"aten.relu.default"``) covers that one, a name without
    (``"aten.relu"``) all overloads. The last registration wins, so that a user can replace ours;
    call it before compiling.
    """

    def register(function: Lowering) -> Lowering:
        for name in aten_names:
            _LOWERINGS[name] = function
        return function

    return register


def has_lowering(aten_name: str) -> bool:
    """True where somebody registered one for the operator or all its overloads."""
    return aten_name in _LOWERINGS or packet(aten_name) in _LOWERINGS


def find(aten_name: str) -> Lowering:
    """The lowering of an operator; LoweringError says how to register one."""
    found = _LOWERINGS.get(aten_name) or _LOWERINGS.get(packet(aten_name))
    if found is None:
        raise LoweringError(
            f"no lowering for {aten_name}: register one with"
            f" @ipu_exec.lowering.lowering({aten_name!r}), a function of (OpSpec, Machine) that"
            " returns a Plan, or let it be guessed, and marked so in the profile:"
            " Options.estimateUnknownOperators()"
        )
    return found


def by_users() -> tuple[tuple[str, str], ...]:
    """Lowerings from outside this package, sorted: name, and the function's place and code."""
    found = []
    for name, function in sorted(_LOWERINGS.items()):
        if not function.__module__.startswith("ipu_exec."):
            code = getattr(function, "__code__", None)
            found.append(
                (name, f"{function.__module__} {code.co_code.hex() if code else function!r}")
            )
    return tuple(found)


def registered() -> tuple[str, ...]:
    """Names with a lowering, sorted."""
    return tuple(sorted(_LOWERINGS))
