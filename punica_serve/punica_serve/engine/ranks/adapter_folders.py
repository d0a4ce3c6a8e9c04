"""Where adapters' files are on this host: a leader's commands name folders of its own host."""

from collections import OrderedDict
from threading import Lock

from msgspec.structs import replace

from punica_serve.protocol import AdapterRef

#: Adapters that are remembered; the oldest beyond it must be fetched again.
_MAX_FOLDERS = 4096


class AdapterFolders:
    """Folders by digest. On any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._folders: OrderedDict[str, str] = OrderedDict()

    def remember(self, digest: str, folder: str) -> None:
        with self._lock:
            self._folders[digest] = folder
            self._folders.move_to_end(digest)
            if len(self._folders) > _MAX_FOLDERS:
                self._folders.popitem(last=False)

    def forget(self, digest: str) -> None:
        with self._lock:
            self._folders.pop(digest, None)

    def located(self, ref: AdapterRef) -> AdapterRef:
        """The adapter with its folder on this host, or as it is if none is remembered."""
        with self._lock:
            folder = self._folders.get(ref.digest)
        return ref if folder is None else replace(ref, uri=folder)
