from typing import Any

import httpx


async def test_the_cluster_as_objects(client: httpx.AsyncClient) -> None:
    cluster = (await client.get("/v1/cluster")).json()
    gpu = cluster["gpus"][0]
    assert gpu["gpu"]["uuid"] == "CPU-1" and gpu["gpu"]["num_lora_pages"] == {"qkv": 8}
    assert (gpu["batch_size"], gpu["free_kv_pages"], gpu["resident_adapters"]) == (1, 90, ["d1"])
    assert cluster["counters"] == {"tokens": 11}


async def test_without_a_scheduler(client: httpx.AsyncClient, cluster: Any) -> None:
    cluster.connected = False
    assert (await client.get("/v1/cluster")).status_code == 503
