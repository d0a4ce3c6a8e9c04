"""A request's sampling parameters: what the client chose, and the model's defaults for the rest."""

from typing import TypeVar

from punica_frontend.api.schemas import GenerateFields
from punica_serve.base_model.generation_config import GenerationDefaults
from punica_serve.protocol import SamplingParams

T = TypeVar("T")


def sampling_params(
    fields: GenerateFields, defaults: GenerationDefaults, max_tokens: int, *, seed: int
) -> SamplingParams:
    """Combines the client's choices with the model's defaults. ``seed`` is used if the client gave none."""
    return SamplingParams(
        temperature=_first(fields.temperature, defaults.temperature),
        top_p=_first(fields.top_p, defaults.top_p),
        top_k=_first(fields.top_k, defaults.top_k),
        min_p=_first(fields.min_p, defaults.min_p),
        repetition_penalty=_first(fields.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        seed=_first(fields.seed, seed),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=fields.ignore_eos,
        min_tokens=_first(fields.min_tokens, min(defaults.min_tokens, max_tokens)),
        max_tokens=max_tokens,
        logprobs=fields.logprobs,
    )


def _first(value: T | None, default: T) -> T:
    return default if value is None else value
