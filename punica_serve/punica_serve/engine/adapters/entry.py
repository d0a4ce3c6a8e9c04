"""The loader's record of an adapter."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto

import torch

from punica_serve.adapters.folder import unreadable
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.lora_pool import AdapterPages
from punica_serve.errors import AdapterRejected, PunicaError, RequestFailed, StoreUnavailable
from punica_serve.errors.invariants import require
from punica_serve.protocol import AdapterRef


class Stage(Enum):
    """The stages of loading, in order. An unused adapter may be evicted in any but COPYING."""

    LOADING = auto()  # to host memory
    STAGED = auto()  # packed in host memory, waiting for pages
    COPYING = auto()  # has pages, which a thread fills
    RESIDENT = auto()


@dataclass(slots=True, eq=False)
class AdapterEntry:
    """An adapter that is loading, or loaded."""

    ref: AdapterRef
    #: Requests that use the adapter.
    refcount: int = 0
    stage: Stage = Stage.LOADING
    #: Held while STAGED and COPYING.
    copy: HostCopy | None = None
    pages: AdapterPages = field(default_factory=dict)
    #: The copy to the pages, while COPYING.
    work: Future[None] | None = None
    #: The end of the last step that may read the pages, once no request uses the adapter.
    fence: torch.cuda.Event | None = None
    #: It is evicted, from host memory too, when its last user ends.
    is_unwanted: bool = False

    def check_invariants(self) -> None:
        digest = self.ref.digest
        require(self.refcount >= 0, f"adapter {digest} released more often than acquired")
        is_copied_from = self.stage in (Stage.STAGED, Stage.COPYING)
        require(is_copied_from == (self.copy is not None), f"adapter {digest} holds host memory that it does not need")
        is_copying = self.stage is Stage.COPYING
        require(is_copying == (self.work is not None), f"adapter {digest}: its stage does not match its copy")
        require(self.refcount or not self.is_unwanted or self.work, f"adapter {digest} should have been evicted")


@dataclass(frozen=True, slots=True)
class AdapterFailure:
    """An adapter that could not be loaded. ``permanent``: its files are wrong, so no other device can load it."""

    digest: str
    permanent: bool
    error: PunicaError

    @classmethod
    def of(cls, ref: AdapterRef, error: BaseException) -> "AdapterFailure":
        kind = StoreUnavailable if isinstance(error, StoreUnavailable) else RequestFailed
        shown = kind(f"the adapter can't be loaded: {_client_message(error)}", param="lora_id")
        return cls(ref.digest, isinstance(error, AdapterRejected), shown)


def _client_message(error: BaseException) -> str:
    """The message for clients, without the folder, which only the log names."""
    if isinstance(error, PunicaError):
        return error.message
    if isinstance(error, OSError) and error.filename:
        return unreadable(error).message
    return str(error)
