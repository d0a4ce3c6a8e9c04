import threading
from contextlib import aclosing
from typing import Any

import pytest

from echo_cluster import EchoCluster
from punica_frontend.admission import Admission
from punica_frontend.caller import Caller
from punica_frontend.generation import MAX_INLINE_CHARS, Generator, answer_room, sampling_params
from punica_frontend.live_request import TOKEN_BYTES, Backlog
from punica_frontend.metrics.figures import Figures
from punica_frontend.schemas import GenerateFields
from punica_frontend.tenancy.meter import Meter
from punica_serve.errors import AdapterNotFound, AdapterRejected, InvalidRequest, RequestFailed
from punica_serve.model_config import GenerationDefaults, ModelConfig
from punica_serve.protocol import Limits, SamplingParams, TenantQuota, WireError
from punica_serve.registry.registry import Registry
from punica_serve.text.tokenizer import Tokenizer
from waits import until

CALLER = Caller("default", "user", "k1")


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def generator(
    cluster: EchoCluster, registry: Registry, meter: Meter, tokenizer: Tokenizer, model: ModelConfig
) -> Generator:
    shape: dict[str, Any] = {"base_name": "numbers", "max_context": 64}
    return Generator(cluster, registry, tokenizer, model, Admission(), Figures(), meter, **shape)


def test_what_the_request_leaves_open_comes_from_the_model() -> None:
    defaults = GenerationDefaults((0,), temperature=0.7, top_p=0.9, top_k=40, min_p=0.1, repetition_penalty=1.1)
    assert sampling_params(GenerateFields(), defaults, 16, seed=5) == SamplingParams(0.7, 0.9, 40, 0.1, 1.1, seed=5)
    chosen = GenerateFields(temperature=0, top_p=1, top_k=0, min_p=0, repetition_penalty=1, seed=0)
    assert sampling_params(chosen, defaults, 16, seed=5) == SamplingParams(seed=0)


def test_an_answer_may_fill_the_rest_of_what_holds_least() -> None:
    assert answer_room(GenerateFields(), 10, 64, None) == 54
    assert answer_room(GenerateFields(), 10, 64, Limits(0, None)) == 54
    assert answer_room(GenerateFields(), 10, 64, Limits(1, 1000)) == 54
    assert answer_room(GenerateFields(), 10, 64, Limits(1, 32)) == 22
    assert answer_room(GenerateFields(max_tokens=22), 10, 64, Limits(1, 32)) == 22


@pytest.mark.parametrize(
    ("fields", "num_prompt_tokens", "limits", "param", "says"),
    [
        ({"prompt": ""}, 64, None, "prompt", "64 tokens, but the context holds 64"),
        ({"input_ids": []}, 70, None, "input_ids", "70 tokens"),
        ({}, 40, Limits(1, 32), "prompt", "largest KvCache of the cluster holds 32"),
        ({"max_tokens": 55}, 10, None, "max_tokens", "but the context holds 64 tokens, which leaves 54"),
        (
            {"max_tokens": 30},
            10,
            Limits(1, 32),
            "max_tokens",
            "largest KvCache of the cluster holds 32 tokens, which leaves 22 after the prompt's 10 tokens$",
        ),
        ({"max_tokens": 5, "min_tokens": 6}, 10, None, "min_tokens", "more than the 5"),
    ],
)
def test_too_much_is_refused_by_field(
    fields: dict[str, Any], num_prompt_tokens: int, limits: Limits | None, param: str, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        answer_room(GenerateFields(**fields), num_prompt_tokens, 64, limits)
    assert caught.value.param == param


async def test_a_plan_is_a_whole_request(generator: Generator, tokenizer: Tokenizer) -> None:
    plan = await generator.plan(GenerateFields(prompt="42", lora_id="roman", stop=["x"], stop_token_ids=[7]), CALLER)
    assert plan.request.prompt_ids == tuple(tokenizer.encode("42"))
    assert plan.request.adapter is not None and plan.request.adapter.digest == "d1"
    assert plan.request.arrival_ns > 0
    assert (plan.request.tenant, plan.caller) == ("default", CALLER)
    assert plan.answer_id == plan.request.request_id
    assert (plan.lora_id, plan.stops, plan.end_ids) == ("roman", ("x",), frozenset((0, 7)))
    assert plan.request.sampling.max_tokens == 62


async def test_requests_get_ids_and_seeds_of_their_own(generator: Generator) -> None:
    plans = [await generator.plan(GenerateFields(prompt="42"), CALLER, answer_id="mine") for _ in range(2)]
    assert {plan.answer_id for plan in plans} == {"mine"}
    assert len({plan.request.request_id for plan in plans}) == 2
    assert len({plan.request.sampling.seed for plan in plans}) == 2


@pytest.mark.parametrize("lora_id", [None, "numbers"])
async def test_the_base_model_has_no_adapter(generator: Generator, lora_id: str | None) -> None:
    plan = await generator.plan(GenerateFields(prompt="42", lora_id=lora_id), CALLER)
    assert (plan.request.adapter, plan.lora_id) == (None, None)


async def test_ignoring_eos_shows_what_comes_after_it(generator: Generator) -> None:
    assert (await generator.plan(GenerateFields(prompt="4", ignore_eos=True), CALLER)).end_ids == set()


async def test_unknown_and_refused_adapters(generator: Generator) -> None:
    with pytest.raises(AdapterNotFound, match="GET /v1/models"):
        await generator.plan(GenerateFields(prompt="42", lora_id="nope"), CALLER)
    with pytest.raises(AdapterRejected, match=r"'broken' is not served: .*positive integer"):
        await generator.plan(GenerateFields(prompt="42", lora_id="broken"), CALLER)


async def test_what_the_cluster_says_of_an_adapter_is_told_with_its_name(
    generator: Generator, cluster: EchoCluster
) -> None:
    cluster.failure = WireError("request_failed", "it, or its adapter d1, seems to kill the worker", "lora_id", 5.0)
    plan = await generator.plan(GenerateFields(prompt="42", lora_id="roman"), CALLER)
    with pytest.raises(RequestFailed, match="adapter 'roman': it, or its adapter d1, seems to kill") as caught:
        await anext(generator.stream(plan))
    assert (caught.value.param, caught.value.retry_after_s) == ("lora_id", 5.0)


async def test_long_prompts_are_encoded_off_the_event_loop(
    generator: Generator, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def encode(text: str) -> list[int]:
        threads.append(threading.current_thread())
        return [1]

    monkeypatch.setattr(tokenizer, "encode", encode)
    await generator.plan(GenerateFields(prompt="x" * MAX_INLINE_CHARS), CALLER)
    await generator.plan(GenerateFields(prompt="x" * (MAX_INLINE_CHARS + 1)), CALLER)
    assert threads[0] is threading.main_thread() and threads[1] is not threading.main_thread()


async def test_what_a_slow_reader_does_not_take_comes_as_one_frame(generator: Generator, cluster: EchoCluster) -> None:
    cluster.answer = lambda request: [7] * 40
    plan = await generator.plan(GenerateFields(prompt="4", ignore_eos=True, max_tokens=40), CALLER)
    async with aclosing(generator.stream(plan)) as frames:
        first = await anext(frames)
        await until(lambda: cluster.num_tokens == 40)
        second = await anext(frames)
    assert (first.index, len(first.token_ids)) == (0, 1)
    assert (second.index, len(second.token_ids), second.finish_reason) == (1, 39, "length")
    assert not cluster.live


async def test_what_nobody_took_of_an_answer_counts_no_longer_once_it_is_closed(
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
    async with aclosing(generator.stream(plan)) as frames:
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


async def test_what_is_delivered_is_metered(generator: Generator, meter: Meter, cluster: EchoCluster) -> None:
    cluster.answer = lambda request: [7] * 40
    plan = await generator.plan(GenerateFields(prompt="42", lora_id="roman", max_tokens=9, ignore_eos=True), CALLER)
    async with aclosing(generator.stream(plan)) as frames:
        num_tokens = sum([len(frame.token_ids) async for frame in frames])
    (usage,) = meter.take()
    assert (usage.tenant, usage.adapter, usage.version) == ("default", "shared/roman", 1)
    assert (usage.num_requests, usage.num_prompt_tokens, usage.num_generated_tokens) == (1, 2, num_tokens) == (1, 2, 9)
    assert usage.gpu_s == 0.25


async def test_tokens_that_nobody_took_are_not_metered(
    generator: Generator, meter: Meter, cluster: EchoCluster
) -> None:
    cluster.answer = lambda request: [7] * 40
    plan = await generator.plan(GenerateFields(prompt="42", max_tokens=9, ignore_eos=True), CALLER)
    answering = await generator.start(plan, lambda: None, Backlog())
    answering.close()
    assert [usage.num_requests for usage in meter.take()] in ([], [0])
