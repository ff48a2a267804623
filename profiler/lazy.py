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
from operator import attrgetter
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


def by_arguments(cache: Callable[[Any], Callable[..., Any]]) -> Callable[[F], F]:
    """A mark for functions whose answers an object caches, one for each choice of arguments.

    ``cache``: from the object, the first argument, to what stores by (key, how to make it).
    """

    def mark(make: F) -> F:
        name, signature = f"{make.__module__}.{make.__qualname__}", inspect.signature(make)

        @wraps(make)
        def answer(*args: Any, **kwargs: Any) -> Any:
            if kwargs or len(args) < len(signature.parameters):
                given = signature.bind(*args, **kwargs)
                given.apply_defaults()
                args = given.args
            return cache(args[0])((name, *args[1:]), lambda: make(*args))

        return answer  # type: ignore[return-value]

    return mark


# Of a report or one of its facets, whose file caches: `once` lets other threads read meanwhile, and
# of what is `recent` only the last few stay.
cached = by_arguments(attrgetter("file.keep"))
once = by_arguments(attrgetter("file.once"))
recent = by_arguments(attrgetter("file.remember"))
