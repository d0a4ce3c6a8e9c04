"""`punica-serve keys`: API keys, made and revoked in the registry's database itself."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve.cli.on_registry import BY, on_registry, shown_time
from punica_serve.cli.options import DEFAULT_CONFIG, ConfigOption
from punica_serve.registry.names import DEFAULT_TENANT
from punica_serve.registry.records import Role

if TYPE_CHECKING:
    from punica_serve.registry.records import ApiKey
    from punica_serve.registry.registry import Registry

_DAY_S = 86_400.0

app = typer.Typer(name="keys", help="Make, list and revoke API keys.", no_args_is_help=True)


@app.command("create")
def create(
    tenant: Annotated[str, typer.Option(help="Whose key it is.")] = DEFAULT_TENANT,
    role: Annotated[Role, typer.Option(help="user: its tenant's own business; admin: everything.")] = "user",
    name: Annotated[str, typer.Option(help="What it is for, to tell it from others.")] = "",
    days: Annotated[float | None, typer.Option(min=0, help="How long it is valid; by default until revoked.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Make a key. It goes to standard output, this once: only its digest is kept."""
    expires_s = None if days is None else time.time() + days * _DAY_S

    async def make(registry: "Registry") -> "tuple[ApiKey, str]":
        return await registry.make_key(tenant, role, name, expires_s, by=BY)

    key, secret = on_registry(config, make)
    print(
        f"key {key.key_id} of tenant {tenant}, role {role}, expires: {shown_time(expires_s)}; it is not shown again:",
        file=sys.stderr,
    )
    print(secret)


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """List the keys that are not revoked, without their secrets."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    async def read(registry: "Registry") -> "tuple[ApiKey, ...]":
        return registry.snapshot.keys(tenant)

    table = Table("key", "tenant", "role", "name", "made", "expires")
    for key in on_registry(config, read):
        times = shown_time(key.created_s), shown_time(key.expires_s)
        table.add_row(key.key_id, key.tenant, key.role, Text(key.name), *times)
    Console(highlight=False).print(table)


@app.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(help="As `keys list` shows it: the part after `ps-`.")],
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """End a key. Frontends refuse it within a second."""

    async def end(registry: "Registry") -> "ApiKey":
        return await registry.revoke_key(key_id, by=BY)

    key = on_registry(config, end)
    print(f"key {key.key_id} of tenant {key.tenant} is revoked")
