"""Rows older than the config keeps them are removed, and no others."""

import asyncio
import time

import pytest

from punica_frontend.tenancy import retention
from punica_frontend.tenancy.retention import Retention
from punica_serve.config.registry_section import RegistryConfig
from punica_serve.errors import RegistryUnavailable
from punica_serve.protocol import TenantQuota
from punica_serve.registry.records import Usage
from punica_serve.registry.registry import Registry
from waits import until

DAY_S = 86_400


async def add_days(registry: Registry, *ages: int) -> None:
    hours = [int(time.time() - age * DAY_S) // 3600 * 3600 for age in ages]
    rows = [Usage(hour_s, "default", "default", None, None, None, 1, 2, 0, 3, 0.5) for hour_s in hours]
    await registry.add_usage(rows, source="the test", number=1)


async def ages(registry: Registry) -> list[int]:
    return [round((time.time() - row.hour_s) / DAY_S) for row in await registry.usage(None, 0, time.time() + 1)]


async def test_old_rows_are_removed_in_batches(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH_ROWS", 2)
    await add_days(registry, 500, 450, 402, 401, 399, 0)
    await registry.put_tenant("acme", TenantQuota(), by="the test")
    await Retention(registry, RegistryConfig()).remove_old()
    assert await ages(registry) == [399, 0]
    assert len(await registry.audit_log(10)) == 1


async def test_rows_without_a_limit_stay(registry: Registry) -> None:
    await add_days(registry, 5_000, 2)
    await Retention(registry, RegistryConfig(usage_days=None, audit_days=1)).remove_old()
    assert await ages(registry) == [5_000, 2]


async def test_a_registry_that_is_away_is_asked_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await add_days(registry, 500)
    remove, failures = registry.remove_usage, ["away"]

    async def fail_once(before_s: float, max_rows: int) -> int:
        if failures:
            raise RegistryUnavailable(failures.pop())
        return await remove(before_s, max_rows)

    monkeypatch.setattr(retention, "INTERVAL_S", 0.01)
    monkeypatch.setattr(registry, "remove_usage", fail_once)
    running = asyncio.create_task(Retention(registry, RegistryConfig()).run())

    async def is_gone() -> bool:
        return not await registry.usage(None, 0, time.time())

    await until(is_gone, "old usage is removed at the second try")
    running.cancel()
    await asyncio.wait([running])
    assert "audit entries yet: away" in caplog.text
