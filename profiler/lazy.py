"""Properties that are computed when first asked for, of objects that threads share.

`functools.cached_property` of Python 3.11 holds one lock for all objects of a class while it
computes. With a second lock, as a report has, two threads can then wait for each other for ever:
one computes a property and wants the report's lock, the other has that and wants the property.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")
_UNLOCKED: AbstractContextManager[None] = nullcontext()


class cached_property(Generic[T]):
    """A method as an attribute that is computed once and then kept in the object.

    An object with a ``_lock`` (reentrant) computes under that one and no other; of an object
    without, two threads may both compute, and the first answer stays.
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
        known = instance.__dict__
        # What is known is found there before this is asked, but for a thread that has waited.
        with getattr(instance, "_lock", _UNLOCKED):
            if self._name in known:
                return known[self._name]
            return known.setdefault(self._name, self._make(instance))
