from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO

import httpx
import pytest
from rich.console import Console

from punica_serve.cli.up.readiness import models_once_served, print_banner


@asynccontextmanager
async def frontend_answering(*answers: httpx.Response | Exception) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose calls get these answers, in this order."""
    remaining = list(answers)

    def answer(_: httpx.Request) -> httpx.Response:
        if isinstance(next_answer := remaining.pop(0), Exception):
            raise next_answer
        return next_answer

    async with httpx.AsyncClient(base_url="http://127.0.0.1:8000", transport=httpx.MockTransport(answer)) as client:
        yield client
    assert not remaining


READY = httpx.Response(200)
MODELS = httpx.Response(200, json={"data": [{"id": name} for name in ("numbers", "roman")]})


async def test_what_it_waits_for_is_a_line_each_where_there_is_no_terminal() -> None:
    out = StringIO()
    console = Console(file=out, force_terminal=False)
    no_gpu = httpx.Response(503, json={"error": {"message": "no [/] GPU has joined"}})
    async with frontend_answering(httpx.ConnectError("refused"), no_gpu, no_gpu, READY, MODELS) as client:
        assert await models_once_served(client, console) == ["numbers", "roman"]
    assert out.getvalue() == "waiting for the frontend\nno [/] GPU has joined\n"


async def test_a_frontend_that_dies_once_it_was_ready_is_waited_for_again() -> None:
    out = StringIO()
    async with frontend_answering(READY, httpx.ReadError("gone"), READY, MODELS) as client:
        assert await models_once_served(client, Console(file=out)) == ["numbers", "roman"]
    assert out.getvalue() == "waiting for the frontend\n"


@pytest.mark.parametrize(("adapters", "lora_id"), [(["roman", "x[/b]"], '"roman"'), ([], "null")])
def test_the_banner_gives_a_line_to_try(adapters: list[str], lora_id: str) -> None:
    out = StringIO()
    print_banner(
        ["http://127.0.0.1:8000", "http://127.0.0.1:8001"], ["numbers", *adapters], Console(file=out, width=20)
    )
    assert (
        "  curl -s http://127.0.0.1:8000/v1/generate -H 'content-type: application/json'"
        f""" -d '{{"prompt": "42", "lora_id": {lora_id}}}'\n"""
    ) in out.getvalue()
    assert "http://127.0.0.1:8000/docs" in out.getvalue()
    assert "also at     http://127.0.0.1:8001\n" in out.getvalue()
    assert (", ".join(adapters) or "none") in out.getvalue()


def test_the_banner_names_a_few_of_many_adapters() -> None:
    out = StringIO()
    print_banner(["http://127.0.0.1:8000"], ["numbers", *(f"a{number}" for number in range(1000))], Console(file=out))
    assert "  adapters    a0, a1, a2, a3, a4, a5, a6, a7 and 992 more\n" in out.getvalue()


async def test_where_keys_are_asked_for_no_model_is_told() -> None:
    async with frontend_answering(READY, httpx.Response(401)) as client:
        assert await models_once_served(client, Console(file=StringIO())) == []
    out = StringIO()
    print_banner(["http://127.0.0.1:8000"], [], Console(file=out))
    assert "requests need an API key" in out.getvalue() and "authorization: Bearer YOUR_KEY" in out.getvalue()
