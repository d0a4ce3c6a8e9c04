"""The adapters that `up` has checked, for the frontends that it starts, which need not read the weights again.

It travels in the environment. Files that have changed since, and a base model of another shape, are checked again, as
everything is in a frontend that starts without it. A load compares the digest, so nothing else is ever applied.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from punica_serve.learned_types import learned
from punica_serve.protocol import AdapterRef

CHECKED_ENV = "PUNICA_CHECKED_ADAPTERS"
#: Linux takes 128 KiB for one variable. Adapters beyond are read again.
_MAX_BYTES = 96 * 1024

#: Device, inode, size, and times of the last change, of the configuration and of the weights.
FilesState = tuple[tuple[int, ...], ...]


class CheckedAdapter(msgspec.Struct, frozen=True):
    """An adapter that was read and checked, and its files as they were before that."""

    files: FilesState
    ref: AdapterRef


class CheckedAdapters(msgspec.Struct, frozen=True):
    """The adapters that were checked for a base model of a shape, by folder."""

    shape: str = ""
    by_folder: dict[str, CheckedAdapter] = {}

    def find(self, folder: Path, shape: str) -> AdapterRef | None:
        """The adapter in a folder, if its files are those that were checked for a base model of this shape."""
        checked = self.by_folder.get(str(folder))
        return checked.ref if checked and shape == self.shape and checked.files == files_state(folder) else None

    def to_environment(self) -> dict[str, str]:
        """The variable to set for frontends, with as many adapters as it has room for."""
        room, kept = _MAX_BYTES, dict[str, CheckedAdapter]()
        for folder, checked in self.by_folder.items():
            room -= len(msgspec.json.encode({folder: checked}))
            if room >= 0:
                kept[folder] = checked
        return {CHECKED_ENV: msgspec.json.encode(CheckedAdapters(self.shape, kept)).decode()} if kept else {}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "CheckedAdapters":
        """The adapters that this process was told of; none if that can't be read: then it reads all of them."""
        try:
            return msgspec.json.decode(environment.get(CHECKED_ENV, "{}"), type=learned(cls))
        except msgspec.DecodeError:
            return cls()


def files_state(folder: Path) -> FilesState | None:
    """None for a folder without both files."""
    try:
        return tuple(_state(os.stat(folder / name)) for name in (CONFIG_NAME, WEIGHTS_NAME))
    except OSError:
        return None


def _state(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
