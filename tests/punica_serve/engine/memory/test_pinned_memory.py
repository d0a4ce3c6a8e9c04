import errno
import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from pinned import can_be_pinned, is_read_in_place
from punica_serve.engine.memory import pinned_memory
from punica_serve.engine.memory.pinned_memory import HostMemory, PinnedMemory, open_host_memory
from punica_serve.errors import ConfigError


@pytest.mark.parametrize("num_bytes", [0, 1, 5000, 1 << 20])
def test_a_cpus_memory_is_ordinary(num_bytes: int) -> None:
    memory = open_host_memory(num_bytes, torch.device("cpu"))
    assert type(memory) is HostMemory
    assert memory.bytes.shape == (num_bytes,) and memory.bytes.dtype == torch.uint8
    assert num_bytes == 0 or memory.bytes.data_ptr() % 4096 == 0
    memory.bytes.fill_(7)
    memory.close()
    assert memory.bytes.eq(7).all(), "what holds the bytes may still read them"


def test_more_than_there_can_be_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"`engine\.host_cache_bytes` of .* can't be had: .*; lower it") as caught:
        HostMemory(1 << 62)
    assert caught.value.param == "engine.host_cache_bytes"


def test_memory_that_can_not_be_shared_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", fail)
    with pytest.raises(ConfigError, match=r"`engine\.host_cache_bytes` of .* can't be had: .*Too many open files"):
        HostMemory(4096, is_shared=True)


def test_memory_that_can_not_be_pinned_names_the_setting_and_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(error: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(pinned_memory, "bring_to_gpu", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(cudaHostRegister=lambda *_: 2))
    monkeypatch.setattr(torch.cuda, "check_error", refuse)
    with pytest.raises(ConfigError, match=r"`engine\.host_cache_bytes` of .* can't be pinned: .*raise `ulimit -l`"):
        PinnedMemory(1 << 20, torch.device("cpu")).pin()


@pytest.mark.gpu
def test_a_gpus_memory_is_pinned_as_long_as_it_is_open() -> None:
    memory = open_host_memory((64 << 20) + 12345, torch.device("cuda", 0))
    assert isinstance(memory, PinnedMemory) and is_read_in_place(memory.bytes)
    memory.bytes.fill_(7)
    copy = torch.empty(len(memory.bytes), dtype=torch.uint8, device="cuda")
    copy.copy_(memory.bytes, non_blocking=True)
    assert copy.eq(7).all()
    memory.close()
    assert can_be_pinned(memory.bytes) and memory.bytes.eq(7).all()
    memory.close()
    assert not len(open_host_memory(0, torch.device("cuda", 0)).bytes)
