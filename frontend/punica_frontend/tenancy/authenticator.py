"""Identifies the caller of a request: by its API key, by a browser's cookie, or as anyone while there are no keys."""

import logging
import time
from collections.abc import Collection
from typing import Literal

from starlette.requests import HTTPConnection

from punica_frontend.api.caller import ANYONE, Caller
from punica_frontend.tenancy import sessions
from punica_frontend.tenancy.origin import check_cookie_origin, check_local_host, check_origin
from punica_frontend.tenancy.sessions import Sessions
from punica_serve.errors import TenantSuspended, Unauthorized
from punica_serve.registry.records import ApiKey
from punica_serve.registry.registry import Registry

log = logging.getLogger(__name__)

#: Longer secrets can't be keys and are not hashed.
MAX_SECRET_CHARS = 256

#: The close reason of websockets whose key became invalid.
NO_LONGER_VALID = "the API key is no longer valid, or its tenant is suspended"

#: "open": everyone is an administrator. "local": the same for clients of this machine, until there is a key.
AuthMode = Literal["open", "local", "keys"]


class Authenticator:
    """Authenticates callers. Mode "local" ends for good with the first key: revoking the last key opens nothing."""

    def __init__(
        self, registry: Registry, sessions: Sessions, auth_mode: AuthMode, cors_origins: Collection[str] = ()
    ) -> None:
        """Requests from pages of ``cors_origins`` count as any other client's. "*" requires an API key."""
        self._registry = registry
        self._sessions = sessions
        self._auth_mode = auth_mode
        self._cors_origins = cors_origins

    async def authenticate(self, connection: HTTPConnection) -> Caller:
        """Returns the caller.

        Raises Unauthorized, TenantSuspended, or Forbidden for a request from another site's page.
        """
        if self.is_open:
            if self._auth_mode == "local":
                check_local_host(connection)
            check_origin(connection, self._cors_origins)
            return ANYONE
        key = await self._key_of(connection)
        return Caller(key.tenant_id, key.tenant, key.role, key.key_id)

    def is_still_valid(self, caller: Caller) -> bool:
        """Whether a caller authenticated earlier would be authenticated now."""
        if caller.key_id is None:
            return self.is_open
        key = self._registry.snapshot.key(caller.key_id, time.time())
        return key is not None and not self._is_suspended(key)

    async def key_of_secret(self, secret: str) -> ApiKey:
        """Returns the key. Raises Unauthorized, and TenantSuspended."""
        key = await self._registry.key_of(secret) if len(secret) <= MAX_SECRET_CHARS else None
        if key is None:
            raise Unauthorized("the API key is not valid: it is unknown, revoked or expired")
        return self._checked(key)

    @property
    def is_open(self) -> bool:
        if self._auth_mode == "local" and has_keys(self._registry):
            log.warning("an API key was created: from now on every request needs one")
            self._auth_mode = "keys"
        return self._auth_mode != "keys"

    async def _key_of(self, connection: HTTPConnection) -> ApiKey:
        if header := connection.headers.get("authorization"):
            scheme, _, secret = header.partition(" ")
            if scheme.lower() != "bearer":
                raise Unauthorized("the Authorization header must be `Bearer`, a space and an API key")
            return await self.key_of_secret(secret.strip())
        if cookie := connection.cookies.get(sessions.NAME):
            check_cookie_origin(connection)
            return self._key_of_cookie(cookie)
        raise Unauthorized(
            "this needs an API key: send `Authorization: Bearer KEY`. `punica-serve keys create` makes a key"
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
                f"tenant {key.tenant!r} is suspended: its keys are refused until an administrator resumes it"
            )
        return key

    def _is_suspended(self, key: ApiKey) -> bool:
        """Suspension does not affect an administrator's key, which must still be able to undo it."""
        return key.role != "admin" and self._registry.snapshot.tenant_of(key.tenant_id).suspended


def has_keys(registry: Registry) -> bool:
    """Whether any key is valid."""
    now_s, keys = time.time(), registry.snapshot.keys(None)
    return any(key.is_valid(now_s) for key in keys)
