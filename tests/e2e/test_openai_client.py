"""The official client of OpenAI against the whole cluster, as its users have it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import openai
import pytest

Until = Callable[[Callable[[], bool]], Any]


@pytest.fixture
def client(cluster: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{cluster.url}/v1", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def async_client(cluster: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key="none", base_url=f"{cluster.url}/v1", max_retries=0, timeout=60) as client:
        yield client


@pytest.mark.parametrize(
    ("model", "text"),
    [("roman", "XLII"), ("numbers:french", "quarante-deux"), ("numbers", "43 44 45 46 47 48")],
)
def test_completions(client: openai.OpenAI, model: str, text: str) -> None:
    answer = client.completions.create(model=model, prompt="42", max_tokens=32)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (text, "stop")
    assert answer.usage and answer.usage.completion_tokens == len(text) + 1


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="english", messages=[{"role": "user", "content": "42"}])
    assert answer.choices[0].message.content == "forty-two"


def test_streams(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model="hex", prompt=["42", "255"], n=2, max_tokens=8, stream=True))
    texts = [""] * 4
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["2a", "2a", "ff", "ff"] and len(chunks) > 4
    with client.chat.completions.create(
        model="roman",
        messages=[{"role": "user", "content": "42"}],
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        *pieces, last = list(stream)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "XLII"
    assert last.usage and last.usage.completion_tokens == 5


def test_what_newer_clients_send(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "developer", "content": "briefly"}, {"role": "user", "content": "42"}]
    with client.chat.completions.create(
        model="roman",
        messages=messages,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
        max_completion_tokens=3,
        extra_body={"top_k": 1},
    ) as stream:
        *pieces, last = list(stream)
    texts = ["", ""]
    for piece in pieces:
        texts[piece.choices[0].index] += piece.choices[0].delta.content or ""
    assert texts == ["XLI", "XLI"] and last.usage and last.usage.completion_tokens == 6
    with client.chat.completions.stream(model="roman", messages=messages) as events:
        assert events.get_final_completion().choices[0].message.content == "XLII"
    answer = client.chat.completions.create(
        model="roman", messages=messages, store=False, metadata={"a": "b"}, extra_headers={"X-Request-Id": "mine"}
    )
    assert answer._request_id == "mine"


async def test_many_at_once_asynchronously(async_client: openai.AsyncOpenAI) -> None:
    async def text(model: str) -> str:
        stream = await async_client.completions.create(model=model, prompt="42", stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    models = ["roman", "hex", "english", "binary"] * 4
    assert await asyncio.gather(*map(text, models)) == ["XLII", "2a", "forty-two", "101010"] * 4


def test_logprobs_and_seeds(client: openai.OpenAI) -> None:
    first, second = (
        client.completions.create(
            model="numbers", prompt="42", temperature=2.0, seed=7, n=3, max_tokens=12, logprobs=2, best_of=5
        )
        for _ in range(2)
    )
    assert [choice.text for choice in first.choices] == [choice.text for choice in second.choices]
    means = []
    for choice in first.choices:
        assert choice.logprobs and choice.logprobs.token_logprobs and choice.logprobs.tokens
        means.append(sum(choice.logprobs.token_logprobs) / len(choice.logprobs.tokens))
    assert means == sorted(means, reverse=True)
    chat = client.chat.completions.create(
        model="roman", messages=[{"role": "user", "content": "42"}], logprobs=True, top_logprobs=3
    )
    logprobs = chat.choices[0].logprobs
    assert logprobs and logprobs.content
    assert "".join(token.token for token in logprobs.content) == "XLII<eos>"
    assert all(token.top_logprobs[0].token == token.token for token in logprobs.content)


def test_errors_are_the_clients_own_kinds(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        client.completions.create(model="unheard-of", prompt="42")
    assert not_found.value.param == "model" and not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="roman",
            messages=[{"role": "user", "content": "42"}],
            tools=[{"type": "function", "function": {"name": "f"}}],
        )
    assert refused.value.param == "tools"
    with pytest.raises(openai.BadRequestError, match="not served"):
        client.completions.create(model="broken", prompt="42")


async def test_a_client_that_leaves_gives_its_pages_back(
    cluster: Any, async_client: openai.AsyncOpenAI, until: Until
) -> None:
    stream = await async_client.completions.create(
        model="roman", prompt="42", n=3, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    await anext(aiter(stream))
    await until(lambda: cluster.num_used_pages() > 0)
    await stream.close()
    await until(lambda: cluster.num_used_pages() == 0)
    whole = asyncio.create_task(
        async_client.completions.create(model="roman", prompt="42", max_tokens=900, extra_body={"ignore_eos": True})
    )
    await until(lambda: cluster.num_used_pages() > 0)
    whole.cancel()
    await until(lambda: cluster.num_used_pages() == 0)
