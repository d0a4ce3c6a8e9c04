"""LangChain's client of OpenAI's API: python ask_langchain.py URL KEY."""

import asyncio
import importlib.metadata
import json
import sys
from typing import Any

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

from raised import raised

URL, KEY = sys.argv[1:]
CONTEXT = 2048


def chat_of(model: str, **fields: Any) -> ChatOpenAI:
    return ChatOpenAI(**{"model": model, "base_url": f"{URL}/v1", "api_key": KEY, "max_retries": 0, **fields})


def chats() -> None:
    answer = chat_of("roman", logprobs=True, top_logprobs=2).invoke("42")
    assert answer.content == "XLII" and answer.usage_metadata
    assert answer.usage_metadata["output_tokens"] == 5
    assert answer.response_metadata["logprobs"]["content"][0]["token"] == "X"
    again = [SystemMessage("briefly"), HumanMessage("42"), answer, HumanMessage("43")]
    assert chat_of("roman", temperature=0, seed=7).invoke(again).content == "XLIII"
    assert [answer.content for answer in chat_of("hex").batch(["42", "255"])] == ["2a", "ff"]


def streams() -> None:
    chunks = list(chat_of("french", stream_usage=True).stream("42"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content == "quarante-deux" and whole.usage_metadata
    assert whole.usage_metadata["output_tokens"] == len("quarante-deux") + 1


def texts() -> None:
    client = OpenAI(model="english", base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    assert client.invoke("42") == "forty-two"
    assert "".join(client.stream("42")) == "forty-two"


def errors() -> None:
    raised(openai.NotFoundError, lambda: chat_of("unheard-of").invoke("42"))
    raised(openai.AuthenticationError, lambda: chat_of("roman", api_key="sk-wrong").invoke("42"))
    raised(ContextOverflowError, lambda: chat_of("hex").invoke("4" * CONTEXT))
    raised(ContextOverflowError, lambda: chat_of("hex", max_tokens=CONTEXT).invoke("42"))


async def many_at_once() -> None:
    models = ["roman", "hex", "english", "binary"] * 4
    answers = await asyncio.gather(*(chat_of(model).ainvoke("42") for model in models))
    assert [answer.content for answer in answers] == ["XLII", "2a", "forty-two", "101010"] * 4


for check in (chats, streams, texts, errors):
    check()
asyncio.run(many_at_once())
print(json.dumps({"version": importlib.metadata.version("langchain-openai")}))
