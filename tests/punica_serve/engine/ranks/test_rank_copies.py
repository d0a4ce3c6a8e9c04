"""Copies of a rank that follows: what they wait for, and who waits for them. Events of a GPU are played."""

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest
import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.layer_arrival import ArrivalFailed, CpuArrival
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.adapters.packing import packed_num_bytes, packed_views
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.engine.rank_engine import _done
from punica_serve.engine.ranks.joined_futures import joined
from punica_serve.engine.ranks.rank_copies import RankCopies
from punica_serve.engine.ranks.rank_messages import Done
from waits import DEADLINE_S

_RANKS = {"q_proj": 8}
_PAGES: dict[Any, list[int]] = {"qkv": [3]}


class _Fence:
    """The end of a step."""

    has_passed = False

    def query(self) -> bool:
        return self.has_passed


@pytest.fixture
def host_cache() -> HostCache:
    return HostCache(HostMemory(1 << 22))


@pytest.fixture
def copies(tiny_model: ModelConfig, host_cache: HostCache) -> Iterator[RankCopies]:
    pool = LoraPool(tiny_model, num_pages=4, dtype=torch.float32, device=torch.device("cpu"))
    copies = RankCopies(pool, host_cache, by_layer=True)
    yield copies
    copies.close()


@pytest.fixture
def held(tiny_model: ModelConfig, host_cache: HostCache) -> Callable[[str], HostCopy]:
    """An adapter in host memory, with a reference."""
    num_bytes = packed_num_bytes(_RANKS, tiny_model, torch.float32)

    def make(digest: str) -> HostCopy:
        return host_cache.make(
            digest, num_bytes, lambda memory: packed_views(memory, _RANKS, tiny_model, torch.float32)
        )

    return make


def test_a_copy_waits_for_the_last_steps_that_read_freed_adapters(
    copies: RankCopies, held: Callable[[str], HostCopy], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_for: list[tuple[Any, ...]] = []
    write = LoraPool.write

    def spy(pool: LoraPool, pages: Any, packed: Any, after: Any, arrival: Any) -> float:
        waited_for.append(after)
        return write(pool, pages, packed, after, arrival)

    monkeypatch.setattr(LoraPool, "write", spy)
    earlier, last, other = (_Fence() for _ in range(3))
    ends: list[Any] = [earlier, last, other]
    copies.start("a", _PAGES, held("a")).result(DEADLINE_S)
    copies.mark_used(["a"], ends[0])
    copies.mark_used(["a"], ends[1])
    copies.mark_used(["stays"], ends[2])
    copies.free("a")
    copies.start("b", _PAGES, held("b")).result(DEADLINE_S)
    last.has_passed = True
    copies.free("b")  # no step has used it
    copies.start("c", _PAGES, held("c")).result(DEADLINE_S)
    assert waited_for == [(), (last,), ()]
    assert copies.pages_by_digest == {"c": _PAGES}


def test_pages_of_another_adapter_are_refused_until_it_is_freed(
    copies: RankCopies, held: Callable[[str], HostCopy]
) -> None:
    copies.start("a", _PAGES, held("a")).result(DEADLINE_S)
    copy = held("b")
    with pytest.raises(AssertionError, match="adapter b was given pages of another one"):
        copies.start("b", _PAGES, copy)
    copies.free("a")
    copies.start("b", _PAGES, copy).result(DEADLINE_S)
    assert copies.pages_by_digest == {"b": _PAGES}


def test_a_copy_that_is_there_is_waited_for_no_longer(copies: RankCopies, held: Callable[[str], HostCopy]) -> None:
    copies.start("a", _PAGES, held("a")).result(DEADLINE_S)
    assert copies.queued("a").result(DEADLINE_S) is None
    assert copies.arrival("a") is None


def test_a_copy_that_fails_lets_go_of_the_leader_and_of_the_step(copies: RankCopies) -> None:
    read: Future[HostCopy] = Future()
    copied = copies.start("a", _PAGES, read)
    queued, arrival = copies.queued("a"), copies.arrival("a")
    assert isinstance(arrival, CpuArrival)
    read.set_exception(RuntimeError("the disk is gone"))
    for ended in (copied, queued):
        assert str(ended.exception(DEADLINE_S)) == "the disk is gone"
    with pytest.raises(ArrivalFailed):
        arrival.wait(0)
    assert copies.arrival("a") is arrival, "a step that was sent before the error is known must fail too"


def test_copies_that_have_not_begun_when_their_threads_close_fail_without_a_traceback(
    copies: RankCopies, caplog: pytest.LogCaptureFixture
) -> None:
    reads: list[Future[HostCopy]] = [Future() for _ in range(2)]
    busy = [copies.start(f"{number}", {}, read) for number, read in enumerate(reads)]
    waiting = copies.start("waiting", _PAGES, Future())
    told: list[Done] = []
    waiting.add_done_callback(lambda copy: told.append(_done(7, copy)))
    whole = joined(waiting, *busy)
    copies._threads.shutdown(wait=False, cancel_futures=True)
    for read in reads:
        read.set_exception(RuntimeError("the disk is gone"))
    assert isinstance(whole.exception(DEADLINE_S), CancelledError)
    assert [done.number for done in told] == [7] and told[0].error is not None
    assert not caplog.records
