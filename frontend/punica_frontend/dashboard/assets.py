"""Files for browsers: our own, and scripts from other packages. They are small, and read once."""

import hashlib
import mimetypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files

#: Fixed, because browsers run modules only with this type, and the system's table may have another.
_SCRIPT = "text/javascript"


@dataclass(frozen=True)
class Asset:
    """A file as it is sent."""

    content: bytes
    media_type: str
    #: A hash of the content.
    etag: str

    @classmethod
    def of(cls, name: str, content: bytes) -> "Asset":
        media_type = _SCRIPT if name.endswith(".js") else mimetypes.guess_type(name)[0] or "application/octet-stream"
        return cls(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


#: Assets by file name.
Assets = Mapping[str, Asset]


def own_assets(folder: str) -> Assets:
    """Reads all files of a folder beside this module."""
    return {file.name: Asset.of(file.name, file.read_bytes()) for file in files(__package__).joinpath(folder).iterdir()}


def carried_assets(distribution: str, names: Iterable[str]) -> Assets:
    """Reads files of these names from an installed distribution, without importing it."""
    found = {path.name: path for path in metadata.files(distribution) or ()}
    return {name: Asset.of(name, found[name].locate().read_bytes()) for name in names}  # type: ignore[attr-defined]
