import asyncio
import json
import socket
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest

from punica_frontend.http.listener import bind
from punica_frontend.http.uvicorn_server import EmbeddedServer
from punica_frontend.main import serve
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.bench.free_ports import free_port
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.registry_section import RegistryConfig
from punica_serve.errors import AdapterRejected, ConfigError, ModelRejected
from punica_serve.process.run import Drain
from punica_serve.protocol import Deliveries, Ending, Limits
from punica_serve.text.tokenizer import Tokenizer
from scripted_scheduler import ScriptedScheduler
from waits import DEADLINE_S, until


@pytest.fixture
def config(tmp_path: Path, tokenizer: Tokenizer) -> ClusterConfig:
    """A folder with a tokenizer and no weights, an adapter, and a broken one."""
    folder = tmp_path / "numbers"
    folder.mkdir()
    llama = {
        "model_type": "llama",
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(llama))
    tokenizer._backend.save(str(folder / "tokenizer.json"))
    roman = write_random_adapter(tmp_path / "roman", read_model_config(folder), rank=2, seed=1)
    return ClusterConfig(
        data_folder=tmp_path,
        engine=EngineConfig(model=folder),
        adapters={"roman": roman, "broken": tmp_path / "none"},
        registry=RegistryConfig(timeout_s=60.0),
    )


def start(
    config: ClusterConfig, *, scheduler_url: str, host: str | None = None, port: int = 0, drain: Drain | None = None
) -> Coroutine[Any, Any, None]:
    return serve(config, "secret", scheduler_url=scheduler_url, host=host, port=port, drain=drain or Drain(5.0))


def client_of(url: str) -> httpx.AsyncClient:
    """It knocks until somebody opens: ten tries take longer than any start."""
    return httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, transport=httpx.AsyncHTTPTransport(retries=9))


async def until_ready(client: httpx.AsyncClient) -> None:
    async def is_ready() -> bool:
        return (await client.get("/ready")).status_code == 200

    await until(is_ready, "the frontend is ready")


async def get(url: str) -> httpx.Response | None:
    async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
        try:
            return await client.get(url)
        except httpx.ConnectError:
            return None


async def test_defaults_of_the_model_that_are_not_applied_are_logged_once(
    config: ClusterConfig, scheduler: ScriptedScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    defaults = {"no_repeat_ngram_size": 3, "temperature": 0.5, "use_cache": False}
    (config.engine.model / "generation_config.json").write_text(json.dumps(defaults))
    port = free_port()
    serving = asyncio.create_task(start(config, scheduler_url=f"ws://127.0.0.1:{scheduler.port}", port=port))
    async with client_of(f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/health")).status_code == 200
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    (told,) = [record for record in caplog.records if "not implemented" in record.message]
    assert told.levelname == "WARNING"
    assert told.message.startswith("`no_repeat_ngram_size` of generation_config.json is 3: not implemented")


async def test_it_serves_until_cancelled(config: ClusterConfig, scheduler: ScriptedScheduler) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    scheduler_url = f"ws://127.0.0.1:{scheduler.port}"
    serving = asyncio.create_task(start(config, scheduler_url=scheduler_url, port=port))
    async with client_of(url) as client:
        response = await client.get("/ready")
        assert response.status_code == 503
        await until(lambda: scheduler.is_linked)
        scheduler.send(Limits(1, 64))
        await until_ready(client)
        models = (await client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in models] == ["numbers", "roman"]

        asking = asyncio.create_task(client.post("/v1/generate", json={"prompt": "4", "lora_id": "roman"}))
        await until(lambda: scheduler.added)
        (added,) = scheduler.added
        assert added.request.adapter is not None
        (token_id,) = added.request.prompt_ids
        scheduler.send(Deliveries((added.handle,), (0,), (token_id,), endings=(Ending(added.handle, 1, "length"),)))
        assert (await asking).json()["text"] == "4"
    serving.cancel()
    await asyncio.wait([serving], timeout=DEADLINE_S)
    assert serving.cancelled()
    assert await get(url) is None


async def test_requests_under_way_do_not_hold_up_the_end(config: ClusterConfig, scheduler: ScriptedScheduler) -> None:
    port = free_port()
    scheduler_url = f"ws://127.0.0.1:{scheduler.port}"
    serving = asyncio.create_task(start(config, scheduler_url=scheduler_url, port=port))
    async with client_of(f"http://127.0.0.1:{port}") as client:
        await until(lambda: scheduler.is_linked)  # before, whoever waits for the registry answers
        asking = asyncio.create_task(client.post("/v1/generate", json={"prompt": "4"}))
        await until(lambda: scheduler.added)
        serving.cancel()
        await asyncio.wait([serving], timeout=DEADLINE_S)
        assert serving.cancelled()
        assert "shutting down" in (await asking).json()["error"]["message"]


async def test_a_drain_finishes_what_is_under_way_and_takes_nothing_new(
    config: ClusterConfig, scheduler: ScriptedScheduler
) -> None:
    port = free_port()
    drain = Drain(600.0)
    scheduler_url = f"ws://127.0.0.1:{scheduler.port}"
    serving = asyncio.create_task(start(config, scheduler_url=scheduler_url, port=port, drain=drain))
    async with client_of(f"http://127.0.0.1:{port}") as client:
        await until(lambda: scheduler.is_linked)  # before, whoever waits for the registry answers
        asking = asyncio.create_task(client.post("/v1/generate", json={"prompt": "4"}))
        await until(lambda: scheduler.added)
        drain.begin()
        refused = await client.post("/v1/generate", json={"prompt": "5"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert "shutting down" in refused.json()["error"]["message"]
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200
        assert "punica_draining 1\n" in (await client.get("/metrics")).text
        assert not serving.done()
        handle = scheduler.added[0].handle
        scheduler.send(Deliveries((handle,), (0,), (20,), endings=(Ending(handle, 1, "length"),)))
        assert (await asking).json()["finish_reason"] == "length"
    await asyncio.wait_for(serving, DEADLINE_S)
    assert await get(f"http://127.0.0.1:{port}") is None


async def test_a_drain_without_requests_ends_at_once(config: ClusterConfig, scheduler: ScriptedScheduler) -> None:
    drain = Drain(600.0)
    serving = asyncio.create_task(start(config, scheduler_url=f"ws://127.0.0.1:{scheduler.port}", drain=drain))
    await until(lambda: scheduler.is_linked)
    drain.begin()
    await asyncio.wait_for(serving, DEADLINE_S)


async def test_an_end_does_not_wait_until_all_adapters_are_read(
    config: ClusterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []

    def read_adapter(folder: Path, *_: Any, **__: Any) -> Any:
        reads.append(folder)
        time.sleep(0.02)
        raise AdapterRejected("none of ours")

    def is_reading() -> bool:
        return any(thread.name.startswith("adapter-reader") for thread in threading.enumerate())

    monkeypatch.setattr("punica_serve.registry.config_adapters.read_adapter", read_adapter)
    adapters = {f"a{number}": Path("/nowhere") for number in range(2_000)}
    many = config.model_copy(update={"adapters": adapters})
    serving = asyncio.create_task(start(many, scheduler_url="ws://127.0.0.1:1", port=0))
    await until(lambda: reads)
    serving.cancel()
    await asyncio.wait([serving], timeout=DEADLINE_S)
    assert serving.cancelled()
    await until(lambda: not is_reading())
    assert len(reads) < len(adapters)


async def test_headers_without_end_are_refused(listener: socket.socket, server: EmbeddedServer) -> None:
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X-More: more\r\n" * 80_000)
    async with asyncio.timeout(DEADLINE_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
    writer.transport.abort()


async def test_a_port_in_use_is_named(config: ClusterConfig) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}: Address already in use"):
            await start(config, scheduler_url="ws://127.0.0.1:1", host="127.0.0.1", port=port)


async def test_a_scheduler_url_that_is_none(config: ClusterConfig) -> None:
    with pytest.raises(ConfigError, match="scheduler URL 'nowhere'"):
        await start(config, scheduler_url="nowhere", port=0)


async def test_a_model_folder_that_is_missing(tmp_path: Path) -> None:
    config = ClusterConfig(engine=EngineConfig(model=tmp_path / "none"))
    with pytest.raises(ModelRejected, match="does not exist"):
        await start(config, scheduler_url="ws://127.0.0.1:1", port=0)
