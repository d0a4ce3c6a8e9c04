"""What every answer, and every chunk of it, begins with."""

import time
import uuid
from typing import NamedTuple

import msgspec

from punica_frontend.answers import Usage

#: Of a chunk: left out unless the client asked for it, then null in all chunks but the last.
ChunkUsage = Usage | msgspec.UnsetType | None


class Head(NamedTuple):
    """Of one answer."""

    id: str
    #: Unix time, in whole seconds.
    created_s: int
    #: As the client called it.
    model: str


def new_head(prefix: str, model: str) -> Head:
    return Head(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model)
