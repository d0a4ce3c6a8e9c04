"""OpenAI's client, in the versions of both environments: python ask_openai.py URL KEY."""

import asyncio
import json
import sys
from functools import partial
from typing import Any

import openai

from raised import raised

URL, KEY = sys.argv[1:]
#: As many tokens as the demo's context holds.
CONTEXT = 2048
MESSAGES: Any = [{"role": "developer", "content": "briefly"}, {"role": "user", "content": "42"}]


def completions(client: openai.OpenAI) -> None:
    texts = {"roman": "XLII", "numbers:french": "quarante-deux", "numbers": "43 44 45 46 47 48"}
    for model, text in texts.items():
        answer = client.completions.create(model=model, prompt="42", max_tokens=32)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == (text, "stop")
        assert answer.usage and answer.usage.completion_tokens == len(text) + 1
    models = [card.id for card in client.models.list()]
    assert models[0] == "numbers" and set(texts) - {"numbers:french"} < {*models}


def chats(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="roman", messages=MESSAGES, store=False, metadata={"a": "b"})
    assert answer.choices[0].message.content == "XLII"
    again = [*MESSAGES, answer.choices[0].message, {"role": "user", "content": [{"type": "text", "text": "43"}]}]
    answer = client.chat.completions.create(model="roman", messages=again, tools=[], n=None, logprobs=False)
    assert answer.choices[0].message.content == "XLIII"
    for model in ("tgi", "dummy"):
        answer = client.chat.completions.create(model=model, messages=MESSAGES)
        assert answer.model == "numbers" and (answer.choices[0].message.content or "").startswith("43 44")
    raw = client.chat.completions.with_raw_response.create(
        model="roman", messages=MESSAGES, extra_headers={"X-Request-Id": "mine"}
    )
    assert raw.headers["x-request-id"] == raw.parse()._request_id == "mine"


def streams(client: openai.OpenAI) -> None:
    texts = [""] * 4
    chunks = list(client.completions.create(model="hex", prompt=["42", "255"], n=2, max_tokens=8, stream=True))
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["2a", "2a", "ff", "ff"] and len(chunks) >= 4
    with client.chat.completions.create(
        model="roman",
        messages=MESSAGES,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
        max_completion_tokens=3,
        extra_body={"top_k": 1},
    ) as stream:
        *pieces, last = list(stream)
    parts = ["", ""]
    for piece in pieces:
        parts[piece.choices[0].index] += piece.choices[0].delta.content or ""
    assert parts == ["XLI", "XLI"] and last.usage and last.usage.completion_tokens == 6
    with client.chat.completions.stream(model="roman", messages=MESSAGES) as events:
        assert events.get_final_completion().choices[0].message.content == "XLII"


def usage_in_every_chunk(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    # Long, since a short answer may end before its first chunk is sent, and is one chunk then.
    chunks = list(
        client.completions.create(
            model="french",
            prompt="42",
            max_tokens=500,
            stream=True,
            stream_options=options,
            extra_body={"ignore_eos": True},
        )
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert len(counts) == len(chunks) > 2 and counts == sorted(counts) and counts[-1] == 500


def logprobs_and_seeds(client: openai.OpenAI) -> None:
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
        means.append(sum(filter(None, choice.logprobs.token_logprobs)) / len(choice.logprobs.tokens))
    assert means == sorted(means, reverse=True)
    chat = client.chat.completions.create(model="roman", messages=MESSAGES, logprobs=True, top_logprobs=3)
    logprobs = chat.choices[0].logprobs
    assert logprobs and logprobs.content
    assert "".join(token.token for token in logprobs.content) == "XLII<eos>"
    assert all(token.top_logprobs[0].token == token.token for token in logprobs.content)


def errors(client: openai.OpenAI) -> None:
    unknown = raised(openai.NotFoundError, lambda: client.completions.create(model="unheard-of", prompt="42"))
    assert (unknown.param, unknown.code) == ("model", "model_not_found")
    tools: Any = [{"type": "function", "function": {"name": "f"}}]
    refused = raised(
        openai.BadRequestError, lambda: client.chat.completions.create(model="hex", messages=MESSAGES, tools=tools)
    )
    assert refused.param == "tools"
    for name in ("lora_path", "lora_request", "adapters"):  # the base model must not answer in the adapter's place
        ask = partial(client.completions.create, model="numbers", prompt="42", extra_body={name: "roman"})
        misnamed = raised(openai.BadRequestError, ask)
        assert misnamed.param == name and "give the adapter's name as `model`" in str(misnamed)
    broken = raised(openai.BadRequestError, lambda: client.completions.create(model="broken", prompt="42"))
    assert "not served" in str(broken)
    for fields in ({"prompt": "4" * CONTEXT}, {"prompt": "4", "max_tokens": CONTEXT}):
        body: Any = {"model": "hex", **fields}
        overflow = raised(openai.BadRequestError, partial(client.completions.create, **body))
        assert (overflow.code, overflow.type) == ("context_length_exceeded", "invalid_request_error")
    keyless = client.with_options(api_key="sk-wrong")
    wrong = raised(openai.AuthenticationError, lambda: keyless.completions.create(model="hex", prompt="42"))
    assert wrong.code == "invalid_api_key"


async def many_at_once() -> None:
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=60) as client:

        async def text(model: str) -> str:
            stream = await client.completions.create(model=model, prompt="42", stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        models = ["roman", "hex", "english", "binary"] * 4
        assert await asyncio.gather(*map(text, models)) == ["XLII", "2a", "forty-two", "101010"] * 4


with openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=60) as official:
    for check in (completions, chats, streams, usage_in_every_chunk, logprobs_and_seeds, errors):
        check(official)
asyncio.run(many_at_once())
print(json.dumps({"version": openai.__version__}))
