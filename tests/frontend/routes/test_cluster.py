import threading
from typing import Any

import httpx
import pytest
from msgspec.structs import asdict, replace

from echo_cluster import EchoCluster
from punica_frontend.api.caller import Caller
from punica_frontend.watch import view
from punica_frontend.watch.view import GpuView, Viewer
from punica_serve.protocol import GpuDetails, GpuInfo, GpuSnapshot, PlacedRequest
from punica_serve.registry.registry import Registry


async def test_the_cluster_as_objects(client: httpx.AsyncClient) -> None:
    cluster = (await client.get("/v1/cluster")).json()
    gpu = cluster["gpus"][0]
    assert gpu["gpu"]["uuid"] == "CPU-1" and gpu["gpu"]["num_lora_pages"] == {"qkv": 8}
    assert (gpu["batch_size_mean"], gpu["batch_size_max"], gpu["free_kv_pages"]) == (1.0, 1, 90)
    assert (gpu["gpu"]["name"], gpu["resident_adapters"]) == ("host/0", ["d1"])
    assert cluster["counters"] == {"arrived": 3, "tokens": 11}
    assert cluster["adapters"] == {"d1": {"name": "roman", "owner": "shared", "rank": 8}}
    assert gpu["adapters_used_ns"] == [1]
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


PLACED = PlacedRequest("mine", "default", "default", "d1", 3, 5, 64, 7)


async def test_a_gpu_by_name_or_uuid_with_its_requests(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    cluster.placed = [PLACED]
    for gpu in ("host/0", "CPU-1"):
        told = (await client.get(f"/v1/cluster/gpus/{gpu}")).json()
        assert told["gpu"]["gpu"]["name"] == "host/0" and told["used_lora_pages"] == {"qkv": 3}
        assert told["requests"] == [asdict(PLACED)] and told["num_other_requests"] == 0
        assert told["adapters"]["d1"] == {"name": "roman", "owner": "shared", "rank": 8}
    missing = await client.get("/v1/cluster/gpus/host/9")
    assert missing.status_code == 404 and "host/9" in missing.text


async def test_the_name_of_a_gpu_is_short(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    cluster.connected = False  # the scheduler is not asked
    assert (await client.get(f"/v1/cluster/gpus/{'x' * 129}")).status_code == 422


async def test_a_tenant_sees_its_own_requests_alone(registry: Registry) -> None:
    others = replace(PLACED, request_id="theirs", tenant_id="t2", tenant="acme", digest="d2")
    info = GpuInfo("CPU-1", "cpu", 32, 16, 100, {}, "host/0")
    gpu = GpuSnapshot(info, "host", 2, 90, ("d1", "d2"), 7, 11, adapters_used_ns=(1, 2), num_cached_adapters=5)
    details = GpuDetails(7, gpu, {"qkv": 3}, (PLACED, others))

    def seen_by(*, is_admin: bool) -> GpuView:
        return Viewer(Caller("default", "default", "admin" if is_admin else "user"), registry).gpu(details)

    mine, all_ = seen_by(is_admin=False), seen_by(is_admin=True)
    assert mine.requests == (PLACED,) and mine.num_other_requests == 1
    assert list(mine.adapters) == ["d1"] and mine.gpu.resident_adapters == ("d1",)
    assert all_.requests == (PLACED, others) and list(all_.adapters) == ["d1", "d2"]
