"""The body of POST /v1/chat/completions."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, PrivateAttr, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from punica_frontend.api.schemas import MAX_LOGPROBS, Text, wrong_item
from punica_frontend.fields.lenient_body import Extras, LenientBody
from punica_frontend.fields.lists import MESSAGE_HINTS, PART_HINTS, FieldLists
from punica_frontend.openai.sampling_body import SamplingBody, in_range


def _as_text(value: Any, info: ValidationInfo) -> Any:
    """Joins text parts. An assistant's null content becomes ""."""
    if value is None and info.data.get("role") == "assistant":
        return ""
    if value is None:
        raise PydanticCustomError("no_content", "Only an assistant's content may be null or left out")
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("content_type", "Input should be a string or a list of text parts")
    for place, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            message = "Input should be a part of type text, with a string `text`; other parts are not supported"
            raise wrong_item(part, (place,), "content_part", message)
    return "\n".join(part["text"] for part in value)


#: More messages than a real conversation has; each costs the event loop about ten microseconds.
MAX_MESSAGES = 4_096


_PART_FIELDS = ("type", "text")
_PART_LISTS = FieldLists(PART_HINTS)


class InputMessage(LenientBody):
    lists: ClassVar[FieldLists] = FieldLists(MESSAGE_HINTS)
    keeps_empty: ClassVar[frozenset[str]] = frozenset({"content"})

    #: OpenAI's roles without those of tools. A template may silently drop roles that it does not know.
    role: Literal["system", "developer", "user", "assistant"] = Field(examples=["user"])
    content: Annotated[Text, BeforeValidator(_as_text, json_schema_input_type=str | list[dict[str, Any]] | None)] = (
        Field(None, validate_default=True, examples=["42"])
    )
    name: Text | None = None

    #: Content parts with more fields than type and text, by index.
    _more_than_text: dict[int, Mapping[str, Any]] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_parts(cls, document: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        message = handler(document)
        content = document.get("content") if isinstance(document, dict) else None
        if isinstance(content, list):
            message._more_than_text |= {place: part for place, part in enumerate(content) if len(part) > 2}
        return message

    def extras(self, path: str = "") -> Iterator[Extras]:
        yield from super().extras(path)
        for place, part in self._more_than_text.items():
            fields = {name: value for name, value in part.items() if name not in _PART_FIELDS}
            yield Extras(f"{path}content.{place}.", fields, _PART_LISTS, _PART_FIELDS)

    def as_template_sees_it(self) -> dict[str, str]:
        # OpenAI's newer name for the same role; templates know the older one.
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": self.content} | ({} if self.name is None else {"name": self.name})


class ChatBody(SamplingBody):
    keeps_empty: ClassVar[frozenset[str]] = SamplingBody.keeps_empty | {"add_generation_prompt"}

    messages: list[InputMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    add_generation_prompt: bool | None = Field(
        None, description="As in vLLM: end the prompt with the start of an answer. Default: true."
    )
    max_completion_tokens: int | None = Field(
        None, **in_range("max_tokens"), description="Default: the model's own limit, or the rest of the context."
    )
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
