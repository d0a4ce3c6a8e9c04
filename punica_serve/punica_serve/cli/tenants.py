"""`punica-serve tenants`: tenants and what they may use, in the registry's database itself."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve.cli.on_registry import BY, on_registry
from punica_serve.cli.options import DEFAULT_CONFIG, ConfigOption

if TYPE_CHECKING:
    from punica_serve.registry.records import Tenant
    from punica_serve.registry.registry import Registry
    from punica_serve.registry.tenant_changes import Terms

#: Says that there is no limit; what is not said stays as it is.
_NO_LIMIT = "none"

app = typer.Typer(name="tenants", help="Make, limit, suspend, list and remove tenants.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Small letters, digits and . _ -")]
Limit = Annotated[str | None, typer.Option(metavar="NUMBER", help=f"Or {_NO_LIMIT!r}: no limit.")]


@app.command("set")
def set_tenant(
    name: Name,
    max_concurrent: Limit = None,
    requests_per_min: Limit = None,
    tokens_per_min: Limit = None,
    max_adapters: Limit = None,
    max_adapter_bytes: Limit = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Make a tenant, or change what it may use. Limits that are not named stay as they are; 0 is none at all."""
    options = {
        "max_concurrent": max_concurrent,
        "requests_per_min": requests_per_min,
        "tokens_per_min": tokens_per_min,
        "max_adapters": max_adapters,
        "max_adapter_bytes": max_adapter_bytes,
    }
    terms = {option: _limit(option, text) for option, text in options.items() if text is not None}
    _patch(config, name, terms, must_exist=False)


@app.command("suspend")
def suspend(name: Name, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Refuse whatever comes with its users' keys, until it is resumed. Requests that run go on to their end."""
    _patch(config, name, {"suspended": True})


@app.command("resume")
def resume(name: Name, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Let a tenant that was suspended go on."""
    _patch(config, name, {"suspended": False})


@app.command("list")
def list_tenants(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """List the tenants and what they may use."""

    async def read(registry: "Registry") -> "tuple[Tenant, ...]":
        return registry.snapshot.tenants()

    _show(*on_registry(config, read))


@app.command("remove")
def remove(name: Name, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Remove a tenant that has no adapters any more. Its keys end with it."""

    async def delete(registry: "Registry") -> None:
        await registry.delete_tenant(name, by=BY)

    on_registry(config, delete)
    print(f"tenant {name} is removed")


def _patch(config: Path, name: str, terms: "Terms", *, must_exist: bool = True) -> None:
    async def patch(registry: "Registry") -> "Tenant":
        return await registry.patch_tenant(name, terms, must_exist=must_exist, by=BY)

    _show(on_registry(config, patch))


def _limit(option: str, text: str) -> int | None:
    """Raises typer.BadParameter."""
    if text == _NO_LIMIT:
        return None
    if not text.isdecimal():
        flag = f"--{option.replace('_', '-')}"
        raise typer.BadParameter(f"{flag} is {text!r}; give a number, or {_NO_LIMIT!r} for no limit")
    return int(text)


def _show(*tenants: "Tenant") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("tenant", "state", "concurrent", "requests/min", "tokens/min", "adapters", "bytes")
    for tenant in tenants:
        quota = tenant.quota
        limits = (quota.max_concurrent, quota.requests_per_min, quota.tokens_per_min)
        shown = (
            "-" if limit is None else str(limit) for limit in (*limits, tenant.max_adapters, tenant.max_adapter_bytes)
        )
        table.add_row(tenant.name, "suspended" if tenant.suspended else "active", *shown)
    Console(highlight=False).print(table)
