"""Frames of WS /v1/generate/stream, in both directions."""

from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from pydantic import BeforeValidator, Discriminator, Field, Tag, TypeAdapter
from pydantic_core import PydanticCustomError

from punica_frontend.api.schemas import MAX_ID_CHARS, ErrorObject, GenerateFields, Strict, Text
from punica_frontend.generation.answers import Frame
from punica_frontend.openai.chat_answers import ChatChunk
from punica_frontend.openai.chat_body import ChatBody
from punica_frontend.openai.completion_answers import Completion
from punica_frontend.openai.completion_body import CompletionBody

# ------------------------------------------------------------------ client -> server

RequestId = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]


def _known_format(value: Any) -> Any:
    """Checks ``format``. Frames of the other format have types of their own, so the error names both."""
    if value != "native":
        raise PydanticCustomError("format", "Input should be 'native' or 'openai'")
    return value


def _not_false(value: Any) -> Any:
    if value is False:
        raise PydanticCustomError("stream", "Answers on a websocket are always streamed; leave it out, or use HTTP")
    return value


Streamed = Annotated[
    bool | None,
    BeforeValidator(_not_false, json_schema_input_type=Literal[True] | None),
    Field(description="Answers on a websocket are always streamed."),
]


class GenerateFrame(GenerateFields):
    """Starts a request; ``request_id`` names it among the socket's running requests."""

    op: Literal["generate"]
    request_id: RequestId
    format: Annotated[Literal["native"], BeforeValidator(_known_format)] = Field(
        "native", description="The answer arrives in frames of type Frame."
    )


class CompletionFrame(CompletionBody):
    """Starts a request with the fields of POST /v1/completions."""

    keeps_empty: ClassVar[frozenset[str]] = CompletionBody.keeps_empty | {"stream"}

    op: Literal["generate"]
    request_id: RequestId
    format: Literal["openai"] = Field(description="The answer arrives in frames that contain OpenAI's chunks.")
    stream: Streamed = None


class ChatFrame(ChatBody):
    """Starts a request with the fields of POST /v1/chat/completions."""

    keeps_empty: ClassVar[frozenset[str]] = ChatBody.keeps_empty | {"stream"}

    op: Literal["generate"]
    request_id: RequestId
    format: Literal["openai"]
    stream: Streamed = None


class CancelFrame(Strict):
    """Cancels a request. Has no effect on one that has finished."""

    op: Literal["cancel"]
    request_id: RequestId


class PingFrame(Strict):
    """Asks for a pong, which follows everything that was queued for this client when the ping was read."""

    op: Literal["ping"]
    nonce: Annotated[Text, Field(max_length=MAX_ID_CHARS)] | None = Field(None, description="Returned in the pong.")


OpenAiFrame = CompletionFrame | ChatFrame
BeginFrame = GenerateFrame | OpenAiFrame
ClientFrame = BeginFrame | CancelFrame | PingFrame


def _kind_of(frame: Any) -> str | None:
    """Returns the type that the frame claims to be."""
    if not isinstance(frame, dict) or not isinstance(op := frame.get("op"), str):
        return None
    if op == "generate" and frame.get("format") == "openai":
        return "chat" if "messages" in frame else "completion"
    return op


#: Validates frames of clients.
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


class PongFrame(msgspec.Struct, frozen=True, tag_field="op", tag="pong"):
    """The answer to a ping."""

    nonce: str | None


Chunk = TypeVar("Chunk")


class ChunkFrame(msgspec.Struct, Generic[Chunk], frozen=True):
    """A piece of an answer in OpenAI's format."""

    request_id: Annotated[str | None, Meta(description="Null if the client's frame had none.")]
    chunk: Annotated[Chunk | None, Meta(description="As in a server-sent event of the same request over HTTP.")]
    error: Annotated[ErrorObject | None, Meta(description="Why a frame was refused, or a request failed.")]
    done: Annotated[bool, Meta(description="No more frames follow for this request_id, as after OpenAI's [DONE].")]
    ignored_fields: Annotated[
        tuple[str, ...] | UnsetType,
        Meta(description="In the first chunk: unsupported fields that the answer ignores."),
    ] = UNSET


ServerFrame = Frame | ChunkFrame[Any] | PongFrame

#: All types of ServerFrame, for the schema.
SERVER_FRAMES = (Frame, ChunkFrame[Completion], ChunkFrame[ChatChunk], PongFrame)
