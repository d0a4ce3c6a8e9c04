"""Chats through the template that an adapter brings."""

import asyncio
from typing import Any

import httpx

from echo_cluster import EchoCluster
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
    assert error["message"].startswith("the chat template of the adapter is wrong in line 2")
