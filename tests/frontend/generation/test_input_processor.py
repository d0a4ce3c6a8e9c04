from dataclasses import replace

import pytest

from echo_cluster import EchoCluster
from punica_frontend.api.caller import Caller
from punica_frontend.api.schemas import GenerateFields
from punica_frontend.generation.input_processor import InputProcessor
from punica_frontend.generation.prompts import PromptEncoder
from punica_serve.base_model.generation_config import GenerationDefaults
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterNotFound, AdapterRejected
from punica_serve.registry.registry import Registry
from punica_serve.text.tokenizer import Tokenizer

CALLER = Caller("default", "default", "user", "k1")


async def test_the_models_stop_strings_are_for_requests_that_give_none(
    cluster: EchoCluster, registry: Registry, prompts: PromptEncoder, model: ModelConfig
) -> None:
    model = replace(model, generation=GenerationDefaults(stop=("###",)))
    inputs = InputProcessor(cluster, registry, prompts, model, base_name="numbers", max_context=64)
    assert (await inputs.plan(GenerateFields(prompt="42"), CALLER)).stops == ("###",)
    assert (await inputs.plan(GenerateFields(prompt="42", stop=[]), CALLER)).stops == ()
    assert (await inputs.plan(GenerateFields(prompt="42", stop=["x"]), CALLER)).stops == ("x",)


async def test_a_plan_is_a_whole_request(inputs: InputProcessor, tokenizer: Tokenizer) -> None:
    plan = await inputs.plan(GenerateFields(prompt="42", lora_id="roman", stop=["x"], stop_token_ids=[7]), CALLER)
    assert plan.request.prompt_ids == tuple(tokenizer.encode("42"))
    assert plan.request.adapter is not None and plan.request.adapter.digest == "d1"
    assert plan.request.arrival_ns > 0
    assert (plan.request.tenant, plan.caller) == ("default", CALLER)
    assert plan.answer_id == plan.request.request_id
    assert (plan.lora_id, plan.stops, plan.end_ids) == ("roman", ("x",), frozenset((0, 7)))
    assert plan.request.sampling.max_tokens == 62


async def test_requests_get_ids_and_seeds_of_their_own(inputs: InputProcessor) -> None:
    plans = [await inputs.plan(GenerateFields(prompt="42"), CALLER, answer_id="mine") for _ in range(2)]
    assert {plan.answer_id for plan in plans} == {"mine"}
    assert len({plan.request.request_id for plan in plans}) == 2
    assert len({plan.request.sampling.seed for plan in plans}) == 2


@pytest.mark.parametrize("lora_id", [None, "numbers"])
async def test_the_base_model_has_no_adapter(inputs: InputProcessor, lora_id: str | None) -> None:
    plan = await inputs.plan(GenerateFields(prompt="42", lora_id=lora_id), CALLER)
    assert (plan.request.adapter, plan.lora_id) == (None, None)


async def test_ignoring_eos_shows_what_comes_after_it(inputs: InputProcessor) -> None:
    assert (await inputs.plan(GenerateFields(prompt="4", ignore_eos=True), CALLER)).end_ids == set()


async def test_unknown_and_refused_adapters(inputs: InputProcessor) -> None:
    with pytest.raises(AdapterNotFound, match="GET /v1/models"):
        await inputs.plan(GenerateFields(prompt="42", lora_id="nope"), CALLER)
    with pytest.raises(AdapterRejected, match=r"'broken' is not served: .*positive integer"):
        await inputs.plan(GenerateFields(prompt="42", lora_id="broken"), CALLER)
