"""Lists the members of an untrusted archive.

Tar is parsed here: tarfile reads headers of any size into memory and supports links, sparse files and devices. For a
zip, the directory's size and number of members are checked before zipfile reads it. The result has only names, kinds
and sizes; nothing is written.
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

#: Training folders hold dozens of files.
_MAX_MEMBERS = 10_000
_MAX_ZIP_DIRECTORY_BYTES = 4 << 20

#: Exceptions of the standard library's readers.
_BROKEN = (
    zipfile.BadZipFile,
    NotImplementedError,  # an unsupported zip feature
    zlib.error,
    gzip.BadGzipFile,
    struct.error,
    EOFError,
    OverflowError,
    ValueError,
)

_ZIP_END = b"PK\x05\x06"
_ZIP_END_BYTES = 22
_ZIP_ENTRY_BYTES = 46

_TAR_BLOCK_BYTES = 512
#: Headers of long names, times and attributes, which are irrelevant for a file with a short name.
_TAR_METADATA = b"xgLK"
_TAR_FILES = b"0\x007"
_TAR_FOLDER = b"5"
_MAX_TAR_METADATA_BYTES = 1 << 20
#: Limit for all headers; a small tar.gz can hold a gigabyte of headers alone.
_MAX_TAR_HEADERS_BYTES = 16 << 20
#: Includes metadata headers, one or two for each file.
_MAX_TAR_HEADERS = 4 * _MAX_MEMBERS
_OCTAL = re.compile(rb"[0-7]*")


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    kind: Literal["file", "folder", "other"]
    num_bytes: int


class Bytes(Protocol):
    """A readable stream."""

    def read(self, size: int, /) -> bytes: ...


class _Seekable(Bytes, Protocol):
    def seek(self, offset: int, /) -> int: ...

    def tell(self) -> int: ...


class Archive(Protocol):
    #: All members, also those with equal names.
    members: tuple[Member, ...]

    def open(self, member: Member) -> Bytes:
        """The member's content. The caller must not read beyond its size."""


@contextmanager
def open_archive(path: Path, max_bytes: int) -> Iterator[Archive]:
    """Opens a zip, tar or tar.gz, recognised by its content. Raises InvalidRequest; TooLarge if it expands to more than
    ``max_bytes``.
    """
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
            raise InvalidRequest("the upload is not a zip, tar or tar.gz archive", param="file")


@contextmanager
def _refusing_broken() -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise InvalidRequest(f"the archive is damaged or of an unsupported kind: {error}", param="file") from error


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
        raise zipfile.BadZipFile("it uses a compression other than deflate")
    is_file = stat.S_IFMT(mode) in (0, stat.S_IFREG) and not info.flag_bits & 1  # 1: encrypted
    return Member(info.filename, "file" if is_file else "other", info.file_size)


def _check_zip_directory(file: IO[bytes]) -> None:
    """Checks the directory's size first: zipfile reads all of it into memory, at many times its size."""
    file.seek(0, 2)
    if file.tell() < _ZIP_END_BYTES:
        raise zipfile.BadZipFile("it is truncated")
    file.seek(-_ZIP_END_BYTES, 2)
    end = file.read()
    if end[:4] != _ZIP_END:
        raise zipfile.BadZipFile("it has a comment, or is truncated")
    num_directory_bytes = int.from_bytes(end[12:16], "little")
    if num_directory_bytes > _MAX_ZIP_DIRECTORY_BYTES:
        raise TooLarge("the zip archive lists too many files, or is a zip64; send a tar", param="file")
    num_before = file.tell() - _ZIP_END_BYTES
    file.seek(max(0, num_before - 20))
    if file.read(4) == b"PK\x06\x07":
        raise zipfile.BadZipFile("zip64 is not supported; send a tar")
    if num_directory_bytes > num_before:
        raise zipfile.BadZipFile("it is truncated")
    file.seek(num_before - num_directory_bytes)
    _check_count(_num_zip_members(file.read(num_directory_bytes)))


def _num_zip_members(directory: bytes) -> int:
    """Counts the members one by one, as zipfile does: the archive's own count can't be trusted."""
    count = start = 0
    while start < len(directory):
        # lengths of name, extra field and comment
        lengths = struct.unpack_from("<HHH", directory, start + 28)
        start += _ZIP_ENTRY_BYTES + sum(lengths)
        count += 1
    return count


class _Tar:
    def __init__(self, file: _Seekable, max_bytes: int) -> None:
        self._file = file
        self._offsets: dict[Member, int] = {}
        members = []
        for header in _tar_headers(file, max_bytes):
            member = _tar_member(header)
            members.append(member)
            self._offsets[member] = file.tell()
            _check_count(len(members))
        self.members = tuple(members)

    def open(self, member: Member) -> Bytes:
        self._file.seek(self._offsets[member])
        return self._file


def _tar_headers(file: _Seekable, max_bytes: int) -> Iterator[bytes]:
    """Headers of files, folders and links. When one is yielded, the file is positioned right after it."""
    position = num_headers = 0
    while header := file.read(_TAR_BLOCK_BYTES):
        if header == bytes(_TAR_BLOCK_BYTES):
            return
        num_headers += 1
        if num_headers > _MAX_TAR_HEADERS:
            raise _too_many()
        num_bytes = _checked_tar_size(header)
        position += _TAR_BLOCK_BYTES + -(-num_bytes // _TAR_BLOCK_BYTES) * _TAR_BLOCK_BYTES
        _check_size(position, max_bytes + _MAX_TAR_HEADERS_BYTES)
        if header[156:157] not in _TAR_METADATA:
            yield header
        elif num_bytes > _MAX_TAR_METADATA_BYTES:
            raise ValueError("a header of names or attributes is too large")
        file.seek(position)


def _checked_tar_size(header: bytes) -> int:
    """The size in a header, if its checksum is right."""
    if len(header) < _TAR_BLOCK_BYTES:
        raise EOFError("it is truncated")
    checksum = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if _number(header[148:156]) != checksum:
        raise ValueError("a header's checksum is wrong")
    return _number(header[124:136])


def _number(field: bytes) -> int:
    """Parses an octal number. Never negative, unlike ``int``: a negative size would make a reader go back forever."""
    digits = field.strip(b"\x00 ")
    if not _OCTAL.fullmatch(digits):
        raise ValueError("a number in a header is not octal")
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


def _check_count(num_members: int) -> None:
    if num_members > _MAX_MEMBERS:
        raise _too_many()


def _too_many() -> TooLarge:
    return TooLarge(f"the archive holds more than {_MAX_MEMBERS} files; send only the adapter's files", param="file")


def _check_size(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        message = f"the archive expands to more than {max_bytes} bytes, the limit; send only the adapter's files"
        raise TooLarge(message, param="file")
