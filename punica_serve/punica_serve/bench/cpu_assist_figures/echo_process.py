"""A process that sends its share of the bytes back, over shared memory or a socket, until its parent ends it."""

import mmap
import os
import socket
import sys
import time
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from punica_serve.process.parent_death import end_with_parent

#: A parent that says nothing for this long is gone.
_MAX_WAIT_S = 30.0
#: Looks at a word between two looks at the clock.
_LOOKS = 200
#: int64 words from one process's words to the next one's: two cache lines.
WORD_STRIDE = 16
#: A process's words: the round that it is asked for, and the one that it has done.
ASKED, DONE = 0, 8
_END = -1


class EchoMemory:
    """The words, then what goes out, then what comes back."""

    def __init__(self, fd: int, num_processes: int, num_bytes: int) -> None:
        self._mapping = mmap.mmap(fd, memory_num_bytes(num_processes, num_bytes))
        words_end = 8 * WORD_STRIDE * num_processes
        everything = np.frombuffer(self._mapping, dtype=np.uint8)
        self.words: npt.NDArray[np.int64] = everything[:words_end].view(np.int64)
        self.out = everything[words_end : words_end + num_bytes]
        self.back = everything[words_end + num_bytes : words_end + 2 * num_bytes]

    def ask(self, numbers: range, round_number: int) -> None:
        """``round_number``: greater than the one before, or -1 to end the processes."""
        for number in numbers:
            self.words[number * WORD_STRIDE + ASKED] = round_number

    def end(self, numbers: range) -> None:
        self.ask(numbers, _END)


def memory_num_bytes(num_processes: int, num_bytes: int) -> int:
    return 8 * WORD_STRIDE * num_processes + 2 * num_bytes


def wait_for(words: npt.NDArray[np.int64], index: int, last: int) -> int:
    """Waits until a word is not ``last``, and returns it. Raises TimeoutError."""
    deadline_s = time.monotonic() + _MAX_WAIT_S
    while True:
        for _ in range(_LOOKS):
            if (word := int(words[index])) != last:
                return word
        if time.monotonic() > deadline_s:
            raise TimeoutError("the other side of an exchange does not answer")
        os.sched_yield()


def _echo_memory(memory: EchoMemory, number: int, own: slice) -> None:
    words, first = memory.words, number * WORD_STRIDE
    last = 0
    while (word := wait_for(words, first + ASKED, last)) != _END:
        memory.back[own] = memory.out[own]
        words[first + DONE] = last = word


def _echo_socket(connection: socket.socket, num_bytes: int) -> None:
    buffer = memoryview(bytearray(num_bytes))
    while receive_all(connection, buffer):
        connection.sendall(buffer)


def receive_all(connection: socket.socket, buffer: memoryview) -> bool:
    """Fills the buffer. False at the end of the stream."""
    num_received = 0
    while num_received < len(buffer):
        count = connection.recv_into(buffer[num_received:])
        if not count:
            return False
        num_received += count
    return True


def main(arguments: list[str]) -> None:
    """``arguments``: core, file descriptor, number of the process, of processes, and of bytes in all."""
    way, (core, fd, number, num_processes, num_bytes) = arguments[0], map(int, arguments[1:])
    end_with_parent()
    os.sched_setaffinity(0, {core})
    own = share_of(number, num_processes, num_bytes)
    if way == "sockets":
        with socket.socket(fileno=fd) as connection, suppress(ConnectionError):  # the parent may leave in a round
            _echo_socket(connection, own.stop - own.start)
    else:
        _echo_memory(EchoMemory(fd, num_processes, num_bytes), number, own)


def share_of(number: int, num_processes: int, num_bytes: int) -> slice:
    """The bytes of one process."""
    return slice(number * num_bytes // num_processes, (number + 1) * num_bytes // num_processes)


if __name__ == "__main__":
    main(sys.argv[1:])
