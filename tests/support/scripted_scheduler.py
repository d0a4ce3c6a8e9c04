"""The scheduler's end of a frontend's link, on which a test says what is said."""

from typing import Any

from punica_serve.links.channel import Channel
from punica_serve.links.hello import accept
from punica_serve.protocol import AddRequest, FrontendHello, Message


class ScriptedScheduler:
    """The other end of the link, on which the test says what is said."""

    def __init__(self) -> None:
        self.port = 0
        self.incarnation = 1
        #: All that frontends sent, on all links so far, their hellos left out.
        self.received: list[Any] = []
        self.num_links = 0
        #: Frontend ids of all links so far.
        self.frontend_ids: list[str] = []
        self._channel: Channel | None = None

    async def session(self, channel: Channel) -> None:
        hello = await accept(channel, token="secret", incarnation=self.incarnation)
        assert isinstance(hello, FrontendHello)
        self.frontend_ids.append(hello.frontend_id)
        self._channel = channel
        self.num_links += 1
        try:
            await channel.serve(self.received.append)
        finally:
            self.num_links -= 1

    @property
    def is_linked(self) -> bool:
        return self._channel is not None

    @property
    def added(self) -> list[AddRequest]:
        """The requests of what was received: a frontend asks for other things, too, when it likes."""
        return [message for message in self.received if isinstance(message, AddRequest)]

    def send(self, message: Message) -> None:
        assert self._channel is not None
        self._channel.send(message)

    async def cut(self) -> None:
        """Ends the link; the frontend dials again."""
        assert self._channel is not None
        await self._channel.close("cut by the test")
