"""The registry's contents as plain values. Times are seconds since 1970."""

from dataclasses import dataclass
from typing import Any, Literal

from punica_serve.protocol import NO_PROMISES, NO_SLO, AdapterRef, PromiseCounts, Slo, TenantQuota
from punica_serve.registry.names import full_name

Role = Literal["admin", "user"]


@dataclass(frozen=True, slots=True)
class ServedBase:
    """The base model of a service. Services of several base models may share a registry."""

    #: Its name in the API.
    name: str
    #: Equal for base models that the same adapters fit.
    shape: str


@dataclass(frozen=True, slots=True)
class AdapterVersion:
    """The newest version of an adapter, which requests for its name get."""

    #: The owner's id; ``tenant`` is the owner's name.
    tenant_id: str
    tenant: str
    name: str
    #: Counts from 1. Never reused, even if the name is deleted and registered again.
    version: int
    ref: AdapterRef
    #: The source that its owner gave; None for an upload.
    source_uri: str | None
    #: The base model that it says it was trained on.
    base_model: str | None
    #: Its own chat template, used in place of the base model's.
    chat_template: str | None
    #: Stays in the host memory of every runner, and leaves a GPU only for adapters in use.
    pinned: bool
    created_s: float
    #: The base model that it was checked for; None if that is unknown.
    registered_for: ServedBase | None = None

    @property
    def full_name(self) -> str:
        return full_name(self.tenant, self.name)


@dataclass(frozen=True, slots=True)
class Tenant:
    """An owner of adapters and keys, with its limits. None means unlimited, 0 means none."""

    #: Never reused, unlike the name: a later tenant of the same name gets another id.
    tenant_id: str
    name: str
    quota: TenantQuota
    max_adapters: int | None
    #: Limit for the weights of all its adapters together.
    max_adapter_bytes: int | None
    #: Its users' keys are refused.
    suspended: bool
    created_s: float
    #: Promises of its requests where they make none of their own.
    slo: Slo = NO_SLO


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key without its secret."""

    #: The part of the secret that may be shown.
    key_id: str
    tenant_id: str
    tenant: str
    role: Role
    #: Its owner's name for it.
    name: str
    created_s: float
    #: None means never.
    expires_s: float | None

    def is_valid(self, now_s: float) -> bool:
        return self.expires_s is None or now_s < self.expires_s


@dataclass(frozen=True, slots=True)
class Grant:
    """Lets another tenant use the newest version of an adapter. Tenants are given by id."""

    tenant_id: str
    name: str
    to_id: str


@dataclass(frozen=True, slots=True)
class UnusedFiles:
    """Files that no adapter uses any more, and that may still be in the store and in caches."""

    since_s: float
    #: Tenants whose adapters used them.
    tenant_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Usage:
    """A tenant's usage of one version of an adapter in one hour."""

    #: Start of the hour.
    hour_s: int
    tenant_id: str
    tenant: str
    #: The adapter's owner; None for the base model.
    owner_id: str | None
    #: The adapter's full name; None for the base model.
    adapter: str | None
    version: int | None
    num_requests: int
    num_prompt_tokens: int
    #: Prompt tokens that were found in a KvCache; they are part of num_prompt_tokens.
    num_cached_tokens: int
    num_generated_tokens: int
    gpu_s: float
    promises: PromiseCounts = NO_PROMISES


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change of adapters, grants, keys or tenants. Committed with the change, or not at all."""

    entry_id: int
    at_s: float
    #: The user who made the change.
    by: str
    #: The action: `adapter.register`, `key.revoke`, ...
    action: str
    #: The tenant that owns the subject.
    tenant_id: str
    tenant: str
    #: The changed object: the name of an adapter or tenant, or the id of a key.
    subject: str
    detail: dict[str, Any]
