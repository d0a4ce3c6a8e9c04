"""The body of POST /v1/chat/completions."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from punica_frontend.openai.sampling_body import LenientBody, SamplingBody, in_range
from punica_frontend.schemas import MAX_LOGPROBS, Text


def _as_text(value: Any, info: ValidationInfo) -> Any:
    """Parts of text are joined; null, as of an assistant that said nothing, is empty."""
    if value is None and info.data.get("role") == "assistant":
        return ""
    if value is None:
        raise PydanticCustomError("no_content", "Only an assistant's content may be left out, or null")
    if not isinstance(value, list):
        return value
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise PydanticCustomError("content_part", "Parts of a content should be of type text; there are no others")
    return "\n".join(part["text"] for part in value)


#: More than a context of real messages holds; each costs the event loop some ten microseconds.
MAX_MESSAGES = 4_096


class Message(LenientBody):
    #: OpenAI's, but for those of tools. A template may drop in silence what it does not know.
    role: Literal["system", "developer", "user", "assistant"] = Field(examples=["user"])
    content: Annotated[Text, BeforeValidator(_as_text, json_schema_input_type=str | list[dict[str, Any]] | None)] = (
        Field(None, validate_default=True, examples=["42"])
    )
    name: Text | None = None

    def as_template_sees_it(self) -> dict[str, str]:
        # OpenAI's newer name of the same role; templates know the older.
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": self.content} | ({} if self.name is None else {"name": self.name})


class ChatBody(SamplingBody):
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    add_generation_prompt: bool | None = Field(None, description="Whether an answer follows, as in vLLM; it does.")
    max_completion_tokens: int | None = Field(
        None, **in_range("max_tokens"), description="Default: as many as the context has room for."
    )
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
