"""Reads past the page cache and from it: always the file's bytes, and never an error for what does not work."""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from punica_serve.engine.adapters.range_reader import RangeReader

_CONTENT = bytes(range(251)) * 200  # 12 blocks and a rest
_LENGTH = len(_CONTENT)

pytestmark = pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system has no such reads")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(_CONTENT)
    return path


@pytest.fixture
def memory() -> Iterator[memoryview]:
    """It begins at a page, as the host cache's does."""
    with mmap.mmap(-1, 1 << 16) as mapped, memoryview(mapped) as view:
        yield view


def forget(path: Path) -> None:
    """Takes a file out of the page cache."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def opened(path: Path) -> RangeReader:
    return RangeReader(os.open(path, os.O_RDONLY))


def preadv_that(fails: Callable[[int], int | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """``fails``: flags -> the error."""
    original = os.preadv

    def preadv(descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if number := fails(flags):
            raise OSError(number, os.strerror(number))
        return original(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", preadv)


def test_a_file_in_the_page_cache_is_read_from_there(path: Path, memory: memoryview) -> None:
    with opened(path) as file:
        assert file.read_start(100) == _CONTENT[:100] and not file.is_direct
        assert file.read(memory[:_LENGTH], 0) == _LENGTH
    assert memory[:_LENGTH] == _CONTENT


@pytest.mark.parametrize("offset", [0, 4096, 45_056])
@pytest.mark.parametrize("num_bytes", [1, 4096, 9000, 60_000])
@pytest.mark.parametrize("shift", [0, 8], ids=["aligned", "unaligned"])
def test_a_file_on_the_disk_is_read_past_the_page_cache(
    path: Path, memory: memoryview, offset: int, num_bytes: int, shift: int
) -> None:
    """Whole blocks are; memory that is not aligned, and the file's end, come through it."""
    forget(path)
    expected = _CONTENT[offset : offset + num_bytes]
    with opened(path) as file:
        assert file.read_start(64) == _CONTENT[:64]
        assert file.read(memory[shift : shift + num_bytes], offset) == len(expected)
    assert memory[shift : shift + len(expected)] == expected


def test_the_page_cache_is_left_out_when_it_lacks_the_file(
    path: Path, memory: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv_that(lambda flags: errno.EAGAIN if flags else None, monkeypatch)
    with opened(path) as file:
        file.read_start(64)
        if not file.is_direct:
            pytest.skip("this file system has no direct reads")
        assert file.read(memory[:_LENGTH], 0) == _LENGTH and memory[:_LENGTH] == _CONTENT


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_that_can_not_tell_is_read_as_usual(
    path: Path, memory: memoryview, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv_that(lambda flags: number if flags else None, monkeypatch)
    with opened(path) as file:
        file.read_start(64)
        assert not file.is_direct and file.read(memory[:_LENGTH], 0) == _LENGTH
    assert memory[:_LENGTH] == _CONTENT


def test_a_disk_that_fails_is_an_error(path: Path, memory: memoryview, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as file:
        file.read_start(64)
        preadv_that(lambda _: errno.EIO, monkeypatch)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            file.read(memory[:_LENGTH], 0)


def test_both_descriptors_are_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    original = os.close

    def close(descriptor: int) -> None:
        closed.append(descriptor)
        original(descriptor)

    preadv_that(lambda flags: errno.EAGAIN if flags else None, monkeypatch)
    with opened(path) as file:
        file.read_start(64)
        is_direct = file.is_direct
        monkeypatch.setattr(os, "close", close)
    assert len(closed) == 1 + is_direct
