"""Types that msgspec decodes into, on any thread.

msgspec learns a struct's fields when it first decodes into one. It shows the struct to other threads before it has
learned all of them, and a thread that decodes into it then reads memory that is not there. So one thread at a time
learns a type, and nobody decodes into one that is not learned yet.
"""

from threading import Lock
from typing import TypeVar

import msgspec

T = TypeVar("T")

_learning = Lock()


def learned(kind: T) -> T:
    """Returns the type once msgspec knows all of its fields. All code that gives msgspec structs passes them here."""
    with _learning:
        msgspec.msgpack.Decoder(kind)
    return kind
