"""LiteLLM: python ask_litellm.py URL KEY."""

import asyncio
import importlib.metadata
import json
import os
import sys
from functools import partial
from typing import Any

# Or it asks the network for prices of models.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

from raised import raised

URL, KEY = sys.argv[1:]
CONTEXT = 2048
MESSAGES = [{"role": "user", "content": "42"}]
#: LiteLLM's names of servers like this one: vLLM's, and any other that speaks OpenAI's API.
PROVIDERS = ("hosted_vllm", "openai")


def chat(model: str, **fields: Any) -> Any:
    fields = {"messages": MESSAGES, "api_base": f"{URL}/v1", "api_key": KEY, "num_retries": 0, **fields}
    return litellm.completion(model=model, **fields)


def text(model: str, **fields: Any) -> Any:
    fields = {"prompt": "42", "api_base": f"{URL}/v1", "api_key": KEY, "num_retries": 0, **fields}
    return litellm.text_completion(model=model, **fields)


def chats(provider: str) -> None:
    answer = chat(f"{provider}/roman", logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.content == "XLII" and answer.usage.completion_tokens == 5
    assert answer.choices[0].logprobs.content[0].token == "X"
    again = [*MESSAGES, answer.choices[0].message.model_dump(), {"role": "user", "content": "43"}]
    answer = chat(f"{provider}/roman", messages=again, n=2, seed=7, user="u", reasoning_effort="low")
    assert [choice.message.content for choice in answer.choices] == ["XLIII"] * 2
    chunks = list(chat(f"{provider}/french", stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "quarante-deux"
    assert [chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)] == [14]


def texts(provider: str) -> None:
    assert text(f"{provider}/hex", logprobs=2).choices[0].text == "2a"
    assert [choice.text for choice in text(f"{provider}/hex", prompt=["42", "255"]).choices] == ["2a", "ff"]
    chunks = list(text(f"{provider}/english", stream=True))
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == "forty-two"


def errors(provider: str) -> None:
    unknown = raised(litellm.NotFoundError, lambda: chat(f"{provider}/unheard-of"))
    assert "'unheard-of' does not exist" in str(unknown)
    raised(litellm.AuthenticationError, lambda: chat(f"{provider}/roman", api_key="sk-wrong"))
    overflows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "4" * CONTEXT}]},
        {"max_tokens": CONTEXT},
    ]
    for fields in overflows:
        raised(litellm.ContextWindowExceededError, partial(chat, f"{provider}/hex", **fields))


async def many_at_once() -> None:
    async def ask(model: str) -> str:
        answer: Any = await litellm.acompletion(
            model=f"hosted_vllm/{model}", messages=MESSAGES, api_base=f"{URL}/v1", api_key=KEY
        )
        return str(answer.choices[0].message.content)

    models = ["roman", "hex", "english", "binary"] * 4
    assert await asyncio.gather(*map(ask, models)) == ["XLII", "2a", "forty-two", "101010"] * 4


for name in PROVIDERS:
    for check in (chats, texts, errors):
        check(name)
asyncio.run(many_at_once())
print(json.dumps({"version": importlib.metadata.version("litellm")}))
