"""How functions are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[Function], Function]:
    """`numba.njit` with a cache on disk, so that later processes need not compile.

    Where no folder can be written, as in a container whose file system is read-only, Numba
    refuses to cache; then each process compiles anew.

    Parameters
    ----------
    **options
        Of `numba.njit`.
    """

    def decorate(function: Function) -> Function:
        made: Function
        try:
            made = njit(cache=True, **options)(function)
        except RuntimeError:
            made = njit(**options)(function)
        return made

    return decorate
