"""Code shared by the client scripts."""

from collections.abc import Callable
from typing import TypeVar

ErrorKind = TypeVar("ErrorKind", bound=Exception)


def raised(kind: type[ErrorKind], call: Callable[[], object]) -> ErrorKind:
    """The error of this kind that the call must raise."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")
