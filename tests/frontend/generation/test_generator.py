from contextlib import aclosing

import pytest

from echo_cluster import EchoCluster
from punica_frontend.api.caller import Caller
from punica_frontend.api.schemas import GenerateFields, SloBody
from punica_frontend.generation.choices import stream_all
from punica_frontend.generation.generator import Generator
from punica_frontend.generation.request_account import RequestAccounts
from punica_frontend.scheduler_link.live_request import TOKEN_BYTES, Backlog
from punica_frontend.tenancy.meter import Meter
from punica_serve.errors import (
    OutOfCapacity,
    RequestFailed,
)
from punica_serve.protocol import NO_PROMISES, PromiseCounts, TenantQuota, WireError
from punica_serve.registry.registry import Registry
from waits import until

CALLER = Caller("default", "default", "user", "k1")


@pytest.fixture
def meter(accounts: RequestAccounts) -> Meter:
    return accounts.meter


async def test_the_clusters_error_about_an_adapter_has_the_clients_name_for_it(
    generator: Generator, cluster: EchoCluster
) -> None:
    cluster.failure = WireError("request_failed", "it, or its adapter d1, seems to kill the worker", "lora_id", 5.0)
    plan = await generator.plan(GenerateFields(prompt="42", lora_id="roman"), CALLER)
    with pytest.raises(RequestFailed, match="adapter 'roman': it, or its adapter d1, seems to kill") as caught:
        await anext(stream_all(generator, [plan]))
    assert (caught.value.param, caught.value.retry_after_s) == ("lora_id", 5.0)


async def test_tokens_that_a_slow_reader_has_not_taken_come_as_one_frame(
    generator: Generator, cluster: EchoCluster
) -> None:
    cluster.answer = lambda request: [7] * 40
    plan = await generator.plan(GenerateFields(prompt="4", ignore_eos=True, max_tokens=40), CALLER)
    async with aclosing(stream_all(generator, [plan])) as frames:
        _, first = await anext(frames)
        await until(lambda: cluster.num_tokens == 40)
        _, second = await anext(frames)
    assert (first.index, len(first.token_ids)) == (0, 1)
    assert (second.index, len(second.token_ids), second.finish_reason) == (1, 39, "length")
    assert not cluster.live


async def test_untaken_output_leaves_the_backlog_once_the_stream_is_closed(
    generator: Generator, cluster: EchoCluster
) -> None:
    cluster.answer = lambda request: [7] * 40
    plan = await generator.plan(GenerateFields(prompt="4", ignore_eos=True, max_tokens=40), CALLER)
    backlog = Backlog()
    answering = await generator.start(plan, lambda: None, backlog)
    await until(lambda: cluster.num_tokens == 40)
    assert backlog.num_bytes == 40 * TOKEN_BYTES
    answering.close()
    assert backlog.num_bytes == 0


async def test_a_stream_that_is_closed_early_cancels_its_request(generator: Generator, cluster: EchoCluster) -> None:
    cluster.pause_at = 1
    plan = await generator.plan(GenerateFields(prompt="42"), CALLER)
    async with aclosing(stream_all(generator, [plan])) as frames:
        await anext(frames)
    assert cluster.cancelled == [plan.request.request_id]


async def test_the_tenants_quota_goes_with_the_request_as_it_is_when_that_starts(
    generator: Generator, registry: Registry, cluster: EchoCluster
) -> None:
    plan = await generator.plan(GenerateFields(prompt="42"), CALLER)
    quota = TenantQuota(max_concurrent=3)
    await registry.put_tenant("default", quota=quota, by="the test")
    (await generator.start(plan, lambda: None, Backlog())).close()
    assert cluster.quotas == [quota]


async def test_delivered_tokens_are_metered(generator: Generator, meter: Meter, cluster: EchoCluster) -> None:
    cluster.answer = lambda request: [7] * 40
    plan = await generator.plan(GenerateFields(prompt="42", lora_id="roman", max_tokens=9, ignore_eos=True), CALLER)
    async with aclosing(stream_all(generator, [plan])) as frames:
        num_tokens = sum([len(frame.token_ids) async for _, frame in frames])
    (usage,) = meter.take()
    assert (usage.tenant, usage.adapter, usage.version) == ("default", "shared/roman", 1)
    assert (usage.num_requests, usage.num_prompt_tokens, usage.num_generated_tokens) == (1, 2, num_tokens) == (1, 2, 9)
    assert usage.gpu_s == 0.25


async def test_judged_promises_are_metered_and_reported(
    generator: Generator, meter: Meter, cluster: EchoCluster
) -> None:
    fields = GenerateFields(prompt="42", slo=SloBody(first_token_s=60.0, time_per_token_s=1e-9))
    async with aclosing(stream_all(generator, [await generator.plan(fields, CALLER)])) as frames:
        assert [frame async for frame in frames]
    (usage,) = meter.take()
    judged = PromiseCounts(first_token_kept=1, time_per_token_broken=1)
    assert usage.promises == cluster.promises == judged


async def test_a_request_that_fails_breaks_its_promises_and_one_that_is_cancelled_none(
    generator: Generator, meter: Meter, cluster: EchoCluster
) -> None:
    cluster.pause_at = 1
    plan = await generator.plan(GenerateFields(prompt="42", slo=SloBody(first_token_s=1e-9)), CALLER)
    async with aclosing(stream_all(generator, [plan])) as frames:
        await anext(frames)
    assert cluster.promises == NO_PROMISES
    cluster.failure = WireError("out_of_capacity", "the queue is full")
    with pytest.raises(OutOfCapacity):
        await anext(stream_all(generator, [plan]))
    assert cluster.promises == PromiseCounts(first_token_broken=1)
    assert sum((usage.promises for usage in meter.take()), NO_PROMISES) == cluster.promises


async def test_untaken_tokens_are_not_metered(generator: Generator, meter: Meter, cluster: EchoCluster) -> None:
    cluster.answer = lambda request: [7] * 40
    plan = await generator.plan(GenerateFields(prompt="42", max_tokens=9, ignore_eos=True), CALLER)
    answering = await generator.start(plan, lambda: None, Backlog())
    answering.close()
    assert [usage.num_requests for usage in meter.take()] in ([], [0])
