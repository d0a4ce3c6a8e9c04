"""Memory of a frontend under what its clients may send: how far it grows, and that it comes back."""

import asyncio
import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from adapter_variants import variant, zipped
from memory_samples import anonymous_bytes, sampled_memory
from punica_serve.config.registry_section import sqlite_url
from punica_serve.demo import __file__ as demo_file
from punica_serve.protocol import TenantQuota
from punica_serve.registry.registry import Registry
from token_gaps import TokenGaps, watched_tokens
from up_cluster import Start, UpCluster
from waits import until

MIB = 1 << 20

#: Tokens. The longest prompt is 2 Mi characters.
CONTEXT = 131_072

MESSAGES = [{"role": "user", "content": "42"}]

#: A delay of ours comes every time; one of a busy machine does not.
NUM_TRIES = 3

slow = [pytest.mark.slow, pytest.mark.timeout(600)]
slow_alone = [*slow, pytest.mark.alone]


def test_a_peak_of_half_a_second_is_seen() -> None:
    program = f"import time; input(); a = bytearray(b'x' * {64 * MIB}); time.sleep(0.5); del a; print(); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        with sampled_memory(process.pid) as samples:
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
        process.kill()
    assert 64 * MIB <= samples.growth_bytes <= 160 * MIB


@pytest.fixture
def long_context(run_demo: Start, tmp_path: Path) -> Iterator[UpCluster]:
    """The demo with a context as long as large models'."""
    model = shutil.copytree(Path(demo_file).parent / "model", tmp_path / "long")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    with run_demo(engine={"model": str(model)}) as cluster:
        yield cluster


def frontend_pid(cluster: UpCluster) -> int:
    (pid,) = cluster.processes("punica_serve.cli frontend")
    return int(pid)


async def make_keys(cluster: UpCluster, *tenants: str) -> list[dict[str, str]]:
    """Headers of an ordinary key for each tenant."""
    registry = await Registry.open(sqlite_url(cluster.log.parent / "data" / "registry.db"), deadline_s=60.0)
    headers = []
    for tenant in tenants:
        await registry.put_tenant(tenant, TenantQuota(), by="the test")
        _, key = await registry.make_key(tenant, "user", "", by="the test")
        headers.append({"authorization": f"Bearer {key}"})
    await registry.close()
    async with client_of(cluster, {}) as client:

        async def asks_for_keys() -> bool:
            return (await client.get("/v1/models")).status_code == 401

        await until(asks_for_keys, "the frontend knows the keys")
    return headers


def client_of(cluster: UpCluster, headers: dict[str, str]) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=cluster.url, headers=headers, timeout=120.0, trust_env=False)


async def upload(client: httpx.AsyncClient, name: str, folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    headers = {"content-type": "application/zip"}
    answer = await client.post("/v1/adapters", params={"name": name}, content=zipped(folder), headers=headers)
    assert answer.is_success, answer.text


#: Writes many small pieces: rendering them takes tens of milliseconds, and an event loop that did it would be seen.
LONG = "{{% for _ in range({}) %}}{{% for _ in range(1024) %}}" + 32 * "a" + "{{% endfor %}}{{% endfor %}}"


class TestTemplatesThatWriteMillionsOfCharacters:
    pytestmark = slow_alone

    @pytest.mark.parametrize(
        ("num_chars", "says"),
        [(8 * MIB, f"{8 * MIB} characters"), (16 * CONTEXT, f"{16 * CONTEXT} tokens")],
        ids=["too long", "as long as may be"],
    )
    async def test_they_cost_neither_memory_nor_others_time(
        self, long_context: UpCluster, tmp_path: Path, num_chars: int, says: str
    ) -> None:
        """Others' tokens come about as evenly as beside a template that refuses at once."""
        attacker, other = await make_keys(long_context, "attacker", "other")
        tried: list[dict[str, TokenGaps]] = []
        reasons = {"long": says, "short": "nothing to say"}
        async with client_of(long_context, attacker) as client:
            for name, template in (
                ("long", LONG.format(num_chars >> 15)),
                ("short", "{{ raise_exception('nothing to say') }}"),
            ):
                await upload(client, name, variant(tmp_path / name, "roman"), template)

            with sampled_memory(frontend_pid(long_context)) as samples:
                while len(tried) < NUM_TRIES and not any(map(are_about_as_even, tried)):
                    tried.append({"long": TokenGaps(), "short": TokenGaps()})
                    for name in ("short", "long") * 3:
                        async with watched_tokens(long_context.stream_url, other, into=tried[-1][name]):
                            await keep_chatting(client, name, reasons[name], for_s=2.0)
        assert samples.growth_bytes <= 128 * MIB
        assert are_about_as_even(tried[-1]), [
            {name: f"{[of.lasting_s(share) for share in (0.5, 0.9, 1.0)]} s" for name, of in gaps.items()}
            for gaps in tried
        ]


def are_about_as_even(gaps: dict[str, TokenGaps]) -> bool:
    return gaps["long"].lasting_s(0.9) <= 3 * gaps["short"].lasting_s(0.9) + 0.03


async def keep_chatting(client: httpx.AsyncClient, model: str, refusal: str, *, for_s: float) -> None:
    """A few clients whose chats are all refused, for so long and at least once."""
    end_s = time.monotonic() + for_s

    async def chat() -> None:
        for path in itertools.cycle(("/v1/chat/completions", "/tokenize")):
            answer = await client.post(path, json={"model": model, "messages": MESSAGES})
            assert answer.status_code == 400 and refusal in answer.json()["error"]["message"], answer.text
            if time.monotonic() >= end_s:
                return

    await asyncio.gather(*(chat() for _ in range(4)))


#: Here the frontend asks the scheduler, which a load may keep from answering in time.
ASKS_SCHEDULER = ("/v1/adapters", "/v1/cluster", "/metrics")


async def is_answered(client: httpx.AsyncClient, path: str) -> bool:
    """False where the scheduler did not answer the frontend in time."""
    status = (await client.get(path)).status_code
    assert status in ((200, 403, 503) if path in ASKS_SCHEDULER else (200, 403))
    return status != 503


async def one_of_each(cluster: UpCluster, client: httpx.AsyncClient) -> None:
    """A small request of each kind."""
    asked = {"max_tokens": 8, "logprobs": 5, "ignore_eos": True}
    for path, body in (
        ("/v1/generate", {"prompt": "42", **asked}),
        ("/v1/generate", {"prompt": "42", "lora_id": "roman", "stream": True, **asked}),
        ("/v1/completions", {"prompt": ["42"] * 2, "n": 2, "echo": True}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 8}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 8, "model": "mine", "stream": True}),
        ("/tokenize", {"prompt": "42", "return_token_strs": True}),
        ("/tokenize", {"messages": MESSAGES, "model": "mine"}),
        ("/detokenize", {"tokens": [5]}),
        ("/generate", {"inputs": "42", "parameters": {"details": True, "max_new_tokens": 8}}),
        ("/generate_stream", {"inputs": "42", "parameters": {"truncate": 64, "max_new_tokens": 8}}),
    ):
        (await client.post(path, json=body)).raise_for_status()
    for path in ("/v1/models", "/v1/adapters", "/v1/cluster", "/v1/usage", "/metrics", "/dashboard", "/openapi.json"):
        await until(partial(is_answered, client, path), path)
    headers = {"authorization": client.headers["authorization"]}
    async with connect(cluster.stream_url, proxy=None, additional_headers=headers) as socket:
        for request_id in "ab":
            await socket.send(json.dumps({"op": "generate", "request_id": request_id, "prompt": "42", **asked}))
        while json.loads(await socket.recv())["finish_reason"] is None:
            pass


async def large_requests(client: httpx.AsyncClient) -> None:
    """Bodies of megabytes, half of them answered and half refused."""
    text, ids = "4 " * 250_000, [5] * 500_000
    messages = [{"role": "user", "content": text}]
    for path, body, status in (
        ("/tokenize", {"prompt": text, "return_token_strs": True}, 200),
        ("/tokenize", {"messages": messages, "model": "mine"}, 200),
        ("/detokenize", {"tokens": ids}, 200),
        ("/v1/generate", {"prompt": text}, 400),
        ("/v1/generate", {"input_ids": ids}, 400),
        ("/v1/generate", {"input_ids": ["5"] * 500_000}, 400),
        ("/v1/generate", {"prompt": [text] * 5}, 422),
        ("/v1/completions", {"prompt": [text] * 5}, 400),
        ("/v1/chat/completions", {"messages": messages * 5}, 400),
        ("/v1/chat/completions", {"messages": messages, "model": "mine"}, 400),
        ("/generate", {"inputs": text, "parameters": {"truncate": 10, "max_new_tokens": 4}}, 200),
    ):
        answer = await client.post(path, json=body)
        assert answer.status_code == status, (path, answer.text[:200])


class TestMemoryComesBack:
    pytestmark = slow

    async def test_after_the_last_request(self, long_context: UpCluster, tmp_path: Path) -> None:
        (mine,) = await make_keys(long_context, "mine")
        pid = frontend_pid(long_context)
        async with client_of(long_context, mine) as client:
            await upload(client, "mine", variant(tmp_path, "roman"), "{{ messages[0].content }}")
            await one_of_each(long_context, client)
            small_bytes = anonymous_bytes(pid)
            with sampled_memory(pid) as samples:
                for number in range(2):
                    await upload(client, f"another-{number}", variant(tmp_path, "binary"), "42")
                    await asyncio.gather(*(one_of_each(long_context, client) for _ in range(50)))
                    await asyncio.gather(*(large_requests(client) for _ in range(8)))
        assert samples.peak_bytes > 1.4 * small_bytes, "the load is too small to show anything"
        await until(
            lambda: anonymous_bytes(pid) <= 1.2 * small_bytes,
            "the memory is as small as before the load",
            describe=lambda: f"{anonymous_bytes(pid)} bytes, and {small_bytes} before",
        )
