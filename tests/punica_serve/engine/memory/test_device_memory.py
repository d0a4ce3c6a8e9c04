import re

import pytest
import torch

from punica_serve.engine.memory.available_memory import available_bytes
from punica_serve.engine.memory.device_memory import open_device, reserving
from punica_serve.errors import ConfigError

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["foo", "meta", "cuda:99"])
def test_a_device_that_can_not_be_used_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^device '{name}' (can't be used: .|is neither cpu nor cuda:N)"):
        open_device(name)
    assert open_device("cpu") == CPU


def test_what_does_not_fit_names_size_setting_and_fix() -> None:
    message = r"^the pool does not fit cpu: it takes 1\.0 GiB, \d+\.\d GiB are free; lower it$"
    with (
        pytest.raises(ConfigError, match=message) as caught,
        reserving("the pool", 1 << 30, CPU, fix="lower it", param="x"),
    ):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory")
    assert caught.value.param == "x"


def test_what_has_equal_parts_names_how_many_fit() -> None:
    """More than any machine has, so that the system refuses it."""
    num_bytes, count = 1 << 60, 1 << 20
    message = r"^the pool does not fit cpu: it takes 1073741824\.0 GiB, \d+\.\d GiB are free; lower it(?: to (\d+))?$"
    with (
        pytest.raises(ConfigError, match=message) as caught,
        reserving("the pool", num_bytes, CPU, fix="lower it", param="x", count=count),
    ):
        torch.empty(num_bytes, dtype=torch.uint8)
    found = re.match(message, caught.value.message)
    assert found is not None
    part = num_bytes // count
    assert abs(int(found[1] or 0) * part - available_bytes()) < 64 * part


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("Storage size calculation overflowed with sizes=[1152921504606846976]"),
    ],
)
def test_every_way_of_running_out_is_known(error: Exception) -> None:
    with (
        pytest.raises(ConfigError, match=r"the pool does not fit cpu: .*; lower it") as caught,
        reserving("the pool", 1, CPU, fix="lower it", param="x"),
    ):
        raise error
    assert caught.value.__cause__ is error and "\n" not in caught.value.message


@pytest.mark.parametrize("text", ["CUDA error: device-side assert triggered", "mat1 and mat2 do not fit"])
def test_what_went_wrong_otherwise_is_no_lack_of_memory(text: str) -> None:
    with pytest.raises(RuntimeError, match=text), reserving("the pool", 1, CPU, fix="", param="x"):
        raise RuntimeError(text)


def test_other_errors_pass() -> None:
    with pytest.raises(ValueError, match="mine"), reserving("the pool", 1, CPU, fix="", param="x"):
        raise ValueError("mine")


@pytest.mark.gpu
def test_a_gpu_says_what_is_free() -> None:
    gpu = torch.device("cuda", 0)
    message = r"the pool does not fit cuda:0: it takes 1048576\.0 GiB, \d+\.\d GiB are free; lower it"
    with pytest.raises(ConfigError, match=message), reserving("the pool", 1 << 50, gpu, fix="lower it", param="x"):
        torch.empty(1 << 50, dtype=torch.uint8, device=gpu)
