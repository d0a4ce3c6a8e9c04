import threading
from typing import Any

import httpx
import pytest

from echo_cluster import EchoCluster
from punica_frontend.watch import view


async def test_the_cluster_as_objects(client: httpx.AsyncClient) -> None:
    cluster = (await client.get("/v1/cluster")).json()
    gpu = cluster["gpus"][0]
    assert gpu["gpu"]["uuid"] == "CPU-1" and gpu["gpu"]["num_lora_pages"] == {"qkv": 8}
    assert (gpu["batch_size"], gpu["free_kv_pages"], gpu["resident_adapters"]) == (1, 90, ["d1"])
    assert cluster["counters"] == {"arrived": 3, "tokens": 11}
    assert cluster["adapters"] == {"d1": {"name": "roman", "rank": 8}} and gpu["adapters_used_ns"] == [1]
    assert cluster["advice"] == {"num_more_gpus": 1, "releasable_runners": ["host"]}


async def test_it_is_encoded_beside_the_event_loop(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded_in: list[threading.Thread] = []

    def encode(value: Any) -> bytes:
        encoded_in.append(threading.current_thread())
        return view.encode(value)

    monkeypatch.setattr("punica_frontend.watch.frames.encode", encode)
    assert (await client.get("/v1/cluster")).status_code == 200
    assert len(encoded_in) == 1 and threading.current_thread() not in encoded_in


async def test_without_a_scheduler(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    cluster.connected = False
    assert (await client.get("/v1/cluster")).status_code == 503


async def test_a_gpu_is_drained_and_used_again(client: httpx.AsyncClient) -> None:
    for drain in (True, False):
        response = await client.post("/v1/cluster/drain", json={"gpu": "CPU-1", "drain": drain})
        assert response.json() == {"gpu": "CPU-1", "drain": drain}
        assert (await client.get("/v1/cluster")).json()["gpus"][0]["is_draining"] is drain


async def test_a_gpu_that_is_not_there_is_404_and_names_those_that_are(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/cluster/drain", json={"gpu": "CPU-7"})
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "gpu_not_found" and error["message"].endswith("there are CPU-1")


@pytest.mark.parametrize("body", [{}, {"gpu": ""}, {"gpu": "CPU-1", "drain": "yes"}, {"gpu": "CPU-1", "force": True}])
async def test_an_unclear_drain_is_refused(
    client: httpx.AsyncClient, cluster: EchoCluster, body: dict[str, Any]
) -> None:
    assert (await client.post("/v1/cluster/drain", json=body)).status_code == 422
    assert not cluster.drained
