"""A leader's watch over the other ranks: it reads what they say, pings them, and finds out which one is lost."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import wait
from typing import Any

from punica_serve.engine.ranks.doorbell import Doorbell
from punica_serve.engine.ranks.rank_link import LinkEnded, RankLink
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.ranks.rank_messages import RankFailed, RankHello, RankPing, RankPong
from punica_serve.engine.ranks.rank_process import FollowingRank
from punica_serve.errors import ConfigError, ProtocolError, PunicaError
from punica_serve.process.stall_detector import StallDetector

log = logging.getLogger(__name__)

#: Pings within the silence timeout. Answers that stop between two of them have been missed for it by the fifth.
_NUM_PINGS = 5
#: Longest wait for the thread's end.
_JOIN_S = 5.0


class RankWatch:
    """A thread of its own, which never waits for anything but messages."""

    def __init__(
        self,
        ranks: Sequence[FollowingRank],
        silence_timeout_s: float,
        on_message: Callable[[FollowingRank, Any], None],
        on_tick: Callable[[], None],
        on_loss: Callable[[PunicaError], None],
    ) -> None:
        """All are called on this thread. ``on_tick`` may raise RankLost; nothing follows ``on_loss``."""
        #: Those whose links have come, by file descriptor.
        self._ranks: dict[int, tuple[FollowingRank, RankLink]] = {}
        self._joining: queue.SimpleQueue[FollowingRank] = queue.SimpleQueue()
        self._silence_timeout_s = silence_timeout_s
        self._interval_s = silence_timeout_s / _NUM_PINGS
        self._on_message = on_message
        self._on_tick = on_tick
        self._on_loss = on_loss
        self._is_closed = threading.Event()
        self._bell = Doorbell()
        #: Held while the bell is rung or closed.
        self._bell_lock = threading.Lock()
        #: The newest answer of each rank, once it has said hello: until then it may be importing torch.
        self._pongs: dict[int, int] = {}
        self._stalls: dict[int, StallDetector] = {}
        for rank in ranks:
            rank.joined.add_done_callback(partial(self._join, rank))
        self._thread = threading.Thread(target=self._run, name="rank-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the watch, so that ranks may end. Not from the watch's own callbacks."""
        if self._is_closed.is_set():
            return
        with self._bell_lock:
            self._is_closed.set()
            self._bell.ring()
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._bell.close()

    def _run(self) -> None:
        """Nothing watches a group after an error of ours, so that ends the group too."""
        try:
            self._watch()
        except PunicaError as loss:
            self._report(loss)
        except Exception as error:
            log.exception("the watch over the ranks has failed")
            self._report(RankLost(f"the watch over the ranks has failed ({type(error).__name__}: {error})"))

    def _report(self, loss: PunicaError) -> None:
        if not self._is_closed.is_set():
            self._on_loss(loss)

    def _watch(self) -> None:
        number, next_ping_s = 0, time.monotonic()
        while not self._is_closed.is_set():
            self._take_joined()
            for fd in wait([*self._ranks, self._bell.fd], max(0.0, next_ping_s - time.monotonic())):
                assert isinstance(fd, int)
                if fd == self._bell.fd:
                    self._bell.wait(0.0)
                else:
                    self._receive(fd)
            if time.monotonic() < next_ping_s:
                continue
            self._on_tick()
            number, next_ping_s = number + 1, time.monotonic() + self._interval_s
            for fd, pong in self._pongs.items():
                rank, _ = self._ranks[fd]
                if self._stalls[fd].observe(pong):
                    raise RankLost(f"{rank.name} has answered no ping for {self._silence_timeout_s:g} s")
                rank.tell(RankPing(number))

    def _join(self, rank: FollowingRank, _: object) -> None:
        """On any thread: its link has come, or never will."""
        self._joining.put(rank)
        with self._bell_lock:
            if not self._is_closed.is_set():
                self._bell.ring()

    def _take_joined(self) -> None:
        """Raises RankLost for a rank that never joins."""
        while not self._joining.empty():
            rank = self._joining.get()
            link = rank.joined.result()
            self._ranks[link.fileno()] = (rank, link)
            self._stalls[link.fileno()] = StallDetector(0, _NUM_PINGS - 1)

    def _receive(self, fd: int) -> None:
        rank, link = self._ranks[fd]
        try:
            message = link.receive()
        except LinkEnded:
            raise RankLost(f"{rank.name} died: {rank.end_reason()}") from None
        except ProtocolError as error:
            raise RankLost(f"{rank.name} sent an invalid message: {error}") from None
        match message:
            case RankPong():
                self._pongs[fd] = message.number
            case RankFailed():
                kind = ConfigError if message.permanent else RankLost
                raise kind(f"{rank.name}: {message.error.message}", param=message.error.param)
            case RankHello():
                self._pongs[fd] = 0
                self._on_message(rank, message)
            case _:
                self._on_message(rank, message)
