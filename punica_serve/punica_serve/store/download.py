"""Downloads an adapter from the store to a folder of this host and checks its digest."""

import hashlib
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import BinaryIO

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem

from punica_serve.adapters.checksums import adapter_checksums, new_checksum
from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from punica_serve.errors import AdapterRejected, StoreUnavailable
from punica_serve.protocol import AdapterRef
from punica_serve.store.adapter_files import MAX_CONFIG_BYTES
from punica_serve.store.checksum_file import write_checksums
from punica_serve.store.failure_log import FailureLog
from punica_serve.store.filesystems import CHUNK_BYTES, FileSystems, is_unreachable, store_errors
from punica_serve.store.ranged_read import Bytes, NoRanges, RangeSlots, read_ranges
from punica_serve.store.side_thread import side_thread
from punica_serve.store.synced_file import Write, synced_file


def download_adapter(
    ref: AdapterRef, folder: Path, filesystems: FileSystems, slots: RangeSlots, stop: Event, failures: FailureLog
) -> None:
    """Writes an adapter's two files, and their checksums, into ``folder``. Blocks; ends soon after ``stop`` is set.

    Both files come at once: a store takes tens of milliseconds to answer. Large weights come over several connections,
    as many as ``slots`` allow, unless the store has no ranges. The checksums are there as soon as the digest is known
    to be right, and only then: readers of the incoming files wait for them, and not for the disk.

    Raises StoreUnavailable; AdapterRejected when the store no longer has the adapter, or has other bytes for its
    digest.
    """
    with store_errors("fetching an adapter from the store", failures):
        filesystem, root = filesystems.open(ref.uri)
        written: dict[str, tuple[bytes, bytes]] = {}

        def fetch(name: str, limit_bytes: int, write: Write) -> None:
            with _open(filesystem, f"{root}/{name}", ref) as source:
                chunks = _chunks(filesystem, f"{root}/{name}", source, limit_bytes, slots, stop)
                written[name] = _write(chunks, write)

        with synced_file(folder / CONFIG_NAME) as write_config, synced_file(folder / WEIGHTS_NAME) as write_weights:

            def fetch_config(name: str) -> None:
                fetch(name, MAX_CONFIG_BYTES, write_config)

            with side_thread(fetch_config) as aside:
                aside.give(CONFIG_NAME)
                fetch(WEIGHTS_NAME, ref.num_bytes, write_weights)
            hashes, sums = zip(written[CONFIG_NAME], written[WEIGHTS_NAME], strict=True)
            if hashlib.sha256(b"".join(hashes)).hexdigest() != ref.digest:
                message = f"adapter {ref.digest}: the store's bytes differ from those registered; register it again"
                raise AdapterRejected(message, param="digest")
            write_checksums(folder, adapter_checksums(ref.digest, *sums))


def _open(filesystem: AbstractFileSystem, path: str, ref: AdapterRef) -> BinaryIO:
    try:
        source: BinaryIO = filesystem.open(path, "rb", cache_type="none")
    except FileNotFoundError as error:
        if is_unreachable(error):
            raise
        message = f"adapter {ref.digest} is no longer in the store; register it again"
        raise AdapterRejected(message, param="uri") from error
    return source


def _chunks(
    filesystem: AbstractFileSystem, path: str, source: BinaryIO, limit_bytes: int, slots: RangeSlots, stop: Event
) -> Generator[Bytes]:
    """At most the limit plus one byte, in ranges if the file system has them: these end soon after ``stop`` is set,
    however slow the server is.
    """
    num_bytes = getattr(source, "size", None)
    if num_bytes and isinstance(filesystem, AsyncFileSystem):
        return _read_side_by_side(filesystem, path, min(num_bytes, limit_bytes + 1), slots, stop)
    return _read(source, limit_bytes, stop)


def _read_side_by_side(
    filesystem: AsyncFileSystem, path: str, num_bytes: int, slots: RangeSlots, stop: Event
) -> Generator[Bytes]:
    try:
        yield from read_ranges(filesystem, path, num_bytes, slots, stop)
    except NoRanges:
        with filesystem.open(path, "rb", block_size=0) as source:  # as one stream
            yield from _read(source, num_bytes, stop)


def _read(source: BinaryIO, limit_bytes: int, stop: Event) -> Generator[Bytes]:
    """At most the limit plus one byte."""
    rest = limit_bytes + 1
    while chunk := source.read(min(CHUNK_BYTES, rest)):
        if stop.is_set():
            raise StoreUnavailable("fetching an adapter from the store was cancelled")
        yield chunk
        rest -= len(chunk)


def _write(chunks: Generator[Bytes], write: Write) -> tuple[bytes, bytes]:
    """Writes the chunks. Returns the SHA-256 and the checksum of all."""
    hasher, checksum = hashlib.sha256(), new_checksum()
    with closing(chunks), side_thread(hasher.update) as hashing:
        for chunk in chunks:
            hashing.give(chunk)
            write(chunk)
            checksum.update(chunk)
    return hasher.digest(), checksum.digest()
