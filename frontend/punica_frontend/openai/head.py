"""The fields at the beginning of every answer and chunk."""

import time
import uuid
from typing import NamedTuple


class Head(NamedTuple):
    """The id, time and model of one answer."""

    id: str
    #: Unix time, in whole seconds.
    created_s: int
    #: The client's name for the model.
    model: str


def new_head(prefix: str, model: str) -> Head:
    return Head(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model)
