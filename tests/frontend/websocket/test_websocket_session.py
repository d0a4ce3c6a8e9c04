"""Clients that are slow, hostile or gone, as fake sockets whose ``send`` the test holds."""

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import pytest
from starlette.types import Message

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
from punica_frontend.scheduler_link.live_request import MAX_DELIVERY_BYTES, TOKEN_BYTES, Backlog
from punica_frontend.websocket.openai_frames import Shapes
from punica_frontend.websocket.websocket_session import MAX_QUEUED, WebSocketSession
from punica_serve.text.chat_template import ChatTemplate
from punica_serve.text.prompt_limits import PromptLimits
from punica_serve.text.tokenizer import Tokenizer
from waits import DEADLINE_S, until


class Peer:
    """A client that sends these frames and takes what it is sent while it ``reads``."""

    def __init__(
        self, frames: Iterable[dict[str, Any] | str], *, is_reading: bool = True, takes_at_once: bool = True
    ) -> None:
        """Without ``takes_at_once`` each frame is waited for."""
        self._frames: Iterator[dict[str, Any] | str] = iter(frames)
        self.num_sent = 0
        #: Frames that it got without a wait for them.
        self.num_written = 0
        self.received: list[dict[str, Any]] = []
        #: Lengths of those, in bytes.
        self.lengths: list[int] = []
        self.reads = asyncio.Event()
        self.leaves = asyncio.Event()
        self._takes_at_once = takes_at_once
        if is_reading:
            self.reads.set()

    async def receive(self) -> Message:
        frame = next(self._frames, None)
        if frame is None:
            await self.leaves.wait()
            return {"type": "websocket.disconnect", "code": 1000}
        self.num_sent += 1
        return {"type": "websocket.receive", "text": frame if isinstance(frame, str) else json.dumps(frame)}

    @property
    def is_writable(self) -> bool:
        return self._takes_at_once and self.reads.is_set() and not self.leaves.is_set()

    def write(self, piece: bytes) -> None:
        assert self.is_writable
        self.num_written += 1
        self._take(piece)

    async def send(self, piece: bytes) -> None:
        await self.reads.wait()
        if self.leaves.is_set():
            raise OSError("the client has left")
        self._take(piece)

    def _take(self, piece: bytes) -> None:
        self.received.append(json.loads(piece))
        self.lengths.append(len(piece))

    def of(self, request_id: str) -> list[dict[str, Any]]:
        return [frame for frame in self.received if frame["request_id"] == request_id]


CONTEXT = 1_000_000


def generate(request_id: str = "a", **fields: Any) -> dict[str, Any]:
    return {"op": "generate", "request_id": request_id, "prompt": "4", "ignore_eos": True, **fields}


def cancel(request_id: str) -> dict[str, Any]:
    return {"op": "cancel", "request_id": request_id}


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


Serve = Callable[..., WebSocketSession]


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


async def test_tokens_that_a_slow_reader_does_not_take_come_together(serve: Serve, cluster: EchoCluster) -> None:
    peer = Peer([generate(max_tokens=500)], is_reading=False)
    serve(peer)
    await until(lambda: cluster.num_tokens == 500)
    peer.reads.set()
    await until(lambda: peer.received and peer.received[-1]["finish_reason"] == "length")
    assert [(frame["index"], len(frame["token_ids"])) for frame in peer.received] == [(0, 1), (1, 499)]


@pytest.mark.parametrize("shape", [{}, {"format": "openai"}])
async def test_no_frame_of_a_slow_reader_is_longer_than_clients_take(
    serve: Serve, cluster: EchoCluster, shape: dict[str, Any]
) -> None:
    num_tokens = 3 * MAX_DELIVERY_BYTES // (3 * TOKEN_BYTES)
    peer = Peer([generate(max_tokens=num_tokens, logprobs=1, **shape)], is_reading=False)
    cluster.turns_per_token = 0
    serve(peer)
    await until(lambda: cluster.num_tokens == num_tokens)
    peer.reads.set()
    await until(lambda: peer.received and (peer.received[-1].get("finish_reason") or peer.received[-1].get("done")))
    assert 3 <= len(peer.received) <= 5
    assert max(peer.lengths) < 1 << 20


CHAT = {"prompt": None, "messages": [{"role": "user", "content": "4"}]}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"format": "openai", "echo": True, "user": 'u\x00"'},
        {"format": "openai", "n": 3, **USAGE},
        {"format": "openai", **CHAT},
        {"format": "openai", **CHAT, **USAGE},
    ],
)
async def test_frames_are_the_same_whether_or_not_their_writer_is_woken(
    serve: Serve, cluster: EchoCluster, tokenizer: Tokenizer, fields: dict[str, Any]
) -> None:
    cluster.answer = lambda request: tokenizer.encode("an answer 🦙 of words")
    frame = {name: value for name, value in generate('a"\x00', max_tokens=20, **fields).items() if value is not None}
    peers = [Peer([frame], takes_at_once=takes_at_once) for takes_at_once in (True, False)]
    for peer in peers:
        serve(peer)
    await until(lambda: all(peer.received and has_ended(peer.received[-1]) for peer in peers))
    direct, woken = peers
    assert direct.num_written > 10 and not woken.num_written
    assert [without_ids(frame) for frame in direct.received] == [without_ids(frame) for frame in woken.received]


def has_ended(frame: dict[str, Any]) -> bool:
    return bool(frame.get("finish_reason") or frame.get("done"))


def without_ids(frame: dict[str, Any]) -> dict[str, Any]:
    """The frame without what differs between two answers."""
    chunk = frame.get("chunk")
    return {**frame, "chunk": chunk and {name: chunk[name] for name in chunk if name not in ("id", "created")}}


async def test_a_stop_string_ends_an_answer_whose_writer_was_not_woken(serve: Serve, cluster: EchoCluster) -> None:
    cluster.answer = lambda request: request.prompt_ids
    peer = Peer([generate(prompt="longest", stop="es", max_tokens=20)])
    serve(peer)
    await until(lambda: peer.received and has_ended(peer.received[-1]))
    *frames, last = peer.received
    assert "".join(frame["text"] for frame in frames) == "long" and peer.num_written == len(frames)
    assert (last["index"], last["text"], last["finish_reason"]) == (5, "", "stop")
    assert last["usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}
    await until(lambda: len(cluster.cancelled) == 1)


async def test_no_frame_overtakes_one_that_is_being_sent(serve: Serve, cluster: EchoCluster) -> None:
    peer = Peer([generate(max_tokens=60), generate("b", max_tokens=60)], is_reading=False)
    serve(peer)
    for num_tokens in (4, 40, 80):
        await until(lambda: cluster.num_tokens >= num_tokens)  # noqa: B023 - it is awaited here
        peer.reads.set()
        await asyncio.sleep(0)
        peer.reads.clear()
    peer.reads.set()
    await until(lambda: sum(map(has_ended, peer.received)) == 2)
    for name in "ab":
        lengths = [len(frame["token_ids"]) for frame in peer.of(name)]
        assert [frame["index"] for frame in peer.of(name)] == [sum(lengths[:count]) for count in range(len(lengths))]
        assert sum(lengths) == 60


async def test_a_choice_that_a_stop_string_ended_does_not_end_another(
    serve: Serve, cluster: EchoCluster, tokenizer: Tokenizer
) -> None:
    five, six = tokenizer.encode("56")[-2:]
    # The first choice goes on behind its stop string as long as nobody closes it.
    cluster.answer = lambda request: itertools.repeat(six if request.sampling.seed == 1 else five)
    peer = Peer([generate(max_tokens=400, n=2, seed=1, stop=["6"], format="openai")])
    serve(peer)
    await until(lambda: peer.received and peer.received[-1]["done"])
    choices = [choice for frame in peer.received for choice in frame["chunk"]["choices"]]
    ends = [(choice["index"], choice["finish_reason"]) for choice in choices if choice["finish_reason"]]
    assert sorted(ends) == [(0, "stop"), (1, "length")]


async def test_no_frame_of_an_echo_is_longer_than_clients_take(serve: Serve) -> None:
    prompt = "\0" * 400_000  # no character is longer in JSON
    peer = Peer([generate(format="openai", prompt=prompt, echo=True, max_tokens=2)])
    serve(peer, max_frame_bytes=4 << 20)
    await until(lambda: peer.received and peer.received[-1]["done"])
    texts = [frame["chunk"]["choices"][0]["text"] for frame in peer.received]
    assert "".join(texts).startswith(prompt) and "".join(texts) != prompt
    assert max(peer.lengths) < 1 << 20


@pytest.mark.parametrize("fields", [{}, {"format": "openai", "n": 2}])
async def test_the_log_line_of_an_answer_has_the_id_of_its_frames(
    serve: Serve, cluster: EchoCluster, caplog: pytest.LogCaptureFixture, fields: dict[str, Any]
) -> None:
    caplog.set_level(logging.INFO, "punica_frontend.generation.request_log")
    peer = Peer([generate("their own", max_tokens=1, **fields)])
    serve(peer)
    num_answers = fields.get("n", 1)
    await until(lambda: len(caplog.records) == num_answers)
    lines = [vars(record)["fields"] for record in caplog.records]
    assert {line["answer_id"] for line in lines} == {frame["request_id"] for frame in peer.received} == {"their own"}
    assert {line["request_id"] for line in lines} == {request.request_id for request in cluster.requests}


async def test_a_slow_reader_does_not_delay_others(serve: Serve) -> None:
    slow, quick = Peer([generate()], is_reading=False), Peer([generate(max_tokens=100)])
    serve(slow)
    serve(quick)
    await until(lambda: quick.received and quick.received[-1]["finish_reason"] == "length")
    assert sum(len(frame["token_ids"]) for frame in quick.received) == 100
    assert not slow.received


async def test_a_request_ends_with_an_error_when_its_readers_backlog_is_full(
    serve: Serve, cluster: EchoCluster
) -> None:
    peer = Peer([generate()], is_reading=False)
    serve(peer)._backlog = Backlog(20 * TOKEN_BYTES)
    await until(lambda: cluster.failed)
    peer.reads.set()
    await until(lambda: peer.received and peer.received[-1]["finish_reason"])
    last = peer.received[-1]
    assert (last["finish_reason"], last["error"]["code"]) == ("error", "slow_reader")
    assert "reads too slowly" in last["error"]["message"]
    await until(lambda: not cluster.live)


async def test_a_flood_of_bad_frames_is_not_read_beyond_what_its_sender_takes(serve: Serve) -> None:
    peer = Peer(itertools.repeat("no frame"), is_reading=False)
    quick = Peer([generate(max_tokens=100)])
    serve(peer)
    serve(quick)
    await until(lambda: peer.num_sent > MAX_QUEUED and quick.received and quick.received[-1]["finish_reason"])
    assert peer.num_sent == MAX_QUEUED + 1  # one is being sent
    peer.reads.set()
    await until(lambda: peer.num_sent > 2 * MAX_QUEUED)


async def test_a_flood_of_pings_is_not_read_beyond_what_its_sender_takes(serve: Serve) -> None:
    peer = Peer(itertools.repeat({"op": "ping"}), is_reading=False)
    quick = Peer([generate(max_tokens=100)])
    serve(peer)
    serve(quick)
    await until(lambda: peer.num_sent > MAX_QUEUED and quick.received and quick.received[-1]["finish_reason"])
    assert peer.num_sent == MAX_QUEUED + 1  # one is being sent
    peer.reads.set()
    await until(lambda: peer.num_sent > 2 * MAX_QUEUED)


async def test_a_storm_of_cancels_leaves_nothing_and_is_bounded(serve: Serve, cluster: EchoCluster) -> None:
    storm = itertools.chain.from_iterable((generate(), cancel("a"), cancel("b")) for _ in itertools.count())
    peer, quick = Peer(storm, is_reading=False), Peer([generate(max_tokens=100)])
    serve(peer)
    serve(quick)
    await until(lambda: quick.received and quick.received[-1]["finish_reason"])
    # The requests of the storm that were begun are over at once; their last frames wait in line.
    assert peer.num_sent <= 3 * (MAX_QUEUED + 2)
    assert len(cluster.live) <= 1
    peer.reads.set()
    await until(lambda: len(peer.received) > 10)
    assert {frame["finish_reason"] for frame in peer.received[1:]} <= {"cancelled", None}


async def test_a_cancelled_name_can_be_used_again_at_once(serve: Serve) -> None:
    peer = Peer([generate(), cancel("a"), generate(max_tokens=2)], is_reading=False)
    serve(peer)
    await until(lambda: peer.num_sent == 3)
    peer.reads.set()
    await until(lambda: len([frame for frame in peer.of("a") if frame["finish_reason"]]) == 2)
    assert [frame["finish_reason"] for frame in peer.of("a") if frame["finish_reason"]] == ["cancelled", "length"]


async def test_a_client_that_leaves_while_it_is_sent_to_cancels_its_requests(
    serve: Serve, cluster: EchoCluster
) -> None:
    peer = Peer([generate("a"), generate("b")], is_reading=False)
    serve(peer)
    await until(lambda: len(cluster.live) == 2)
    peer.leaves.set()
    peer.reads.set()
    await until(lambda: not cluster.live)
    assert len(cluster.cancelled) == 2


async def test_a_frontend_that_drains_refuses_by_frame_and_finishes_what_it_has(
    serve: Serve, cluster: EchoCluster, admission: Admission
) -> None:
    cluster.pause_at = 1
    is_closed = asyncio.Event()

    class Patient(Peer):
        async def receive(self) -> Message:
            if self.num_sent == 1:
                await is_closed.wait()
            return await super().receive()

    peer = Patient([generate("a", max_tokens=3), generate("b")])
    serve(peer)
    await until(lambda: peer.received)
    admission.close()
    is_closed.set()
    await until(lambda: peer.of("b"))
    (refusal,) = peer.of("b")
    assert (refusal["finish_reason"], refusal["error"]["code"]) == ("error", "cluster_unavailable")
    assert "shutting down" in refusal["error"]["message"]
    emptying = asyncio.create_task(admission.empty())
    await asyncio.sleep(0)
    assert not emptying.done()
    cluster.resumed.set()
    await emptying
    assert peer.of("a")[-1]["finish_reason"] == "length"
