"""The API keys of an application with two tenants and an administrator."""

from collections.abc import Callable
from dataclasses import dataclass

import httpx

from punica_serve.registry.records import ApiKey, Role
from punica_serve.registry.registry import Registry

#: Makes clients of the application, by their API keys.
ClientOf = Callable[[str | None], httpx.AsyncClient]


@dataclass(frozen=True)
class Keys:
    """The secrets of keys, by who has them."""

    registry: Registry
    admin: str
    #: Has the adapter `latin`.
    acme: str
    #: Has the adapter `greek`.
    bolt: str

    async def make(self, tenant: str, role: Role = "user", expires_s: float | None = None) -> tuple[ApiKey, str]:
        return await self.registry.make_key(tenant, role, "", expires_s, by="the test")
