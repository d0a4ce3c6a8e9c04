"""The members of an archive that a stranger made, read without trusting any of it.

Tar is read here, not by tarfile, which takes headers of any size into memory and knows links, sparse files and
devices. Of a zip the directory's size is checked before zipfile reads it. Only the names, kinds and sizes come out;
nothing is written.
"""

import gzip
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Protocol

from punica_serve.errors import InvalidRequest, TooLarge

#: Folders of training hold dozens of files.
_MAX_MEMBERS = 10_000
_MAX_ZIP_DIRECTORY_BYTES = 4 << 20

#: What the readers of the standard library raise.
_BROKEN = (
    zipfile.BadZipFile,
    NotImplementedError,  # of a zip's features
    zlib.error,
    gzip.BadGzipFile,
    struct.error,
    EOFError,
    OverflowError,
    ValueError,
)

_ZIP_END = b"PK\x05\x06"
_ZIP_END_BYTES = 22

_TAR_BLOCK_BYTES = 512
#: Headers of long names, times and attributes: they say nothing of a file that has a short name.
_TAR_METADATA = b"xgLK"
_TAR_FILES = b"0\x007"
_TAR_FOLDER = b"5"
_MAX_TAR_METADATA_BYTES = 1 << 20
#: Beside the files; a gigabyte of headers alone can be a small tar.gz.
_MAX_TAR_HEADERS_BYTES = 16 << 20
_OCTAL = re.compile(rb"[0-7]*")


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    kind: Literal["file", "folder", "other"]
    num_bytes: int


class Bytes(Protocol):
    """What is read of a file."""

    def read(self, size: int, /) -> bytes: ...


class _Seekable(Bytes, Protocol):
    def seek(self, offset: int, /) -> int: ...

    def tell(self) -> int: ...


class Archive(Protocol):
    #: All of them, however many are of the same name.
    members: tuple[Member, ...]

    def open(self, member: Member) -> Bytes:
        """The content, which the caller reads to its size and no further."""


@contextmanager
def open_archive(path: Path, max_bytes: int) -> Iterator[Archive]:
    """A zip, tar or tar.gz by its content. Raises InvalidRequest; TooLarge if it expands to more than ``max_bytes``."""
    with path.open("rb") as file, _refusing_broken():
        start = file.read(_TAR_BLOCK_BYTES)
        file.seek(0)
        if start[:4] in (b"PK\x03\x04", _ZIP_END):
            yield _Zip(file, max_bytes)
        elif start[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=file) as expanded:
                yield _Tar(expanded, max_bytes)
        elif start[257:262] == b"ustar":
            yield _Tar(file, max_bytes)
        else:
            raise InvalidRequest("the upload is no zip, tar or tar.gz archive", param="file")


@contextmanager
def _refusing_broken() -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise InvalidRequest(f"the archive is broken, or of an unusual kind: {error}", param="file") from error


class _Zip:
    def __init__(self, file: IO[bytes], max_bytes: int) -> None:
        _check_zip_directory(file)
        self._zip = zipfile.ZipFile(file)
        self._infos = {_zip_member(info): info for info in self._zip.infolist()}
        self.members = tuple(_zip_member(info) for info in self._zip.infolist())
        _check_size(sum(member.num_bytes for member in self.members), max_bytes)

    def open(self, member: Member) -> Bytes:
        return self._zip.open(self._infos[member])


def _zip_member(info: zipfile.ZipInfo) -> Member:
    mode = info.external_attr >> 16
    if info.is_dir():
        return Member(info.filename, "folder", 0)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile("it is not compressed by deflate")
    is_file = stat.S_IFMT(mode) in (0, stat.S_IFREG) and not info.flag_bits & 1  # 1: encrypted
    return Member(info.filename, "file" if is_file else "other", info.file_size)


def _check_zip_directory(file: IO[bytes]) -> None:
    """zipfile takes the whole directory into memory, at many times its size."""
    file.seek(0, 2)
    if file.tell() < _ZIP_END_BYTES:
        raise zipfile.BadZipFile("it is truncated")
    file.seek(-_ZIP_END_BYTES, 2)
    end = file.read()
    if end[:4] != _ZIP_END:
        raise zipfile.BadZipFile("it has a comment, or is truncated")
    if int.from_bytes(end[12:16], "little") > _MAX_ZIP_DIRECTORY_BYTES:
        raise TooLarge("the zip archive lists too many files, or is of the zip64 kind; send a tar", param="file")
    file.seek(max(0, file.tell() - _ZIP_END_BYTES - 20))
    if file.read(4) == b"PK\x06\x07":
        raise zipfile.BadZipFile("zip64 is not read; send a tar")


class _Tar:
    def __init__(self, file: _Seekable, max_bytes: int) -> None:
        self._file = file
        self._offsets: dict[Member, int] = {}
        members = []
        for header in _tar_headers(file, max_bytes):
            member = _tar_member(header)
            members.append(member)
            self._offsets[member] = file.tell()
            if len(members) > _MAX_MEMBERS:
                raise TooLarge(f"the archive holds more than {_MAX_MEMBERS} files", param="file")
        self.members = tuple(members)

    def open(self, member: Member) -> Bytes:
        self._file.seek(self._offsets[member])
        return self._file


def _tar_headers(file: _Seekable, max_bytes: int) -> Iterator[bytes]:
    """Those of files, folders and links; the file stands behind each when it comes."""
    position = 0
    while header := file.read(_TAR_BLOCK_BYTES):
        if header == bytes(_TAR_BLOCK_BYTES):
            return
        num_bytes = _checked_tar_size(header)
        position += _TAR_BLOCK_BYTES + -(-num_bytes // _TAR_BLOCK_BYTES) * _TAR_BLOCK_BYTES
        _check_size(position, max_bytes + _MAX_TAR_HEADERS_BYTES)
        if header[156:157] not in _TAR_METADATA:
            yield header
        elif num_bytes > _MAX_TAR_METADATA_BYTES:
            raise ValueError("a header of names or attributes is too large")
        file.seek(position)


def _checked_tar_size(header: bytes) -> int:
    """The size that a header gives, if its checksum says that it is one."""
    if len(header) < _TAR_BLOCK_BYTES:
        raise EOFError("it is truncated")
    checksum = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if _number(header[148:156]) != checksum:
        raise ValueError("a header's checksum is wrong")
    return _number(header[124:136])


def _number(field: bytes) -> int:
    """Never negative, as what ``int`` takes may be: a reader would go back by it, for ever."""
    digits = field.strip(b"\x00 ")
    if not _OCTAL.fullmatch(digits):
        raise ValueError("a header's number is not octal")
    return int(digits or b"0", 8)


def _tar_member(header: bytes) -> Member:
    name = _text(header[:100])
    if header[257:263] == b"ustar\x00" and (prefix := _text(header[345:500])):
        name = f"{prefix}/{name}"
    kind = header[156:157]
    if kind == _TAR_FOLDER:
        return Member(name, "folder", 0)
    return Member(name, "file" if kind in _TAR_FILES else "other", _checked_tar_size(header))


def _text(field: bytes) -> str:
    return field.partition(b"\x00")[0].decode("utf-8", "replace")


def _check_size(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        message = f"the archive expands to more than {max_bytes} bytes, the limit; send the adapter's files alone"
        raise TooLarge(message, param="file")
