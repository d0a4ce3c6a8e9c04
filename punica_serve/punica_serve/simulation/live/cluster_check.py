"""Checks the cluster before a replay: its GPUs, base model and adapters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from punica_serve.errors import ClusterUnavailable, ConfigError, Unauthorized
from punica_serve.links.client_errors import no_answer, wants_key
from punica_serve.links.https_client import client_context
from punica_serve.numbers import counted

_TIMEOUT_S = 10.0
#: The largest port of TCP.
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class GpuSize:
    """The properties of a GPU that a simulation needs."""

    max_batch_size: int
    page_size: int
    num_kv_pages: int
    num_lora_pages: int


@dataclass(frozen=True, slots=True)
class LiveGpu:
    """A GPU of the running cluster."""

    device: str
    size: GpuSize


def cluster_client(url: str, key: str | None = None) -> httpx.AsyncClient:
    """A client for a frontend's routes. Raises ConfigError for an invalid URL."""
    headers = {"Authorization": f"Bearer {key}"} if key else None
    try:
        base_url = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeEncodeError) as error:  # the shell's bytes may be no text
        raise _no_frontend(url) from error
    if base_url.scheme not in {"http", "https"} or not base_url.host or (base_url.port or 0) > _MAX_PORT:
        raise _no_frontend(url)
    verify = client_context()
    return httpx.AsyncClient(base_url=base_url, headers=headers, timeout=_TIMEOUT_S, verify=verify, trust_env=False)


async def found_gpus(client: httpx.AsyncClient) -> list[LiveGpu]:
    """All GPUs of the cluster. Raises Unauthorized, ClusterUnavailable, or ConfigError if it is no frontend's URL."""
    cluster = await _asked(client, "/v1/cluster")
    try:
        gpus = [LiveGpu(entry["gpu"]["device"], _size(entry["gpu"])) for entry in cluster["gpus"]]
    except (KeyError, TypeError) as error:
        raise _no_frontend(_url(client)) from error
    if not gpus:
        raise ClusterUnavailable(f"the cluster at {_url(client)} has no GPU")
    return gpus


async def check_models(client: httpx.AsyncClient, base: str, adapters: Sequence[str]) -> None:
    """Raises ConfigError if the cluster serves another base model or lacks adapters, and errors of ``found_gpus``."""
    models = await _asked(client, "/v1/models")
    try:
        names = [card["id"] for card in models["data"]]
        served = names[0]
    except (KeyError, TypeError, IndexError) as error:
        raise _no_frontend(_url(client)) from error
    advice = "start one with `punica-serve up --config` and this config, or give the config of that one"
    if served != base:
        message = f"the cluster at {_url(client)} serves {served!r}, the config is for {base!r}; {advice}"
        raise ConfigError(message, param="live")
    known = set(names)
    missing = [name for name in adapters if name not in known]
    if missing:
        number = counted(len(missing), "adapter")
        message = f"the cluster at {_url(client)} lacks {number} of the config, such as {missing[0]!r}; {advice}"
        raise ConfigError(message, param="live")


def _size(gpu: dict[str, Any]) -> GpuSize:
    num_lora_pages = max(gpu["num_lora_pages"].values())
    return GpuSize(gpu["max_batch_size"], gpu["page_size"], gpu["num_kv_pages"], num_lora_pages)


async def _asked(client: httpx.AsyncClient, path: str) -> Any:
    """A frontend's answer to a GET."""
    url = _url(client)
    try:
        answer = await client.get(path)
    except httpx.ProtocolError as error:
        raise _no_frontend(url) from error
    except httpx.HTTPError as error:
        raise no_answer(url, error, "--live") from error
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise wants_key(url)
    if answer.status_code == httpx.codes.FORBIDDEN:
        raise Unauthorized(f"{url} does not show {path} to this API key")
    if answer.is_server_error:
        raise ClusterUnavailable(f"no cluster answers at {url}: {path} answered {answer.status_code}")
    try:
        return answer.raise_for_status().json()
    except (httpx.HTTPStatusError, ValueError) as error:
        raise _no_frontend(url) from error


def _url(client: httpx.AsyncClient) -> str:
    return str(client.base_url).rstrip("/")


def _no_frontend(url: str) -> ConfigError:
    return ConfigError(f"{url!r} is not a frontend; give a frontend's URL, such as http://127.0.0.1:8000", param="live")
