"""The caller of a request. Each client request has exactly one, whatever its route."""

from dataclasses import dataclass

from starlette.requests import HTTPConnection

from punica_serve.errors import Forbidden
from punica_serve.registry.names import DEFAULT_TENANT
from punica_serve.registry.records import Role


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant, with the rights of the key that it showed."""

    #: Identifies everything that belongs to the tenant. Its name may be another tenant's by the time a request ends.
    tenant_id: str
    tenant: str
    role: Role
    #: None where authentication is off.
    key_id: str | None = None

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"

    @property
    def name(self) -> str:
        """The caller's name in the audit log."""
        return f"{self.tenant}, key {self.key_id}" if self.key_id else f"{self.tenant}, no key"


#: The caller of every request while authentication is off.
ANYONE = Caller(DEFAULT_TENANT, DEFAULT_TENANT, "admin")


def caller_of(connection: HTTPConnection) -> Caller:
    """Returns the caller of a request or websocket, which ``AuthMiddleware`` has found."""
    caller = connection.scope["state"]["caller"]
    assert isinstance(caller, Caller)
    return caller


def admin_of(connection: HTTPConnection) -> Caller:
    """Returns the caller if it is an administrator. Raises Forbidden otherwise."""
    caller = caller_of(connection)
    if not caller.is_admin:
        raise Forbidden("this needs an administrator's API key; yours is a user's")
    return caller
