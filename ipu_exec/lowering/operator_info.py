"""What an operator is: the facts that passes need of it besides how it is lowered.

They stand beside the operator's lowering, as arguments of `ipu_exec.lowering.lowering` or in a
`describe` of some of its operators, and every pass looks them up here. No other package has a table
of operator names (``tests/ipu_exec/lowering/test_operators.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any

Arguments = tuple[Any, ...]


class Promotion(Enum):
    """What PopTorch casts where an operator has float16 beside float32 operands.

    PyTorch promotes the operands of elementwise operators itself, and refuses those of the others.
    """

    NONE = "none"
    INPUT = "input"  # weights and biases to what the input is [POPTORCH, castWeightAndBias]
    OPERANDS = "operands"  # all of them, to float32
    PARAMETERS = "parameters"  # all to float32, but not where only parameters are float32


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """The facts of one ATen operator (or one of a user's library)."""

    view: bool = False  # its results only alias its operand: it costs nothing
    on_host: bool = False  # it asks about a tensor; no IPU computes it
    convolution: bool = False  # one or several convolutions, or their gradients
    norm: bool = False  # a normalisation: what `Recomputation.NORM_ONLY` runs again
    over_batch: bool = False  # a norm over the batch, or its backward: replicas may share its sums
    copy: bool = False  # its result is its operand, maybe of another dtype or layout
    addition: bool = False  # the sum of two operands
    moves: bool = False  # it moves elements (or adds up rows of them) and makes no gradient itself
    leaves_unwritten: bool = False  # it reserves memory and writes nothing there
    divides: bool = False  # infinite results of zeros are divisions by zero
    compares: bool = False  # a NaN among its operands is an invalid operation
    # It runs on a part of its operands as on the whole of them: an elementwise operator, ...
    elementwise: bool = False
    # ... or a reduction whose result replicas can reduce from those of their parts.
    reduces_parts: bool = False
    in_place: bool = False  # PopART has a variant that writes over the operand
    fused_in_update: bool = False  # part of the one expression that an optimiser's update is
    # With tensors shared by several IPUs: all get the same result, whatever its operands are, ...
    makes_alike: bool = False
    makes_different: bool = False  # ... or may be another part on each
    uses_memory_proportion: bool = False  # `ipu_exec.set_available_memory` plans it
    promotion: Promotion = Promotion.NONE
    popart_name: str = ""  # what PopART calls it; "": as PyTorch, capitalised (`popart_name`)
    # Positions of tensor operands of which only the shape or the layout is read: autograd hands
    # over whole tensors where a shape would do. A function where the arguments decide.
    unread: tuple[int, ...] | Callable[[Arguments], tuple[int, ...]] = ()

    def unread_operands(self, arguments: Arguments) -> tuple[int, ...]:
        """Positions of tensor operands whose content a call with ``arguments`` leaves unread."""
        return self.unread(arguments) if callable(self.unread) else self.unread


_UNKNOWN = OperatorInfo()
_INFOS: dict[str, OperatorInfo] = {}


def words(text: str) -> tuple[str, ...]:
    """The words of a text: a readable way to write long lists of operators."""
    return tuple(text.split())


def aten(names: str) -> tuple[str, ...]:
    """``"mm bmm"`` -> ``("aten.mm", "aten.bmm")``."""
    return tuple(f"aten.{name}" for name in words(names))


@cache
def packet(aten_name: str) -> str:
    """``"aten.add.Tensor"`` -> ``"aten.add"``; a name without overload is itself."""
    return ".".join(aten_name.split(".")[:2])


def describe(*aten_names: str, **facts: Any) -> None:
    """Add facts (fields of `OperatorInfo`) to operators.

    A name with an overload covers that one, a name without all that have no facts of their own.
    """
    for name in aten_names:
        _INFOS[name] = replace(info(name), **facts)
        info.cache_clear()


def describe_aten(names: str, **facts: Any) -> None:
    """`describe` for `aten` of the names."""
    describe(*aten(names), **facts)


@cache
def info(aten_name: str) -> OperatorInfo:
    """The facts of an operator; of one that nobody described none holds."""
    return _INFOS.get(aten_name) or _INFOS.get(packet(aten_name)) or _UNKNOWN


def is_view(aten_name: str) -> bool:
    """True for operators whose results only alias their operand: they cost nothing."""
    return info(aten_name).view


def popart_name(aten_name: str) -> str:
    """What PopART, and with it the vendor's tools, call an operator: "MatMul".

    Where nobody said, PyTorch's words capitalised, a backward as the "Grad" of its forward.
    """
    listed_name = info(aten_name).popart_name or info(packet(aten_name)).popart_name
    if listed_name:
        return listed_name
    short = packet(aten_name).rpartition(".")[2].strip("_")
    forward = short.removesuffix("_data").removesuffix("_backward")
    name = "".join(part.capitalize() for part in forward.split("_"))
    return name + "Grad" * (forward != short)
