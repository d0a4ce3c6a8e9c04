"""Triton's interpreter still has the undocumented parts that our tests replace."""

import pytest
import torch
import triton
import triton.language as tl

import triton_interpreter
from triton_interpreter import fast_interpreter, interpreter_with_asserts

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
_HIGHEST = 2**31 - 1
_IS_GONE = f"Triton {triton.__version__} no longer has the part of its interpreter that tests/support replaces"


@triton.jit
def _next(number):
    return number + 1


@triton.jit
def _count(number):
    tl.store(number, _next(tl.load(number)))


@triton.jit
def _check(number):
    tl.device_assert(tl.load(number) == 0, "not 0")


def _counted(number: int) -> int:
    memory = torch.tensor([number], dtype=torch.int32)
    _count[(1,)](memory)
    return int(memory)


def test_a_call_of_one_kernel_by_another_is_the_faster_one() -> None:
    with fast_interpreter() as modules:
        assert _counted(1) == 2
    assert modules == {__name__}, _IS_GONE


def test_sums_are_not_compared_with_those_of_64_bits() -> None:
    with interpreter_with_asserts():
        assert _counted(_HIGHEST) == -_HIGHEST - 1
        with triton_interpreter._options(sanitize_overflow=True), pytest.raises(Exception, match="overflow"):
            pytest.fail(f"{_IS_GONE}: {_counted(_HIGHEST)}")


def test_asserts_of_kernels_are_checked_where_they_are_asked_for() -> None:
    _check[(1,)](torch.ones(1))
    with interpreter_with_asserts(), pytest.raises(Exception, match="not 0"):
        _check[(1,)](torch.ones(1))
