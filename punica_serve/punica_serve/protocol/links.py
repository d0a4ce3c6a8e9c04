"""The handshake of a link, and heartbeats."""

from punica_serve.protocol.base import Message
from punica_serve.protocol.request import WireError


class _Hello(Message, frozen=True):
    """The first frame of a peer."""

    version: tuple[int, int]
    token: str

    def __repr__(self) -> str:
        """Leaves out the token."""
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "token")
        return f"{type(self).__name__}({', '.join(shown)})"


class FrontendHello(_Hello, frozen=True):
    """The hello of a frontend, which then adds all its requests, also those that it added over an earlier link."""

    frontend_id: str


class RunnerHello(_Hello, frozen=True):
    """The hello of a runner. Its GPUs join one by one when they are ready, with empty working sets."""

    runner_id: str
    #: Names this process: it tells a runner that dials again from two runners with the same id.
    instance: str


class Welcome(Message, frozen=True):
    """The scheduler's answer to a hello. A runner that sees another incarnation drops all assignments."""

    version: tuple[int, int]
    incarnation: int


class Refused(Message, frozen=True):
    """The scheduler's answer to a hello that it can't accept; it then closes."""

    error: WireError


class Heartbeat(Message, frozen=True):
    """A sign of life from an end that has had nothing else to send."""
