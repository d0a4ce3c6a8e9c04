"""Sessions over fake sockets, of a cluster whose answers never end by themselves."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from byte_tokens import byte_tokenizer
from echo_cluster import EchoCluster
from punica_frontend.api.caller import ANYONE
from punica_frontend.fields.policy import FieldPolicy
from punica_frontend.generation.admission import Admission
from punica_frontend.generation.generator import Generator
from punica_frontend.generation.prompts import PromptEncoder
from punica_frontend.generation.templates import TemplateRenderer
from punica_frontend.openai.conversation import Conversations
from punica_frontend.openai.request_planner import RequestPlanner
from punica_frontend.websocket.openai_frames import Shapes
from punica_frontend.websocket.websocket_session import WebSocketSession
from punica_serve.text.chat_template import ChatTemplate
from punica_serve.text.prompt_limits import PromptLimits
from punica_serve.text.tokenizer import Tokenizer
from waits import DEADLINE_S
from websocket_peer import Peer, Serve

CONTEXT = 1_000_000


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return byte_tokenizer(ChatTemplate("{{ messages[0].content }}", {}, of="numbers"))


@pytest.fixture
def admission() -> Admission:
    return Admission()


@pytest.fixture
def limits() -> PromptLimits:
    return PromptLimits(CONTEXT)


@pytest.fixture
def generator(generator: Generator, cluster: EchoCluster) -> Generator:
    """A generator over a cluster whose answers never end by themselves."""
    cluster.answer = lambda request: itertools.repeat(5)
    return generator


@pytest.fixture
async def serve(
    generator: Generator,
    tokenizer: Tokenizer,
    templates: TemplateRenderer,
    prompts: PromptEncoder,
    cluster: EchoCluster,
    admission: Admission,
) -> AsyncIterator[Serve]:
    """Begins to serve a peer. In the end nothing is left of any."""
    conversations, fields = Conversations(tokenizer, templates, prompts), FieldPolicy("refuse", generator.metrics)
    planner = RequestPlanner(generator, conversations, fields, base_name="numbers")
    shapes = Shapes(generator, planner, tokenizer, base_name="numbers")
    tasks = []

    def serve(peer: Peer, max_frame_bytes: int = 1_000) -> WebSocketSession:
        socket = WebSocketSession(peer.receive, peer, ANYONE, generator, shapes, max_frame_bytes=max_frame_bytes)
        tasks.append(asyncio.create_task(socket.run()))
        return socket

    yield serve
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert not cluster.live
    await asyncio.wait_for(admission.empty(), DEADLINE_S)
