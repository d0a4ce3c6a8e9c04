"""The checksums beside an adapter that this host has downloaded: its digest was right, so its reads need no SHA-256.

They are believed only in folders that nobody else can have written to; see docs/security.md.
"""

from pathlib import Path

from punica_serve.process.private_files import is_own, open_private

CHECKSUMS_NAME = "checksums"


def write_checksums(folder: Path, checksums: bytes) -> None:
    """Adds them to a downloaded adapter, whole or not at all. Raises OSError."""
    incoming = folder / f".{CHECKSUMS_NAME}"
    with open_private(incoming, "wb") as file:
        file.write(checksums)
    incoming.rename(folder / CHECKSUMS_NAME)


def trusted_checksums(folder: Path) -> bytes | None:
    """The checksums in an adapter's ``folder``; None if there are none, or others may have written there."""
    try:
        if all(is_own(path.lstat()) for path in (folder.parent, folder, *folder.iterdir())):
            return (folder / CHECKSUMS_NAME).read_bytes()
    except OSError:
        pass
    return None
