"""Who a request is from: by the API key that it carries, by a browser's cookie, or anybody where there are no keys."""

import logging
import time
from typing import Literal

from starlette.requests import HTTPConnection

from punica_frontend.caller import ANYONE, Caller
from punica_frontend.tenancy import sessions
from punica_frontend.tenancy.origin import check_cookie_origin, check_local_host, check_origin
from punica_frontend.tenancy.sessions import Sessions
from punica_serve.errors import TenantSuspended, Unauthorized
from punica_serve.registry.records import ApiKey
from punica_serve.registry.registry import Registry

log = logging.getLogger(__name__)

#: Longer ones are not keys; nobody has to hash them.
MAX_SECRET_CHARS = 256

#: Told to those who may stay no longer.
MAY_NOT_STAY = "the API key is no longer valid, or its tenant is suspended"

#: "open": everybody is an administrator. "local": the same, for this machine's own clients, until there is a key.
Lock = Literal["open", "local", "keys"]


class Door:
    """Lets callers in. Once it has seen a key, a local one is locked for good: revoking the last key opens nothing."""

    def __init__(self, registry: Registry, sessions: Sessions, lock: Lock) -> None:
        self._registry = registry
        self._sessions = sessions
        self._lock = lock

    async def admit(self, connection: HTTPConnection) -> Caller:
        """Raises Unauthorized, TenantSuspended, or Forbidden for what a page of another site sends."""
        if self.is_open:
            if self._lock == "local":
                check_local_host(connection)
            check_origin(connection)
            return ANYONE
        key = await self._key_of(connection)
        return Caller(key.tenant, key.role, key.key_id)

    def may_stay(self, caller: Caller) -> bool:
        """Whether a caller who was let in still would be."""
        if caller.key_id is None:
            return self.is_open
        key = self._registry.snapshot.key(caller.key_id, time.time())
        return key is not None and not self._is_suspended(key)

    async def key_of_secret(self, secret: str) -> ApiKey:
        """Raises Unauthorized, and TenantSuspended."""
        key = await self._registry.key_of(secret) if len(secret) <= MAX_SECRET_CHARS else None
        if key is None:
            raise Unauthorized("the API key is not valid: it is unknown, revoked or expired")
        return self._checked(key)

    @property
    def is_open(self) -> bool:
        if self._lock == "local" and has_keys(self._registry):
            log.warning("there are API keys now: every request needs one")
            self._lock = "keys"
        return self._lock != "keys"

    async def _key_of(self, connection: HTTPConnection) -> ApiKey:
        if header := connection.headers.get("authorization"):
            scheme, _, secret = header.partition(" ")
            if scheme.lower() != "bearer":
                raise Unauthorized("the Authorization header must be `Bearer` and an API key")
            return await self.key_of_secret(secret.strip())
        if cookie := connection.cookies.get(sessions.NAME):
            check_cookie_origin(connection)
            return self._key_of_cookie(cookie)
        raise Unauthorized(
            "this needs an API key: send `Authorization: Bearer` and the key. `punica-serve keys create` makes one"
        )

    def _key_of_cookie(self, cookie: str) -> ApiKey:
        now_s = time.time()
        key_id = self._sessions.key_id_of(cookie, now_s)
        key = None if key_id is None else self._registry.snapshot.key(key_id, now_s)
        if key is None:
            raise Unauthorized("the session has ended: log in again with an API key")
        return self._checked(key)

    def _checked(self, key: ApiKey) -> ApiKey:
        if self._is_suspended(key):
            raise TenantSuspended(
                f"tenant {key.tenant!r} is suspended: its keys are of no use until an administrator lets it go on"
            )
        return key

    def _is_suspended(self, key: ApiKey) -> bool:
        """An administrator's key is not its tenant's alone: it can still end what it began."""
        return key.role != "admin" and self._registry.snapshot.tenant(key.tenant).suspended


def has_keys(registry: Registry) -> bool:
    """Whether there is one that lets somebody in."""
    now_s, keys = time.time(), registry.snapshot.keys(None)
    return any(key.is_valid(now_s) for key in keys)
