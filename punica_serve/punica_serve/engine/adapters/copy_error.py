"""The error of a copy that has ended."""

from concurrent.futures import CancelledError, Future
from typing import Any


def copy_error(copy: "Future[Any]") -> BaseException | None:
    """Why a copy that has ended has failed; None if it has not. The close of its threads cancels it before it begins:
    that is an error like others, for callbacks that must not raise.
    """
    return CancelledError("its threads were closed") if copy.cancelled() else copy.exception()
