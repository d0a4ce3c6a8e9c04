"""The application of tests/frontend, with a chat template, and the official client on it."""

from collections.abc import AsyncIterator

import httpx2
import openai
import pytest
from fastapi import FastAPI

from byte_tokens import byte_tokenizer
from punica_serve.text.chat_template import ChatTemplate
from punica_serve.text.tokenizer import Tokenizer

#: Spells a conversation as "u:hello|", refuses the text "robot", and ends with "a:" where an answer follows.
TEMPLATE = (
    "{% for message in messages %}{% if message.content == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "{{ message.role[0] }}:{{ message.content }}|{% endfor %}{{ 'a:' if add_generation_prompt }}"
)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return byte_tokenizer(ChatTemplate(TEMPLATE, {}, of="numbers"))


@pytest.fixture
async def official(app: FastAPI) -> AsyncIterator[openai.AsyncOpenAI]:
    client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
    async with openai.AsyncOpenAI(
        api_key="none", base_url="http://frontend/v1", http_client=client, max_retries=0
    ) as official:
        yield official
