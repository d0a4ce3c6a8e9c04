"""Prompts over every path: refused by their length before they are tokenized, and tokenized where it harms nobody."""

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from echo_cluster import EchoCluster
from punica_frontend.generation.prompts import MAX_INLINE_CHARS, PromptEncoder
from punica_frontend.generation.templates import TemplateRenderer
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import ContextOverflow, InvalidRequest
from punica_serve.protocol import AdapterRef
from punica_serve.registry.registry import Registry
from punica_serve.text.prompt_limits import MAX_LOCAL_CHARS
from punica_serve.text.tokenizer import Tokenizer
from tiny_config import tiny_config
from waits import DEADLINE_S

CONTEXT = 80_000
MAX_CHARS = 16 * CONTEXT

#: Lengths of texts that this process tokenized, and whether the event loop waited for it.
Encoded = list[tuple[int, bool]]


@pytest.fixture
def model(tokenizer: Tokenizer) -> ModelConfig:
    return tiny_config(vocab_size=tokenizer.vocab_size, max_position_embeddings=CONTEXT, name="numbers")


@pytest.fixture
def encoded(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Encoded:
    seen: Encoded = []
    encode = tokenizer.encode

    def watched(text: str, **options: Any) -> list[int]:
        seen.append((len(text), threading.current_thread() is threading.main_thread()))
        return encode(text, **options)

    monkeypatch.setattr(tokenizer, "encode", watched)
    return seen


async def register(registry: Registry, template: str) -> None:
    ref = AdapterRef("d2", "/store/d2", 100, {"q_proj": 8})
    await registry.register("default", "mine", ref, chat_template=template, by="the test")


@pytest.mark.parametrize(
    ("length", "seen"),
    [
        (MAX_INLINE_CHARS, [(MAX_INLINE_CHARS, True)]),
        (MAX_INLINE_CHARS + 1, [(MAX_INLINE_CHARS + 1, False)]),
        (MAX_LOCAL_CHARS, [(MAX_LOCAL_CHARS, False)]),
        (MAX_LOCAL_CHARS + 1, []),
    ],
)
async def test_where_a_prompt_is_tokenized_goes_by_its_length(
    prompts: PromptEncoder, encoded: Encoded, length: int, seen: Encoded
) -> None:
    ids = await prompts.ids("4" * length, "acme", param="prompt")
    assert len(ids) == length and len(set(ids)) == 1
    assert encoded == seen


async def test_work_of_those_who_left_keeps_its_slot_to_its_end(prompts: PromptEncoder) -> None:
    go_on, started = threading.Event(), threading.Semaphore(0)

    def work() -> bool:
        started.release()
        return go_on.wait(DEADLINE_S)

    left = [asyncio.create_task(prompts.run(work, MAX_LOCAL_CHARS, tenant)) for tenant in ("a", "b")]
    for _ in left:
        assert await asyncio.to_thread(started.acquire, timeout=DEADLINE_S)
    for task in left:
        task.cancel()
    third = asyncio.create_task(prompts.run(work, MAX_LOCAL_CHARS, "c"))
    assert not await asyncio.to_thread(started.acquire, timeout=0.1), "a third thread beside two that still run"
    go_on.set()
    assert await asyncio.wait_for(third, DEADLINE_S)
    await asyncio.wait(left)
    assert all(task.cancelled() for task in left)


async def test_special_tokens_are_added_in_the_process_too(templates: TemplateRenderer) -> None:
    plain = await templates.encode("4</s>5", "acme", param="prompt", add_special_tokens=False)
    assert len(plain) == 3 and plain[1] == 0


TOO_LONG = "4" * (MAX_CHARS + 1)
MESSAGES = [{"role": "user", "content": TOO_LONG}]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/generate", {"prompt": TOO_LONG}, 400, "prompt"),
        ("/v1/completions", {"prompt": TOO_LONG}, 400, "prompt"),
        ("/v1/completions", {"prompt": ["4", TOO_LONG]}, 400, "prompt.1"),
        ("/v1/chat/completions", {"messages": MESSAGES, "model": "mine"}, 400, "messages"),
        ("/tokenize", {"prompt": TOO_LONG}, 400, "prompt"),
        ("/tokenize", {"messages": MESSAGES, "model": "mine"}, 400, "messages"),
        ("/generate", {"inputs": TOO_LONG}, 422, "inputs"),
        ("/generate", {"inputs": TOO_LONG, "parameters": {"truncate": 5}}, 422, "inputs"),
        ("/generate_stream", {"inputs": TOO_LONG, "parameters": {"truncate": 5}}, 422, "inputs"),
    ],
)
async def test_too_many_characters_are_refused_before_they_are_tokenized(
    client: httpx.AsyncClient,
    registry: Registry,
    cluster: EchoCluster,
    encoded: Encoded,
    path: str,
    body: dict[str, Any],
    status: int,
    param: str,
) -> None:
    await register(registry, "{{ messages[0].content }}")
    answer = await client.post(path, json=body)
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert answer.status_code == status
    assert message == (
        f"`{param}` makes a prompt of {MAX_CHARS + 1} characters, but the context holds {CONTEXT} tokens,"
        f" which allows at most {MAX_CHARS} characters (16 for each token); shorten it"
    )
    if isinstance(error, dict):
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert all(length == 1 for length, _ in encoded) and not cluster.requests


@pytest.mark.parametrize("format_", ["chat", "native"])
async def test_and_on_websockets(address: str, encoded: Encoded, registry: Registry, format_: str) -> None:
    await register(registry, f"{{{{ '4' * {MAX_CHARS + 1} }}}}")
    chat = {"format": "openai", "messages": [{"role": "user", "content": "4"}], "model": "mine"}
    native = {"prompt": TOO_LONG}
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket:
        await socket.send(json.dumps({"op": "generate", "request_id": "1", **(chat if format_ == "chat" else native)}))
        error = json.loads(await socket.recv())["error"]
    assert error["code"] == "context_length_exceeded" and f"{MAX_CHARS + 1} characters" in error["message"]
    assert not encoded


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_the_base_models_own_template_is_bounded_too(
    client: httpx.AsyncClient, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, encoded: Encoded, path: str
) -> None:
    monkeypatch.setattr(tokenizer, "render_chat", lambda messages, **options: TOO_LONG)
    answer = await client.post(path, json={"messages": [{"role": "user", "content": "4"}]})
    assert answer.json()["error"]["code"] == "context_length_exceeded" and not encoded


async def test_a_long_chat_through_an_adapters_template(
    client: httpx.AsyncClient, registry: Registry, cluster: EchoCluster, encoded: Encoded
) -> None:
    length = MAX_LOCAL_CHARS + 1
    await register(registry, f"{{{{ '4' * {length} }}}}")
    body = {"messages": [{"role": "user", "content": "4"}], "model": "mine"}
    assert (await client.post("/tokenize", json=body)).json()["count"] == length
    assert (await client.post("/v1/chat/completions", json={**body, "max_tokens": 1})).status_code == 200
    assert len(cluster.requests[0].prompt_ids) == length and not encoded


async def test_the_error_for_a_far_too_long_prompt_has_its_number_of_tokens(prompts: PromptEncoder) -> None:
    with pytest.raises(ContextOverflow, match=f"a prompt of {4 * CONTEXT + 1} tokens, but the context") as caught:
        await prompts.ids("4" * (4 * CONTEXT + 1), "acme", param="prompt")
    assert caught.value.param == "prompt"
    assert len(await prompts.ids("4" * (4 * CONTEXT), "acme", param="prompt")) == 4 * CONTEXT


async def test_a_process_that_ends_over_a_prompt_is_not_for_its_template(
    templates: TemplateRenderer, prompts: PromptEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it were out of memory there: what the tokenizer is read from is gone."""
    folder = templates._tokenizer_folder
    monkeypatch.setattr(templates, "_tokenizer_folder", folder / "gone")
    source = f"{{{{ messages[0].content * {MAX_LOCAL_CHARS} }}}}"
    for content in ("44", "44"):
        with pytest.raises(InvalidRequest, match="`messages` takes too much time or memory to tokenize; shorten"):
            await templates.render(source, [{"content": content}], "acme", add_generation_prompt=True)
    with pytest.raises(InvalidRequest, match="`prompt` takes too much time or memory to tokenize; shorten"):
        await prompts.ids("4" * (MAX_LOCAL_CHARS + 1), "acme", param="prompt")
    short = await templates.render(source, [{"content": "4"}], "acme", add_generation_prompt=True)
    assert short == "4" * MAX_LOCAL_CHARS


async def test_a_prompt_beyond_the_processs_memory_is_refused_and_others_go_on(prompts: PromptEncoder) -> None:
    """Each of its characters becomes three tokens."""
    with pytest.raises(InvalidRequest, match="`prompt` takes too much time or memory to tokenize; shorten it"):
        await prompts.ids("\u6f22" * MAX_CHARS, "acme", param="prompt")
    assert len(await prompts.ids("4" * (MAX_LOCAL_CHARS + 1), "acme", param="prompt")) == MAX_LOCAL_CHARS + 1
