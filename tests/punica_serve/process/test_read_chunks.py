import os
import time

import pytest

from punica_serve.process.read_chunks import read_chunks, read_lines
from waits import DEADLINE_S


def test_whole_lines_come_until_the_other_end_is_closed() -> None:
    read, write = os.pipe()
    lines = read_lines(read, time.monotonic() + DEADLINE_S)
    os.write(write, b"one\ntw")
    assert next(lines) == b"one"
    os.write(write, b"o\nthree\ncut off")
    os.close(write)
    assert [*lines] == [b"two", b"three"]
    os.close(read)


def test_a_silent_writer_is_not_awaited_for_ever() -> None:
    read, write = os.pipe()
    os.write(write, b"x")
    chunks = read_chunks(read, time.monotonic() + 0.05)
    assert next(chunks) == b"x"
    with pytest.raises(TimeoutError):
        next(chunks)
    os.close(read)
    os.close(write)
