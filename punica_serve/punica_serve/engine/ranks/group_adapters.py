"""The other ranks of a group as its leader's adapter loader sees them."""

from collections.abc import Callable
from concurrent.futures import Future

from punica_serve.engine.adapters.adapter_peers import GroupCopy
from punica_serve.engine.adapters.copy_error import copy_error
from punica_serve.engine.adapters.lora_pool import AdapterPages
from punica_serve.engine.ranks.joined_futures import joined
from punica_serve.engine.ranks.rank_group import RankGroup
from punica_serve.engine.ranks.rank_messages import (
    AwaitQueued,
    CopyAdapter,
    ForgetAdapter,
    FreeAdapter,
    RankAudit,
    ReadAdapter,
)
from punica_serve.protocol import AdapterRef


class GroupAdapters:
    """See ``AdapterPeers``. An adapter is there when it is on all ranks."""

    def __init__(self, group: RankGroup, on_progress: Callable[[], None]) -> None:
        """``on_progress`` is called on some thread when all ranks have copied an adapter, or queued its copies."""
        self._group = group
        self._on_progress = on_progress

    def read(self, ref: AdapterRef) -> None:
        self._group.send(ReadAdapter(ref))

    def copy(self, ref: AdapterRef, pages: AdapterPages, own: "Future[None]", *, by_layer: bool) -> GroupCopy:
        others = self._group.call(lambda number: CopyAdapter(number, ref, pages))
        copy = GroupCopy(joined(own, others))
        copy.done.add_done_callback(lambda _: self._on_progress())
        if by_layer:
            queued = self._group.call(lambda number: AwaitQueued(number, ref.digest))
            queued.add_done_callback(lambda ended: self._mark_queued(copy, ended))
        return copy

    def _mark_queued(self, copy: GroupCopy, queued: "Future[list[RankAudit]]") -> None:
        """After an error no step waits for the copy, which itself ends with that error."""
        if copy_error(queued) is None:
            copy.mark_queued()
            self._on_progress()

    def free(self, digest: str) -> None:
        self._group.send(FreeAdapter(digest))

    def forget(self, digest: str) -> None:
        self._group.send(ForgetAdapter(digest))
