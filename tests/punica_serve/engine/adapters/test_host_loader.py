"""Loading adapters to host memory, from stores that answer when the test says so."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from shutil import rmtree
from threading import Event

import pytest
import torch
from msgspec.structs import replace

from engine_fixtures import MakeAdapter
from loader_harness import gate_reads, poll_until
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters import host_load
from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.host_loader import HostLoader, LoadResult, no_fetch
from punica_serve.engine.adapters.load_trace import LoadPhase
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.errors import AdapterRejected, StoreUnavailable
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S, wait_for

CPU = torch.device("cpu")


class _Harness:
    def __init__(self, model: ModelConfig) -> None:
        self.progress = Event()
        self.cache = HostCache(HostMemory(1 << 24))
        self.reader = AdapterReader(self.cache, model, torch.float32, CPU)
        #: Calls of the store, in order; open until a test sets it.
        self.fetches: list[tuple[AdapterRef, Future[Path]]] = []
        self.loader = HostLoader(self.cache, self.reader, self._fetch, self.progress.set)

    def _fetch(self, ref: AdapterRef) -> Future[Path]:
        self.fetches.append((ref, Future()))
        return self.fetches[-1][1]

    def until(self, condition: Callable[[], bool]) -> list[LoadResult]:
        return poll_until(self.loader.poll, self.progress, condition)

    def arrive(self) -> list[LoadResult]:
        """All that comes without another word from the store; what has come is let go."""
        results = self.until(lambda: self.loader.is_idle)
        for loaded in results:
            if isinstance(loaded.result, HostCopy):
                self.cache.release(loaded.result)
        return results


@pytest.fixture
def harness(tiny_model: ModelConfig) -> Iterator[_Harness]:
    made = _Harness(tiny_model)
    yield made
    made.loader.close()


def _remote(ref: AdapterRef) -> tuple[AdapterRef, Path]:
    """The adapter as if it lay in a store, and where it really is."""
    return replace(ref, uri=f"s3://bucket/{ref.digest}"), Path(ref.uri)


def test_a_remote_adapter_is_fetched_and_then_read(harness: _Harness, make_adapter: MakeAdapter) -> None:
    ref, folder = _remote(make_adapter())
    (copy, trace), (again, known) = harness.loader.get(ref), harness.loader.get(ref)
    assert copy is None and again is None and known is trace
    ((asked, fetch),) = harness.fetches
    assert asked == ref
    fetch.set_result(folder)
    (loaded,) = harness.arrive()
    assert loaded.ref == ref and isinstance(loaded.result, HostCopy)
    assert [span.phase for span in trace.spans] == [
        LoadPhase.FETCHING,
        LoadPhase.READER,
        LoadPhase.PACKING,
        LoadPhase.STAGING,
    ]
    copy, _ = harness.loader.get(ref)
    assert copy is not None and len(harness.fetches) == 1


def test_a_store_that_hangs_delays_nobody_whose_files_are_here(harness: _Harness, make_adapter: MakeAdapter) -> None:
    """Neither requests nor what is brought ahead of use, however many hang."""
    local = [make_adapter(seed=seed) for seed in range(3)]
    for number in range(4 * harness.reader.num_threads):
        hanging = replace(local[0], digest=f"hangs {number}", uri="s3://bucket/hangs")
        harness.loader.get(hanging)
        harness.loader.enqueue(replace(hanging, digest=f"queued {number}"), for_device=False)
        harness.loader.prefetch_to_host(replace(hanging, digest=f"prefetched {number}"))
    harness.loader.get(local[0])
    harness.loader.enqueue(local[1], for_device=False)
    harness.loader.prefetch_to_host(local[2])
    results = harness.until(lambda: all(ref.digest in harness.cache for ref in local))
    assert all(isinstance(loaded.result, HostCopy) for loaded in results)


@pytest.mark.parametrize("error", [AdapterRejected("not what it was"), StoreUnavailable("no answer")])
def test_errors_of_the_store_are_reported(harness: _Harness, make_adapter: MakeAdapter, error: Exception) -> None:
    ref, _ = _remote(make_adapter())
    harness.loader.get(ref)
    harness.fetches[0][1].set_exception(error)
    assert harness.arrive() == [LoadResult(ref, error, for_device=False, stream=None)]
    harness.loader.get(ref)
    assert len(harness.fetches) == 2, "whoever asks again is asked again"


def test_a_folder_that_has_left_the_disk_meanwhile_is_fetched_again(
    harness: _Harness, make_adapter: MakeAdapter, tmp_path: Path
) -> None:
    ref, folder = _remote(make_adapter())
    harness.loader.get(ref)
    harness.fetches[0][1].set_result(tmp_path / "gone")
    harness.until(lambda: len(harness.fetches) == 2)
    harness.fetches[1][1].set_result(folder)
    (loaded,) = harness.arrive()
    assert isinstance(loaded.result, HostCopy)


def test_but_not_for_ever(harness: _Harness, make_adapter: MakeAdapter, tmp_path: Path) -> None:
    ref, _ = _remote(make_adapter())
    harness.loader.get(ref)
    for number in range(1, 4):
        harness.until(lambda number=number: len(harness.fetches) == number)  # type: ignore[misc]
        harness.fetches[-1][1].set_result(tmp_path / "gone")
    (loaded,) = harness.arrive()
    assert isinstance(loaded.result, FileNotFoundError) and len(harness.fetches) == 3


def test_a_local_folder_that_is_gone_is_not_fetched(harness: _Harness, make_adapter: MakeAdapter) -> None:
    ref = make_adapter(seed=5)
    rmtree(ref.uri)
    harness.loader.get(ref)
    (loaded,) = harness.arrive()
    assert isinstance(loaded.result, FileNotFoundError) and not harness.fetches


def test_prefetches_are_few_at_a_time_and_read_once(
    harness: _Harness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Event()
    reads = gate_reads(monkeypatch, gate)
    refs = [make_adapter(seed=seed) for seed in range(20)]
    for ref in 2 * refs:
        harness.loader.prefetch_to_host(ref)
    assert not harness.loader._reads.waiting, "what has no place is dropped, since it will be asked for again"
    assert 0 < len(harness.loader._running) < harness.reader.num_threads
    gate.set()
    while len(harness.cache.digests) < len(refs):
        for ref in refs:
            harness.loader.prefetch_to_host(ref)
        harness.arrive()
    assert sorted(reads) == sorted(ref.digest for ref in refs)


def test_what_is_queued_waits_for_a_place_and_a_request_passes_it(
    harness: _Harness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Event()
    reads = gate_reads(monkeypatch, gate)
    refs = [make_adapter(seed=seed) for seed in range(30)]
    for ref in refs:
        assert harness.loader.enqueue(ref, for_device=True)
    assert 0 < len(harness.loader._running) < harness.reader.num_threads
    harness.loader.get(refs[-1])
    assert refs[-1].digest in harness.loader._running, "though it was the last in line"
    gate.set()
    results = harness.arrive()
    assert sorted(reads) == sorted(ref.digest for ref in refs) and all(loaded.for_device for loaded in results)


def test_the_line_has_an_end(harness: _Harness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("punica_serve.engine.adapters.host_loader._MAX_QUEUED", 2)
    ref, _ = _remote(make_adapter())
    taken = [harness.loader.enqueue(replace(ref, digest=str(number)), for_device=False) for number in range(20)]
    assert taken == sorted(taken, reverse=True) and taken.count(True) == len(harness.fetches) + 2


def test_evicting_reaches_queued_running_and_cached_adapters(
    harness: _Harness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Event()
    reads = gate_reads(monkeypatch, gate)
    local, (remote, folder) = make_adapter(seed=1), _remote(make_adapter(seed=2))
    in_line = [make_adapter(seed=seed) for seed in range(3, 30)]
    for ref in (local, remote, *in_line):
        harness.loader.enqueue(ref, for_device=True)
    for ref in (local, remote, in_line[-1]):
        harness.loader.evict(ref.digest)
    gate.set()
    harness.fetches[0][1].set_result(folder)
    results = harness.arrive()
    assert {loaded.ref.digest for loaded in results} == {ref.digest for ref in in_line[:-1]}
    assert remote.digest not in reads and in_line[-1].digest not in reads
    assert local.digest not in harness.cache
    for ref in in_line:
        harness.loader.evict(ref.digest)
    assert harness.cache.used_bytes == 0


def test_a_request_that_comes_after_an_eviction_gets_what_is_under_way(
    harness: _Harness, make_adapter: MakeAdapter
) -> None:
    ref, folder = _remote(make_adapter())
    harness.loader.enqueue(ref, for_device=False)
    harness.loader.evict(ref.digest)
    harness.loader.get(ref)
    harness.fetches[0][1].set_result(folder)
    (loaded,) = harness.arrive()
    assert isinstance(loaded.result, HostCopy) and len(harness.fetches) == 1


def test_without_a_supervisor_a_store_is_out_of_reach(make_adapter: MakeAdapter) -> None:
    ref, _ = _remote(make_adapter())
    with pytest.raises(StoreUnavailable, match=r"s3://bucket/.*only a runner's workers"):
        no_fetch(ref).result(0)


def _fails(results: list[LoadResult]) -> list[str]:
    """The digests that could not be read in time."""
    assert all(isinstance(loaded.result, StoreUnavailable) for loaded in results), results
    return [loaded.ref.digest for loaded in results]


def _gate_late_reads(monkeypatch: pytest.MonkeyPatch) -> tuple[Event, list[str]]:
    """Reads that wait for the event, soon for too long, and the digests of those that have begun."""
    monkeypatch.setattr(host_load, "_READ_TIMEOUT_S", 0.03)
    gate = Event()
    return gate, gate_reads(monkeypatch, gate)


def _late(harness: _Harness) -> list[str]:
    """The loads that are told of once reads have lasted too long."""
    harness.loader.poll()  # notices which have begun
    time.sleep(0.05)
    return _fails(harness.loader.poll())


def test_a_read_that_does_not_end_fails_alone_and_is_of_use_once_it_ends(
    harness: _Harness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, reads = _gate_late_reads(monkeypatch)
    ref = make_adapter()
    harness.loader.get(ref)
    wait_for(lambda: bool(reads))
    assert _late(harness) == [ref.digest] and not harness.loader.poll(), "told once"
    harness.loader.get(ref)
    assert _fails(harness.loader.poll()) == [ref.digest], "who asks meanwhile is told at once"
    harness.loader.prefetch_to_host(ref)
    assert not harness.loader.poll() and reads == [ref.digest], "and nothing is read twice"
    gate.set()
    (loaded,) = harness.arrive()
    assert isinstance(loaded.result, HostCopy) and loaded.stream is None and ref.digest in harness.cache
    assert harness.loader.get(ref)[0] is not None


def test_a_large_adapter_has_more_time(
    harness: _Harness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, reads = _gate_late_reads(monkeypatch)
    small, large = make_adapter(seed=1), replace(make_adapter(seed=2), num_bytes=1_000_000_000)
    for ref in (small, large):
        harness.loader.get(ref)
    wait_for(lambda: len(reads) == 2)
    assert _late(harness) == [small.digest]
    gate.set()


def test_requests_behind_reads_that_do_not_end_are_told_too_and_nothing_piles_up(
    harness: _Harness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, reads = _gate_late_reads(monkeypatch)
    refs = [make_adapter(seed=seed) for seed in range(3 * harness.reader.num_threads)]
    for ref in refs:
        harness.loader.get(ref)
    wait_for(lambda: len(reads) == harness.reader.num_threads)
    assert sorted(_late(harness)) == sorted(ref.digest for ref in refs)
    harness.loader.poll()
    assert sorted(harness.loader._running) == sorted(reads)
    monkeypatch.setattr(host_load, "_READ_TIMEOUT_S", DEADLINE_S)  # for reads that do end
    gate.set()
    harness.arrive()
    assert len(reads) == harness.reader.num_threads
    harness.loader.get(refs[-1])
    (loaded,) = harness.arrive()
    assert isinstance(loaded.result, HostCopy)


def test_a_late_adapter_that_is_deleted_leaves_nothing(
    harness: _Harness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, reads = _gate_late_reads(monkeypatch)
    ref = make_adapter()
    harness.loader.get(ref)
    wait_for(lambda: bool(reads))
    assert _late(harness) == [ref.digest]
    harness.loader.evict(ref.digest)
    gate.set()
    assert not harness.arrive() and harness.cache.used_bytes == 0
