"""A channel over a socket that the test controls."""

from collections.abc import AsyncIterator

import pytest

from fake_socket import FakeSocket
from punica_serve.config.links_section import LinksConfig
from punica_serve.links.channel import Channel
from punica_serve.protocol import SchedulerToFrontend


@pytest.fixture
def socket() -> FakeSocket:
    return FakeSocket()


@pytest.fixture
async def channel(socket: FakeSocket) -> AsyncIterator[Channel]:
    async with Channel(socket, SchedulerToFrontend, LinksConfig()) as channel:  # type: ignore[arg-type]
        yield channel
