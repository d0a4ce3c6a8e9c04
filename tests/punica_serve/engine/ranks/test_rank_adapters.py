"""The adapters of a rank that follows: which read its copies come from. The tests end the reads."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.adapters.packing import packed_num_bytes, packed_views
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.engine.ranks.rank_adapters import RankAdapters
from punica_serve.engine.ranks.rank_copies import RankCopies
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S

_PAGES: dict[Any, list[int]] = {"qkv": [3]}
_REF = AdapterRef("a", "https://store.example/a", 1, {"q_proj": 8})


class _PlayedReader:
    """Reads that the test ends."""

    def __init__(self) -> None:
        self.reads: list[Future[HostCopy]] = []

    def read_along(self, _: AdapterRef) -> Future[HostCopy]:
        self.reads.append(Future())
        return self.reads[-1]

    def close(self) -> None: ...


@pytest.fixture
def reader() -> _PlayedReader:
    return _PlayedReader()


@pytest.fixture
def host_cache() -> HostCache:
    return HostCache(HostMemory(1 << 22))


@pytest.fixture
def adapters(tiny_model: ModelConfig, host_cache: HostCache, reader: Any) -> Iterator[RankAdapters]:
    pool = LoraPool(tiny_model, num_pages=4, dtype=torch.float32, device=torch.device("cpu"))
    adapters = RankAdapters(RankCopies(pool, host_cache, by_layer=True), host_cache, reader)
    yield adapters
    adapters.close()


@pytest.fixture
def make_copy(tiny_model: ModelConfig, host_cache: HostCache) -> Callable[[], HostCopy]:
    """The adapter in host memory, with a reference."""
    num_bytes = packed_num_bytes(_REF.ranks, tiny_model, torch.float32)

    def make() -> HostCopy:
        return host_cache.make(
            _REF.digest, num_bytes, lambda memory: packed_views(memory, _REF.ranks, tiny_model, torch.float32)
        )

    return make


def test_a_copy_comes_from_the_read_ahead_of_it(
    adapters: RankAdapters, reader: _PlayedReader, make_copy: Callable[[], HostCopy]
) -> None:
    adapters.read(_REF)
    copied = adapters.copy(_REF, _PAGES)
    reader.reads[0].set_result(make_copy())
    assert copied.result(DEADLINE_S) is None
    assert len(reader.reads) == 1


def test_a_copy_reads_again_what_an_earlier_load_failed_to_read(
    adapters: RankAdapters, reader: _PlayedReader, make_copy: Callable[[], HostCopy]
) -> None:
    """The second load began before this rank had noticed that the first had failed, so nothing was read for it."""
    adapters.read(_REF)
    adapters.read(_REF)
    reader.reads[0].set_exception(FileNotFoundError("the download was cut"))
    copied = adapters.copy(_REF, _PAGES)
    reader.reads[1].set_result(make_copy())
    assert copied.result(DEADLINE_S) is None


def test_a_read_that_fails_while_its_copy_waits_fails_the_copy(adapters: RankAdapters, reader: _PlayedReader) -> None:
    adapters.read(_REF)
    copied = adapters.copy(_REF, _PAGES)
    reader.reads[0].set_exception(RuntimeError("the disk is gone"))
    assert str(copied.exception(DEADLINE_S)) == "the disk is gone"
