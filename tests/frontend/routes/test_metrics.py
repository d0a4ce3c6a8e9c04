import asyncio
from typing import Any

import httpx
import pytest

from echo_cluster import PREFILL_S, EchoCluster
from punica_frontend.routes import metrics
from punica_serve.base_model.model_config import ModelConfig


async def test_figures_of_the_frontend_and_of_the_cluster(client: httpx.AsyncClient) -> None:
    await client.post("/v1/generate", json={"prompt": "7"})
    await client.post("/v1/generate", json={"prompt": "7", "lora_id": "nope"})
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    for line in (
        'vllm:request_success_total{model_name="numbers",finished_reason="stop"} 1',
        'punica_requests_failed_total{code="adapter_not_found"} 1',
        'vllm:num_requests_running{model_name="numbers"} 0',
        'vllm:time_to_first_token_seconds_count{model_name="numbers"} 1',
        'vllm:inter_token_latency_seconds_count{model_name="numbers"} 1',
        'vllm:request_queue_time_seconds_sum{model_name="numbers"} 0.5',
        f'vllm:request_prefill_time_seconds_sum{{model_name="numbers"}} {PREFILL_S}',
        'vllm:request_inference_time_seconds_count{model_name="numbers"} 1',
        'vllm:request_params_n_sum{model_name="numbers"} 1.0',
        'http_requests_total{handler="/v1/generate",method="POST",status="2xx"} 1',
        'http_requests_total{handler="/v1/generate",method="POST",status="4xx"} 1',
        'punica_adapter_requests_total{adapter="numbers"} 1',
        'punica_tenant_requests_total{tenant="default"} 1',
        'punica_gpu_batch_size{gpu="CPU-1",gpu_name="host/0",runner="host"} 1.0',
        "punica_cluster_tokens_total 11",
    ):
        assert line in lines


async def test_the_choices_of_a_body_are_one_requests(client: httpx.AsyncClient) -> None:
    body = {"model": "numbers", "prompt": ["4", "5"], "n": 3, "max_tokens": 6}
    assert (await client.post("/v1/completions", json=body)).status_code == 200
    lines = (await client.get("/metrics")).text.splitlines()
    for name, total, count in (("n", 6.0, 2), ("max_tokens", 36.0, 6)):
        assert f'vllm:request_params_{name}_sum{{model_name="numbers"}} {total}' in lines
        assert f'vllm:request_params_{name}_count{{model_name="numbers"}} {count}' in lines


async def test_the_shape_of_each_gpus_kv_cache(client: httpx.AsyncClient, model: ModelConfig) -> None:
    (line,) = [line for line in (await client.get("/metrics")).text.splitlines() if line.startswith("vllm:cache_conf")]
    labels = f'block_size="16",num_gpu_blocks="100",cache_dtype="{model.dtype}",enable_prefix_caching="False"'
    assert line == f'vllm:cache_config_info{{engine="CPU-1",{labels}}} 1'


async def test_what_prefix_caching_finds_and_knows(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    cluster.prefix_tokens = (1_000, 640)
    lines = (await client.get("/metrics")).text.splitlines()
    assert any(line.startswith("vllm:cache_config_info{") and 'enable_prefix_caching="True"' in line for line in lines)
    for line in (
        'vllm:prefix_cache_queries_total{model_name="numbers",engine="CPU-1"} 1000',
        'vllm:prefix_cache_hits_total{model_name="numbers",engine="CPU-1"} 640',
        'punica_gpu_known_kv_pages{gpu="CPU-1",gpu_name="host/0",runner="host"} 40',
    ):
        assert line in lines


@pytest.mark.parametrize("body", [b'{"prompt": "7", "top_p": 9}', b"{", b'{"prompt": "' + b"7" * (2 << 20)])
async def test_a_request_that_no_handler_saw_is_counted_too(client: httpx.AsyncClient, body: bytes) -> None:
    response = await client.post("/v1/generate", content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 413, 422)
    lines = (await client.get("/metrics")).text.splitlines()
    assert 'punica_requests_failed_total{code="invalid_request"} 1' in lines


async def test_without_a_scheduler_the_frontends_own_are_there(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    cluster.connected = False
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert "punica_scheduler_connected 0\n" in response.text
    assert "punica_gpu_" not in response.text


async def test_a_scheduler_that_does_not_answer_holds_no_scrape_up(
    client: httpx.AsyncClient, cluster: EchoCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(metrics, "SNAPSHOT_TIMEOUT_S", 0.01)
    monkeypatch.setattr(cluster, "cluster", never)
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert "vllm:num_requests_running" in response.text
