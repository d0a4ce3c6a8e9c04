"""Tenants, grants, keys, usage and the audit log as the API shows them."""

from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from punica_serve.errors import AdapterNotFound
from punica_serve.registry.names import full_name
from punica_serve.registry.records import ApiKey, AuditEntry, Grant, Role, Tenant, Usage
from punica_serve.registry.snapshot import RegistrySnapshot


class TenantCard(msgspec.Struct, frozen=True):
    """A tenant and what it may use. Null: as much as it likes; 0: nothing."""

    name: str
    created: int
    suspended: Annotated[bool, Meta(description="Its users' keys let nobody in.")]
    max_concurrent: int | None
    requests_per_min: int | None
    tokens_per_min: int | None
    max_adapters: int | None
    max_adapter_bytes: int | None

    @classmethod
    def of(cls, tenant: Tenant) -> Self:
        return cls(
            tenant.name,
            int(tenant.created_s),
            tenant.suspended,
            **asdict(tenant.quota),
            max_adapters=tenant.max_adapters,
            max_adapter_bytes=tenant.max_adapter_bytes,
        )


class TenantList(msgspec.Struct, frozen=True):
    data: list[TenantCard]
    object: Literal["list"] = "list"


class DeletedTenant(msgspec.Struct, frozen=True):
    name: str
    deleted: Literal[True] = True


class GrantCard(msgspec.Struct, frozen=True):
    """A tenant may use another's adapter."""

    adapter: Annotated[str, Meta(description="In full.")]
    tenant: Annotated[str, Meta(description="Who may use it.")]
    name: Annotated[str, Meta(description="By which it gets it: in full where the short name means another adapter.")]
    shadows: Annotated[
        tuple[str, ...], Meta(description="What the short name would mean to it without the grant, in full.")
    ] = ()

    @classmethod
    def of(cls, grant: Grant, snapshot: RegistrySnapshot) -> Self:
        """A snapshot that has not heard of it says of its short name nothing."""
        name = full_name(grant.tenant, grant.name)
        try:
            adapter = snapshot.adapter(grant.to, name)
        except AdapterNotFound:
            return cls(name, grant.to, name)
        return cls(name, grant.to, snapshot.name_for(grant.to, adapter), snapshot.shadowed_by(grant.to, adapter))


class GrantList(msgspec.Struct, frozen=True):
    data: list[GrantCard]
    object: Literal["list"] = "list"


class RevokedGrant(msgspec.Struct, frozen=True):
    """A tenant may use another's adapter no longer."""

    adapter: str
    tenant: str
    deleted: Literal[True] = True


class KeyCard(msgspec.Struct, frozen=True, kw_only=True):
    """All there is to know of a key but its secret."""

    key_id: str
    tenant: str
    role: Role
    name: str
    created: int
    expires: Annotated[int | None, Meta(description="Null: never.")]

    @classmethod
    def of(cls, key: ApiKey, /, **secret: str) -> Self:
        """``secret`` is the field of a MadeKey."""
        return cls(
            key_id=key.key_id,
            tenant=key.tenant,
            role=key.role,
            name=key.name,
            created=int(key.created_s),
            expires=None if key.expires_s is None else int(key.expires_s),
            **secret,
        )


class MadeKey(KeyCard, frozen=True, kw_only=True):
    """A key, and its secret."""

    key: Annotated[str, Meta(description="What requests show. It is not told again.")]


class KeyList(msgspec.Struct, frozen=True):
    data: list[KeyCard]
    object: Literal["list"] = "list"


class RevokedKey(msgspec.Struct, frozen=True):
    key_id: str
    deleted: Literal[True] = True


class UsageRow(msgspec.Struct, frozen=True):
    """What a tenant used of one version of an adapter in one hour."""

    hour: Annotated[int, Meta(description="When the hour began, in seconds since 1970.")]
    tenant: str
    adapter: Annotated[str | None, Meta(description="In full; null is the base model.")]
    version: int | None
    requests: int
    prompt_tokens: int
    completion_tokens: int
    gpu_seconds: float

    @classmethod
    def of(cls, row: Usage) -> Self:
        return cls(
            row.hour_s,
            row.tenant,
            row.adapter,
            row.version,
            row.num_requests,
            row.num_prompt_tokens,
            row.num_generated_tokens,
            row.gpu_s,
        )


class UsageList(msgspec.Struct, frozen=True):
    data: list[UsageRow]
    object: Literal["list"] = "list"


class AuditCard(msgspec.Struct, frozen=True):
    """A change of adapters, grants, keys or tenants."""

    entry_id: int
    at_s: Annotated[float, Meta(description="Seconds since 1970.")]
    by: Annotated[str, Meta(description="Who did it.")]
    action: Annotated[str, Meta(description="What: `adapter.register`, `key.revoke` and the like.")]
    tenant: Annotated[str, Meta(description="Whose it is.")]
    subject: Annotated[str, Meta(description="What was changed: the name of an adapter or tenant, the id of a key.")]
    detail: dict[str, Any]

    @classmethod
    def of(cls, entry: AuditEntry) -> Self:
        return cls(entry.entry_id, entry.at_s, entry.by, entry.action, entry.tenant, entry.subject, entry.detail)


class AuditList(msgspec.Struct, frozen=True):
    """The newest first."""

    data: list[AuditCard]
    object: Literal["list"] = "list"


class Session(msgspec.Struct, frozen=True):
    """Whose session has begun."""

    tenant: str
    role: Role


class LoggedOut(msgspec.Struct, frozen=True):
    status: Literal["ok"] = "ok"


#: For the OpenAPI page.
STRUCTS = (
    TenantCard,
    TenantList,
    DeletedTenant,
    GrantCard,
    GrantList,
    RevokedGrant,
    KeyCard,
    MadeKey,
    KeyList,
    RevokedKey,
    UsageRow,
    UsageList,
    AuditCard,
    AuditList,
    Session,
    LoggedOut,
)
