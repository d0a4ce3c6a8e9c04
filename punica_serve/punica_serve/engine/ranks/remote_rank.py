"""A rank on another host, as its leader sees it: a link over TCP, which comes when that host has joined."""

import contextlib
import time
from concurrent.futures import Future, InvalidStateError

from punica_serve.config.device_groups import place_of
from punica_serve.engine.ranks.rank_link import LinkEnded, RankLink
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.ranks.rank_process import rank_name
from punica_serve.protocol import Message


class RemoteRank:
    """See ``FollowingRank``. Its process is its own host's, which ends it with the connection of that host."""

    def __init__(self, index: int, device: str) -> None:
        """``device``: with the number of its host, "1/cuda:0"."""
        self.index = index
        self.name = rank_name(index, device)
        self.gpu_uuid = ""
        self.joined: Future[RankLink] = Future()
        self._host = place_of(device)[0]
        self._has_host_left = False

    def join(self, link: RankLink) -> None:
        """It has come, by this link, which this object owns."""
        try:
            self.joined.set_result(link)
        except InvalidStateError:  # its host has left
            link.close()

    def lose_host(self) -> None:
        """Its host has left the group. On any thread."""
        self._has_host_left = True
        with contextlib.suppress(InvalidStateError):
            self.joined.set_exception(RankLost(f"{self.name} is lost: {self.end_reason()}"))
        self.kill()

    def tell(self, message: Message) -> None:
        """See ``FollowingRank.tell``."""
        if (link := self._link) is not None:
            with contextlib.suppress(LinkEnded):
                link.send(message)

    def end_reason(self) -> str:
        """See ``FollowingRank.end_reason``."""
        if self._has_host_left:
            return f"host {self._host} has left the group"
        return f"its connection has ended; the log of host {self._host} says more"

    def kill(self) -> None:
        """Ends the connection, with which its host ends the process."""
        if (link := self._link) is not None:
            link.end()

    def stop(self, timeout_s: float) -> bool:
        """See ``FollowingRank.stop``. Nothing else may receive from the link."""
        if (link := self._link) is None:
            return True
        try:
            return _await_end(link, time.monotonic() + timeout_s)
        finally:
            link.end()
            link.close()

    @property
    def _link(self) -> RankLink | None:
        return self.joined.result() if self.joined.done() and self.joined.exception() is None else None


def _await_end(link: RankLink, deadline_s: float) -> bool:
    """Whether the link ends by itself until then."""
    try:
        while (left_s := deadline_s - time.monotonic()) > 0 and link.await_message(left_s):
            link.receive_frame()
    except LinkEnded:
        return True
    return False
