"""Uploads of adapters as clients send them: archives and forms."""

import io
import tarfile
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

from punica_serve.store.upload import Uploads

MAX_BYTES = 1 << 20
Files = dict[str, bytes]

FORM = "multipart/form-data; boundary=xyz"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def zipped(files: Files) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return target.getvalue()


def tarred(files: Files, mode: str = "w", **options: int) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode, **options) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 1.5
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()


def form(files: Files, boundary: str = "xyz") -> bytes:
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="f"; filename="{name}"\r\n\r\n'.encode() + content
        for name, content in files.items()
    ]
    return b"\r\n".join(
        [*parts, f'--{boundary}\r\nContent-Disposition: form-data; name="pinned"\r\n\r\ntrue'.encode()]
    ) + (f"\r\n--{boundary}--\r\n".encode())


async def pieces(body: bytes, num_bytes: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(body), num_bytes):
        yield body[start : start + num_bytes]


async def receive(body: bytes, folder: Path, content_type: str = "application/octet-stream") -> None:
    await Uploads(MAX_BYTES).receive(pieces(body), content_type, folder)
