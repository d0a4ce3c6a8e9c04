from punica_frontend.api.schemas import GenerateFields
from punica_frontend.generation.sampling_defaults import sampling_params
from punica_serve.base_model.generation_config import GenerationDefaults
from punica_serve.protocol import SamplingParams


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
