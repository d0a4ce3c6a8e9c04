"""Bodies and frames of the native API, checked strictly: unknown fields, wrong types and NaN are refused.

Checks that need the model, such as lengths and vocabulary, are in ``generation``.
"""

from itertools import islice
from typing import Annotated, Any, LiteralString, Self

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from punica_frontend.api.field_names import nearest
from punica_serve.config.pydantic_errors import UNKNOWN
from punica_serve.protocol import PROMISE_RANGE, Slo
from punica_serve.protocol.sampling_ranges import RANGES

#: The most alternatives for each token of an answer; the engine allows more.
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKENS = 256
CACHE_SALT = "Share cached pages of prompts only with requests of the same salt, as in vLLM."
MAX_ID_CHARS = 128
#: The most nested lists in a list. The longest are a completion's prompts.
MAX_LISTS = 128
#: The most fields of a body, and of each object in it. Tens of thousands would block the event loop for 0.1 s.
MAX_FIELDS = 256
#: pydantic's type of error for a string with a lone surrogate.
NOT_UNICODE = "string_unicode"


def wrong_item(item: Any, place: tuple[int, ...], kind: LiteralString, message: LiteralString) -> ValidationError:
    """Returns the error about an item of a list that a validator checks by hand, at its ``place`` within the list."""
    wrong = PydanticCustomError(kind, message)
    return ValidationError.from_exception_data("list", [{"type": wrong, "loc": place, "input": item}])


def _as_stops(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise PydanticCustomError("stop_type", "Input should be a string or a list of strings")
    return value


def whole_characters(value: str) -> str:
    """Accepts strings that can be encoded as UTF-8; others become pydantic errors."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError(NOT_UNICODE, "Input should be valid Unicode, without lone surrogates") from error
    return value


def are_integers(values: list[Any]) -> bool:
    """Whether all items are integers, and none a bool. Takes a sixth of the time of looking at their types."""
    try:
        msgspec.convert(values, list[int])
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter for a string with a lone surrogate
        return False
    return True


def _refuse_ids(value: Any) -> Any:
    """Refuses token ids where OpenAI's completions take them, and names the field for them."""
    if isinstance(value, list) and are_integers(value):
        raise PydanticCustomError("ids_as_text", "Input should be a text; give token ids as `input_ids`")
    return value


def _range(name: str) -> dict[str, Any]:
    return RANGES[name].as_constraints()


#: JSON escapes can spell lone surrogates, which no tokenizer accepts.
Text = Annotated[str, AfterValidator(whole_characters)]
#: pydantic's length check refuses lone surrogates too.
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
#: Lists fail fast: reporting every wrong item of a long list would take seconds of the event loop.
StopList = Annotated[
    list[StopString],
    Field(max_length=MAX_STOPS, fail_fast=True),
    BeforeValidator(_as_stops, json_schema_input_type=StopString | list[StopString]),
]


#: Seconds of one promise.
PromisedSeconds = Annotated[float, Field(**PROMISE_RANGE.as_constraints())]


def _whole_numbers(value: Any, *, depth: int = 2) -> Any:
    """JSON has one number type: 5.0 is accepted as the integer 5, also in lists and in short lists of lists."""
    if type(value) is float:
        return int(value) if value.is_integer() else value
    if type(value) is list and depth:
        if are_integers(value):  # the longest lists are token ids
            return value
        types = set(map(type, value))
        if float in types or (list in types and len(value) <= MAX_LISTS):
            return [_whole_numbers(item, depth=depth - 1) for item in value]
    return value


#: A salt of cached pages. Anything goes, but nobody needs a long one.
CacheSalt = Annotated[Text, Field(min_length=1, max_length=MAX_STOP_CHARS)]


class Body(BaseModel):
    """A request's body. Types are not converted, except floats with whole values."""

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
    """A body that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _see_misspelt_field(cls, document: Any) -> Any:
        """Refuses the first field that may be a misspelt one: pydantic's error would not suggest any.

        Fields that are missing may be the misspelt ones, so it is the only error then.
        """
        if not isinstance(document, dict):
            return document
        for name in islice(document, MAX_FIELDS):
            if name in cls.model_fields or not (near := nearest(name, cls.model_fields)):
                continue
            unknown = PydanticCustomError(UNKNOWN, "Input should not have this field", {"near": near})
            raise ValidationError.from_exception_data(
                cls.__name__, [{"type": unknown, "loc": (name,), "input": document[name]}]
            )
        return document


def _one_of_them(schema: dict[str, Any]) -> None:
    """Says in the schema, too, that one field at least is a number."""
    schema["anyOf"] = [{"required": [name], "properties": {name: {"type": "number"}}} for name in schema["properties"]]


class SloBody(Strict):
    """Latencies that are promised, at least one. They order and place requests; none is refused for them."""

    model_config = ConfigDict(json_schema_extra=_one_of_them)

    first_token_s: PromisedSeconds | None = Field(
        None, description="From the request's arrival to its first token.", examples=[0.5]
    )
    time_per_token_s: PromisedSeconds | None = Field(
        None, description="Mean time between two tokens of the answer.", examples=[0.05]
    )

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        if self.first_token_s is None and self.time_per_token_s is None:
            raise PydanticCustomError("empty_slo", "Input should have `first_token_s`, `time_per_token_s` or both")
        return self

    @property
    def slo(self) -> Slo:
        return Slo(self.first_token_s, self.time_per_token_s)


class GenerateFields(Strict):
    """One request. Fields that are null or left out take the model's own defaults."""

    prompt: Annotated[Text, BeforeValidator(_refuse_ids)] | None = Field(
        None, description="Text to continue. Either this or input_ids.", examples=["42"]
    )
    input_ids: list[int] | None = Field(None, fail_fast=True, description="The prompt as token ids, used unchanged.")
    lora_id: str | None = Field(None, description="Name of the LoRA model; null is the base model.", examples=["roman"])
    max_tokens: int | None = Field(
        None, **_range("max_tokens"), description="Default: the model's own limit, or the rest of the context."
    )
    min_tokens: int | None = Field(
        None, **_range("min_tokens"), description="The answer does not end before this many tokens."
    )
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
        None, max_length=MAX_STOP_TOKENS, fail_fast=True, description="Any of these tokens ends the answer."
    )
    ignore_eos: bool = Field(False, description="Go on after the model's end of sequence.")
    logprobs: int | None = Field(
        None,
        **_range("logprobs") | {"le": MAX_LOGPROBS},
        description="Return each token's logprob, and those of this many of the most likely tokens.",
    )
    slo: SloBody | None = Field(None, description="Promises of this request; others are its tenant's.")
    cache_salt: CacheSalt | None = Field(None, description=CACHE_SALT)


class GenerateBody(GenerateFields):
    """Body of POST /v1/generate."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "42", "lora_id": "roman", "max_tokens": 16, "stream": False}]}
    )

    stream: bool = Field(False, description="Answer with server-sent events while tokens are generated.")


class DrainBody(Strict):
    """Body of POST /v1/cluster/drain."""

    gpu: Text = Field(
        min_length=1, max_length=MAX_ID_CHARS, description="The GPU's UUID or its name, as in /v1/cluster."
    )
    drain: bool = Field(True, description="False: use the GPU again.")


class ErrorObject(TypedDict):
    """The error itself."""

    #: The fault, and what to do about it.
    message: str
    #: OpenAI's name for the status.
    type: str
    #: The field at fault.
    param: str | None
    #: A stable code for programs.
    code: str


class ErrorBody(TypedDict):
    """The body of every answer that is not a success."""

    error: ErrorObject
    #: The X-Request-Id header's value; null if no request could be read.
    request_id: str | None
