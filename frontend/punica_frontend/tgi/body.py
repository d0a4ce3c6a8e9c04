"""The body of POST /generate and /generate_stream."""

from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from punica_frontend.api.schemas import CACHE_SALT, MAX_LOGPROBS, CacheSalt, GenerateFields, SloBody, StopList, Text
from punica_frontend.fields.lenient_body import LenientBody
from punica_frontend.fields.lists import NEUTRAL_WITH_SPECIAL_TOKENS, FieldLists
from punica_frontend.generation.choices import MAX_CHOICES
from punica_serve.errors import InvalidRequest
from punica_serve.protocol.sampling_ranges import RANGES

#: TGI's clients send `stream` to all of its routes.
_LISTS = FieldLists(
    neutral=NEUTRAL_WITH_SPECIAL_TOKENS,
    instead={
        "stop_sequences": "give `parameters.stop`",
        "max_tokens": "give `parameters.max_new_tokens`",
        "stream": "POST it to /generate_stream",
    },
    adapter_field="parameters.adapter_id",
)


def _range(name: str) -> dict[str, Any]:
    return RANGES[name].as_constraints()


class Parameters(LenientBody):
    """Without do_sample, temperature, top_k and top_p the answer is the most likely one."""

    lists: ClassVar[FieldLists] = _LISTS
    keeps_empty: ClassVar[frozenset[str]] = frozenset({"slo"})

    adapter_id: Text | None = Field(None, description="An adapter that is served; by default the base model.")
    do_sample: bool | None = None
    temperature: float | None = Field(None, **_range("temperature"))
    top_k: int | None = Field(None, **_range("top_k"))
    top_p: float | None = Field(None, **_range("top_p"))
    repetition_penalty: float | None = Field(None, **_range("repetition_penalty"))
    frequency_penalty: float | None = Field(None, **_range("frequency_penalty"))
    seed: int | None = Field(None, **_range("seed"))
    max_new_tokens: int | None = Field(
        None, **_range("max_tokens"), description="Default: the model's own limit, or the rest of the context."
    )
    stop: StopList | None = Field(None, description="The first of these strings ends the answer, and is part of it.")
    ignore_eos_token: bool | None = None
    truncate: int | None = Field(None, ge=1, description="Use only this many tokens of the input, the last ones.")
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    return_full_text: bool | None = Field(None, description="Put the input before the answer.")
    details: bool | None = None
    decoder_input_details: bool | None = Field(None, description="Return the input's tokens; their logprobs are null.")
    return_k_alternatives: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="LoRAX's top_n_tokens.")
    top_n_tokens: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    slo: SloBody | None = Field(None, description="Promises of each answer; others are the tenant's.")
    cache_salt: CacheSalt | None = Field(None, description=CACHE_SALT)

    @property
    def samples(self) -> bool:
        if self.temperature == 0:
            return False
        return bool(self.do_sample) or any(value is not None for value in (self.temperature, self.top_k, self.top_p))

    @property
    def num_drawn(self) -> int:
        return self.best_of or 1

    @property
    def has_details(self) -> bool:
        return bool(self.details or self.decoder_input_details)

    @property
    def num_top(self) -> int:
        return max(self.return_k_alternatives or 0, self.top_n_tokens or 0)


#: OpenAI's API has beside the prompt what this one has in `parameters`.
_LISTS_OF_BODIES = replace(
    _LISTS, instead={**{name: f"give `parameters.{name}`" for name in Parameters.model_fields}, **_LISTS.instead}
)
_LISTS_OF_STREAMS = replace(
    _LISTS_OF_BODIES,
    neutral={**NEUTRAL_WITH_SPECIAL_TOKENS, "stream": (True,)},
    instead={**_LISTS_OF_BODIES.instead, "stream": "POST it to /generate"},
)


class LoraxBody(LenientBody):
    lists: ClassVar[FieldLists] = _LISTS_OF_BODIES

    inputs: Text = Field(min_length=1, examples=["42"])
    parameters: Parameters | None = Field(None, examples=[{"adapter_id": "roman", "details": True}])

    @property
    def given(self) -> Parameters:
        return self.parameters or Parameters()

    def native(self, lora_id: str | None, input_ids: list[int] | None, *, needs_logprobs: bool) -> GenerateFields:
        """Returns the same request for the native API. ``input_ids`` replace the inputs, if given."""
        given = self.given
        return GenerateFields(
            prompt=self.inputs if input_ids is None else None,
            input_ids=input_ids,
            lora_id=lora_id,
            max_tokens=given.max_new_tokens,
            min_tokens=0,
            # This API has its own defaults, in place of the model's.
            temperature=(given.temperature or 1.0) if given.samples else 0.0,
            top_p=given.top_p or 1.0,
            top_k=given.top_k or 0,
            min_p=0.0,
            repetition_penalty=given.repetition_penalty or 1.0,
            frequency_penalty=given.frequency_penalty or 0.0,
            seed=given.seed,
            stop=given.stop or [],
            ignore_eos=bool(given.ignore_eos_token),
            logprobs=given.num_top if needs_logprobs else None,
            slo=given.slo,
            cache_salt=given.cache_salt,
        )


class StreamBody(LoraxBody):
    """The body of the route that always streams."""

    lists: ClassVar[FieldLists] = _LISTS_OF_STREAMS


class EitherBody(LoraxBody):
    """The body of TGI's route /, which streams on request."""

    stream: bool | None = None


def check_parameters(given: Parameters, *, stream: bool) -> None:
    """Raises InvalidRequest for parameters that exclude each other, or that a stream can't have."""
    if given.num_drawn > 1 and stream:
        raise _refusal("best_of", "can't be streamed: the best answer is known only at the end; use /generate")
    if given.num_drawn > 1 and not given.samples:
        raise _refusal("best_of", "needs sampling, or all answers would be the same: set do_sample")
    if given.decoder_input_details and stream:
        raise _refusal("decoder_input_details", "is not part of a stream; use /generate")
    if given.return_full_text and stream:
        raise _refusal("return_full_text", "is not part of a stream; use /generate")


def _refusal(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"`parameters.{name}` {why}", param=f"parameters.{name}")
