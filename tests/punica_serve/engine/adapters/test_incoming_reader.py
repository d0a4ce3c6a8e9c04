"""Adapters that are packed while they are downloaded from a web server, which stops half way where a test says so."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock, call

import pytest
from msgspec.structs import replace

from file_server import FileServer, serve_files
from host_downloads import HostDownloads, host_downloads, serve_in_halves, spy_on, weights_path
from incoming_download import IncomingDownload, follow
from packed_worker import Worker, equal
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters import host_load, incoming_reader
from punica_serve.engine.adapters.adapter_packer import AdapterPacker
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.host_loader import HostLoader, LoadResult
from punica_serve.engine.adapters.load_trace import LoadPhase, LoadTrace
from punica_serve.errors import AdapterRejected, StoreUnavailable
from punica_serve.protocol import AdapterRef
from punica_serve.store import download
from punica_serve.store.checksum_file import write_checksums
from punica_serve.store.incoming_adapter import IncomingAdapter
from waits import DEADLINE_S, wait_for


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve_files() as made:
        yield made


@pytest.fixture
def downloads(folder: Path) -> Iterator[HostDownloads]:
    with host_downloads(folder) as made:
        yield made


@pytest.fixture
def incoming(
    ref: AdapterRef, model: ModelConfig, downloads: HostDownloads, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> IncomingDownload:
    return IncomingDownload(ref, serve_in_halves(ref, server, monkeypatch), model, downloads, server)


@pytest.fixture
def packed_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How far into an adapter's file all workers together have packed."""
    calls = spy_on(AdapterPacker, "pack", monkeypatch)
    return lambda: sum(max(end for packer, end in calls if packer is each) for each in {call[0] for call in calls})


def result(followed: "Future[Any]") -> HostCopy:
    copy = followed.result(DEADLINE_S)
    assert isinstance(copy, HostCopy)
    return copy


def test_half_of_an_adapter_is_packed_when_half_of_it_has_come(
    incoming: IncomingDownload, packed_to: Callable[[], int], packings: list[str]
) -> None:
    """And the pages are those of an adapter that is read from its folder."""
    trace = LoadTrace(incoming.ref.digest)
    followed = incoming.follow(trace)
    wait_for(lambda: packed_to() >= 3 * incoming.ref.num_bytes // 8)
    assert not followed.done() and incoming.worker.cache.digests == ()
    incoming.go_on()
    copy = result(followed)
    assert packings == [], "its folder was not read"
    assert [span.phase for span in trace.spans] == [LoadPhase.FETCHING, LoadPhase.PACKING]
    assert incoming.is_whole(copy)
    incoming.worker.settle()
    assert incoming.worker.store.has(incoming.ref), "its packed form is kept as ever"


def test_nothing_is_served_before_its_digest_is_known(
    incoming: IncomingDownload, packed_to: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All bytes are packed, and only the SHA-256 is late."""
    is_right = Event()

    def write_late(folder: Path, checksums: bytes) -> None:
        assert is_right.wait(DEADLINE_S)
        write_checksums(folder, checksums)

    monkeypatch.setattr(download, "write_checksums", write_late)
    incoming.go_on()
    followed = incoming.follow()
    wait_for(lambda: packed_to() == incoming.ref.num_bytes)
    assert not followed.done() and incoming.ref.digest not in incoming.worker.cache
    is_right.set()
    incoming.worker.cache.release(result(followed))
    assert incoming.ref.digest in incoming.worker.cache


@pytest.mark.parametrize("place", [3, 300, -1])
def test_a_wrong_digest_drops_what_was_packed(
    incoming: IncomingDownload, caplog: pytest.LogCaptureFixture, place: int
) -> None:
    """A header that is none, one that is another, one value. The process that downloads says it, and nobody else."""
    content = bytearray(incoming.server.files[weights_path(incoming.ref)])
    content[place] ^= 0x7F
    incoming.server.files[weights_path(incoming.ref)] = bytes(content)
    incoming.go_on()
    with caplog.at_level(logging.INFO), pytest.raises(AdapterRejected, match="the store's bytes differ"):
        incoming.follow().result(DEADLINE_S)
    assert incoming.worker.cache.used_bytes == 0 and incoming.worker.cache.take_changes() == ((), ())
    assert not caplog.records


def test_a_download_that_breaks_is_dropped_and_the_next_one_is_packed(
    incoming: IncomingDownload, packed_to: Callable[[], int]
) -> None:
    incoming.cut_half_way()
    followed = incoming.follow()
    wait_for(packed_to)
    incoming.go_on()
    with pytest.raises(StoreUnavailable):
        followed.result(DEADLINE_S)
    assert incoming.worker.cache.used_bytes == 0
    incoming.server.cut_from.clear()
    assert incoming.is_whole(result(incoming.follow()))


def test_a_connection_that_is_cut_half_way_is_resumed(
    incoming: IncomingDownload, packed_to: Callable[[], int], packings: list[str]
) -> None:
    """The first half is neither asked for nor packed again."""
    incoming.cut_half_way()
    incoming.server.num_cuts = 2
    followed = incoming.follow()
    wait_for(packed_to)
    incoming.go_on()
    copy = result(followed)
    assert incoming.server.num_cuts == 0 and packings == []
    assert incoming.is_whole(copy)


def test_two_workers_pack_one_download(incoming: IncomingDownload, packed_to: Callable[[], int]) -> None:
    workers = [incoming.worker, incoming.make_worker()]
    followed = [follow(worker, incoming.remote, incoming.fetch()) for worker in workers]
    wait_for(lambda: packed_to() >= 2 * 3 * incoming.ref.num_bytes // 8)
    incoming.go_on()
    first, second = (result(each) for each in followed)
    num_gets = incoming.server.num_gets
    assert equal(first, second) and num_gets[weights_path(incoming.ref)] == num_gets.total() - 1
    assert incoming.is_whole(first)


def test_a_download_that_stops_is_left_alone_and_still_awaited(
    incoming: IncomingDownload, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its memory is free meanwhile, and the reason is told once. If it goes on after all, its folder is read."""
    monkeypatch.setattr(incoming_reader, "_SILENCE_S", 0.3)
    followed = incoming.follow()
    wait_for(lambda: caplog.records)
    assert [record.getMessage() for record in caplog.records] == [
        f"adapter {incoming.ref.digest} is read again after its download: nothing has come of it for 0.3 s"
    ]
    assert incoming.worker.cache.used_bytes == 0 and not followed.done()
    incoming.go_on()
    assert followed.result(DEADLINE_S) == incoming.folder


def test_an_unwanted_download_is_followed_no_longer(incoming: IncomingDownload, packed_to: Callable[[], int]) -> None:
    """Deleted half way: host memory is free at once, though the store still sends."""
    followed = incoming.follow()
    wait_for(packed_to)
    assert incoming.worker.cache.used_bytes
    incoming.worker.reader.evict(incoming.ref.digest)
    removed = incoming.host.forget(incoming.ref.digest)
    wait_for(lambda: not incoming.worker.cache.used_bytes)
    assert not followed.done() and removed.result(DEADLINE_S) is False
    incoming.go_on()
    assert followed.result(DEADLINE_S) == incoming.folder
    wait_for(lambda: not incoming.folder.exists())


def test_a_thread_that_a_disk_holds_behind_a_fetch_is_given_up_and_of_use_once_it_ends(
    incoming: IncomingDownload, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, read = Event(), IncomingAdapter.read

    def read_late(*arguments: Any) -> int:
        assert gate.wait(DEADLINE_S)
        return read(*arguments)

    monkeypatch.setattr(IncomingAdapter, "read", read_late)
    monkeypatch.setattr(host_load, "_READ_TIMEOUT_S", 0.05)
    loader = HostLoader(incoming.worker.cache, incoming.worker.reader, incoming.host.fetch, lambda: None)
    loader.get(incoming.remote)
    incoming.go_on()
    results: list[LoadResult] = []

    def told() -> list[LoadResult]:
        results.extend(loader.poll())
        return results

    wait_for(told)
    assert isinstance(results[0].result, StoreUnavailable) and "disk does not answer" in str(results[0].result)
    gate.set()
    wait_for(lambda: told() and loader.is_idle)
    assert len(results) == 2 and isinstance(results[1].result, HostCopy)


def test_a_bug_is_logged_and_costs_no_more_than_the_packing(
    incoming: IncomingDownload, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(AdapterPacker, "finish", Mock(side_effect=ZeroDivisionError))
    incoming.go_on()
    assert incoming.follow().result(DEADLINE_S) == incoming.folder
    (record,) = caplog.records
    assert incoming.ref.digest in record.getMessage() and record.exc_info and incoming.worker.cache.used_bytes == 0


def test_peers_are_not_told_of_a_download_that_was_evicted_before(
    incoming: IncomingDownload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would pack it after they were told to forget it."""
    peers, has_begun = Mock(), Event()
    monkeypatch.setattr(incoming.worker.reader, "_peers", peers)
    loader = HostLoader(incoming.worker.cache, incoming.worker.reader, incoming.host.fetch, has_begun.set)
    loader.get(incoming.remote)
    assert has_begun.wait(DEADLINE_S)
    loader.evict(incoming.ref.digest)
    incoming.go_on()
    wait_for(lambda: not loader.poll() and loader.is_idle)
    assert peers.mock_calls == [call.forget(incoming.ref.digest)]


def test_more_downloads_than_threads_are_packed_afterwards(
    model: ModelConfig,
    tmp_path: Path,
    server: FileServer,
    downloads: HostDownloads,
    packed_to: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many stores are slow, a few threads wait for them, and the others' fetches end by themselves."""
    monkeypatch.setattr(incoming_reader, "MAX_FOLLOWED", 1)
    slow, quick = (
        read_adapter(write_random_adapter(tmp_path / name, model, rank=4, seed=seed), model)
        for seed, name in enumerate(("slow", "quick"))
    )
    worker, held = Worker(downloads.folder, model), serve_in_halves(slow, server, monkeypatch)
    followed = follow(worker, held, downloads.fetch(held))
    wait_for(packed_to)
    free = replace(quick, uri=server.add_adapter(quick, f"/store/{quick.digest}"))
    assert follow(worker, free, downloads.fetch(free)).result(DEADLINE_S) == downloads.folder / quick.digest
    assert not followed.done()
    server.may_go_on.set()
    result(followed)


def test_an_adapter_on_the_disk_is_not_followed(incoming: IncomingDownload) -> None:
    incoming.go_on()
    folder = incoming.fetch().result(DEADLINE_S)
    assert incoming.follow().result(DEADLINE_S) == folder


@pytest.mark.parametrize("place", ["", "incoming", "incoming/DIGEST", "incoming/DIGEST/adapter_model.safetensors"])
def test_what_others_may_write_is_not_followed(incoming: IncomingDownload, place: str) -> None:
    """It is read, and hashed, once it is whole."""
    fetch = incoming.fetch()
    weights = incoming.host.folder / "incoming" / incoming.ref.digest / "adapter_model.safetensors"
    wait_for(lambda: weights.exists() and weights.stat().st_size)
    path = incoming.host.folder / place.replace("DIGEST", incoming.ref.digest)
    path.chmod(path.stat().st_mode | 0o020)
    assert incoming.worker.store.incoming(incoming.ref.digest) is None
    followed = follow(incoming.worker, incoming.remote, fetch)
    incoming.go_on()
    assert followed.result(DEADLINE_S) == incoming.folder
