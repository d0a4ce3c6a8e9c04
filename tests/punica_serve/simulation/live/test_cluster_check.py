from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from punica_serve.errors import ClusterUnavailable, ConfigError, PunicaError, Unauthorized
from punica_serve.simulation.live.cluster_check import GpuSize, LiveGpu, check_models, cluster_client, found_gpus

GPU = {
    "device": "cuda:0",
    "max_batch_size": 32,
    "page_size": 16,
    "num_kv_pages": 99,
    "num_lora_pages": {"qkv": 8, "o": 8},
}
NO_FRONTEND = "is not a frontend; give a frontend's URL, such as http://127.0.0.1:8000$"
NO_ANSWER = (
    r"no frontend answers at http://127\.0\.0\.1:1 \(Connection refused\); .* set --live to a frontend's address$"
)


def client(answer: httpx.Response) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url="http://host:8000", transport=httpx.MockTransport(lambda _: answer))


def models(*names: str) -> httpx.Response:
    return httpx.Response(200, json={"data": [{"id": name} for name in names]})


async def test_the_gpus_are_asked_for() -> None:
    async with client(httpx.Response(200, json={"gpus": [{"gpu": GPU}]})) as asked:
        assert await found_gpus(asked) == [LiveGpu("cuda:0", GpuSize(32, 16, 99, 8))]


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ({"status_code": 503}, ClusterUnavailable, "no cluster answers at http://host:8000: .* 503"),
        ({"status_code": 200, "text": "hello"}, ConfigError, f"'http://host:8000' {NO_FRONTEND}"),
        ({"status_code": 200, "json": {"data": 3, "gpus": 3}}, ConfigError, NO_FRONTEND),
        ({"status_code": 404, "json": {}}, ConfigError, NO_FRONTEND),
        ({"status_code": 426, "text": "a websocket"}, ConfigError, NO_FRONTEND),
        (
            {"status_code": 401},
            Unauthorized,
            "http://host:8000 requires a valid API key: set `--key`",
        ),
        ({"status_code": 403}, Unauthorized, "http://host:8000 does not show /v1/.* to this API key"),
    ],
)
async def test_what_is_no_cluster_is_said(answer: Mapping[str, Any], error: type[PunicaError], message: str) -> None:
    async with client(httpx.Response(**answer)) as asked:
        with pytest.raises(error, match=message):
            await found_gpus(asked)
        with pytest.raises(error, match=message):
            await check_models(asked, "base", [])


async def test_a_cluster_without_a_gpu_is_said() -> None:
    async with client(httpx.Response(200, json={"gpus": []})) as asked:
        with pytest.raises(ClusterUnavailable, match="has no GPU"):
            await found_gpus(asked)


async def test_a_cluster_may_serve_more_than_the_config_asks_for() -> None:
    async with client(models("base", "dummy-1", "x", "dummy-0")) as asked:
        await check_models(asked, "base", ["dummy-0", "dummy-1"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("numbers", "dummy-0"), "http://host:8000 serves 'numbers', the config is for 'base'; start one with"),
        (("base", "roman"), "http://host:8000 lacks 2 adapters of the config, such as 'dummy-0'; start one with"),
    ],
)
async def test_a_cluster_of_another_model_or_without_the_adapters_is_refused(
    names: tuple[str, ...], message: str
) -> None:
    async with client(models(*names)) as asked:
        with pytest.raises(ConfigError, match=message):
            await check_models(asked, "base", ["dummy-0", "dummy-1"])


@pytest.mark.parametrize("url", ["", "foo", "host:8000", "http://host:x", "http://"])
async def test_a_url_that_is_none_is_said(url: str) -> None:
    with pytest.raises(ConfigError, match=NO_FRONTEND):
        async with cluster_client(url) as asked:
            await found_gpus(asked)


async def test_a_frontend_that_is_not_there_is_said() -> None:
    async with cluster_client("http://127.0.0.1:1") as asked:
        with pytest.raises(ClusterUnavailable, match=NO_ANSWER):
            await found_gpus(asked)


async def test_the_key_is_sent() -> None:
    async with cluster_client("http://host:8000", "sk-1") as asked:
        assert asked.headers["authorization"] == "Bearer sk-1"
