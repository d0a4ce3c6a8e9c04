"""Downloads an adapter from the store to a folder of this host and checks its digest."""

import hashlib
import os
from pathlib import Path
from threading import Event
from typing import BinaryIO

from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from punica_serve.errors import AdapterRejected, StoreUnavailable
from punica_serve.process.private_files import open_private
from punica_serve.protocol import AdapterRef
from punica_serve.store.adapter_files import MAX_CONFIG_BYTES
from punica_serve.store.filesystems import CHUNK_BYTES, FileSystems, is_unreachable, store_errors


def download_adapter(ref: AdapterRef, folder: Path, filesystems: FileSystems, stop: Event) -> None:
    """Writes the two files of an adapter into ``folder``. Blocks; ends soon after ``stop`` is set.

    Raises StoreUnavailable; AdapterRejected when the store no longer has the adapter, or has other bytes for its
    digest.
    """
    with store_errors("fetching an adapter from the store"):
        filesystem, root = filesystems.open(ref.uri)
        hashes = []
        for name, limit_bytes in ((CONFIG_NAME, MAX_CONFIG_BYTES), (WEIGHTS_NAME, ref.num_bytes)):
            try:
                source = filesystem.open(f"{root}/{name}", "rb", cache_type="none")
            except FileNotFoundError as error:
                if is_unreachable(error):
                    raise
                message = f"adapter {ref.digest} is no longer in the store; register it again"
                raise AdapterRejected(message, param="uri") from error
            with source, open_private(folder / name, "wb") as target:
                hashes.append(_copy(source, target, limit_bytes, stop))
    if hashlib.sha256(b"".join(hashes)).hexdigest() != ref.digest:
        message = f"adapter {ref.digest}: the store's bytes differ from those registered; register it again"
        raise AdapterRejected(message, param="digest")


def _copy(source: BinaryIO, target: BinaryIO, limit_bytes: int, stop: Event) -> bytes:
    """Copies at most the limit plus one byte. Returns the sha256 of what was copied."""
    hasher, rest = hashlib.sha256(), limit_bytes + 1
    while chunk := source.read(min(CHUNK_BYTES, rest)):
        if stop.is_set():
            raise StoreUnavailable("fetching an adapter from the store was cancelled")
        hasher.update(chunk)
        target.write(chunk)
        rest -= len(chunk)
    target.flush()
    os.fsync(target.fileno())
    return hasher.digest()
