"""The handshake of a link, and how its ends know that the other lives."""

from punica_serve.protocol.base import Message
from punica_serve.protocol.request import WireError


class _Hello(Message, frozen=True):
    """First frame of a peer."""

    version: tuple[int, int]
    token: str

    def __repr__(self) -> str:
        """Without the token."""
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "token")
        return f"{type(self).__name__}({', '.join(shown)})"


class FrontendHello(_Hello, frozen=True):
    """A frontend's. It then adds all the requests that it owns, again if it has dialled before."""

    frontend_id: str


class RunnerHello(_Hello, frozen=True):
    """A runner's, whose GPUs join one by one as they are ready. It always reports empty working sets."""

    runner_id: str
    #: Of this process: tells one runner that dials again from two that were given the same id.
    instance: str


class Welcome(Message, frozen=True):
    """The scheduler's answer to a hello. A runner that sees another incarnation drops all assignments."""

    version: tuple[int, int]
    incarnation: int


class Refused(Message, frozen=True):
    """The scheduler's answer to a hello that it can't accept; it then closes."""

    error: WireError


class Heartbeat(Message, frozen=True):
    """Sent by an end that has had nothing else to send. It says that the sender lives, and nothing more."""
