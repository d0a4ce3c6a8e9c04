"""Groups whose ranks pack an adapter while their host downloads it, from a web server that stops half way."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cold_requests import cold_adapters, cold_request, finish_requests, run_requests
from file_server import FileServer, serve_files
from host_downloads import HostDownloads, host_downloads, serve_in_halves, spy_on, weights_path
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters import reader as adapter_reader
from punica_serve.engine.adapters.adapter_packer import AdapterPacker
from punica_serve.engine.engine import Engine
from punica_serve.errors import StoreUnavailable
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedCache
from thread_group import thread_group
from waits import DEADLINE_S


@pytest.fixture
def config(make_llama: Callable[..., Path]) -> EngineConfig:
    return EngineConfig(
        model=make_llama(num_hidden_layers=9),
        dtype="float32",
        page_size=4,
        num_kv_pages=256,
        num_lora_pages=64,
        max_batch_size=4,
        prefill_budget_tokens=16,
    )


@pytest.fixture
def ref(config: EngineConfig, tmp_path: Path) -> AdapterRef:
    return cold_adapters(config.model, tmp_path, 1)[0]


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve_files() as made:
        yield made


@pytest.fixture
def remote(ref: AdapterRef, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> AdapterRef:
    return serve_in_halves(ref, server, monkeypatch)


@pytest.fixture
def downloads(tmp_path: Path) -> Iterator[HostDownloads]:
    with host_downloads(tmp_path / "cache") as made:
        yield made


@pytest.fixture(params=[1, 2])
def num_ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def engine(
    config: EngineConfig, downloads: HostDownloads, num_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    cache = PackedCache(downloads.folder, 1 << 30)
    if num_ranks > 1:
        with thread_group(monkeypatch, config, num_ranks, downloads.fetch, cache) as made:
            yield made
        return
    made = Engine(config, "cpu", downloads.fetch, cache)
    yield made
    made.check_invariants()
    made.close()


@pytest.fixture
def expected(config: EngineConfig, ref: AdapterRef) -> dict[str, list[int]]:
    """Tokens of an adapter from a folder, on one device."""
    engine = Engine(config)
    tokens, failures = run_requests(engine, cold_request("cold", ref))
    engine.close()
    assert not failures
    return tokens


def step_until(engine: Engine, condition: Callable[[], object]) -> None:
    for _ in range(int(DEADLINE_S / 0.01)):
        if condition():
            return
        if not engine.step().has_run:
            engine.wait(0.01)
    raise AssertionError("the engine makes no progress")


def test_all_ranks_pack_what_has_come(
    engine: Engine,
    num_ranks: int,
    ref: AdapterRef,
    remote: AdapterRef,
    server: FileServer,
    expected: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No rank reads the folder, and none downloads again."""
    packed, read = spy_on(AdapterPacker, "pack", monkeypatch), spy_on(adapter_reader, "begin_load", monkeypatch)
    engine.add(cold_request("cold", remote))
    step_until(engine, lambda: len({packer for packer, end in packed if end >= 3 * ref.num_bytes // 8}) == num_ranks)
    assert engine.num_requests == 1
    server.may_go_on.set()
    tokens, failures = finish_requests(engine)
    assert tokens == expected and not failures
    assert not read and server.num_gets[weights_path(ref)] == server.num_gets.total() - 1


def test_a_cut_connection_fails_the_load_and_the_next_one_works(
    engine: Engine, ref: AdapterRef, remote: AdapterRef, server: FileServer, expected: dict[str, list[int]]
) -> None:
    """Others go on meanwhile."""
    server.cut_from[weights_path(ref)] = ref.num_bytes // 2
    server.may_go_on.set()
    tokens, (failure,) = run_requests(engine, cold_request("cold", remote), cold_request("base", None))
    assert failure.request_ids == ("cold",) and isinstance(failure.error, StoreUnavailable)
    assert len(tokens["base"]) == 6
    server.cut_from.clear()
    tokens, failures = run_requests(engine, cold_request("cold", remote))
    assert tokens == expected and not failures


def test_wrong_bytes_fail_the_request_on_all_ranks(
    engine: Engine, ref: AdapterRef, remote: AdapterRef, server: FileServer
) -> None:
    content = bytearray(server.files[weights_path(ref)])
    content[-1] ^= 1
    server.files[weights_path(ref)] = bytes(content)
    server.may_go_on.set()
    tokens, (failure,) = run_requests(engine, cold_request("cold", remote), cold_request("base", None))
    assert "the store's bytes differ" in failure.error.message
    assert list(tokens) == ["base"] and engine.host_cache.used_bytes == 0
