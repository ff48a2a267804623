"""A group of named options: set by methods, read as attributes, frozen once in use."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Self

from ipu_exec.annotations import ExecutionStrategy
from ipu_exec.base.sharding_plan import TensorSharding
from ipu_exec.base.user_tracebacks import warn
from ipu_exec.errors import FrozenError, UsageError
from ipuscope.words import did_you_mean

# Settings that have an effect on a machine and none here: setting one warns what happens instead.
NOT_HONOURED = {
    "groupNormStridedChannelGrouping": (
        "_Popart's groupNormStridedChannelGrouping",
        "groups are of neighbouring channels, as PyTorch has them, and cost what those cost",
    )
}


class Group:
    """Named values as in PopTorch: set by methods, read as attributes, frozen once in use."""

    def __init__(self, **defaults: Any) -> None:
        self._values: dict[str, Any] = defaults
        self._frozen = False

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        # as PopTorch has it
        name = name.removeprefix("_") if name == "_execution_strategy" else name
        if name in values:
            return values[name]
        # some of PopTorch's are in camel case
        snake = re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name)
        if snake in values:
            return values[snake]
        names = [*values, *(other for other in dir(type(self)) if not other.startswith("_"))]
        near = "" if name.startswith("_") else did_you_mean(name, names)
        for group, one in vars(self).items():
            if isinstance(one, Group) and hasattr(type(one), name):
                near = f": it is {'options' if group == '_root' else group}.{name}(...)"
        raise AttributeError(
            f"{type(self).__name__.strip('_')} has no option {name!r}"
            + (near or f"; it has {', '.join(values)}")
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """As PopTorch has it: only options that exist, once they are there."""
        of_class = getattr(type(self), name, None)
        if name.startswith("_") or isinstance(of_class, property) or isinstance(value, Group):
            super().__setattr__(name, value)
        elif callable(of_class):
            raise UsageError(f"{name} is a method, not a value: call {name}({value!r})")
        else:
            before = getattr(self, name)  # AttributeError where there is none
            if before is not None and not isinstance(value, type(before)):
                kind = type(before).__name__
                raise UsageError(f"{name} takes a value of type {kind}, not {value!r}")
            self._set(**{name: value})

    def checkIsFrozen(self, option: str | None = None) -> None:
        """FrozenError if these options are in use; ``option`` is the one that was to be changed."""
        if self._frozen:
            what = f": {option}" if option else ""
            raise FrozenError(
                f"Can't modify frozen Options{what}. They are in use by a compiled model or a data"
                " loader. Set options first, or change a copy: options.clone()"
            )

    def _set(self, **values: Any) -> Self:
        self.checkIsFrozen(", ".join(values))
        for name, value in values.items():
            before = self._values.get(name)
            if name in NOT_HONOURED and value != before and (before is not None or value):
                option, instead = NOT_HONOURED[name]
                warn(f"{option} is recorded in the profile, but not honoured: {instead}")
        self._values.update(values)
        return self

    def _count(self, method: str, least: int = 1, /, **value: Any) -> Self:
        ((name, number),) = value.items()
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise UsageError(f"{method} takes a whole number, at least {least}, not {number!r}")
        return self._set(**{name: number})

    def _flag(self, method: str, /, **value: Any) -> Self:
        ((name, flag),) = value.items()
        if not isinstance(flag, bool):
            raise UsageError(f"{method} takes True or False, not {flag!r}")
        return self._set(**{name: flag})

    def _enum(self, method: str, kind: type[Enum], /, **value: Any) -> Self:
        ((name, member),) = value.items()
        if not isinstance(member, kind):
            members = ", ".join(f"{kind.__name__}.{item.name}" for item in kind)
            raise UsageError(f"{method} takes one of {members}, not {member!r}")
        return self._set(**{name: member})

    def toDict(self) -> dict[str, Any]:
        """The values by name, unconverted."""
        return dict(self._values)

    def _flat(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        for name, value in self._values.items():
            if isinstance(value, Group):
                yield from value._flat(f"{prefix}{_camel(name)}.")
            else:
                yield prefix + _camel(name), as_json(value)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        return f"{type(self).__name__.strip('_')}({values})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy that can be changed, even of options that are in use."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        for name, value in vars(self).items():
            copied.__dict__[name] = copy.deepcopy(value, memo)
        copied._frozen = False
        return copied


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


def as_json(value: Any) -> Any:
    """A value of an option as JSON has it; of what JSON lacks its text."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, ExecutionStrategy):
        return repr(value)
    if isinstance(value, TensorSharding):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_json(item) for item in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)
