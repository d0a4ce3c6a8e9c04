"""Bodies and frames of the native API, checked strictly: unknown fields, wrong types and NaN are refused.

What needs to know the model, such as lengths and vocabulary, is checked by ``generation``.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, TypeAdapter
from pydantic_core import PydanticCustomError

from punica_serve.sampling_ranges import RANGES

#: Below the engine's: so many of the likeliest tokens go with each token of an answer.
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKENS = 256
MAX_ID_CHARS = 128


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _whole_characters(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError("string_unicode", "Input should be valid Unicode, without lone surrogates") from error
    return value


def _range(name: str) -> dict[str, Any]:
    return RANGES[name].as_constraints()


#: JSON's escapes can spell half characters, which no tokenizer takes.
Text = Annotated[str, AfterValidator(_whole_characters)]
#: Whose length is checked is checked for half characters too.
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
#: Lists fail fast: an error for each wrong item of a long one would cost seconds of the event loop.
StopList = Annotated[
    list[StopString],
    Field(max_length=MAX_STOPS, fail_fast=True),
    BeforeValidator(_as_list, json_schema_input_type=StopString | list[StopString]),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class GenerateFields(_Strict):
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


class DrainBody(_Strict):
    """Body of POST /v1/cluster/drain."""

    gpu: Text = Field(min_length=1, max_length=MAX_ID_CHARS, description="The GPU's UUID, as in /v1/cluster.")
    drain: bool = Field(True, description="False: use the GPU again.")


class ErrorObject(BaseModel):
    """What went wrong, and where; ``param`` names the field."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """Every answer that is not a success."""

    error: ErrorObject


RequestId = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]


class GenerateFrame(GenerateFields):
    """Starts a request on a websocket; ``request_id`` names it among the socket's live ones."""

    op: Literal["generate"]
    request_id: RequestId


class CancelFrame(_Strict):
    """Ends a request on a websocket. One that has finished is left as it is."""

    op: Literal["cancel"]
    request_id: RequestId


#: Checks a frame of WS /v1/generate/stream.
FRAME: TypeAdapter[GenerateFrame | CancelFrame] = TypeAdapter(
    Annotated[GenerateFrame | CancelFrame, Discriminator("op")]
)
