"""The adapters that a cluster serves, by name. Names end here: behind the catalog only AdapterRefs are known."""

import logging
import re
from collections.abc import Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import MappingProxyType

from punica_serve.adapters.folder import read_adapter
from punica_serve.errors import AdapterNotFound, AdapterRejected
from punica_serve.model_config import ModelConfig
from punica_serve.protocol import AdapterRef

#: Bounds the adapters in memory at once while they are checked.
_NUM_READERS = 4

#: What a lora_id may be: safe in URLs, file names, logs and metrics.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """An adapter that is served."""

    name: str
    ref: AdapterRef


class AdapterCatalog:
    """lora_id -> AdapterRef, and the reasons why the others are not served. Immutable; holds no weights."""

    def __init__(self, refs: Mapping[str, AdapterRef], rejected: Mapping[str, AdapterRejected]) -> None:
        self._refs = dict(refs)
        self.rejected: Mapping[str, AdapterRejected] = MappingProxyType(dict(rejected))

    @classmethod
    def load(
        cls,
        folders: Mapping[str, Path],
        model: ModelConfig,
        *,
        base_name: str,
        strict_base: bool = False,
        dummies: Mapping[str, AdapterRef] = MappingProxyType({}),
        stop: Event | None = None,
    ) -> "AdapterCatalog":
        """Reads every folder, and leaves out those that can't be served. ``base_name`` is the API's for the base.

        ``dummies`` are served too, where no folder has the name.
        Once another thread sets ``stop``, it ends after the folders at hand: raises CancelledError.
        """

        def read(name: str) -> AdapterRef | AdapterRejected:
            if stop and stop.is_set():
                raise CancelledError
            try:
                _check_name(name, base_name)
                return read_adapter(folders[name], model, strict_base=strict_base).ref
            except AdapterRejected as error:
                logger.warning("adapter %r is refused, the others are served: %s", name, error.message)
                # The traceback would keep the weights of the refused adapter in memory.
                return AdapterRejected(error.message, param=error.param)

        with ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="adapter-reader") as readers:
            results = dict(zip(folders, readers.map(read, folders), strict=True))
        refs = {name: result for name, result in results.items() if isinstance(result, AdapterRef)}
        rejected = {name: result for name, result in results.items() if isinstance(result, AdapterRejected)}
        return cls({**dummies, **refs}, rejected)

    @property
    def entries(self) -> tuple[CatalogEntry, ...]:
        return tuple(CatalogEntry(name, ref) for name, ref in self._refs.items())

    def ref(self, lora_id: str) -> AdapterRef:
        """Raises AdapterNotFound."""
        try:
            return self._refs[lora_id]
        except KeyError:
            raise AdapterNotFound(
                f"no adapter is called {lora_id[:200]!r}; GET /v1/models lists those that are served", param="lora_id"
            ) from None


def _check_name(name: str, base_name: str) -> None:
    if not _NAME.fullmatch(name):
        raise AdapterRejected(
            f"adapter name {name[:200]!r} must be 1 to 128 letters, digits and . _ : - from a letter or digit on",
            param="name",
        )
    if name == base_name:
        raise AdapterRejected(f"adapter name {name!r} is the base model's; choose another", param="name")
