"""`punica-serve keys` and `tenants`, on a database of SQLite."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from punica_serve.cli.on_registry import on_registry
from punica_serve.config.cluster import load_config
from punica_serve.protocol import Slo, TenantQuota
from punica_serve.registry.registry import Registry
from punica_serve.registry.snapshot import RegistrySnapshot

KEPT = "its usage and audit log stay under its id"

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def config(write_config: Callable[..., Path], tmp_path: Path) -> Path:
    return write_config(data_folder=str(tmp_path / "data"))


def snapshot(config: Path) -> RegistrySnapshot:
    async def read() -> RegistrySnapshot:
        registry = await Registry.open(load_config(config).registry_url, deadline_s=60.0)
        await registry.close()
        return registry.snapshot

    return asyncio.run(read())


def test_a_command_waits_for_the_database_as_long_as_the_config_says(write_config: Callable[..., Path]) -> None:
    async def deadline_s(registry: Registry) -> float:
        return registry._database.deadline_s

    assert on_registry(write_config(registry={"timeout_s": 45.0}), deadline_s) == 45.0


def test_a_key_is_made_shown_once_and_revoked(cli: Cli, config: Path) -> None:
    before_s = time.time()
    exit_code, secret, notice = cli(
        "keys", "create", "--role", "admin", "--name", "x", "--days", "2", "--config", str(config)
    )
    key = snapshot(config).key_of(secret.strip(), before_s)
    assert exit_code == 0
    assert key is not None and key.expires_s is not None
    assert (key.tenant, key.role, key.name) == ("default", "admin", "x")
    assert key.expires_s - before_s == pytest.approx(2 * 86_400, abs=600)
    assert secret.strip() not in notice and key.key_id in notice

    _, listed, _ = cli("keys", "list", "--config", str(config))
    assert key.key_id in listed and secret.strip() not in listed
    _, others, _ = cli("keys", "list", "--tenant", "acme", "--config", str(config))
    assert key.key_id not in others

    exit_code, _, stderr = cli("keys", "revoke", key.key_id, "--config", str(config))
    assert exit_code == 1 and f"key '{key.key_id}' is the last admin key" in stderr and "--force" in stderr
    assert cli("keys", "revoke", "--force", key.key_id, "--config", str(config))[0] == 0
    assert snapshot(config).key_of(secret.strip(), before_s) is None
    exit_code, _, stderr = cli("keys", "revoke", key.key_id, "--config", str(config))
    assert exit_code == 1
    assert stderr.startswith(f"punica-serve: there is no key '{key.key_id}'; list them with `punica-serve keys list`")


def test_a_key_that_no_calendar_sees_expire_is_refused(cli: Cli, config: Path) -> None:
    exit_code, _, stderr = cli("keys", "create", "--days", "1e300", "--config", str(config))
    assert exit_code == 1 and stderr.startswith("punica-serve: a key must expire in the future and before")
    assert cli("keys", "list", "--config", str(config))[0] == 0


def test_a_tenants_limits_are_set_one_by_one(cli: Cli, config: Path) -> None:
    cli("tenants", "set", "acme", "--tokens-per-min", "1000", "--max-adapters", "5", "--config", str(config))
    _, shown, _ = cli(
        "tenants", "set", "acme", "--max-adapters", "none", "--max-concurrent", "3", "--config", str(config)
    )
    tenant = snapshot(config).tenant("acme")
    assert (tenant.quota, tenant.max_adapters) == (TenantQuota(max_concurrent=3, tokens_per_min=1000), None)
    assert {"acme", "3", "1000"} < set(shown.split())
    _, listed, _ = cli("tenants", "list", "--config", str(config))
    assert {"acme", "default", "shared"} < set(listed.split())
    assert "suspended" in cli("tenants", "suspend", "acme", "--config", str(config))[1]
    assert snapshot(config).tenant("acme") == replace(tenant, suspended=True)
    assert "active" in cli("tenants", "resume", "acme", "--config", str(config))[1]
    assert snapshot(config).tenant("acme") == tenant
    exit_code, removed, _ = cli("tenants", "remove", "acme", "--config", str(config))
    assert (exit_code, removed) == (0, f"tenant acme is removed; {KEPT} {tenant.tenant_id}\n")
    assert "acme" not in [tenant.name for tenant in snapshot(config).tenants()]


def test_a_tenants_promises_are_set_one_by_one(cli: Cli, config: Path) -> None:
    to_set = ("tenants", "set", "acme", "--config", str(config))
    cli(*to_set, "--slo-first-token-s", "0.5", "--slo-time-per-token-s", "2e-2")
    _, shown, _ = cli(*to_set, "--max-concurrent", "3")
    assert {"0.5,", "0.02"} < set(shown.split())
    assert snapshot(config).tenant("acme").slo == Slo(0.5, 0.02)
    cli(*to_set, "--slo-first-token-s", "none")
    assert snapshot(config).tenant("acme").slo == Slo(None, 0.02)


@pytest.mark.parametrize(
    ("command", "exit_code", "message"),
    [
        (("tenants", "set", "Acme"), 1, "must be 1 to 63 small letters"),
        (("tenants", "set", "acme", "--slo-first-token-s", "0"), 1, "`slo_first_token_s` is 0.0; it must be above 0"),
        (("tenants", "set", "acme", "--slo-first-token-s", "nan"), 1, "`slo_first_token_s` is nan; it must be above 0"),
        (("tenants", "set", "acme", "--slo-time-per-token-s", "x"), 2, "--slo-time-per-token-s is 'x'; give seconds"),
        (("tenants", "suspend", "acme"), 1, "there is no tenant 'acme'; list them with `punica-serve tenants list`"),
        (("tenants", "remove", "acme"), 1, "there is no tenant 'acme'; list them with `punica-serve tenants list`"),
        (("tenants", "remove", "default"), 1, "is built in"),
        (
            ("keys", "create", "--tenant", "acme"),
            1,
            "there is no tenant 'acme'; list them with `punica-serve tenants list`",
        ),
        (("tenants", "set", "acme", "--max-adapters", "many"), 2, "--max-adapters is 'many'; give a number"),
        (("tenants", "set", "acme", "--max-adapters", "9" * 5000), 2, "--max-adapters is"),
        (("keys", "create", "--role", "boss"), 2, "'boss' is not one of"),
    ],
)
def test_a_refusal_exits_with_1_and_a_command_that_is_none_with_2(
    cli: Cli, config: Path, command: tuple[str, ...], exit_code: int, message: str
) -> None:
    code, stdout, stderr = cli(*command, "--config", str(config))
    assert (code, stdout) == (exit_code, "")
    assert message in stderr


def test_a_database_that_is_away_is_named(cli: Cli, write_config: Callable[..., Path]) -> None:
    config = write_config(registry={"url": "postgresql://punica:hunter2@127.0.0.1:1/registry"})
    exit_code, _, stderr = cli("tenants", "list", "--config", str(config))
    assert exit_code == 2
    assert "is not available" in stderr and "(postgresql://punica:***@127.0.0.1:1/registry: " in stderr
