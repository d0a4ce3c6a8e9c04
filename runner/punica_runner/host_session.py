"""One stay of a host in a group that is led on another one: what its leader sends goes to the ranks of this host.

The leader's frames name adapters' folders on its own host. Where it had an adapter's files fetched to this host too,
the ranks here are told of the folder here.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from punica_runner.host_disk import HostDisk
from punica_serve.engine.ranks.adapter_folders import AdapterFolders
from punica_serve.engine.ranks.host_ranks import HostRanks
from punica_serve.engine.ranks.message_ring import RingStuck
from punica_serve.engine.ranks.rank_link import LinkEnded, RankLink
from punica_serve.engine.ranks.rank_messages import ForgetAdapter, RankPing, RankPong, ReadAdapter, StopRank
from punica_serve.engine.ranks.ring_frames import command_frame, read_host_frame
from punica_serve.errors import ProtocolError
from punica_serve.protocol import AdapterFetched, FetchAdapter

log = logging.getLogger(__name__)

#: From one look at the link to the next: a safeguard only, since the system ends a link whose other host is gone.
_WAIT_S = 60.0


class HostSession:
    """Runs on a thread of its own; the disk's work is done on the event loop that made this object."""

    def __init__(self, link: RankLink, ranks: HostRanks, disk: HostDisk, silence_timeout_s: float) -> None:
        self._link = link
        self._ranks = ranks
        self._disk = disk
        self._silence_timeout_s = silence_timeout_s
        self._loop = asyncio.get_running_loop()
        self._answers = ThreadPoolExecutor(1, "adapter-fetched")
        self._folders = AdapterFolders()
        #: The leader has told the ranks to end.
        self.was_stopped = False

    def run(self) -> str:
        """Passes on what the leader sends, until the link ends or a rank does not read. Returns why, in words."""
        try:
            while True:
                if self._link.await_message(_WAIT_S):
                    self._take(self._link.receive_frame())
        except LinkEnded:
            return "its leader has ended it" if self.was_stopped else "the connection to its leader has ended"
        except ProtocolError as error:
            return f"its leader sent an invalid message: {error}"
        except RingStuck:
            return f"a rank on this host reads no commands for {self._silence_timeout_s:g} s"

    def close(self) -> None:
        """After ``run``. Adapters that are being fetched go on to the disk."""
        self._answers.shutdown()

    def _take(self, frame: bytes) -> None:
        """Raises LinkEnded, ProtocolError and RingStuck."""
        message = read_host_frame(frame)
        match message:
            case FetchAdapter():
                self._loop.call_soon_threadsafe(self._disk.fetch, message.adapter, self._answer)
                return
            case RankPing():
                self._link.send(RankPong(message.number))
                return
            case ReadAdapter():
                frame = command_frame(ReadAdapter(self._folders.located(message.adapter)))
            case ForgetAdapter():
                self._folders.forget(message.digest)
                self._loop.call_soon_threadsafe(self._disk.evict, message.digest)
            case StopRank():
                self.was_stopped = True
        self._ranks.write(frame, self._silence_timeout_s)

    def _answer(self, fetched: AdapterFetched) -> None:
        """On the event loop, which the link must not block."""
        with suppress(RuntimeError):  # the session is over
            self._answers.submit(self._tell, fetched)

    def _tell(self, fetched: AdapterFetched) -> None:
        if fetched.folder is not None:
            self._folders.remember(fetched.digest, fetched.folder)
        with suppress(LinkEnded):  # of which ``run`` tells
            self._link.send(fetched)
