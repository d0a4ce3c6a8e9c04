"""Links with and without TLS, on both event loops, when either end sends more than the other takes at once."""

import asyncio
import random
import ssl
from collections.abc import Callable

import pytest
import trustme
import uvloop

from punica_serve.links import frame_stream, hello
from punica_serve.links.channel import Channel
from punica_serve.protocol import (
    PROTOCOL_VERSION,
    CallReply,
    CancelRequest,
    FrontendHello,
    SchedulerToFrontend,
    ToScheduler,
    WireError,
)
from waits import DEADLINE_S

NUM_MESSAGES = 600
HELLO = FrontendHello(PROTOCOL_VERSION, "token", "frontend")


def _contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of a listener and a dialler."""
    authority = trustme.CA()
    listening, dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(listening)
    authority.configure_trust(dialling)
    return listening, dialling


def _lengths(seed: int) -> list[int]:
    """Mostly short messages; some are longer than the kernel's buffers or one read."""
    dice = random.Random(seed)
    return [dice.choice((1, 10, 100, 1_000, 70_000, 400_000)) for _ in range(NUM_MESSAGES)]


async def _flood(tls: tuple[ssl.SSLContext, ssl.SSLContext] | None) -> tuple[list[int], list[int]]:
    """The numbers that each end receives if the other sends all its messages before any is taken."""
    requests: list[int] = []
    replies: list[int] = []
    listening, dialling = tls or (None, None)
    all_requests, all_replies = asyncio.Event(), asyncio.Event()

    def take_request(message: CancelRequest) -> None:
        requests.append(int(message.request_id.split(":")[0]))
        if len(requests) == NUM_MESSAGES:
            all_requests.set()

    def take_reply(message: CallReply) -> None:
        replies.append(message.call_id)
        if len(replies) == NUM_MESSAGES:
            all_replies.set()

    async def session(channel: Channel) -> None:
        await hello.accept(channel, token="token", incarnation=1)
        for number, length in enumerate(_lengths(1)):
            channel.send(CallReply(number, WireError("code", "x" * length)), may_wait=number % 2 == 0)
        await channel.serve(take_request)

    async with asyncio.timeout(DEADLINE_S), hello.listen("127.0.0.1", 0, ToScheduler, session, tls=listening) as port:
        url = f"{'wss' if tls else 'ws'}://127.0.0.1:{port}"
        async with hello.dial(url, HELLO, SchedulerToFrontend, tls=dialling) as (channel, _):
            for number, length in enumerate(_lengths(2)):
                channel.send(CancelRequest(f"{number}:{'x' * length}"), may_wait=number % 2 == 0)
            await all_requests.wait()
            serving = asyncio.create_task(channel.serve(take_reply))
            await all_replies.wait()
            channel.end("done")
            await serving
    return requests, replies


@pytest.mark.parametrize("is_secret", [False, True], ids=["clear", "tls"])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_floods_both_ways_come_out_whole_and_in_order(
    monkeypatch: pytest.MonkeyPatch, new_loop: Callable[[], asyncio.AbstractEventLoop], is_secret: bool
) -> None:
    monkeypatch.setattr(frame_stream, "MAX_WAITING_FRAMES", 2)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        requests, replies = runner.run(_flood(_contexts() if is_secret else None))
    assert requests == replies == list(range(NUM_MESSAGES))
