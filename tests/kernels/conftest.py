from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from triton_interpreter import fast_interpreter


@pytest.fixture(scope="session", autouse=True)
def _fast_interpreter() -> Iterator[None]:
    with fast_interpreter():
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random inputs are the same in every run, whichever tests run."""
    torch.manual_seed(0)


def _relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.fixture
def relative_error() -> Callable[[Tensor, Tensor], float]:
    """|actual - expected| / |expected|, in Frobenius' norm."""
    return _relative_error
