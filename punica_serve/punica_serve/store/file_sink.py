"""Writes one file of an adapter to the disk as it arrives. Blocks."""

from pathlib import Path

from punica_serve.adapters.folder import WEIGHTS_NAME
from punica_serve.adapters.safetensors_file import HeaderCheck
from punica_serve.errors import AdapterRejected
from punica_serve.process.private_files import open_private
from punica_serve.store.adapter_files import check_file_size


class FileSink:
    """Takes the bytes of one file of an adapter, and refuses at once what can't become valid."""

    def __init__(self, path: Path, max_adapter_bytes: int) -> None:
        self._name = path.name
        self._max_adapter_bytes = max_adapter_bytes
        self._num_bytes = 0
        self._header = HeaderCheck() if path.name == WEIGHTS_NAME else None
        self._file = open_private(path, "xb")

    def write(self, data: bytes) -> None:
        """Raises TooLarge, and AdapterRejected for weights with a bad header or more bytes than it states."""
        self._num_bytes += len(data)
        check_file_size(self._name, self._num_bytes, self._max_adapter_bytes)
        if self._header:
            try:
                self._header.feed(data)
            except AdapterRejected as error:
                raise AdapterRejected(f"{self._name}: {error.message}", param=error.param or self._name) from error
        self._file.write(data)

    def finish(self) -> None:
        self._file.close()

    def close(self) -> None:
        self._file.close()
