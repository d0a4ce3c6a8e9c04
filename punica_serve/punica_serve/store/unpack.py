"""Unpacks an adapter's files from an archive. Names, kinds and sizes are checked before anything is written."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from punica_serve.adapters.unsupported_weights import refuse_unsupported_weights
from punica_serve.errors import InvalidRequest
from punica_serve.store.adapter_files import ADAPTER_FILES, check_file_size
from punica_serve.store.archive import Archive, Bytes, Member, open_archive
from punica_serve.store.file_sink import FileSink

_CHUNK_BYTES = 1 << 20
#: macOS adds this folder to archives.
_IGNORED_TOP = "__MACOSX"


def unpack(archive: Path, folder: Path, max_bytes: int) -> None:
    """Writes an adapter's files, and no others, into ``folder``. Blocks.

    Raises InvalidRequest; TooLarge; AdapterRejected for pickles, and for weights as soon as their header is wrong.
    """
    with open_archive(archive, max_bytes) as opened:
        for name, member in _adapter_members(opened.members, max_bytes).items():
            _write(opened, member, FileSink(folder / name, max_bytes))


def _adapter_members(members: Iterable[Member], max_bytes: int) -> dict[str, Member]:
    """The members beside the only adapter_config.json, by file name."""
    files: dict[PurePosixPath, Member] = {}
    for member in members:
        path = _checked_path(member)
        if member.kind == "file" and path.parts[0] != _IGNORED_TOP:
            if path in files:
                raise InvalidRequest(f"the archive holds `{path}` twice", param="file")
            files[path] = member
    configs = [path for path in files if path.name == CONFIG_NAME]
    if len(configs) != 1:
        count = "no" if not configs else "more than one"
        raise InvalidRequest(f"the archive holds {count} {CONFIG_NAME}; send one adapter", param="file")
    beside = configs[0].parent
    found = {name: files[beside / name] for name in ADAPTER_FILES if beside / name in files}
    if WEIGHTS_NAME not in found:
        refuse_unsupported_weights(path.name for path in files if path.parent == beside)
        raise InvalidRequest(f"the archive holds no {WEIGHTS_NAME} beside {CONFIG_NAME}", param="file")
    for name, member in found.items():
        check_file_size(name, member.num_bytes, max_bytes)
    return found


def _checked_path(member: Member) -> PurePosixPath:
    """The member's path, if that is inside the folder."""
    path = PurePosixPath(member.name)
    shown = member.name[:200]
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or "\x00" in member.name:
        raise InvalidRequest(f"the archive's `{shown}` leads out of its folder", param="file")
    if member.kind == "other":
        raise InvalidRequest(
            f"the archive's `{shown}` is a link, a device or encrypted; send regular files", param="file"
        )
    if not path.parts and member.kind == "file":
        raise InvalidRequest("the archive holds a file without a name", param="file")
    return path


def _write(archive: Archive, member: Member, sink: FileSink) -> None:
    try:
        _copy_exactly(archive.open(member), sink, member.num_bytes)
    finally:
        sink.close()


def _copy_exactly(source: Bytes, target: FileSink, num_bytes: int) -> None:
    while num_bytes:
        chunk = source.read(min(_CHUNK_BYTES, num_bytes))
        if not chunk:
            raise EOFError("it is truncated")
        target.write(chunk)
        num_bytes -= len(chunk)
