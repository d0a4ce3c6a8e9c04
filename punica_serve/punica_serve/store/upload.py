"""Receives an upload's body and writes the adapter's files to a folder, with little of it in memory at a time.

A body is one archive (zip, tar, tar.gz), or a form of files: an archive, or the adapter's files by their names. Parsing
and writing block, so they run on threads of their own, one batch of the body at a time.
"""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from python_multipart.multipart import parse_options_header

from punica_serve.errors import InvalidRequest, StoreUnavailable, TooLarge
from punica_serve.store.adapter_files import MAX_CONFIG_BYTES
from punica_serve.store.failure_log import FailureLog
from punica_serve.store.filesystems import store_errors
from punica_serve.store.form import FormSink
from punica_serve.store.sinks import ArchiveSink, Sink
from punica_serve.store.threads import StoreThreads

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Bytes handed to a thread at once.
_BATCH_BYTES = 1 << 20
_NUM_THREADS = 8
#: A disk that has not written a batch, or unpacked an archive, by then is considered stuck.
_TIMEOUT_S = 120.0
_FORM = b"multipart/form-data"


class Uploads:
    """Receives bodies, for one event loop."""

    def __init__(self, max_bytes: int, *, timeout_s: float = _TIMEOUT_S) -> None:
        """``max_bytes`` limits the body, the expanded archive, and the weights."""
        self._max_bytes = max_bytes
        self._failures = FailureLog(log)
        self._timeout_s = timeout_s
        self._threads = StoreThreads(_NUM_THREADS, "the disk for incoming adapters")

    async def receive(self, body: AsyncIterable[bytes], content_type: str, folder: Path) -> None:
        """Writes the adapter's files into an empty ``folder``, which the caller removes in any case.

        Raises InvalidRequest, TooLarge, AdapterRejected for pickles, and StoreUnavailable when the disk is full or
        stuck.
        """
        sink = await self._call(folder, partial(_sink_of, content_type, folder, self._max_bytes))
        try:
            async for batch in _batches(body, self._max_bytes + MAX_CONFIG_BYTES):
                await self._call(folder, partial(sink.write, batch))
            await self._call(folder, sink.finish)
        finally:
            with suppress(OSError, StoreUnavailable):  # a failed write was reported before, and logged
                await self._threads.call(sink.close, timeout_s=self._timeout_s)

    async def _call(self, folder: Path, function: Callable[[], T]) -> T:
        return await self._threads.call(partial(self._guarded, folder, function), timeout_s=self._timeout_s)

    def _guarded(self, folder: Path, function: Callable[[], T]) -> T:
        with store_errors("receiving the upload", self._failures):
            try:
                return function()
            except OSError as error:
                error.filename = error.filename or str(folder)  # a write does not know where to
                raise


async def _batches(body: AsyncIterable[bytes], max_bytes: int) -> AsyncIterator[bytes]:
    batch, num_bytes = bytearray(), 0
    async for chunk in body:
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise TooLarge(f"the upload is larger than {max_bytes} bytes, the limit", param="file")
        batch += chunk
        if len(batch) >= _BATCH_BYTES:
            yield bytes(batch)
            batch.clear()
    yield bytes(batch)


def _sink_of(content_type: str, folder: Path, max_bytes: int) -> Sink:
    kind, parameters = parse_options_header(content_type)
    if kind != _FORM:
        return ArchiveSink(folder, max_bytes)
    if not (boundary := parameters.get(b"boundary")):
        raise InvalidRequest("the Content-Type of a form must name its boundary", param="Content-Type")
    return FormSink(boundary, folder, max_bytes)
