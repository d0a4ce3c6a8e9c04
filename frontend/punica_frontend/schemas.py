"""Bodies and frames of the native API, checked strictly: unknown fields, wrong types and NaN are refused.

What needs to know the model, such as lengths and vocabulary, is checked by ``generation``.
"""

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from punica_serve.sampling_ranges import RANGES

#: Below the engine's: so many of the likeliest tokens go with each token of an answer.
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKENS = 256
MAX_ID_CHARS = 128
#: Lists in a list; the longest are the prompts of a completion.
MAX_LISTS = 128
#: Of a body, and of an object in it. Tens of thousands would cost a tenth of a second of the event loop.
MAX_FIELDS = 256


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def whole_characters(value: str) -> str:
    """A string that can be encoded; raises what pydantic makes an error of the field of."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError("string_unicode", "Input should be valid Unicode, without lone surrogates") from error
    return value


def _range(name: str) -> dict[str, Any]:
    return RANGES[name].as_constraints()


#: JSON's escapes can spell half characters, which no tokenizer takes.
Text = Annotated[str, AfterValidator(whole_characters)]
#: Whose length is checked is checked for half characters too.
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
#: Lists fail fast: an error for each wrong item of a long one would cost seconds of the event loop.
StopList = Annotated[
    list[StopString],
    Field(max_length=MAX_STOPS, fail_fast=True),
    BeforeValidator(_as_list, json_schema_input_type=StopString | list[StopString]),
]


def _whole_numbers(value: Any, *, depth: int = 2) -> Any:
    """JSON has one kind of numbers: 5.0 is the integer 5, also in a list, and in one of a few lists."""
    if type(value) is float:
        return int(value) if value.is_integer() else value
    if type(value) is list and depth:
        types = set(map(type, value))
        if float in types or (list in types and len(value) <= MAX_LISTS):
            return [_whole_numbers(item, depth=depth - 1) for item in value]
    return value


class Body(BaseModel):
    """Of a request. Nothing is taken for something else, but for numbers that are whole."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _see_whole_numbers(cls, document: Any) -> Any:
        if not isinstance(document, dict):
            return document
        if len(document) > MAX_FIELDS:
            raise PydanticCustomError("too_many_fields", f"Input should have at most {MAX_FIELDS} fields")
        return {name: _whole_numbers(value) for name, value in document.items()}


class Strict(Body):
    """A body of known fields alone."""

    model_config = ConfigDict(extra="forbid")


class GenerateFields(Strict):
    """One request. Fields that are null or left out take the model's own defaults."""

    prompt: Text | None = Field(None, description="Text to continue. Either this or input_ids.", examples=["42"])
    input_ids: list[int] | None = Field(None, fail_fast=True, description="The prompt as token ids, taken as they are.")
    lora_id: str | None = Field(None, description="Name of the LoRA model; null is the base model.", examples=["roman"])
    max_tokens: int | None = Field(
        None, **_range("max_tokens"), description="Default: as many as the context has room for."
    )
    min_tokens: int = Field(0, **_range("min_tokens"), description="No end before so many generated tokens.")
    temperature: float | None = Field(
        None, **_range("temperature"), description="0 always takes the most likely token."
    )
    top_p: float | None = Field(None, **_range("top_p"))
    top_k: int | None = Field(None, **_range("top_k"), description="0 keeps all tokens.")
    min_p: float | None = Field(None, **_range("min_p"))
    repetition_penalty: float | None = Field(None, **_range("repetition_penalty"))
    presence_penalty: float = Field(0.0, **_range("presence_penalty"))
    frequency_penalty: float = Field(0.0, **_range("frequency_penalty"))
    seed: int | None = Field(None, **_range("seed"), description="The same seed gives the same answer.")
    stop: StopList | None = Field(None, description="The text ends before the first of these strings.")
    stop_token_ids: list[int] | None = Field(
        None, max_length=MAX_STOP_TOKENS, fail_fast=True, description="The answer ends with any of these."
    )
    ignore_eos: bool = Field(False, description="Go on after the model's end of sequence.")
    logprobs: int | None = Field(
        None,
        **_range("logprobs") | {"le": MAX_LOGPROBS},
        description="Logprob of each token, and of so many of the most likely ones.",
    )


class GenerateBody(GenerateFields):
    """Body of POST /v1/generate."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "42", "lora_id": "roman", "max_tokens": 16, "stream": False}]}
    )

    stream: bool = Field(False, description="Answer with server-sent events while tokens are generated.")


class DrainBody(Strict):
    """Body of POST /v1/cluster/drain."""

    gpu: Text = Field(min_length=1, max_length=MAX_ID_CHARS, description="The GPU's UUID, as in /v1/cluster.")
    drain: bool = Field(True, description="False: use the GPU again.")


class ErrorObject(TypedDict):
    """What went wrong, and where."""

    #: What to do about it.
    message: str
    #: OpenAI's word for the status.
    type: str
    #: The field that is wrong.
    param: str | None
    #: Stable, for programs.
    code: str


class ErrorBody(TypedDict):
    """Every answer that is not a success."""

    error: ErrorObject
    #: As in the header X-Request-Id; null where what came was no request.
    request_id: str | None
