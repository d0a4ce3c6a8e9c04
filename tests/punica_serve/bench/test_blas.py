"""The library of torch's dense products is another for a while alone."""

import pytest
import torch
from torch.backends import cuda

from punica_serve.bench.blas import blas_library


def test_the_choice_before_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ["default"]

    def prefer(name: str | None = None) -> str:
        chosen.extend([name] if name else [])
        return chosen[-1]

    monkeypatch.setattr(cuda, "preferred_blas_library", prefer)
    monkeypatch.setattr(cuda, "is_built", lambda: True)
    with pytest.raises(RuntimeError, match="mine"), blas_library("cublaslt"):
        raise RuntimeError("mine")
    assert chosen == ["default", "cublaslt", "default"]


@pytest.mark.skipif(cuda.is_built(), reason="of a torch without CUDA")
def test_without_cuda_there_is_no_choice() -> None:
    with blas_library("cublaslt"):
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    before = cuda.preferred_blas_library()
    with blas_library("cublaslt"):
        assert cuda.preferred_blas_library() == torch._C._BlasBackend.Cublaslt
    assert cuda.preferred_blas_library() == before
