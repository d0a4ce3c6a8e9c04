"""Adapter sources in folders and object stores: anything fsspec reads."""

import os
from pathlib import Path
from threading import Event
from typing import Any

from punica_serve.errors import Forbidden, StoreUnavailable
from punica_serve.errors.plain_files import open_plain
from punica_serve.store.adapter_files import check_file_size
from punica_serve.store.file_sink import FileSink
from punica_serve.store.filesystems import FileSystems, folder_of
from punica_serve.store.source_errors import source_refusals
from punica_serve.store.source_policy import SourcePolicy, begins_with, plain_uri

_CHUNK_BYTES = 4 << 20


class ObjectSource:
    """A folder of a file system, read for one caller. Blocks; ends soon after ``stop`` is set."""

    def __init__(self, uri: str, filesystems: FileSystems, policy: SourcePolicy, stop: Event) -> None:
        self._uri = uri
        self._folder = folder_of(uri)
        with source_refusals(uri):
            self._filesystem, self._root = filesystems.open(str(self._folder or uri))
        self._policy = policy
        self._stop = stop

    def fetch(self, path: Path, max_adapter_bytes: int) -> bool:
        """Copies the source's file of that name to ``path``. False if there is none."""
        self._check_links(path.name)
        try:
            file = self._open(path.name, max_adapter_bytes)
        except FileNotFoundError:
            return False
        with file:
            self._copy(file, FileSink(path, max_adapter_bytes))
        return True

    def _open(self, name: str, max_adapter_bytes: int) -> Any:
        source = f"{self._root}/{name}"
        with source_refusals(self._uri):
            check_file_size(name, self._filesystem.size(source) or 0, max_adapter_bytes)
            if self._folder is not None:
                return open_plain(self._folder / name)
            return self._filesystem.open(source, "rb", cache_type="none")

    def _copy(self, file: Any, sink: FileSink) -> None:
        try:
            while chunk := self._read(file):
                if self._stop.is_set():
                    raise StoreUnavailable("fetching the adapter from its source was cancelled")
                sink.write(chunk)
        finally:
            sink.close()

    def _read(self, file: Any) -> bytes:
        with source_refusals(self._uri):
            chunk: bytes = file.read(_CHUNK_BYTES)
        return chunk

    def _check_links(self, name: str) -> None:
        """Refuses a link inside an allowed folder that leads out of it."""
        if self._folder is None or self._policy.is_admin:
            return
        real = plain_uri(os.path.realpath(self._folder / name))
        if not any(begins_with(real, prefix) for prefix in self._policy.config.allowed):
            raise Forbidden(f"{self._uri}/{name} leads out of the allowed folders", param="uri")
