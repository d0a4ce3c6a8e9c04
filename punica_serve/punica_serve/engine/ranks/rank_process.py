"""Another rank on the leader's host, as the leader sees it."""

import contextlib
import multiprocessing
from concurrent.futures import Future
from typing import Protocol

from punica_serve.engine.ranks.rank_child import RankChild
from punica_serve.engine.ranks.rank_link import LinkEnded, RankLink
from punica_serve.engine.ranks.rank_messages import RankToLeader
from punica_serve.engine.ranks.rank_ring import ReaderPlace
from punica_serve.protocol import Message


class FollowingRank(Protocol):
    """A rank that follows the leader, on whichever host."""

    index: int
    #: With its device, as errors name it.
    name: str
    #: Its GPU's, once it has said hello; "" on a CPU.
    gpu_uuid: str
    #: Its link, once it has come; RankLost if it never will.
    joined: "Future[RankLink]"

    def tell(self, message: Message) -> None:
        """Drops the message if the rank has ended, of which its link tells."""
        ...

    def end_reason(self) -> str:
        """Why it has ended, in words; its link has."""
        ...

    def kill(self) -> None:
        """Does nothing if it has ended. On any thread."""
        ...

    def stop(self, timeout_s: float) -> bool:
        """Waits until it has ended by itself, and ends it by force after the timeout: whether that was not needed."""
        ...


class RankProcess:
    """See ``FollowingRank``. It ends with its leader: by the end of their socket and, on Linux, by the kernel."""

    def __init__(self, index: int, device: str, place: ReaderPlace) -> None:
        """Starts the process, which waits for ``begin``."""
        self.index = index
        self.name = rank_name(index, device)
        self.gpu_uuid = ""
        ours, theirs = multiprocessing.Pipe()
        self._link = RankLink(ours, RankToLeader)
        self.joined: Future[RankLink] = Future()
        self.joined.set_result(self._link)
        try:
            self._child = RankChild(place, theirs.fileno())
        except BaseException:
            self._link.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._child.pid

    def begin(self, options: Message) -> None:
        """See ``RankChild.begin``."""
        self._child.begin(options)

    def tell(self, message: Message) -> None:
        """See ``FollowingRank.tell``."""
        with contextlib.suppress(LinkEnded):
            self._link.send(message)

    def end_reason(self) -> str:
        """See ``FollowingRank.end_reason``."""
        return self._child.end_reason() or "it has closed its link"

    def kill(self) -> None:
        """See ``FollowingRank.kill``."""
        self._child.kill()

    def stop(self, timeout_s: float) -> bool:
        """See ``FollowingRank.stop``."""
        try:
            return self._child.stop(timeout_s)
        finally:
            self._link.close()


def rank_name(index: int, device: str) -> str:
    """As errors name a rank."""
    return f"rank {index} ({device})"
