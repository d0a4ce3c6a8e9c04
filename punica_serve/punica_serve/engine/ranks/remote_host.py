"""Another host of a group, as the leader sees it: its ranks, the frames that go there, and adapters' files there.

One thread sends what the ring brings, so that a slow network holds the step loop up no more than a slow reader of the
ring does; another receives. Pings tell whether the host passes frames on: its ranks answer pings of their own, also
while nothing comes from it.
"""

import logging
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from punica_serve.engine.ranks.doorbell import Doorbell
from punica_serve.engine.ranks.host_messages import HostToLeader
from punica_serve.engine.ranks.message_ring import RingReader, RingStuck
from punica_serve.engine.ranks.rank_link import LinkEnded, RankLink
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.ranks.rank_messages import RankPing, RankPong
from punica_serve.engine.ranks.remote_rank import RemoteRank
from punica_serve.engine.ranks.ring_frames import host_frame
from punica_serve.errors import AdapterRejected, ProtocolError, StoreUnavailable
from punica_serve.process.stall_detector import StallDetector
from punica_serve.protocol import AdapterFetched, AdapterRef, FetchAdapter

log = logging.getLogger(__name__)

#: The longest sleep of a thread: a safeguard only, since whatever comes wakes it.
_SLEEP_S = 1.0
#: Pings within the silence timeout.
_NUM_PINGS = 5
#: Longest wait for a thread's end.
_JOIN_S = 5.0


class RemoteHost:
    """Made before it joins."""

    def __init__(
        self,
        number: int,
        devices: Sequence[str],
        first_rank: int,
        reader: tuple[RingReader, Doorbell],
        silence_timeout_s: float,
    ) -> None:
        """``devices``: as that host calls them. ``reader``: of the leader's ring, for this host."""
        self.number = number
        self.devices = tuple(devices)
        self.ranks = [RemoteRank(first_rank + i, f"{number}/{device}") for i, device in enumerate(devices)]
        self._ring, self._bell = reader
        self._silence_timeout_s = silence_timeout_s
        self._num_pings, self._next_ping_s = 0, 0.0
        #: The newest answer to a ping; None: none yet, since the host may be starting its ranks.
        self._pong: int | None = None
        self._stall = StallDetector(0, _NUM_PINGS - 1)
        self._link: RankLink | None = None
        self._is_over = threading.Event()
        self._asked: queue.SimpleQueue[FetchAdapter] = queue.SimpleQueue()
        self._fetches: dict[str, Future[None]] = {}
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=work, name=f"host-{number}-{name}", daemon=True)
            for name, work in (("sender", self._send), ("receiver", self._receive))
        ]

    @property
    def has_joined(self) -> bool:
        return self._link is not None

    def join(self, link: RankLink) -> None:
        """It has come, by this link, which this object owns; its ranks follow."""
        self._link = link
        for thread in self._threads:
            thread.start()

    def fetch(self, ref: AdapterRef) -> "Future[None]":
        """Asks for an adapter's files on that host's disk. Never blocks. Calls before the answer share it.

        Fails with AdapterRejected if a retry can't help, or StoreUnavailable.
        """
        fetched: Future[None] = Future()
        with self._lock:
            is_over = self._is_over.is_set()
            if not is_over and ref.digest in self._fetches:
                return self._fetches[ref.digest]
            if not is_over:
                self._fetches[ref.digest] = fetched
        if is_over:
            fetched.set_exception(self._gone())
        else:
            self._asked.put(FetchAdapter(ref))
            self._bell.ring()
        return fetched

    def leave(self) -> None:
        """Ends the connection, and with it that host's ranks. On any thread; may be called again."""
        with self._lock:
            was_over = self._is_over.is_set()
            self._is_over.set()
            fetches, self._fetches = list(self._fetches.values()), {}
        if was_over:
            return
        if self._link is not None:
            self._link.end()
        for rank in self.ranks:
            rank.lose_host()
        for fetch in fetches:
            fetch.set_exception(self._gone())

    def close(self) -> None:
        """Leaves nothing open. Nobody may ring the ring's bells any more."""
        self.leave()
        self._bell.ring()
        if self._link is not None:
            for thread in self._threads:
                thread.join(_JOIN_S)
            if not any(thread.is_alive() for thread in self._threads):
                self._link.close()

    def _send(self) -> None:
        assert self._link is not None
        try:
            while not self._is_over.is_set():
                if (frame := self._next_frame()) is None:
                    self._bell.wait(min(_SLEEP_S, max(0.0, self._next_ping_s - time.monotonic())))
                else:
                    self._link.send_frame(frame)
        except (LinkEnded, RingStuck, RankLost) as error:
            self._lose(str(error) or "its connection has ended")

    def _next_frame(self) -> bytes | None:
        """Raises RankLost for a host that answers no pings."""
        if (now_s := time.monotonic()) >= self._next_ping_s:
            self._next_ping_s = now_s + self._silence_timeout_s / _NUM_PINGS
            return host_frame(self._ping())
        try:
            return host_frame(self._asked.get_nowait())
        except queue.Empty:
            return self._ring.read()

    def _ping(self) -> RankPing:
        if self._pong is not None and self._stall.observe(self._pong):
            raise RankLost(f"it has answered no ping for {self._silence_timeout_s:g} s")
        self._num_pings += 1
        return RankPing(self._num_pings)

    def _receive(self) -> None:
        assert self._link is not None
        try:
            while not self._is_over.is_set():
                if self._link.await_message(_SLEEP_S):
                    self._take(self._link.receive())
        except (LinkEnded, ProtocolError) as error:
            self._lose(str(error) or "its connection has ended")

    def _lose(self, reason: str) -> None:
        if not self._is_over.is_set():
            log.warning("host %d has left the group: %s", self.number, reason)
        self.leave()

    def _take(self, message: HostToLeader) -> None:
        if isinstance(message, RankPong):
            self._pong = message.number
        else:
            self._end_fetch(message)

    def _end_fetch(self, message: AdapterFetched) -> None:
        with self._lock:
            fetch = self._fetches.pop(message.digest, None)
        if fetch is None:
            return  # the group is over
        if message.error is None:
            fetch.set_result(None)
        else:
            kind = AdapterRejected if message.is_permanent else StoreUnavailable
            fetch.set_exception(kind(f"host {self.number}: {message.error.message}"))

    def _gone(self) -> StoreUnavailable:
        return StoreUnavailable(f"host {self.number} has left the group")
