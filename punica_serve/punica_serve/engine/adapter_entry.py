"""An adapter on its way to the device, or there."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto

import torch

from punica_serve.adapters.folder import unreadable
from punica_serve.engine.host_cache import HostCopy
from punica_serve.engine.lora_pool import AdapterPages
from punica_serve.errors import AdapterRejected, PunicaError, RequestFailed, StoreUnavailable
from punica_serve.protocol import AdapterRef


class Stage(Enum):
    """An adapter goes through these in order; unused, it may leave at any but COPYING."""

    COMING = auto()  # to host memory
    STAGED = auto()  # packed on the host, waits for pages
    COPYING = auto()  # has pages, a thread fills them
    RESIDENT = auto()


@dataclass(slots=True, eq=False)
class AdapterEntry:
    """What the loader knows of an adapter."""

    ref: AdapterRef
    num_users: int = 0
    stage: Stage = Stage.COMING
    #: Held while STAGED and COPYING.
    copy: HostCopy | None = None
    pages: AdapterPages = field(default_factory=dict)
    #: What fills the pages, while COPYING.
    work: Future[None] | None = None
    #: The end of the last step that may read the pages, once nobody uses the adapter.
    fence: torch.cuda.Event | None = None
    #: It leaves, host memory too, with its last user.
    is_forgotten: bool = False

    def check_invariants(self) -> None:
        digest = self.ref.digest
        assert self.num_users >= 0, f"adapter {digest} released more often than acquired"
        is_copied_from = self.stage in (Stage.STAGED, Stage.COPYING)
        assert is_copied_from == (self.copy is not None), f"adapter {digest} holds host memory it has no use for"
        assert (self.stage is Stage.COPYING) == (self.work is not None), f"adapter {digest} is lost on its way"
        assert self.num_users or not self.is_forgotten or self.work, f"adapter {digest} should have gone"


@dataclass(frozen=True, slots=True)
class AdapterFailure:
    """An adapter that could not be brought. ``permanent``: its bytes are wrong, so no other device will do better."""

    digest: str
    permanent: bool
    error: PunicaError

    @classmethod
    def of(cls, ref: AdapterRef, error: BaseException) -> "AdapterFailure":
        kind = StoreUnavailable if isinstance(error, StoreUnavailable) else RequestFailed
        told = kind(f"the adapter can't be loaded: {_told(error)}", param="lora_id")
        return cls(ref.digest, isinstance(error, AdapterRejected), told)


def _told(error: BaseException) -> str:
    """What clients are told: without the folder, which the log names."""
    if isinstance(error, PunicaError):
        return error.message
    if isinstance(error, OSError) and error.filename:
        return unreadable(error).message
    return str(error)
