"""Tenants, grants, keys, usage and the audit log as the API shows them."""

from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from punica_serve.errors import AdapterNotFound
from punica_serve.protocol import NO_SLO, Slo
from punica_serve.registry.names import full_name
from punica_serve.registry.records import ApiKey, AuditEntry, Grant, Role, Tenant, Usage
from punica_serve.registry.snapshot import RegistrySnapshot


class SloCard(msgspec.Struct, frozen=True):
    """Latencies that are promised. Null: no promise."""

    first_token_s: Annotated[float | None, Meta(description="From a request's arrival to its first token.")]
    time_per_token_s: Annotated[float | None, Meta(description="Mean time between two tokens of an answer.")]

    @classmethod
    def of(cls, slo: Slo) -> Self:
        return cls(slo.first_token_s, slo.time_per_token_s)


class TenantCard(msgspec.Struct, frozen=True):
    """A tenant and its limits. Null means no limit, 0 means nothing."""

    tenant_id: Annotated[str, Meta(description="Never reused: a later tenant of the same name has another.")]
    name: str
    created: int
    suspended: Annotated[bool, Meta(description="Its users' keys are refused.")]
    max_concurrent: int | None
    requests_per_min: int | None
    tokens_per_min: int | None
    max_adapters: int | None
    max_adapter_bytes: int | None
    slo: Annotated[SloCard | None, Meta(description="Promises of its requests that make none of their own.")]

    @classmethod
    def of(cls, tenant: Tenant) -> Self:
        return cls(
            tenant.tenant_id,
            tenant.name,
            int(tenant.created_s),
            tenant.suspended,
            **asdict(tenant.quota),
            max_adapters=tenant.max_adapters,
            max_adapter_bytes=tenant.max_adapter_bytes,
            slo=None if tenant.slo == NO_SLO else SloCard.of(tenant.slo),
        )


class TenantList(msgspec.Struct, frozen=True):
    data: list[TenantCard]
    object: Literal["list"] = "list"


class DeletedTenant(msgspec.Struct, frozen=True):
    name: str
    tenant_id: Annotated[str, Meta(description="Identifies its usage and audit log, which are kept.")]
    deleted: Literal[True] = True


class GrantCard(msgspec.Struct, frozen=True):
    """A tenant's right to use another tenant's adapter."""

    adapter: Annotated[str, Meta(description="The adapter's full name.")]
    tenant: Annotated[str, Meta(description="The tenant that may use it.")]
    name: Annotated[str, Meta(description="The tenant's name for it: in full if the short name means another adapter.")]
    shadows: Annotated[
        tuple[str, ...], Meta(description="Full names that the short name would mean without the grant.")
    ] = ()

    @classmethod
    def of(cls, grant: Grant, owner: str, receiver: str, snapshot: RegistrySnapshot) -> Self:
        """A snapshot that is older than the grant says nothing about its short name."""
        name = full_name(owner, grant.name)
        try:
            adapter = snapshot.adapter(grant.to_id, name)
        except AdapterNotFound:
            return cls(name, receiver, name)
        shadows = snapshot.shadowed_by(grant.to_id, adapter)
        return cls(name, receiver, snapshot.name_for(grant.to_id, adapter), shadows)


class GrantList(msgspec.Struct, frozen=True):
    data: list[GrantCard]
    object: Literal["list"] = "list"


class RevokedGrant(msgspec.Struct, frozen=True):
    """A grant that has ended."""

    adapter: str
    tenant: str
    deleted: Literal[True] = True


class KeyCard(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret."""

    key_id: str
    tenant: str
    role: Role
    name: str
    created: int
    expires: Annotated[int | None, Meta(description="Null: never.")]

    @classmethod
    def of(cls, key: ApiKey, /, **secret: str) -> Self:
        """``secret`` is MadeKey's additional field."""
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
    """A key with its secret."""

    key: Annotated[str, Meta(description="The secret that requests send. It is shown only once.")]


class KeyList(msgspec.Struct, frozen=True):
    data: list[KeyCard]
    object: Literal["list"] = "list"


class RevokedKey(msgspec.Struct, frozen=True):
    key_id: str
    deleted: Literal[True] = True


class UsageRow(msgspec.Struct, frozen=True):
    """A tenant's use of one version of an adapter in one hour."""

    hour: Annotated[int, Meta(description="When the hour began, in seconds since 1970.")]
    tenant_id: str
    tenant: str
    owner_id: Annotated[str | None, Meta(description="The `tenant_id` of the adapter's owner.")]
    adapter: Annotated[str | None, Meta(description="The adapter's full name; null is the base model.")]
    version: int | None
    requests: int
    prompt_tokens: int
    cached_tokens: Annotated[
        int, Meta(description="Prompt tokens that were found in a KvCache; part of `prompt_tokens`.")
    ]
    completion_tokens: int
    gpu_seconds: float
    first_token_kept: Annotated[int, Meta(description="Promises of a first token that were kept.")]
    first_token_broken: int
    time_per_token_kept: Annotated[int, Meta(description="Promises of a time per token that were kept.")]
    time_per_token_broken: int

    @classmethod
    def of(cls, row: Usage) -> Self:
        return cls(
            row.hour_s,
            row.tenant_id,
            row.tenant,
            row.owner_id,
            row.adapter,
            row.version,
            row.num_requests,
            row.num_prompt_tokens,
            row.num_cached_tokens,
            row.num_generated_tokens,
            row.gpu_s,
            **asdict(row.promises),
        )


class UsageList(msgspec.Struct, frozen=True):
    data: list[UsageRow]
    object: Literal["list"] = "list"


class AuditCard(msgspec.Struct, frozen=True):
    """A change of adapters, grants, keys or tenants."""

    entry_id: int
    at_s: Annotated[float, Meta(description="Seconds since 1970.")]
    by: Annotated[str, Meta(description="The tenant and key that made the change.")]
    action: Annotated[str, Meta(description="The kind of change, such as `adapter.register` or `key.revoke`.")]
    tenant_id: Annotated[str, Meta(description="The tenant concerned; a deleted tenant keeps its entries.")]
    tenant: str
    subject: Annotated[str, Meta(description="The changed object: an adapter's or tenant's name, or a key's id.")]
    detail: dict[str, Any]

    @classmethod
    def of(cls, entry: AuditEntry) -> Self:
        return cls(
            entry.entry_id,
            entry.at_s,
            entry.by,
            entry.action,
            entry.tenant_id,
            entry.tenant,
            entry.subject,
            entry.detail,
        )


class AuditList(msgspec.Struct, frozen=True):
    """Entries, newest first."""

    data: list[AuditCard]
    object: Literal["list"] = "list"


class Session(msgspec.Struct, frozen=True):
    """A session that has begun."""

    tenant: str
    role: Role


class LoggedOut(msgspec.Struct, frozen=True):
    status: Literal["ok"] = "ok"


#: All structs of this module that the OpenAPI page needs.
STRUCTS = (
    SloCard,
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
