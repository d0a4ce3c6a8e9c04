"""Selects torch's library for dense products on CUDA, a setting of the whole process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch.backends import cuda

BlasLibrary = Literal["default", "cublas", "cublaslt"]


@contextmanager
def blas_library(name: BlasLibrary) -> Iterator[None]:
    """Prefers this library while the context is open. A CUDA graph keeps the one it was captured with. No effect
    without CUDA.
    """
    if not cuda.is_built():
        yield
        return
    before = cuda.preferred_blas_library()
    cuda.preferred_blas_library(name)
    try:
        yield
    finally:
        cuda.preferred_blas_library(before)
