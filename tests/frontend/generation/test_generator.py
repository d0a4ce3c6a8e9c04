from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from echo_cluster import EchoCluster
from punica_frontend.api.caller import Caller
from punica_frontend.api.schemas import GenerateFields, SloBody
from punica_frontend.generation.admission import Admission
from punica_frontend.generation.generator import Generator, answer_room, sampling_params
from punica_frontend.generation.prompts import PromptEncoder
from punica_frontend.metrics.metrics import Metrics
from punica_frontend.scheduler_link.live_request import TOKEN_BYTES, Backlog
from punica_frontend.tenancy.meter import Meter
from punica_serve.base_model.generation_config import GenerationDefaults
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import (
    AdapterNotFound,
    AdapterRejected,
    ContextOverflow,
    InvalidRequest,
    OutOfCapacity,
    RequestFailed,
)
from punica_serve.protocol import NO_PROMISES, Limits, PromiseCounts, SamplingParams, TenantQuota, WireError
from punica_serve.registry.registry import Registry
from punica_serve.text.tokenizer import Tokenizer
from waits import until

CALLER = Caller("default", "default", "user", "k1")


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def generator(
    cluster: EchoCluster,
    registry: Registry,
    meter: Meter,
    tokenizer: Tokenizer,
    prompts: PromptEncoder,
    model: ModelConfig,
) -> Generator:
    shape: dict[str, Any] = {"base_name": "numbers", "max_context": 64}
    return Generator(cluster, registry, tokenizer, prompts, model, Admission(), Metrics(), meter, **shape)


def test_missing_sampling_fields_come_from_the_model() -> None:
    defaults = GenerationDefaults((0,), temperature=0.7, top_p=0.9, top_k=40, min_p=0.1, repetition_penalty=1.1)
    assert sampling_params(GenerateFields(), defaults, 16, seed=5) == SamplingParams(0.7, 0.9, 40, 0.1, 1.1, seed=5)
    chosen = GenerateFields(temperature=0, top_p=1, top_k=0, min_p=0, repetition_penalty=1, seed=0)
    assert sampling_params(chosen, defaults, 16, seed=5) == SamplingParams(seed=0)


def test_the_models_least_length_is_none_that_a_request_must_have_room_for() -> None:
    defaults = GenerationDefaults(min_tokens=9)
    assert sampling_params(GenerateFields(), defaults, 16, seed=5).min_tokens == 9
    assert sampling_params(GenerateFields(), defaults, 4, seed=5).min_tokens == 4
    assert sampling_params(GenerateFields(min_tokens=0), defaults, 16, seed=5).min_tokens == 0


def test_the_models_own_limit_is_for_requests_that_give_none() -> None:
    assert answer_room(GenerateFields(), 10, 64, None, default=7) == 7
    assert answer_room(GenerateFields(), 10, 64, None, default=70) == 54
    assert answer_room(GenerateFields(max_tokens=30), 10, 64, None, default=7) == 30
    assert answer_room(GenerateFields(min_tokens=20), 10, 64, None, default=7) == 20


async def test_the_models_stop_strings_are_for_requests_that_give_none(
    cluster: EchoCluster,
    registry: Registry,
    meter: Meter,
    tokenizer: Tokenizer,
    prompts: PromptEncoder,
    model: ModelConfig,
) -> None:
    model = replace(model, generation=GenerationDefaults(stop=("###",)))
    shape: dict[str, Any] = {"base_name": "numbers", "max_context": 64}
    generator = Generator(cluster, registry, tokenizer, prompts, model, Admission(), Metrics(), meter, **shape)
    assert (await generator.plan(GenerateFields(prompt="42"), CALLER)).stops == ("###",)
    assert (await generator.plan(GenerateFields(prompt="42", stop=[]), CALLER)).stops == ()
    assert (await generator.plan(GenerateFields(prompt="42", stop=["x"]), CALLER)).stops == ("x",)


def test_an_answer_may_fill_the_rest_of_what_holds_least() -> None:
    assert answer_room(GenerateFields(), 10, 64, None) == 54
    assert answer_room(GenerateFields(), 10, 64, Limits(0, None)) == 54
    assert answer_room(GenerateFields(), 10, 64, Limits(1, 1000)) == 54


def test_an_answer_of_no_given_length_fits_the_gpus_that_are_gone_for_now() -> None:
    """While all workers are restarted, or the scheduler: the request waits for one, and would be refused by it."""

    def room(fields: GenerateFields, num_prompt_tokens: int = 10) -> int:
        return answer_room(fields, num_prompt_tokens, 64, Limits(0, None), last_request_tokens=32, default=40)

    assert room(GenerateFields()) == 22
    assert room(GenerateFields(), num_prompt_tokens=40) == 24
    assert room(GenerateFields(min_tokens=30)) == 30, "those that come back may be larger"
    assert room(GenerateFields(max_tokens=50)) == 50
    assert answer_room(GenerateFields(), 10, 64, Limits(1, 32)) == 22
    assert answer_room(GenerateFields(max_tokens=22), 10, 64, Limits(1, 32)) == 22


@pytest.mark.parametrize(
    ("fields", "num_prompt_tokens", "limits", "param", "says"),
    [
        (
            {"prompt": ""},
            64,
            None,
            "prompt",
            "64 tokens, but this model's maximum context length is 64 tokens, including the",
        ),
        ({"input_ids": []}, 70, None, "input_ids", "70 tokens"),
        (
            {},
            40,
            Limits(1, 32),
            "prompt",
            "is 32 tokens here, as much as the cluster's largest KvCache holds, including the",
        ),
        ({"max_tokens": 55}, 10, None, "max_tokens", "maximum context length is 64 tokens, which leaves 54"),
        (
            {"max_tokens": 30},
            10,
            Limits(1, 32),
            "max_tokens",
            "cluster's largest KvCache holds, which leaves 22 after the prompt's 10 tokens$",
        ),
    ],
)
def test_too_long_a_request_is_refused_by_field(
    fields: dict[str, Any], num_prompt_tokens: int, limits: Limits | None, param: str, says: str
) -> None:
    with pytest.raises(ContextOverflow, match=says) as caught:
        answer_room(GenerateFields(**fields), num_prompt_tokens, 64, limits)
    assert caught.value.param == param


def test_more_tokens_at_least_than_at_most_are_no_overflow() -> None:
    with pytest.raises(InvalidRequest, match="more than the 5") as caught:
        answer_room(GenerateFields(max_tokens=5, min_tokens=6), 10, 64, None)
    assert (caught.value.param, caught.value.code) == ("min_tokens", "invalid_request")


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


async def test_the_clusters_error_about_an_adapter_has_the_clients_name_for_it(
    generator: Generator, cluster: EchoCluster
) -> None:
    cluster.failure = WireError("request_failed", "it, or its adapter d1, seems to kill the worker", "lora_id", 5.0)
    plan = await generator.plan(GenerateFields(prompt="42", lora_id="roman"), CALLER)
    with pytest.raises(RequestFailed, match="adapter 'roman': it, or its adapter d1, seems to kill") as caught:
        await anext(generator.stream(plan))
    assert (caught.value.param, caught.value.retry_after_s) == ("lora_id", 5.0)


async def test_tokens_that_a_slow_reader_has_not_taken_come_as_one_frame(
    generator: Generator, cluster: EchoCluster
) -> None:
    cluster.answer = lambda request: [7] * 40
    plan = await generator.plan(GenerateFields(prompt="4", ignore_eos=True, max_tokens=40), CALLER)
    async with aclosing(generator.stream(plan)) as frames:
        first = await anext(frames)
        await until(lambda: cluster.num_tokens == 40)
        second = await anext(frames)
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


async def test_delivered_tokens_are_metered(generator: Generator, meter: Meter, cluster: EchoCluster) -> None:
    cluster.answer = lambda request: [7] * 40
    plan = await generator.plan(GenerateFields(prompt="42", lora_id="roman", max_tokens=9, ignore_eos=True), CALLER)
    async with aclosing(generator.stream(plan)) as frames:
        num_tokens = sum([len(frame.token_ids) async for frame in frames])
    (usage,) = meter.take()
    assert (usage.tenant, usage.adapter, usage.version) == ("default", "shared/roman", 1)
    assert (usage.num_requests, usage.num_prompt_tokens, usage.num_generated_tokens) == (1, 2, num_tokens) == (1, 2, 9)
    assert usage.gpu_s == 0.25


async def test_judged_promises_are_metered_and_reported(
    generator: Generator, meter: Meter, cluster: EchoCluster
) -> None:
    fields = GenerateFields(prompt="42", slo=SloBody(first_token_s=60.0, time_per_token_s=1e-9))
    async with aclosing(generator.stream(await generator.plan(fields, CALLER))) as frames:
        assert [frame async for frame in frames]
    (usage,) = meter.take()
    judged = PromiseCounts(first_token_kept=1, time_per_token_broken=1)
    assert usage.promises == cluster.promises == judged


async def test_a_request_that_fails_breaks_its_promises_and_one_that_is_cancelled_none(
    generator: Generator, meter: Meter, cluster: EchoCluster
) -> None:
    cluster.pause_at = 1
    plan = await generator.plan(GenerateFields(prompt="42", slo=SloBody(first_token_s=1e-9)), CALLER)
    async with aclosing(generator.stream(plan)) as frames:
        await anext(frames)
    assert cluster.promises == NO_PROMISES
    cluster.failure = WireError("out_of_capacity", "the queue is full")
    with pytest.raises(OutOfCapacity):
        await anext(generator.stream(plan))
    assert cluster.promises == PromiseCounts(first_token_broken=1)
    assert sum((usage.promises for usage in meter.take()), NO_PROMISES) == cluster.promises


async def test_untaken_tokens_are_not_metered(generator: Generator, meter: Meter, cluster: EchoCluster) -> None:
    cluster.answer = lambda request: [7] * 40
    plan = await generator.plan(GenerateFields(prompt="42", max_tokens=9, ignore_eos=True), CALLER)
    answering = await generator.start(plan, lambda: None, Backlog())
    answering.close()
    assert [usage.num_requests for usage in meter.take()] in ([], [0])
