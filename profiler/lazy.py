"""Properties that are computed on first use, for objects that threads share.

`functools.cached_property` of Python 3.11 uses one lock for all objects of a class while it
computes. With a second lock, as in a report, two threads can then deadlock: one computes a property
and wants the report's lock, the other has that and wants the property.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_UNLOCKED: AbstractContextManager[None] = nullcontext()


class cached_property(Generic[T]):
    """A method as an attribute that is computed once and then stored in the object.

    An object with a ``_lock`` (reentrant) computes under that one and no other; without one, two
    threads may both compute, and the first answer stays.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type[Any]) -> T: ...

    def __get__(self, instance: object | None, owner: type[Any]) -> Self | T:
        if instance is None:
            return self
        values = instance.__dict__
        # A value in it is returned without this call, except to a thread that has waited.
        with getattr(instance, "_lock", _UNLOCKED):
            if self._name in values:
                return values[self._name]
            return values.setdefault(self._name, self._make(instance))


def _by_arguments(store: str) -> Callable[[F], F]:
    def mark(make: F) -> F:
        name, signature = f"{make.__module__}.{make.__qualname__}", inspect.signature(make)

        @wraps(make)
        def answer(of: Any, *args: Any, **kwargs: Any) -> Any:
            given = signature.bind(of, *args, **kwargs)
            given.apply_defaults()
            key = name, *given.args[1:]
            return getattr(of.file, store)(key, lambda: make(of, *args, **kwargs))

        return answer  # type: ignore[return-value]

    return mark


# Marks a method of a report's facet, or a function of a report, whose answers its file caches, one
# for each choice of arguments: `ProfileFile.keep`, and `once` for what takes long.
kept, once = _by_arguments("keep"), _by_arguments("once")
