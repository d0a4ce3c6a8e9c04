"""A thousand adapters of twenty tenants: quotas hold, no adapter is another's, and usage is what was delivered."""

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from punica_serve.config.registry_section import sqlite_url
from punica_serve.protocol import AdapterRef, TenantQuota
from punica_serve.registry.registry import Registry
from up_cluster import UpCluster
from waits import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NUM_TENANTS, ADAPTERS_EACH, USED_EACH = 20, 50, 10
REQUESTS_PER_MIN = 100
#: More than the quota.
REQUESTS_EACH = 130
MAX_TOKENS = 8
AT_ONCE_EACH = 4
RANKS = {"q_proj": 8, "v_proj": 8}
BY = "the test"


async def fill(registry: Registry) -> dict[str, str]:
    """Tenants, each with its adapters; returns their keys."""
    keys: dict[str, str] = {}
    for tenant in (f"t{number}" for number in range(NUM_TENANTS)):
        tenant_id = (await registry.put_tenant(tenant, TenantQuota(requests_per_min=REQUESTS_PER_MIN), by=BY)).tenant_id
        for index in range(ADAPTERS_EACH):
            digest = f"{tenant}-{index}".encode().hex().ljust(64, "0")
            number = len(keys) * ADAPTERS_EACH + index
            await registry.register(
                tenant_id, f"{tenant}-{index}", AdapterRef(digest, f"dummy:{number}", 1_000, RANKS), by=BY
            )
        _, keys[tenant] = await registry.make_key(tenant, "user", "", by=BY)
    return keys


async def ask_all(client: httpx.AsyncClient, tenant: str, num_requests: int, counted: Counter[str]) -> None:
    """Counts answers and tokens by tenant."""

    async def ask(lora_id: str) -> None:
        body = {"prompt": "42", "lora_id": lora_id, "max_tokens": MAX_TOKENS, "ignore_eos": True}
        response = await client.post("/v1/generate", json=body)
        if response.status_code == 200:
            counted[f"{tenant} tokens"] += len(response.json()["token_ids"])
            counted[f"{tenant} answers"] += 1
        else:
            assert response.status_code == 429 and int(response.headers["retry-after"]) > 0, response.text
            assert response.json()["error"]["code"] == "quota_exceeded"
            told = [response.headers[f"x-ratelimit-{name}-requests"] for name in ("limit", "remaining")]
            assert told == [str(REQUESTS_PER_MIN), "0"]

    names = [f"{tenant}-{index % USED_EACH}" for index in range(num_requests)]
    for first in range(0, num_requests, AT_ONCE_EACH):
        await asyncio.gather(*map(ask, names[first : first + AT_ONCE_EACH]))


async def used(registry: Registry, tenant: str) -> tuple[int, int]:
    """Requests and tokens out."""
    tenant_id = (await registry.tenant(tenant)).tenant_id
    rows = await registry.usage(tenant_id, 0.0, time.time())
    return sum(row.num_requests for row in rows), sum(row.num_generated_tokens for row in rows)


async def until_written(registry: Registry, tenant: str, expected: tuple[int, int]) -> None:
    async def is_written() -> bool:
        return await used(registry, tenant) == expected

    await until(is_written, f"{expected} of {tenant} are written")


async def until_answered(num_answers: int, counted: Counter[str]) -> None:
    await until(lambda: counted["t0 answers"] >= num_answers, describe=lambda: counted)


def client_of(url: str, key: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=120.0, trust_env=False)


async def test_a_thousand_adapters_of_twenty_tenants(simulated_cluster: UpCluster, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        registry = await Registry.open(sqlite_url(tmp_path / "data" / "registry.db"), deadline_s=60.0)
        stack.push_async_callback(registry.close)
        keys, counted = await fill(registry), Counter[str]()
        clients = {}
        for tenant, key in keys.items():
            clients[tenant] = await stack.enter_async_context(client_of(simulated_cluster.url, key))
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for tenant, client in clients.items():
                group.create_task(ask_all(client, tenant, REQUESTS_EACH, counted))
        minutes = 1 + (time.monotonic() - began_s) // 60
        for tenant, client in clients.items():
            num_answers = counted[f"{tenant} answers"]
            assert 0.99 * REQUESTS_PER_MIN <= num_answers <= 1.01 * REQUESTS_PER_MIN * minutes
            assert counted[f"{tenant} tokens"] == num_answers * MAX_TOKENS
            await until_written(registry, tenant, (num_answers, num_answers * MAX_TOKENS))
            others = await client.post(
                "/v1/generate", json={"prompt": "4", "lora_id": f"t{(int(tenant[1:]) + 1) % 20}-0"}
            )
            assert others.status_code == 404

        await registry.put_tenant("t0", TenantQuota(), by=BY)
        asking = asyncio.create_task(ask_all(clients["t0"], "t0", 400, counted))
        for role in ("punica_runner.worker", "punica_serve.cli runner", "punica_serve.cli scheduler"):
            await until_answered(counted["t0 answers"] + 1, counted)
            simulated_cluster.kill(role)
        await asking
        await until_written(registry, "t0", (counted["t0 answers"], counted["t0 tokens"]))
