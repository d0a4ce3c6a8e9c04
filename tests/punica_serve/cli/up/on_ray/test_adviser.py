import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from punica_serve.cli.up.on_ray.adviser import Adviser
from punica_serve.protocol import ScaleAdvice

URLS = ("http://one:8000", "http://two:8000")
CLUSTER = {"advice": {"num_more_gpus": 2, "releasable_runners": ["ray-a"]}, "gpus": [{}, {}, {}]}


@asynccontextmanager
async def adviser(answer: Callable[[httpx.Request], httpx.Response]) -> AsyncIterator[Adviser]:
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        yield Adviser(client)


async def test_the_first_that_answers_is_heard() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/cluster"
        if request.url.host == "one":
            raise httpx.ConnectError("it is moving")
        return httpx.Response(200, json=CLUSTER)

    async with adviser(answer) as asked:
        await asked.ask(URLS)
        assert (asked.advice, asked.num_gpus) == (ScaleAdvice(2, ("ray-a",)), 3)


@pytest.mark.parametrize(
    "failure",
    [
        httpx.Response(503),
        httpx.Response(200, text="hello"),
        httpx.Response(200, json=["hello"]),
        httpx.Response(401),
    ],
)
async def test_while_nobody_answers_the_newest_advice_stands(failure: httpx.Response) -> None:
    answers = [httpx.Response(200, json=CLUSTER), failure, failure]
    async with adviser(lambda _: answers.pop(0)) as asked:
        await asked.ask(URLS)
        await asked.ask(URLS)
        assert (asked.advice, asked.num_gpus) == (ScaleAdvice(2, ("ray-a",)), 3)
    assert not answers


async def test_that_a_key_is_wanted_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with adviser(lambda _: httpx.Response(401)) as asked:
        await asked.ask(URLS)
        await asked.ask(URLS)
    (message,) = caplog.messages
    assert "http://one:8000 requires a valid API key: set `--key` or PUNICA_API_KEY" in message
    assert "neither requested nor released" in message
