"""An archive -> the adapter's files in a folder. What is in it is checked before a byte is written."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import IO

from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from punica_serve.errors import AdapterRejected, InvalidRequest, TooLarge
from punica_serve.store.adapter_files import ADAPTER_FILES, PICKLE_NAME, max_bytes_of
from punica_serve.store.archive import Archive, Bytes, Member, open_archive

_CHUNK_BYTES = 1 << 20
#: What macOS adds to archives.
_IGNORED_TOP = "__MACOSX"


def unpack(archive: Path, folder: Path, max_bytes: int) -> None:
    """Writes an adapter's files, and no others, into ``folder``. Blocks. Raises InvalidRequest, TooLarge."""
    with open_archive(archive, max_bytes) as opened:
        for name, member in _adapter_members(opened.members, max_bytes).items():
            _write(opened, member, folder / name)


def refuse_pickle() -> AdapterRejected:
    """What is said to whoever sends one."""
    return AdapterRejected(
        f"{PICKLE_NAME}: pickles are never read; convert it with PEFT: PeftModel.from_pretrained(base, folder)"
        f".save_pretrained(folder) writes {WEIGHTS_NAME}",
        param=PICKLE_NAME,
    )


def _adapter_members(members: Iterable[Member], max_bytes: int) -> dict[str, Member]:
    """By name of file: those beside the only adapter_config.json."""
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
        if beside / PICKLE_NAME in files:
            raise refuse_pickle()
        raise InvalidRequest(f"the archive holds no {WEIGHTS_NAME} beside {CONFIG_NAME}", param="file")
    for name, member in found.items():
        check_file_size(name, member.num_bytes, max_bytes)
    return found


def check_file_size(name: str, num_bytes: int, max_bytes: int) -> None:
    """Raises TooLarge."""
    limit_bytes = max_bytes_of(name, max_bytes)
    if num_bytes > limit_bytes:
        raise TooLarge(f"`{name}` has more than {limit_bytes} bytes, the limit", param=name)


def _checked_path(member: Member) -> PurePosixPath:
    """Where a member would go, if that is within the folder."""
    path = PurePosixPath(member.name)
    shown = member.name[:200]
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or "\x00" in member.name:
        raise InvalidRequest(f"the archive's `{shown}` leads out of its folder", param="file")
    if member.kind == "other":
        raise InvalidRequest(
            f"the archive's `{shown}` is a link, a device or encrypted; send plain files", param="file"
        )
    if not path.parts and member.kind == "file":
        raise InvalidRequest("the archive holds a file without a name", param="file")
    return path


def _write(archive: Archive, member: Member, path: Path) -> None:
    with path.open("xb") as target:
        _copy_exactly(archive.open(member), target, member.num_bytes)


def _copy_exactly(source: Bytes, target: IO[bytes], num_bytes: int) -> None:
    while num_bytes:
        chunk = source.read(min(_CHUNK_BYTES, num_bytes))
        if not chunk:
            raise EOFError("it is truncated")
        target.write(chunk)
        num_bytes -= len(chunk)
