"""Messages between a supervisor and its worker: frames over two pipes that the worker inherits.

A frame is its length, 4 bytes big-endian, followed by the message, encoded as on a link. The supervisor's end is
asynchronous, the worker's blocks. When either process ends, so do its pipes, which is a normal event at the other end.
"""

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any, Self

from punica_serve.errors import ProtocolError
from punica_serve.protocol import MAX_FRAME_BYTES, MAX_QUEUED_BYTES, Decoder, Message, encode

_LENGTH_BYTES = 4


def pack(message: Message) -> bytes:
    """The frame of a message, with its length. Raises ProtocolError if it is too long."""
    frame = encode(message)
    _check_length(len(frame))
    return len(frame).to_bytes(_LENGTH_BYTES, "big") + frame


def _check_length(num_bytes: int) -> None:
    if num_bytes > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {num_bytes} bytes is longer than the limit of {MAX_FRAME_BYTES}")


class SupervisorPipe:
    """The supervisor's end: ``send`` never blocks, and iteration gives the worker's messages until the pipe ends."""

    def __init__(
        self, union: Any, reader: asyncio.StreamReader, read: asyncio.ReadTransport, write: asyncio.WriteTransport
    ) -> None:
        self._decode = Decoder(union)
        self._reader = reader
        self._read = read
        self._write = write
        #: Size of the next frame; None: it has not been read yet.
        self._num_frame_bytes: int | None = None
        #: The pipe was cut because the worker left MAX_QUEUED_BYTES unread.
        self.overflowed = False

    @classmethod
    async def open(cls, read_fd: int, write_fd: int, union: Any) -> Self:
        """Takes over both file descriptors."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        read, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb", buffering=0)
        )
        write, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(write_fd, "wb", buffering=0))
        return cls(union, reader, read, write)

    def send(self, message: Message) -> None:
        """Queues a message. Drops it if the worker is gone; cuts off a worker that reads too slowly."""
        if self._write.is_closing():
            return
        self._write.write(pack(message))
        if self._write.get_write_buffer_size() > MAX_QUEUED_BYTES:
            self.overflowed = True
            self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """The next message. Raises ProtocolError for an invalid frame. Cancelling it loses no data."""
        try:
            if self._num_frame_bytes is None:
                num_bytes = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
                _check_length(num_bytes)
                self._num_frame_bytes = num_bytes
            frame = await self._reader.readexactly(self._num_frame_bytes)
        except asyncio.IncompleteReadError:
            raise StopAsyncIteration from None
        self._num_frame_bytes = None
        return self._decode(frame)

    def close(self) -> None:
        """Ends both directions at once. Messages that were read before can still be iterated."""
        self._read.close()
        if not self._write.is_closing():
            self._write.abort()


class WorkerPipe:
    """The worker's end: one thread iterates, any thread sends, and both block."""

    def __init__(self, read_fd: int, write_fd: int, union: Any) -> None:
        # The worker's own children, if any, must not keep the pipes open.
        os.set_inheritable(read_fd, False)
        os.set_inheritable(write_fd, False)
        self._read = os.fdopen(read_fd, "rb")
        self._write = os.fdopen(write_fd, "wb", buffering=0)
        self._decode = Decoder(union)
        self._write_lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Writes a whole message. Raises BrokenPipeError if the supervisor is gone."""
        rest = memoryview(pack(message))
        with self._write_lock:
            while rest:
                rest = rest[self._write.write(rest) :]

    def __iter__(self) -> Iterator[Any]:
        """The supervisor's messages until it ends the pipe. Raises ProtocolError for an invalid frame."""
        while len(header := self._read.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
            num_bytes = int.from_bytes(header, "big")
            _check_length(num_bytes)
            frame = self._read.read(num_bytes)
            if len(frame) < num_bytes:
                return
            yield self._decode(frame)

    def close(self) -> None:
        self._read.close()
        self._write.close()
