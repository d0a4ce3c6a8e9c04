"""The body of POST /generate and /generate_stream."""

from typing import Any

from pydantic import ConfigDict, Field

from punica_frontend.choices import MAX_CHOICES
from punica_frontend.schemas import MAX_LOGPROBS, Body, GenerateFields, StopList, Text
from punica_serve.errors import InvalidRequest
from punica_serve.sampling_ranges import RANGES

_NOTHING: tuple[Any, ...] = (None, False, "", [], {})

#: A parameter -> values of it that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "lora_id": _NOTHING,
    **dict.fromkeys(("merged_adapters", "watermark", "grammar", "response_format", "apply_chat_template"), _NOTHING),
    "typical_p": (None, 1),
}


#: Not this API's names or places of the adapter. Ignored, the base model would answer.
_NAMES_OF_ADAPTERS = ("lora_id", "adapter_id")
_ADAPTER_AS_PARAMETER = "is not supported here; give the adapter's name as `parameters.adapter_id`"


def _range(name: str) -> dict[str, Any]:
    return RANGES[name].as_constraints()


class _Lenient(Body):
    model_config = ConfigDict(extra="allow")


class Parameters(_Lenient):
    """Without any of do_sample, temperature, top_k and top_p the answer is the most likely one."""

    adapter_id: Text | None = Field(None, description="An adapter that is served; by default the base model.")
    do_sample: bool | None = None
    temperature: float | None = Field(None, **_range("temperature"))
    top_k: int | None = Field(None, **_range("top_k"))
    top_p: float | None = Field(None, **_range("top_p"))
    repetition_penalty: float | None = Field(None, **_range("repetition_penalty"))
    frequency_penalty: float | None = Field(None, **_range("frequency_penalty"))
    seed: int | None = Field(None, **_range("seed"))
    max_new_tokens: int | None = Field(
        None, **_range("max_tokens"), description="Default: as many as the context has room for."
    )
    stop: StopList | None = Field(None, description="The text ends with the first of these strings.")
    ignore_eos_token: bool | None = None
    truncate: int | None = Field(None, ge=1, description="Take only so many tokens of the input, the last ones.")
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    return_full_text: bool | None = Field(None, description="Put the input before the answer.")
    details: bool | None = None
    decoder_input_details: bool | None = Field(None, description="Tell the input's tokens; their logprobs are null.")
    return_k_alternatives: int | None = Field(None, ge=1, le=MAX_LOGPROBS, description="LoRAX's top_n_tokens.")
    top_n_tokens: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

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


class LoraxBody(_Lenient):
    inputs: Text = Field(min_length=1, examples=["42"])
    parameters: Parameters | None = Field(None, examples=[{"adapter_id": "roman", "details": True}])

    @property
    def given(self) -> Parameters:
        return self.parameters or Parameters()

    def native(self, lora_id: str | None, input_ids: list[int] | None, *, needs_logprobs: bool) -> GenerateFields:
        """The same request in the native API's words. ``input_ids`` stand for the inputs, where they are given."""
        given = self.given
        return GenerateFields(
            prompt=self.inputs if input_ids is None else None,
            input_ids=input_ids,
            lora_id=lora_id,
            max_tokens=given.max_new_tokens,
            # The model's own defaults are none of this API's.
            temperature=(given.temperature or 1.0) if given.samples else 0.0,
            top_p=given.top_p or 1.0,
            top_k=given.top_k or 0,
            min_p=0.0,
            repetition_penalty=given.repetition_penalty or 1.0,
            frequency_penalty=given.frequency_penalty or 0.0,
            seed=given.seed,
            stop=given.stop,
            ignore_eos=bool(given.ignore_eos_token),
            logprobs=given.num_top if needs_logprobs else None,
        )


class EitherBody(LoraxBody):
    """Of TGI's route at /, which streams where it is asked to."""

    stream: bool | None = None


def refuse_unsupported(body: LoraxBody, *, stream: bool) -> None:
    """Raises InvalidRequest for the first parameter that asks for what there is not."""
    for name in _NAMES_OF_ADAPTERS:
        if (body.model_extra or {}).get(name) not in _NOTHING:
            raise InvalidRequest(f"`{name}` {_ADAPTER_AS_PARAMETER}")
    given = body.given
    for name, value in (given.model_extra or {}).items():
        if name in _UNSUPPORTED and value not in _UNSUPPORTED[name]:
            why = _ADAPTER_AS_PARAMETER if name in _NAMES_OF_ADAPTERS else "is not supported here; leave it out"
            raise _refusal(name, why)
    if given.num_drawn > 1 and stream:
        raise _refusal("best_of", "can't be streamed: the best is known at the end only")
    if given.num_drawn > 1 and not given.samples:
        raise _refusal("best_of", "needs sampling: set do_sample, or all answers are the same")
    if given.decoder_input_details and stream:
        raise _refusal("decoder_input_details", "is not part of a stream; use /generate")
    if given.return_full_text and stream:
        raise _refusal("return_full_text", "is not part of a stream; use /generate")


def _refusal(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"`parameters.{name}` {why}", param=f"parameters.{name}")
