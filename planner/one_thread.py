"""Searches take one thread of BLAS: products are small, and OpenBLAS' other threads only spin."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_one_thread(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function with one thread of BLAS in this process while it runs."""

    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with _libraries().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return run


@cache
def _libraries() -> ThreadpoolController:
    """The libraries that this process has loaded."""
    return ThreadpoolController()
