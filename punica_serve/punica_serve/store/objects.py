"""A store at any fsspec URL except a folder, such as s3://bucket/adapters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec

from punica_serve.store.adapter_files import STORED_FILES, is_digest
from punica_serve.store.filesystems import CHUNK_BYTES, FileSystems

#: By default s3fs keeps ten parts of 50 MB of a file in memory while it sends them.
_S3_PUT = {"chunksize": 8 << 20, "max_concurrency": 2}


class ObjectStore:
    """Adapters as objects under a prefix. Blocks.

    Objects can't be renamed, so an adapter exists when its configuration does: that is written after the weights and
    deleted before them.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url.rstrip("/")
        self._filesystems = FileSystems(options)
        self._put_options = _S3_PUT if self._url.startswith("s3://") else {}

    def uri(self, digest: str) -> str:
        return f"{self._url}/{digest}"

    def exists(self, digest: str) -> bool:
        filesystem, path = self._filesystems.open(self.uri(digest))
        return bool(filesystem.exists(f"{path}/{STORED_FILES[-1]}"))

    def holds(self, folder: Path, digest: str) -> bool:
        """Whether the store has exactly the bytes of ``folder``.

        Checked before a put: where writing is not atomic, as over sftp, overwriting would break a copy that is being
        read.
        """
        filesystem, path = self._filesystems.open(self.uri(digest))
        try:
            return all(_is_copy(filesystem, f"{path}/{name}", folder / name) for name in STORED_FILES)
        except FileNotFoundError:
            return False

    def put(self, folder: Path, digest: str) -> None:
        filesystem, path = self._filesystems.open(self.uri(digest))
        for name in STORED_FILES:
            filesystem.put_file(str(folder / name), f"{path}/{name}", **self._put_options)

    def delete(self, digest: str) -> None:
        filesystem, path = self._filesystems.open(self.uri(digest))
        for name in reversed(STORED_FILES):
            if filesystem.exists(f"{path}/{name}"):
                filesystem.rm_file(f"{path}/{name}")

    def digests(self) -> frozenset[str]:
        """Digests of everything under the prefix, also of what a dead process left incomplete."""
        filesystem, root = self._filesystems.open(self._url)
        try:
            paths = filesystem.ls(root, detail=False)
        except FileNotFoundError:
            return frozenset()
        return frozenset(name for path in paths if is_digest(name := path.rstrip("/").rpartition("/")[2]))


def _is_copy(filesystem: fsspec.AbstractFileSystem, path: str, original: Path) -> bool:
    if filesystem.size(path) != original.stat().st_size:
        return False
    with filesystem.open(path, "rb", cache_type="none") as copy, original.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            if copy.read(len(chunk)) != chunk:
                return False
    return True
