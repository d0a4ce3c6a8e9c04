"""Frames of WS /v1/generate/stream, in both directions."""

from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta
from pydantic import BeforeValidator, Discriminator, Field, Tag, TypeAdapter
from pydantic_core import PydanticCustomError

from punica_frontend.answers import Frame
from punica_frontend.openai.chat_answers import ChatChunk
from punica_frontend.openai.chat_body import ChatBody
from punica_frontend.openai.completion_answers import Completion
from punica_frontend.openai.completion_body import CompletionBody
from punica_frontend.schemas import MAX_ID_CHARS, ErrorObject, GenerateFields, Strict, Text

# ------------------------------------------------------------------ client -> server

RequestId = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]


def _known_format(value: Any) -> Any:
    """A frame of the other format is of another type: who misspells one hears of both."""
    if value != "native":
        raise PydanticCustomError("format", "Input should be 'native' or 'openai'")
    return value


def _not_false(value: Any) -> Any:
    if value is False:
        raise PydanticCustomError("stream", "every answer of a socket is streamed; leave it out, or ask over HTTP")
    return value


Streamed = Annotated[
    bool | None,
    BeforeValidator(_not_false, json_schema_input_type=Literal[True] | None),
    Field(description="Every answer is."),
]


class GenerateFrame(GenerateFields):
    """Starts a request; ``request_id`` names it among the socket's live ones."""

    op: Literal["generate"]
    request_id: RequestId
    format: Annotated[Literal["native"], BeforeValidator(_known_format)] = Field(
        "native", description="The answer comes in frames of type Frame."
    )


class CompletionFrame(CompletionBody):
    """Starts a request in OpenAI's words, with the fields of POST /v1/completions."""

    op: Literal["generate"]
    request_id: RequestId
    format: Literal["openai"] = Field(description="The answer comes in frames that hold OpenAI's chunks.")
    stream: Streamed = None


class ChatFrame(ChatBody):
    """The same with the fields of POST /v1/chat/completions."""

    op: Literal["generate"]
    request_id: RequestId
    format: Literal["openai"]
    stream: Streamed = None


class CancelFrame(Strict):
    """Ends a request. One that has finished is left as it is."""

    op: Literal["cancel"]
    request_id: RequestId


class PingFrame(Strict):
    """Asks for a pong, which comes after all that was in line for this client when the ping was read."""

    op: Literal["ping"]
    nonce: Annotated[Text, Field(max_length=MAX_ID_CHARS)] | None = Field(None, description="Comes back in the pong.")


OpenAiFrame = CompletionFrame | ChatFrame
BeginFrame = GenerateFrame | OpenAiFrame
ClientFrame = BeginFrame | CancelFrame | PingFrame


def _kind_of(frame: Any) -> str | None:
    """Which of the frames this is meant to be."""
    if not isinstance(frame, dict) or not isinstance(op := frame.get("op"), str):
        return None
    if op == "generate" and frame.get("format") == "openai":
        return "chat" if "messages" in frame else "completion"
    return op


#: Checks a frame that a client sends.
FRAME: TypeAdapter[ClientFrame] = TypeAdapter(
    Annotated[
        Annotated[GenerateFrame, Tag("generate")]
        | Annotated[CompletionFrame, Tag("completion")]
        | Annotated[ChatFrame, Tag("chat")]
        | Annotated[CancelFrame, Tag("cancel")]
        | Annotated[PingFrame, Tag("ping")],
        Discriminator(
            _kind_of,
            custom_error_type="op",
            custom_error_message="Input should be 'generate', 'cancel' or 'ping'",
        ),
    ]
)

# ------------------------------------------------------------------ server -> client


class Pong(msgspec.Struct, frozen=True, tag_field="op", tag="pong"):
    """The answer to a ping."""

    nonce: str | None


Chunk = TypeVar("Chunk")


class ChunkFrame(msgspec.Struct, Generic[Chunk], frozen=True):
    """A piece of an answer in OpenAI's shape."""

    request_id: Annotated[str | None, Meta(description="Null for a frame that named none.")]
    chunk: Annotated[Chunk | None, Meta(description="As in a server-sent event of the same request over HTTP.")]
    error: Annotated[ErrorObject | None, Meta(description="What is wrong with a frame, or ended a request.")]
    done: Annotated[bool, Meta(description="Nothing follows for this request_id, as after OpenAI's [DONE].")]


ServerFrame = Frame | ChunkFrame[Any] | Pong

#: All types of ServerFrame, for their schema.
SERVER_FRAMES = (Frame, ChunkFrame[Completion], ChunkFrame[ChatChunk], Pong)
