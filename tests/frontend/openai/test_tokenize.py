from typing import Any

import httpx

from punica_serve.text.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hi"}]


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_a_prompt(client: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    answer = await post(client, "/tokenize", model="roman", prompt="4é", made_up=None)
    assert answer == {"count": 3, "max_model_len": 64, "tokens": tokenizer.encode("4é"), "token_strs": None}
    answer = await post(client, "/tokenize", prompt="4é", return_token_strs=True)
    assert answer["token_strs"] == ["4", "\ufffd", "\ufffd"]
    assert (await post(client, "/tokenize", prompt=""))["tokens"] == []


async def test_a_conversation(client: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    assert (await post(client, "/tokenize", messages=HELLO))["tokens"] == tokenizer.encode("u:hi|a:")
    answer = await post(client, "/tokenize", messages=HELLO, add_generation_prompt=False)
    assert answer["tokens"] == tokenizer.encode("u:hi|")


async def test_back_again(client: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    tokens = [*tokenizer.encode("4é"), 0]
    assert await post(client, "/detokenize", model="numbers", tokens=tokens) == {"prompt": "4é</s>"}
    assert await post(client, "/detokenize", tokens=[]) == {"prompt": ""}


async def test_texts_that_are_longer_than_the_context(client: httpx.AsyncClient) -> None:
    answer = await post(client, "/tokenize", prompt="4" * 1_024)
    assert answer["count"] == 1_024
    answer = await post(client, "/tokenize", prompt="4" * 1_024, return_token_strs=True)
    assert answer["token_strs"] == ["4"] * 1_024
    tokens = answer["tokens"] * 10
    assert await post(client, "/detokenize", tokens=tokens) == {"prompt": "4" * 10_240}


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("/tokenize", {}, 400, "prompt"),
    ("/tokenize", {"prompt": "4", "messages": HELLO}, 400, "prompt"),
    ("/tokenize", {"prompt": 4}, 400, "prompt"),
    ("/tokenize", {"messages": [{"role": "robot"}]}, 400, "messages.0.role"),
    ("/tokenize", {"messages": [{"role": "user", "content": "robot"}]}, 400, "messages"),
    ("/tokenize", {"prompt": "4", "model": "unheard-of"}, 404, "model"),
    ("/tokenize", {"prompt": "4", "model": "broken"}, 400, "model"),
    ("/tokenize", {"prompt": "4", "lora_id": "roman"}, 400, "lora_id"),
    ("/tokenize", {"prompt": "4", "adapter_id": "unheard-of"}, 400, "adapter_id"),
    ("/tokenize", {"messages": HELLO, "tools": [{"type": "function"}]}, 400, "tools"),
    ("/tokenize", {"messages": HELLO, "chat_template": "{{ 1 }}"}, 400, "chat_template"),
    ("/tokenize", {"messages": [{**HELLO[0], "tool_call_id": "1"}]}, 400, "messages.0.tool_call_id"),
    ("/detokenize", {}, 400, "tokens"),
    ("/detokenize", {"tokens": [4], "lora_id": "roman"}, 400, "lora_id"),
    ("/detokenize", {"tokens": [4, 999]}, 400, "tokens.1"),
    ("/detokenize", {"tokens": ["4"]}, 400, "tokens.0"),
    ("/detokenize", {"tokens": [4], "model": "unheard-of"}, 404, "model"),
]


async def test_refused_bodies(client: httpx.AsyncClient) -> None:
    for path, body, status, param in REFUSED:
        response = await client.post(path, json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (status, param), (body, response.text)


async def test_an_adapter_under_another_apis_name_is_sent_to_the_right_one(client: httpx.AsyncClient) -> None:
    refusal = await client.post("/tokenize", json={"prompt": "4", "lora_id": "roman"})
    assert refusal.json()["error"]["message"].endswith("give the adapter's name as `model`")
    await post(client, "/tokenize", prompt="4", lora_id=None, tools=[], logit_bias={})


async def test_nothing_of_it_is_a_request_that_is_counted(client: httpx.AsyncClient) -> None:
    await client.post("/tokenize", json={"prompt": 4})
    assert "punica_requests_failed_total{" not in (await client.get("/metrics")).text
