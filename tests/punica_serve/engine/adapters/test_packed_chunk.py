"""A chunk that is read and checked, whole or piece by piece, is the one that was written, or an error."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import xxhash

from punica_serve.engine.adapters.packed_chunk import BLOCK_BYTES, Chunk, PackedFileInvalid, read_checked
from punica_serve.engine.adapters.range_reader import RangeReader

_CONTENT = os.urandom(3 * 4096 + 100)
_START = 8192


@pytest.fixture(params=[None, 4096], ids=["whole", "in pieces"])
def piece_bytes(request: pytest.FixtureRequest) -> int | None:
    return cast(int | None, request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "packed"
    path.write_bytes(bytes(BLOCK_BYTES + _START) + _CONTENT + b"the next chunk")
    return path


@pytest.fixture
def file(path: Path) -> Iterator[RangeReader]:
    with RangeReader(os.open(path, os.O_RDONLY)) as file:
        yield file


@pytest.fixture
def chunk() -> Chunk:
    place = range(_START, _START + len(_CONTENT))
    return Chunk(place, memoryview(bytearray(len(_CONTENT))), xxhash.xxh3_128_digest(_CONTENT))


def test_all_pieces_are_read_and_checked(file: RangeReader, chunk: Chunk, piece_bytes: int | None) -> None:
    assert read_checked(file, chunk, piece_bytes) > 0
    assert chunk.memory == _CONTENT


@pytest.mark.parametrize("place", [0, 4096, len(_CONTENT) - 1])
def test_damage_in_any_piece_is_found(
    file: RangeReader, path: Path, chunk: Chunk, piece_bytes: int | None, place: int
) -> None:
    content = bytearray(path.read_bytes())
    content[BLOCK_BYTES + _START + place] ^= 1
    path.write_bytes(content)
    with pytest.raises(PackedFileInvalid, match="damaged"):
        read_checked(file, chunk, piece_bytes)


@pytest.mark.parametrize("num_bytes", [0, 4096, 5000, len(_CONTENT) - 1])
def test_a_file_that_ends_within_a_piece_or_between_two_is_cut_short(
    file: RangeReader, path: Path, chunk: Chunk, piece_bytes: int | None, num_bytes: int
) -> None:
    os.truncate(path, BLOCK_BYTES + _START + num_bytes)
    with pytest.raises(PackedFileInvalid, match="short"):
        read_checked(file, chunk, piece_bytes)


@pytest.mark.parametrize("is_direct", [False, True])
def test_a_disk_is_read_in_one_piece(
    file: RangeReader, chunk: Chunk, is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def read(memory: memoryview, offset: int) -> int:
        sizes.append(len(memory))
        return os.preadv(file._descriptor, [memory], offset)

    monkeypatch.setattr(RangeReader, "is_direct", is_direct)
    monkeypatch.setattr(file, "read", read)
    read_checked(file, chunk, 4096)
    assert chunk.memory == _CONTENT and sizes == ([len(_CONTENT)] if is_direct else [4096, 4096, 4096, 100])
