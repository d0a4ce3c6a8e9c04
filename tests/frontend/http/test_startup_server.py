"""A frontend that starts while its registry is away says so, lets nobody in, and serves once the registry is back."""

import asyncio
import contextlib
import shutil
import socket
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from frontend_process import launch
from postgres_server import PostgresServer, postgres_server
from punica_frontend.http import startup_server
from punica_frontend.http.startup_server import registry_when_available
from punica_frontend.main import serve
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.registry_section import sqlite_url
from punica_serve.errors import ConfigError
from punica_serve.process.run import Drain
from punica_serve.protocol import Deliveries, Ending
from punica_serve.registry.registry import Registry
from punica_serve.registry.shared_adapters import SharedAdapters
from scripted_scheduler import ScriptedScheduler
from waits import DEADLINE_S, until


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_server, "PATIENCE_S", 0.1)


@asynccontextmanager
async def waiting(folder: Path, listener: socket.socket, drain: Drain) -> AsyncIterator[asyncio.Task[str | None]]:
    """A task that ends with what has come: the registry's URL, or None for the end of the process."""

    async def wait() -> str | None:
        url = sqlite_url(folder / "registry.db")
        async with registry_when_available(
            url, SharedAdapters(), listener=listener, max_connections=50, drain=drain, deadline_s=60.0
        ) as registry:
            return url if registry else None

    task = asyncio.create_task(wait())
    yield task
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """Where a registry's folder is to be: nothing can be made there until it is removed."""
    file = tmp_path / "away"
    file.touch()
    return file


def put_registry(file: Path, away: Path) -> None:
    """The file appears whole: a reader that polls finds no half of it, and no temporary folder."""
    folder = away.with_name("there")
    folder.mkdir()
    shutil.copy(file, folder / "registry.db")
    away.unlink()
    folder.rename(away)


@pytest.fixture
async def http(listener: socket.socket) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, trust_env=False) as client:
        yield client


async def test_it_is_alive_says_why_it_is_not_ready_and_refuses_requests(
    away: Path, listener: socket.socket, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    async with waiting(away, listener, Drain(5.0)) as task:
        assert (await http.get("/health")).status_code == 200
        ready = await http.get("/ready")
        assert ready.status_code == 503
        assert "registry of adapters and keys can't be read yet" in ready.json()["error"]["message"]
        for method, path in (("POST", "/v1/generate"), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/docs")):
            refused = await http.request(method, path, headers={"authorization": "Bearer ps-any"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
            assert refused.json()["error"]["code"] == "registry_unavailable"
            assert str(away) not in refused.text
        with pytest.raises(InvalidStatus, match="503"):
            await connect(f"ws://{http.base_url.netloc.decode()}/v1/generate/stream", proxy=None)
        assert not task.done()
    (warning,) = [record for record in caplog.records if "until the registry can be read" in record.message]
    assert str(away) in warning.message


async def test_it_comes_up_when_the_registry_does(
    away: Path, listener: socket.socket, http: httpx.AsyncClient, empty_registry: Path
) -> None:
    async with waiting(away, listener, Drain(5.0)) as task:
        assert (await http.get("/ready")).status_code == 503
        put_registry(empty_registry, away)
        assert await asyncio.wait_for(task, DEADLINE_S) is not None
        # The next one answers on the same listener.
        socket.create_connection(listener.getsockname(), timeout=DEADLINE_S).close()


async def test_a_locked_file_is_waited_for(
    away: Path, listener: socket.socket, http: httpx.AsyncClient, empty_registry: Path
) -> None:
    put_registry(empty_registry, away)
    with contextlib.closing(sqlite3.connect(away / "registry.db")) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        async with waiting(away, listener, Drain(5.0)) as task:
            assert (await http.get("/ready")).status_code == 503
            other.close()
            assert await asyncio.wait_for(task, DEADLINE_S) is not None


async def test_it_ends_on_request(away: Path, listener: socket.socket, http: httpx.AsyncClient) -> None:
    drain = Drain(600.0)
    async with waiting(away, listener, drain) as task:
        await http.get("/ready")
        drain.begin()
        assert await asyncio.wait_for(task, DEADLINE_S) is None


async def test_a_registry_without_keys_stays_closed_to_other_hosts(
    away: Path, tmp_path: Path, empty_registry: Path, scheduler: ScriptedScheduler
) -> None:
    """Late as at once: where others can reach it, a frontend without keys does not serve."""
    document = {"engine": {"model": "demo:model"}, "data_folder": str(tmp_path)}
    config = ClusterConfig.model_validate({**document, "registry": {"url": f"sqlite:///{away}/registry.db"}})
    scheduler_url = f"ws://127.0.0.1:{scheduler.port}"
    serving = asyncio.create_task(
        serve(config, "secret", scheduler_url=scheduler_url, host="0.0.0.0", port=0, drain=Drain(5.0))
    )
    await asyncio.wait([serving], timeout=2.0)
    assert not serving.done()
    put_registry(empty_registry, away)
    with pytest.raises(ConfigError, match="without an API key"):
        await asyncio.wait_for(serving, DEADLINE_S)
    assert not scheduler.is_linked


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        if server is None:
            pytest.skip("needs PostgreSQL's programs: initdb, postgres, createdb, pg_isready")
        yield server


@pytest.mark.slow
async def test_a_process_waits_for_postgresql(
    postgres: PostgresServer, scheduler: ScriptedScheduler, tmp_path: Path
) -> None:
    url = postgres.make_database("punica")
    registry = await Registry.open(url, deadline_s=60.0)
    _, secret = await registry.make_key("default", "user", "laptop", by="test")
    await registry.close()
    postgres.stop()
    frontend = launch(tmp_path, scheduler.port, {}, registry_url=url)
    body, key = {"prompt": "4", "max_tokens": 1}, {"authorization": f"Bearer {secret}"}
    transport = httpx.AsyncHTTPTransport(retries=9)
    with frontend.process, contextlib.ExitStack() as stack:
        stack.callback(frontend.process.kill)
        async with httpx.AsyncClient(base_url=frontend.url, timeout=60.0, transport=transport) as client:
            assert "registry" in (await client.get("/ready")).json()["error"]["message"]
            assert (await client.post("/v1/generate", json=body, headers=key)).status_code == 503
            postgres.start()
            await until(lambda: scheduler.is_linked, "the frontend has come up")
            assert (await client.post("/v1/generate", json=body)).status_code == 401
            asking = asyncio.create_task(client.post("/v1/generate", json=body, headers=key))
            await until(lambda: scheduler.added, "the request is let in")
            (added,) = scheduler.added
            scheduler.send(Deliveries((added.handle,), (0,), (20,), endings=(Ending(added.handle, 1, "length"),)))
            assert (await asking).status_code == 200
