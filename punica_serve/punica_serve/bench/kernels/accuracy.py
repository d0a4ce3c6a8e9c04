"""How far results may lie from what is right before nothing is timed."""

import math

from torch import Tensor

#: What rounding between steps may cost, in any dtype.
ERROR_LIMIT = 1e-2


def relative_error(y: Tensor, expected: Tensor) -> float:
    """|y - expected| / |expected|, in Frobenius' norm; infinite if any number of y is not finite."""
    error = float((y.double() - expected).norm() / expected.norm())
    return error if math.isfinite(error) else math.inf


def checked_error(y: Tensor, expected: Tensor, what: str) -> float:
    """The relative error. Raises ArithmeticError about ``what`` if it is more than rounding can be."""
    error = relative_error(y, expected)
    if error > ERROR_LIMIT:
        raise ArithmeticError(f"{what}: error {error:.2e}")
    return error
