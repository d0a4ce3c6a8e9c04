"""Who asks: every request of a client has one caller, whichever route it takes."""

from dataclasses import dataclass

from starlette.requests import HTTPConnection

from punica_serve.errors import Forbidden
from punica_serve.registry.records import Role


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant, and what the key that was shown lets it do."""

    tenant: str
    role: Role
    #: None where authentication is off.
    key_id: str | None = None

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"

    @property
    def name(self) -> str:
        """In the audit log."""
        return f"{self.tenant}, key {self.key_id}" if self.key_id else f"{self.tenant}, no key"


#: Everybody, where authentication is off.
ANYONE = Caller("default", "admin")


def caller_of(connection: HTTPConnection) -> Caller:
    """Whose request or websocket this is. Whatever stands before the routes has found that out."""
    caller = connection.scope["state"]["caller"]
    assert isinstance(caller, Caller)
    return caller


def admin_of(connection: HTTPConnection) -> Caller:
    """The caller, who has to be an administrator. Raises Forbidden."""
    caller = caller_of(connection)
    if not caller.is_admin:
        raise Forbidden("this is for administrators; the API key is a user's")
    return caller
