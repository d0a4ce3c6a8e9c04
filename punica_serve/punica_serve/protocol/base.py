"""The base of all messages, shared types, and the limits of frames."""

from typing import Annotated, Literal

import msgspec

#: (major, minor). Peers whose majors differ refuse each other and name both versions.
PROTOCOL_VERSION = (5, 9)

#: A token id fits 32 bits: MAX_TOKEN_BYTES on the wire, 4 in memory.
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
MAX_TOKEN_BYTES = 5
#: The longest frame: a request of three million tokens.
MAX_FRAME_BYTES = 16 << 20
#: Bytes that may wait for a slow peer; beyond it the link is cut. A frontend that reconnects adds all its requests at
#: once: 10,000 of them (the longest queue by default) with 4,000 tokens of 5 bytes are 200 MB.
MAX_QUEUED_BYTES = 256 << 20

#: Why a request ends by itself in the engine.
EndReason = Literal["stop", "length"]
#: Why a request ends, for its client.
FinishReason = Literal["stop", "length", "cancelled", "error"]

#: Who shares pages of the KvCache: the requests of one tenant, or those of all.
PrefixScope = Literal["tenant", "cluster"]

#: The groups of projections whose LoRA weights share pages: those of a layer, in the order in which it runs them, then
#: the model's embedding and its head.
LoraGroup = Literal["qkv", "o", "gate_up", "down", "embed", "head"]


class Struct(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Base of the parts of messages."""


class Message(Struct, frozen=True, array_like=True, omit_defaults=True, tag=True):
    """Base of the messages themselves: the tag is the class name."""
