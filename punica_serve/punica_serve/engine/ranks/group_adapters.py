"""The other ranks of a group as its leader's adapter loader sees them."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock

from punica_serve.engine.adapters.lora_pool import AdapterPages
from punica_serve.engine.ranks.rank_group import RankGroup
from punica_serve.engine.ranks.rank_messages import CopyAdapter, ForgetAdapter, FreeAdapter, RankBooks, ReadAdapter
from punica_serve.protocol import AdapterRef


class GroupAdapters:
    """See ``AdapterPeers``. An adapter is there when it is on all ranks."""

    def __init__(self, group: RankGroup, on_progress: Callable[[], None]) -> None:
        """``on_progress`` is called on some thread when all ranks have copied an adapter."""
        self._group = group
        self._on_progress = on_progress

    def read(self, ref: AdapterRef) -> None:
        self._group.send(ReadAdapter(ref))

    def copy(self, ref: AdapterRef, pages: AdapterPages, own: "Future[None]") -> "Future[None]":
        others = self._group.call(lambda number: CopyAdapter(number, ref, pages))
        joined = _joined(own, others)
        joined.add_done_callback(lambda _: self._on_progress())
        return joined

    def free(self, digest: str) -> None:
        self._group.send(FreeAdapter(digest))

    def forget(self, digest: str) -> None:
        self._group.send(ForgetAdapter(digest))


def _joined(*parts: "Future[None] | Future[list[RankBooks]]") -> "Future[None]":
    """Ends when all parts have, with the first one's error, if any has failed."""
    joined: Future[None] = Future()
    lock, num_running = Lock(), len(parts)

    def end(_: object) -> None:
        nonlocal num_running
        with lock:
            num_running -= 1
            if num_running:
                return
        errors = [error for part in parts if (error := part.exception()) is not None]
        if errors:
            joined.set_exception(errors[0])
        else:
            joined.set_result(None)

    for part in parts:
        part.add_done_callback(end)
    return joined
