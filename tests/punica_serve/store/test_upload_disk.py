"""Uploads to a disk that is full or stuck."""

import errno
import threading
from pathlib import Path
from typing import IO

import pytest

from adapter_uploads import FORM, MAX_BYTES, WEIGHTS, Files, form, pieces, receive
from punica_serve.errors import StoreUnavailable
from punica_serve.store import file_sink
from punica_serve.store.file_sink import FileSink
from punica_serve.store.upload import Uploads


async def test_a_full_disk_is_the_operators(folder: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(sink: FileSink, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FileSink, "write", fail)
    with pytest.raises(StoreUnavailable, match="is full"):
        await receive(form(files), folder, FORM)


async def test_a_full_disk_is_left_at_once_and_logged_once(
    folder: Path, files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every file is closed, though closing fails too: one that is open holds its bytes after it was removed."""
    opened = []

    def open_full(path: Path, mode: str) -> IO[bytes]:
        opened.append(open("/dev/full", "wb"))  # noqa: SIM115
        return opened[-1]

    monkeypatch.setattr(file_sink, "open_private", open_full)
    with pytest.raises(StoreUnavailable, match="is full"):
        await receive(form({**files, WEIGHTS: (100_000).to_bytes(8, "little") + bytes(90_000)}), folder, FORM)
    assert [file.closed for file in opened] == [True, True]
    assert len(caplog.records) == 1 and f"No space left on device: '{folder}'" in caplog.text


async def test_a_full_disk_is_not_logged_for_each_upload(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(file_sink, "open_private", lambda path, mode: open("/dev/full", "wb"))  # noqa: SIM115
    uploads = Uploads(MAX_BYTES)
    body = form({**files, WEIGHTS: (100_000).to_bytes(8, "little") + bytes(90_000)})
    for number in range(20):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        with pytest.raises(StoreUnavailable, match="is full"):
            await uploads.receive(pieces(body), FORM, folder)
    assert len(caplog.records) == 1


async def test_a_disk_that_is_full_up_to_the_end_is_the_operators(
    folder: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is closed tries once more to write what it could not."""

    def fail(sink: FileSink, *data: bytes) -> None:
        sink._file.close()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FileSink, "write", fail)
    monkeypatch.setattr(FileSink, "close", fail)
    with pytest.raises(StoreUnavailable, match="is full"):
        await receive(form(files), folder, FORM)


async def test_a_disk_that_is_stuck_is_the_operators(
    folder: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(sink: FileSink, data: bytes) -> None:
        free.wait(60.0)
        raise OSError(errno.EIO, "Input/output error")

    free = threading.Event()
    monkeypatch.setattr(FileSink, "write", hang)
    receiving = Uploads(MAX_BYTES, timeout_s=0.2).receive(pieces(form(files)), FORM, folder)
    with pytest.raises(StoreUnavailable, match=r"longer than 0\.2 s"):
        await receiving
    free.set()
