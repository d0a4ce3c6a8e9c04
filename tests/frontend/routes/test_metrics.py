import asyncio
from typing import Any

import httpx
import pytest

from punica_frontend.routes import metrics


async def test_figures_of_the_frontend_and_of_the_cluster(client: httpx.AsyncClient) -> None:
    await client.post("/v1/generate", json={"prompt": "7"})
    await client.post("/v1/generate", json={"prompt": "7", "lora_id": "nope"})
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    for line in (
        'punica_requests_total{outcome="stop"} 1.0',
        'punica_requests_total{outcome="adapter_not_found"} 1.0',
        "punica_live_requests 0.0",
        "punica_time_to_first_token_seconds_count 1.0",
        "punica_inter_token_latency_seconds_count 1.0",
        'punica_gpu_batch_size{gpu="CPU-1",runner="host"} 1.0',
        "punica_cluster_tokens_total 11.0",
    ):
        assert line in lines


async def test_without_a_scheduler_the_frontends_own_are_there(client: httpx.AsyncClient, cluster: Any) -> None:
    cluster.connected = False
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert "punica_scheduler_connected 0.0" in response.text
    assert "punica_gpu_" not in response.text


async def test_a_scheduler_that_does_not_answer_holds_no_scrape_up(
    client: httpx.AsyncClient, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(metrics, "SNAPSHOT_TIMEOUT_S", 0.01)
    monkeypatch.setattr(cluster, "cluster", never)
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert "punica_live_requests" in response.text
