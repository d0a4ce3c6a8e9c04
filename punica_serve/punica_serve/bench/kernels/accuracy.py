"""Limits for the errors of results; a wrong result is never timed."""

import math

from torch import Tensor

#: The cost of rounding between steps, in any dtype.
ERROR_LIMIT = 1e-2


def relative_error(y: Tensor, expected: Tensor) -> float:
    """|y - expected| / |expected|, in the Frobenius norm; infinite if any number of y is not finite."""
    error = float((y.double() - expected).norm() / expected.norm())
    return error if math.isfinite(error) else math.inf


def checked_error(y: Tensor, expected: Tensor, what: str) -> float:
    """The relative error. Raises ArithmeticError about ``what`` if it exceeds rounding."""
    error = relative_error(y, expected)
    if error > ERROR_LIMIT:
        raise ArithmeticError(f"{what}: error {error:.2e}")
    return error
