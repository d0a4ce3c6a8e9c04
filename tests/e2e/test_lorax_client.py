"""Calls of a client of LoRAX or TGI, against a whole cluster."""

import json
from typing import Any

import httpx


async def test_generate(http: httpx.AsyncClient) -> None:
    parameters = {"adapter_id": "roman", "max_new_tokens": 16, "details": True, "return_full_text": True}
    answer = (await http.post("/generate", json={"inputs": "42", "parameters": parameters})).json()
    assert answer["generated_text"] == "42XLII"
    details = answer["details"]
    assert (details["finish_reason"], details["generated_tokens"], details["seed"]) == ("eos_token", 5, None)
    assert [token["text"] for token in details["tokens"] if not token["special"]] == list("XLII")


async def test_generate_stream(http: httpx.AsyncClient) -> None:
    text, ends = "", []
    body = {"inputs": "42", "parameters": {"adapter_id": "french"}}
    async with http.stream("POST", "/generate_stream", json=body) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            event = json.loads(line.removeprefix("data:"))
            text += "" if event["token"]["special"] else event["token"]["text"]
            ends.append(event["generated_text"])
    assert text == ends[-1] == "quarante-deux" and set(ends[:-1]) == {None}


async def test_many_adapters_and_the_base(http: httpx.AsyncClient) -> None:
    expected: dict[str | None, str] = {"hex": "2a", "english": "forty-two", None: "43 44 45 46 47 48"}
    for adapter_id, text in expected.items():
        body = {"inputs": "42", "parameters": {"adapter_id": adapter_id}}
        assert (await http.post("/generate", json=body)).json() == {"generated_text": text}


async def test_errors(http: httpx.AsyncClient) -> None:
    async def error(**parameters: Any) -> tuple[int, str]:
        answer = await http.post("/generate", json={"inputs": "42", "parameters": parameters})
        return answer.status_code, answer.json()["error_type"]

    assert await error(temperature=-1) == (422, "validation")
    assert await error(adapter_id="broken") == (424, "generation")
    assert await error(adapter_id="unheard-of") == (404, "not_found")


async def test_info(http: httpx.AsyncClient) -> None:
    info = (await http.get("/info")).json()
    assert (info["model_id"], info["max_total_tokens"]) == ("numbers", 2048)
