"""`punica-serve keys`: creates and revokes API keys, directly in the registry's database."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve.cli.on_registry import BY, on_registry, shown_time
from punica_serve.cli.options import DEFAULT_CONFIG, ConfigOption, Force
from punica_serve.cli.text_tables import print_list
from punica_serve.registry.names import DEFAULT_TENANT
from punica_serve.registry.records import Role

if TYPE_CHECKING:
    from punica_serve.registry.records import ApiKey
    from punica_serve.registry.registry import Registry

_DAY_S = 86_400.0

app = typer.Typer(name="keys", help="Create, list and revoke API keys.", no_args_is_help=True)


@app.command("create")
def create(
    tenant: Annotated[str, typer.Option(help="Tenant that owns the key.")] = DEFAULT_TENANT,
    role: Annotated[Role, typer.Option(help="user: the tenant's own affairs; admin: everything.")] = "user",
    name: Annotated[str, typer.Option(help="A label that says what it is for.")] = "",
    days: Annotated[float | None, typer.Option(min=0, help="Days until it expires; by default never.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Create a key. It is printed to standard output only this once: only its digest is stored."""
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
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's keys.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """List the keys that are not revoked, without their secrets."""

    async def read(registry: "Registry") -> "tuple[ApiKey, ...]":
        return registry.snapshot.keys(tenant)

    rows = (
        (key.key_id, key.tenant, key.role, key.name, shown_time(key.created_s), shown_time(key.expires_s))
        for key in on_registry(config, read)
    )
    print_list(("key", "tenant", "role", "name", "made", "expires"), rows)


@app.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(help="Id as shown by `keys list`: the part after `ps-`.")],
    force: Force = False,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Revoke a key. Frontends refuse it within a second."""

    async def end(registry: "Registry") -> "ApiKey":
        return await registry.revoke_key(key_id, force=force, by=BY)

    key = on_registry(config, end)
    print(f"key {key.key_id} of tenant {key.tenant} is revoked")
