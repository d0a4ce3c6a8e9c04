"""Files that browsers load: our own, and scripts that other packages carry. All are read once, and are small."""

import hashlib
import mimetypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files

#: Whatever the system's own table says of it, a browser runs nothing else as a module.
_SCRIPT = "text/javascript"


@dataclass(frozen=True)
class Asset:
    """A file as it is sent."""

    content: bytes
    media_type: str
    #: Changes with the content.
    etag: str

    @classmethod
    def of(cls, name: str, content: bytes) -> "Asset":
        media_type = _SCRIPT if name.endswith(".js") else mimetypes.guess_type(name)[0] or "application/octet-stream"
        return cls(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


#: By file name.
Assets = Mapping[str, Asset]


def own_assets(folder: str) -> Assets:
    """All files of a folder beside this module."""
    return {file.name: Asset.of(file.name, file.read_bytes()) for file in files(__package__).joinpath(folder).iterdir()}


def carried_assets(distribution: str, names: Iterable[str]) -> Assets:
    """Files of these names that an installed distribution has somewhere. It is not imported."""
    found = {path.name: path for path in metadata.files(distribution) or ()}
    return {name: Asset.of(name, found[name].locate().read_bytes()) for name in names}  # type: ignore[attr-defined]
