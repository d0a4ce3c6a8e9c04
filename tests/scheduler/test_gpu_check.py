"""Which GPUs may join."""

import pytest

from punica_scheduler.gpu_check import check_gpu
from punica_serve.errors import ProtocolError
from punica_serve.performance.profile import load_profile
from punica_serve.protocol import GpuInfo


def gpu(device_name: str = "", *, num_kv_pages: int = 8, ranks: tuple[str, ...] = ()) -> GpuInfo:
    return GpuInfo("GPU-1", "cuda:0", 4, 16, num_kv_pages, {}, "host/0", device_name, ranks=ranks)


@pytest.mark.parametrize("device_name", ["NVIDIA H200", "simulated"])
def test_gpus_of_the_profile_and_simulated_ones_may_join(device_name: str) -> None:
    check_gpu(gpu(device_name), load_profile("h200-7b"))


def test_a_gpu_of_another_device_than_the_profile_is_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match=r"GPU host/0 can't join: it is a 'NVIDIA A10', and .* of a 'NVIDIA H200'"):
        check_gpu(gpu("NVIDIA A10"), load_profile("h200-7b"))


def test_a_group_of_another_size_than_the_profile_is_refused_by_name() -> None:
    group = gpu("NVIDIA H200", ranks=("GPU-1", "GPU-2"))
    profile = load_profile("h200-7b")
    with pytest.raises(ProtocolError, match=r"it is a group of 2 'NVIDIA H200', and .* of a 'NVIDIA H200'; measure"):
        check_gpu(group, profile)
    check_gpu(group, profile.model_copy(update={"group_size": 2}))
    with pytest.raises(ProtocolError, match=r"it is a 'NVIDIA H200', and .* of a group of 2 'NVIDIA H200'"):
        check_gpu(gpu("NVIDIA H200"), profile.model_copy(update={"group_size": 2}))


def test_without_a_profile_any_device_may_join() -> None:
    check_gpu(gpu("NVIDIA A10"), None)


def test_a_gpu_that_could_hold_nothing_is_refused() -> None:
    with pytest.raises(ProtocolError, match="without a batch, a page size and pages"):
        check_gpu(gpu(num_kv_pages=0), None)
