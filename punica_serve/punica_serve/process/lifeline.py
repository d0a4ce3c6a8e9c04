"""A pipe by which child processes notice that their parent is gone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lifeline() -> Iterator[int]:
    """The read end of a pipe, which children inherit. They stop when this process closes the write end or dies."""
    read_end, write_end = os.pipe()  # not inherited by default
    try:
        yield read_end
    finally:
        os.close(read_end)
        os.close(write_end)
