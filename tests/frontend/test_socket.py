import asyncio
import itertools
import json
from typing import Any

import pytest
from fastapi import WebSocket

from punica_frontend.figures import Figures
from punica_frontend.generation import Generator
from punica_frontend.socket import MAX_QUEUED_FRAMES, GenerateSocket
from punica_serve.adapters.catalog import AdapterCatalog
from punica_serve.model_config import ModelConfig
from punica_serve.text.tokenizer import Tokenizer


class SlowPeer(WebSocket):
    """Asks for one long answer and reads nothing of it."""

    def __init__(self) -> None:
        asked = json.dumps({"op": "generate", "request_id": "a", "prompt": "4"})
        messages = iter([{"type": "websocket.connect"}, {"type": "websocket.receive", "text": asked}])
        self.reads = asyncio.Event()

        async def receive() -> Any:
            return next(messages, None) or await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "websocket.send":
                await self.reads.wait()

        super().__init__({"type": "websocket"}, receive, send)


@pytest.fixture
def generator(cluster: Any, catalog: AdapterCatalog, tokenizer: Tokenizer, model: ModelConfig) -> Generator:
    cluster.answer = lambda request: itertools.repeat(5)
    return Generator(cluster, catalog, tokenizer, model, Figures(), base_name="numbers", max_context=1_000_000)


async def test_a_slow_reader_holds_its_requests_back(generator: Generator, cluster: Any) -> None:
    peer = SlowPeer()
    await peer.accept()
    running = asyncio.create_task(GenerateSocket(peer, generator, max_frame_bytes=1_000).run())
    for _ in range(20 * MAX_QUEUED_FRAMES):
        await asyncio.sleep(0)
    # One frame is being sent, and one waits for room in the queue.
    assert cluster.num_tokens == MAX_QUEUED_FRAMES + 2
    running.cancel()
    await asyncio.wait([running])
    assert not cluster.live
