"""`punica-serve tenants`: manages tenants and their limits, directly in the registry's database."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve.cli.on_registry import BY, on_registry
from punica_serve.cli.options import DEFAULT_CONFIG, ConfigOption, Force
from punica_serve.cli.text_tables import print_list
from punica_serve.numbers import is_count

if TYPE_CHECKING:
    from punica_serve.registry.records import Tenant
    from punica_serve.registry.registry import Registry
    from punica_serve.registry.tenant_changes import Terms

#: Removes a limit; limits that are not given stay as they are.
_NO_LIMIT = "none"

app = typer.Typer(name="tenants", help="Create, limit, suspend, list and remove tenants.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Small letters, digits and . _ -")]
Limit = Annotated[str | None, typer.Option(metavar="NUMBER", help=f"A number, or {_NO_LIMIT!r} for no limit.")]
Promise = Annotated[str | None, typer.Option(metavar="SECONDS", help=f"Seconds, or {_NO_LIMIT!r} for no promise.")]


@app.command("set")
def set_tenant(
    name: Name,
    max_concurrent: Limit = None,
    requests_per_min: Limit = None,
    tokens_per_min: Limit = None,
    max_adapters: Limit = None,
    max_adapter_bytes: Limit = None,
    slo_first_token_s: Promise = None,
    slo_time_per_token_s: Promise = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Create a tenant, or change its limits and promises.

    Those that are not given stay as they are. A limit of 0 allows nothing. Promises are latencies: from a request's
    arrival to its first token, and the mean time between two tokens.
    """
    options = {
        "max_concurrent": max_concurrent,
        "requests_per_min": requests_per_min,
        "tokens_per_min": tokens_per_min,
        "max_adapters": max_adapters,
        "max_adapter_bytes": max_adapter_bytes,
    }
    promises = {"slo_first_token_s": slo_first_token_s, "slo_time_per_token_s": slo_time_per_token_s}
    terms: Terms = {
        **{option: _limit(option, text) for option, text in options.items() if text is not None},
        **{option: _seconds(option, text) for option, text in promises.items() if text is not None},
    }
    _patch(config, name, terms, must_exist=False)


@app.command("suspend")
def suspend(name: Name, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Refuse all keys of a tenant's users until it is resumed. Running requests finish."""
    _patch(config, name, {"suspended": True})


@app.command("resume")
def resume(name: Name, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Resume a suspended tenant."""
    _patch(config, name, {"suspended": False})


@app.command("list")
def list_tenants(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """List the tenants, their limits and promises (first token, time per token)."""

    async def read(registry: "Registry") -> "tuple[Tenant, ...]":
        return registry.snapshot.tenants()

    _show(*on_registry(config, read))


@app.command("remove")
def remove(name: Name, force: Force = False, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Remove a tenant that has no adapters. Its keys end with it; its usage and audit log stay."""

    async def delete(registry: "Registry") -> "Tenant":
        return await registry.delete_tenant(name, force=force, by=BY)

    removed = on_registry(config, delete)
    print(f"tenant {name} is removed; its usage and audit log stay under its id {removed.tenant_id}")


def _patch(config: Path, name: str, terms: "Terms", *, must_exist: bool = True) -> None:
    async def patch(registry: "Registry") -> "Tenant":
        return await registry.patch_tenant(name, terms, must_exist=must_exist, by=BY)

    _show(on_registry(config, patch))


def _limit(option: str, text: str) -> int | None:
    """A limit, or None for no limit. Raises typer.BadParameter."""
    if text == _NO_LIMIT:
        return None
    if not is_count(text):
        raise typer.BadParameter(f"{_flag(option)} is {text[:30]!r}; give a number, or {_NO_LIMIT!r} for no limit")
    return int(text)


def _seconds(option: str, text: str) -> float | None:
    """A promise, or None for none. Raises typer.BadParameter."""
    if text == _NO_LIMIT:
        return None
    try:
        return float(text)
    except ValueError:
        message = f"{_flag(option)} is {text!r}; give seconds, or {_NO_LIMIT!r} for no promise"
        raise typer.BadParameter(message) from None


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _show(*tenants: "Tenant") -> None:
    columns = ("tenant", "state", "concurrent", "requests/min", "tokens/min", "adapters", "bytes", "SLO (s)")
    print_list(columns, map(_row, tenants))


def _row(tenant: "Tenant") -> tuple[str, ...]:
    quota = tenant.quota
    limits = (quota.max_concurrent, quota.requests_per_min, quota.tokens_per_min)
    shown = ("-" if limit is None else str(limit) for limit in (*limits, tenant.max_adapters, tenant.max_adapter_bytes))
    promises = (tenant.slo.first_token_s, tenant.slo.time_per_token_s)
    slo = ", ".join("-" if seconds is None else f"{seconds:g}" for seconds in promises)
    return (tenant.name, "suspended" if tenant.suspended else "active", *shown, slo)
