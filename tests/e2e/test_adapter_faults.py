"""Adapters while something fails: all processes restart, the disk is full, the registry is locked, a frontend dies."""

import asyncio
import contextlib
import os
import signal
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from adapter_variants import ANSWERS, variant, zipped
from small_disk import small_disk
from up_cluster import Start, Until, UpCluster, WaitUntil

pytestmark = pytest.mark.slow


class Api:
    """A cluster's adapters, asked for from a test that may block."""

    def __init__(self, cluster: UpCluster) -> None:
        self.data = cluster.log.parent / "data"
        self._url = cluster.url

    def upload(self, name: str, folder: Path) -> httpx.Response:
        headers = {"content-type": "application/zip"}
        return self._ask("POST", "/v1/adapters", params={"name": name}, content=zipped(folder), headers=headers)

    def post(self, path: str) -> httpx.Response:
        return self._ask("POST", path)

    def show(self, name: str) -> Any:
        return self._ask("GET", f"/v1/adapters/{name}").json()

    def text(self, lora_id: str) -> str:
        answer = self._ask("POST", "/v1/generate", json={"prompt": "42", "lora_id": lora_id})
        return str(answer.json().get("text", answer.text))

    def _ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        return httpx.request(method, self._url + path, timeout=60.0, trust_env=False, **request)


@pytest.fixture(scope="module")
def own_cluster(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpCluster]:
    """Shared by the tests of this file that leave it serving."""
    with start(tmp_path_factory.mktemp("own")) as cluster:
        yield cluster


def test_everything_survives_a_restart_of_everything(start: Start, tmp_path: Path, wait_until: WaitUntil) -> None:
    with start(tmp_path) as cluster:
        api = Api(cluster)
        assert api.upload("first", variant(tmp_path, "roman")).status_code == 201
        card = api.upload("first", variant(tmp_path, "hex")).json()
        api.upload("second", variant(tmp_path, "french"))
        assert api.post("/v1/adapters/second/pin").status_code == 200
    with start(tmp_path) as cluster:
        api = Api(cluster)
        assert (api.text("first"), api.text("second")) == (ANSWERS["hex"], ANSWERS["french"])
        shown = api.show("first")
        assert (shown["version"], shown["digest"]) == (2, card["digest"])
        assert [version["version"] for version in shown["versions"]] == [2, 1]
        # The workers are new; the pin is the registry's.
        wait_until(lambda: api.show("second")["pinned"] and len(api.show("second")["residency"]["hosts"]) == 2)


def test_a_damaged_adapters_folder_is_named_in_the_log_alone(own_cluster: UpCluster, tmp_path: Path) -> None:
    api = Api(own_cluster)
    card = api.upload("damaged", variant(tmp_path, "roman")).json()
    folder = api.data / "store" / card["digest"]
    os.truncate(folder / "adapter_model.safetensors", 3000)
    told = api.text("damaged")
    assert "adapter 'damaged'" in told and "changed on disk" in told
    assert str(api.data) not in told
    assert f"{folder}: its files changed on disk" in own_cluster.log.read_text()
    assert api.upload("damaged", variant(tmp_path, "roman")).is_success
    assert api.text("damaged") == ANSWERS["roman"], "as the answer says: registered again"


def test_a_pin_outlives_the_worker_that_held_it(own_cluster: UpCluster, tmp_path: Path, wait_until: WaitUntil) -> None:
    api = Api(own_cluster)
    api.upload("pinned", variant(tmp_path, "roman"))
    assert api.post("/v1/adapters/pinned/pin").status_code == 200
    wait_until(lambda: len(api.show("pinned")["residency"]["hosts"]) == 2)
    num_lost = own_cluster.num_gpus_lost()
    own_cluster.kill("punica_runner.worker")
    wait_until(lambda: own_cluster.num_gpus_lost() > num_lost)
    wait_until(lambda: len(api.show("pinned")["residency"]["hosts"]) == 2)


@pytest.fixture
def impatient_cluster(run_demo: Start) -> Iterator[UpCluster]:
    """It waits ten seconds for a lock of its registry's."""
    with run_demo(registry={"timeout_s": 20.0}) as cluster:
        yield cluster


def test_a_locked_registry_stops_registrations_and_nothing_else(impatient_cluster: UpCluster, tmp_path: Path) -> None:
    api = Api(impatient_cluster)
    assert api.upload("before", variant(tmp_path, "roman")).status_code == 201
    with contextlib.closing(sqlite3.connect(api.data / "registry.db", isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        answer = api.upload("during", variant(tmp_path, "hex"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "registry_unavailable")
        assert answer.headers["Retry-After"] == "2", "a lock may end at once, whatever its timeout"
        assert api.text("before") == ANSWERS["roman"]
        database.execute("ROLLBACK")
    assert api.upload("during", variant(tmp_path, "hex")).status_code == 201
    assert (api.text("before"), api.text("during")) == (ANSWERS["roman"], ANSWERS["hex"])


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "tiny", num_kib=128) as folder:
        yield folder


def test_a_full_disk_stops_registrations_and_nothing_else(
    start: Start, tmp_path: Path, tiny_disk: Path, wait_until: WaitUntil
) -> None:
    """The store has room for one of these adapters, not for two."""
    document = yaml.safe_load((Path(__file__).parents[2] / "configs" / "demo.yaml").read_text())
    document["store"] = {"url": str(tiny_disk / "store")}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(document))
    with start(tmp_path, str(tmp_path / "tiny.yaml")) as cluster:
        api = Api(cluster)
        assert api.upload("small", variant(tmp_path, "roman")).status_code == 201
        answer = api.upload("large", variant(tmp_path, "french"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
        assert "full" in answer.json()["error"]["message"]
        assert api.text("small") == ANSWERS["roman"]
        assert len(os.listdir(tiny_disk / "store")) == 1


async def test_what_a_dead_frontend_was_taking_in_is_removed(
    own_cluster: UpCluster, tmp_path: Path, until: Until
) -> None:
    data = own_cluster.log.parent / "data"
    port = int(own_cluster.url.rpartition(":")[2])

    def taking_in() -> list[Path]:
        return [path for path in (data / "staging").rglob("*") if path.is_file()]

    with socket.create_connection(("127.0.0.1", port)) as half:
        head = f"POST /v1/adapters?name=half HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/zip\r\n"
        half.sendall(f"{head}Content-Length: 100000\r\n\r\n".encode() + b"PK" * 100)
        await until(lambda: len(taking_in()) == 1)
        os.kill(own_cluster.processes("punica_serve.cli frontend")[0], signal.SIGKILL)
        await until(lambda: not taking_in())
    await until(lambda: own_cluster.num_gpus() == 2)
    api = Api(own_cluster)
    answer = await asyncio.to_thread(api.upload, "half", variant(tmp_path, "roman"))
    assert answer.status_code == 201
