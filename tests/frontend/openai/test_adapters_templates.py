"""Chats through the template that an adapter brings."""

import asyncio
from typing import Any

import httpx
import pytest

from echo_cluster import EchoCluster
from punica_frontend.generation.prompts import PromptEncoder
from punica_frontend.generation.templates import TemplateRenderer
from punica_frontend.openai.chat_body import InputMessage
from punica_frontend.openai.conversation import Conversations
from punica_serve.errors import InvalidRequest
from punica_serve.protocol import AdapterRef
from punica_serve.registry.registry import Registry
from punica_serve.text.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hi"}]
TEMPLATE = "{% for m in messages %}<{{ m.content }}>{% endfor %}{{ '=' if add_generation_prompt }}"


async def register(registry: Registry, template: str, digest: str = "d2") -> None:
    ref = AdapterRef(digest, "/store/d2", 100, {"q_proj": 8})
    await registry.register("default", "mine", ref, chat_template=template, by="the test")


async def chat(client: httpx.AsyncClient, model: str = "mine", **body: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json={"messages": HELLO, "model": model, **body})


async def test_it_takes_the_place_of_the_base_models(
    client: httpx.AsyncClient, registry: Registry, cluster: EchoCluster, tokenizer: Tokenizer
) -> None:
    await register(registry, TEMPLATE)
    for model in ("mine", "default/mine", "numbers:mine", "roman"):
        assert (await chat(client, model)).status_code == 200
    prompts = [tokenizer.decode(request.prompt_ids) for request in cluster.requests]
    assert prompts == ["<hi>="] * 3 + ["u:hi|a:"]
    body = {"model": "mine", "messages": HELLO, "add_generation_prompt": False}
    tokens = (await client.post("/tokenize", json=body)).json()["tokens"]
    assert tokenizer.decode(tokens) == "<hi>"


async def test_a_new_version_brings_its_own(
    client: httpx.AsyncClient, registry: Registry, cluster: EchoCluster, tokenizer: Tokenizer
) -> None:
    await register(registry, TEMPLATE)
    await chat(client)
    await register(registry, "new", digest="d3")
    await chat(client)
    prompts = [tokenizer.decode(request.prompt_ids) for request in cluster.requests]
    assert cluster.digests == ["d2", "d3"] and prompts == ["<hi>=", "new"]


async def test_a_hostile_one_is_refused_and_others_go_on(client: httpx.AsyncClient, registry: Registry) -> None:
    await register(registry, "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    hostile = asyncio.create_task(chat(client))
    assert (await chat(client, "roman")).status_code == 200 and not hostile.done()
    response = await hostile
    assert response.status_code == 400 and "takes too much time" in response.json()["error"]["message"]


async def test_a_wrong_one_is_its_owners_to_mend(client: httpx.AsyncClient, registry: Registry) -> None:
    await register(registry, "fine\n{% endfor %}")
    error = (await chat(client)).json()["error"]
    assert error["message"].startswith("the chat template of the adapter is invalid in line 2")


async def test_a_tenant_that_overloads_the_template_of_a_shared_adapter_keeps_nobody_else_from_it(
    registry: Registry, tokenizer: Tokenizer, templates: TemplateRenderer, prompts: PromptEncoder
) -> None:
    quadratic = "{% for a in messages[0].content %}{% for b in messages[0].content %}{% endfor %}{% endfor %}4"
    ref = AdapterRef("d2", "/store/d2", 100, {"q_proj": 8})
    shared, _ = await registry.register("shared", "ours", ref, chat_template=quadratic, by="the test")
    conversations = Conversations(tokenizer, templates, prompts)

    async def ask(content: str, tenant: str) -> list[int]:
        messages = [InputMessage(role="user", content=content)]
        return await conversations.prompt_ids(messages, shared, tenant, add_generation_prompt=True)

    with pytest.raises(InvalidRequest, match="too much time"):
        await ask("x" * 60_000, "hog")
    assert await ask("x", "acme") == tokenizer.encode("4", add_special_tokens=False)
