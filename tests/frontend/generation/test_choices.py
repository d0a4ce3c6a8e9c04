import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from echo_cluster import EchoCluster
from punica_frontend.api.caller import ANYONE
from punica_frontend.api.schemas import GenerateFields
from punica_frontend.generation.answers import Frame, usage
from punica_frontend.generation.choices import Choices, check_together, copies, stream_all, whole_answers
from punica_frontend.generation.direct_output import DirectOutput
from punica_frontend.generation.generator import Generator
from punica_serve.errors import ClusterUnavailable, InvalidRequest
from punica_serve.protocol import TenantQuota
from punica_serve.registry.registry import Registry
from waits import until


async def planned(generator: Generator, prompt: str, **fields: Any) -> Any:
    return await generator.plan(GenerateFields(prompt=prompt, **fields), ANYONE)


async def test_copies_differ_in_their_seeds_and_ids(generator: Generator) -> None:
    plan = await planned(generator, "42", seed=(1 << 64) - 2)
    plans = copies(plan, 3)
    assert plans[0].request is plan.request
    assert [each.num_choices for each in plans] == [3, 0, 0]
    assert [each.request.sampling.seed for each in plans] == [(1 << 64) - 2, (1 << 64) - 1, 0]
    assert len({each.request.request_id for each in plans}) == 3
    assert [each.answer_id for each in plans] == [each.request.request_id for each in plans]
    assert len({each.request.prompt_ids for each in plans}) == 1


async def test_answers_are_in_the_order_of_their_plans(generator: Generator, cluster: EchoCluster) -> None:
    plans = [await planned(generator, prompt) for prompt in ("a", "longest", "mid")]
    answers = await whole_answers(generator, plans)
    assert [answer.text for answer in answers] == ["a", "longest", "mid"]
    assert not cluster.live and not cluster.cancelled
    assert Choices(tuple(plans)).usage(5, {}).prompt_tokens == 11
    assert Choices.of(plans, 4).usage(5, {}) == usage(11, 5)
    ends = {index: usage(3, 1, num_cached) for index, num_cached in enumerate((2, 9, 4, 9, None))}
    assert Choices.of(plans, 2).usage(5, ends) == usage(11, 5, 6), "a prompt's second choice finds what the first left"


async def test_a_request_is_let_go_when_it_ends_not_when_all_do(generator: Generator, cluster: EchoCluster) -> None:
    plans = [await planned(generator, prompt) for prompt in ("a", "longest")]
    async with aclosing(stream_all(generator, plans)) as frames:
        async for index, frame in frames:
            if index == 1 and frame.index == 4:
                assert cluster.live == {plans[1].request.request_id}
    assert not cluster.live


class Pieces:
    """A connection that takes pieces at once while it is writable."""

    def __init__(self) -> None:
        self.is_writable = True
        self.written: list[bytes] = []

    def write(self, piece: bytes) -> None:
        self.written.append(piece)

    async def send(self, piece: bytes) -> None:
        self.written.append(piece)


def numbered(token_id: int, text: str, num_tokens: int) -> bytes:
    return f"{text}{num_tokens}".encode()


async def test_single_tokens_are_written_directly_and_all_else_is_the_readers(
    generator: Generator, cluster: EchoCluster
) -> None:
    pieces = Pieces()
    direct = DirectOutput({0: numbered, 1: numbered})
    yielded: list[Frame] = []
    async with aclosing(stream_all(generator, [await planned(generator, "longest")], direct)) as frames:
        async for _, frame in frames:
            yielded.append(frame)
            direct.open(pieces)
    assert [frame.text for frame in yielded] == ["l", ""] and yielded[-1].usage == usage(7, 8)
    assert pieces.written == [b"o2", b"n3", b"g4", b"e5", b"s6", b"t7"]
    assert not cluster.live and not cluster.cancelled
    assert generator.metrics.num_generated_tokens == 8


@pytest.mark.parametrize(("is_writable", "has_encoder"), [(False, True), (True, False)])
async def test_tokens_are_the_readers_if_the_connection_takes_none_or_their_plan_has_no_encoder(
    generator: Generator, is_writable: bool, has_encoder: bool
) -> None:
    pieces = Pieces()
    pieces.is_writable = is_writable
    direct = DirectOutput({0: numbered} if has_encoder else {})
    direct.open(pieces)
    async with aclosing(stream_all(generator, [await planned(generator, "longest")], direct)) as frames:
        assert "".join([frame.text async for _, frame in frames]) == "longest"
    assert not pieces.written


async def test_a_stop_string_among_tokens_written_directly_ends_the_answer(
    generator: Generator, cluster: EchoCluster
) -> None:
    pieces = Pieces()
    direct = DirectOutput({0: numbered, 1: numbered})
    plans = [await planned(generator, "longest", stop=["es"]), await planned(generator, "much longer")]
    ends = {}
    async with aclosing(stream_all(generator, plans, direct)) as frames:
        async for index, frame in frames:
            direct.open(pieces)
            if frame.finish_reason:
                assert index not in ends, "tokens behind the stop string came out"
                ends[index] = frame
    assert (ends[0].text, ends[0].finish_reason, ends[0].usage) == ("", "stop", usage(7, 6))
    assert ends[1].finish_reason == "stop" and ends[1].usage == usage(11, 12)
    assert b"".join(pieces.written).count(b"e") == 1, "only the other answer's"


async def test_an_error_while_writing_directly_is_the_readers(generator: Generator, cluster: EchoCluster) -> None:
    def encode(token_id: int, text: str, num_tokens: int) -> bytes:
        raise ValueError("a bug")

    direct = DirectOutput({0: encode})
    direct.open(Pieces())
    with pytest.raises(ValueError, match="a bug"):
        async with aclosing(stream_all(generator, [await planned(generator, "42")], direct)) as frames:
            async for _ in frames:
                pass
    assert not cluster.live and len(cluster.cancelled) == 1


async def test_closing_early_cancels_what_goes_on(generator: Generator, cluster: EchoCluster) -> None:
    plans = copies(await planned(generator, "42"), 5)
    async with aclosing(stream_all(generator, plans)) as frames:
        await anext(frames)
    assert not cluster.live and len(cluster.cancelled) == 5


async def test_if_one_cannot_start_none_goes_on(
    generator: Generator, cluster: EchoCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = cluster.start

    async def start_two(*args: Any) -> Any:
        if len(cluster.requests) == 2:
            raise ClusterUnavailable("the scheduler can't be reached")
        return await start(*args)

    monkeypatch.setattr(cluster, "start", start_two)
    with pytest.raises(ClusterUnavailable):
        await whole_answers(generator, copies(await planned(generator, "42"), 5))
    assert not cluster.live and len(cluster.requests) == 2


async def test_a_reader_that_is_cancelled_leaves_nothing(generator: Generator, cluster: EchoCluster) -> None:
    cluster.pause_at = 1
    reading = asyncio.create_task(whole_answers(generator, copies(await planned(generator, "42"), 3)))
    await until(lambda: cluster.num_tokens == 3)
    reading.cancel()
    await asyncio.wait([reading])
    assert not cluster.live


@pytest.mark.parametrize(
    ("quota", "words"),
    [
        (TenantQuota(max_concurrent=2), "3 concurrent requests"),
        (TenantQuota(requests_per_min=2), "3 requests a minute"),
        (TenantQuota(tokens_per_min=20), "21 tokens a minute"),
    ],
)
async def test_a_body_that_no_quota_has_room_for_is_refused_as_a_whole(
    generator: Generator, registry: Registry, quota: TenantQuota, words: str
) -> None:
    await registry.put_tenant("default", quota=quota, by="the test")
    plans = copies(await planned(generator, "42", max_tokens=5), 3)
    with pytest.raises(InvalidRequest, match=words) as caught:
        check_together(generator, plans)
    assert caught.value.param == "n"
    check_together(generator, plans[:2])
