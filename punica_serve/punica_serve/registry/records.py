"""What the registry holds, as plain values. Times are seconds since 1970."""

from dataclasses import dataclass
from typing import Any, Literal

from punica_serve.protocol import AdapterRef, TenantQuota
from punica_serve.registry.names import full_name

Role = Literal["admin", "user"]


@dataclass(frozen=True, slots=True)
class AdapterVersion:
    """The newest version of an adapter: what a request for its name gets."""

    tenant: str
    name: str
    #: Counts from 1. Never used twice, also after the name was deleted and registered again.
    version: int
    ref: AdapterRef
    #: Where its owner got it from; None for an upload.
    source_uri: str | None
    #: What it says that it was trained on.
    base_model: str | None
    #: Its own, in place of the base model's.
    chat_template: str | None
    #: Stays in the host memory of every runner, and leaves a GPU only for adapters in use.
    pinned: bool
    created_s: float

    @property
    def full_name(self) -> str:
        return full_name(self.tenant, self.name)


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whoever adapters and keys belong to, and what it may use. None: as much as it likes; 0: nothing."""

    name: str
    quota: TenantQuota
    max_adapters: int | None
    #: Of the weights of its adapters, together.
    max_adapter_bytes: int | None
    #: Its users' keys let nobody in.
    suspended: bool
    created_s: float


@dataclass(frozen=True, slots=True)
class ApiKey:
    """All there is to know of a key but its secret."""

    #: The part of the secret that may be shown.
    key_id: str
    tenant: str
    role: Role
    #: What its owner calls it.
    name: str
    created_s: float
    #: None: never.
    expires_s: float | None

    def is_valid(self, now_s: float) -> bool:
        return self.expires_s is None or now_s < self.expires_s


@dataclass(frozen=True, slots=True)
class Grant:
    """Another tenant may use an adapter, whichever version is the newest."""

    tenant: str
    name: str
    to: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Files in the store that no adapter has any more, and that may still be in caches too."""

    since_s: float
    #: Whose adapters had them.
    tenants: frozenset[str]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tenant used of one version of an adapter in one hour."""

    #: When the hour began.
    hour_s: int
    tenant: str
    #: In full; None is the base model.
    adapter: str | None
    version: int | None
    num_requests: int
    num_prompt_tokens: int
    num_generated_tokens: int
    gpu_s: float


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change of adapters, grants, keys or tenants. Written with the change, or not at all."""

    entry_id: int
    at_s: float
    #: Who did it.
    by: str
    #: What: `adapter.register`, `key.revoke`, ...
    action: str
    #: Whose it is.
    tenant: str
    #: What was changed: the name of an adapter or tenant, the id of a key.
    subject: str
    detail: dict[str, Any]
