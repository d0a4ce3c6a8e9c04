"""Which library multiplies dense matrices for torch on CUDA: a setting of the whole process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch.backends import cuda

BlasLibrary = Literal["default", "cublas", "cublaslt"]


@contextmanager
def blas_library(name: BlasLibrary) -> Iterator[None]:
    """Prefers this one meanwhile. A CUDA graph keeps what it was captured with. Without CUDA there is no choice."""
    if not cuda.is_built():
        yield
        return
    before = cuda.preferred_blas_library()
    cuda.preferred_blas_library(name)
    try:
        yield
    finally:
        cuda.preferred_blas_library(before)
