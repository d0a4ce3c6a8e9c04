"""A leader's watch over the other ranks: it reads what they say, pings them, and finds out which one is lost."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

from punica_serve.engine.ranks.doorbell import Doorbell
from punica_serve.engine.ranks.rank_link import LinkEnded
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.ranks.rank_messages import RankFailed, RankHello, RankPing, RankPong
from punica_serve.engine.ranks.rank_process import RankProcess
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
        ranks: Sequence[RankProcess],
        silence_timeout_s: float,
        on_message: Callable[[RankProcess, Any], None],
        on_tick: Callable[[], None],
        on_loss: Callable[[PunicaError], None],
    ) -> None:
        """All are called on this thread. ``on_tick`` may raise RankLost; nothing follows ``on_loss``."""
        self._ranks = {rank.link.fileno(): rank for rank in ranks}
        self._silence_timeout_s = silence_timeout_s
        self._interval_s = silence_timeout_s / _NUM_PINGS
        self._on_message = on_message
        self._on_tick = on_tick
        self._on_loss = on_loss
        self._is_closed = threading.Event()
        self._bell = Doorbell()
        #: The newest answer of each rank, once it has said hello: until then it may be importing torch.
        self._pongs: dict[int, int] = {}
        self._stalls = {fd: StallDetector(0, _NUM_PINGS - 1) for fd in self._ranks}
        self._thread = threading.Thread(target=self._run, name="rank-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the watch, so that ranks may end. Not from the watch's own callbacks."""
        if self._is_closed.is_set():
            return
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
            for fd in wait([*self._ranks, self._bell.fd], max(0.0, next_ping_s - time.monotonic())):
                assert isinstance(fd, int)
                if fd in self._ranks:
                    self._receive(fd)
            if time.monotonic() < next_ping_s:
                continue
            self._on_tick()
            number, next_ping_s = number + 1, time.monotonic() + self._interval_s
            for fd, pong in self._pongs.items():
                rank = self._ranks[fd]
                if self._stalls[fd].observe(pong):
                    raise RankLost(f"{rank.name} has answered no ping for {self._silence_timeout_s:g} s")
                rank.tell(RankPing(number))

    def _receive(self, fd: int) -> None:
        rank = self._ranks[fd]
        try:
            message = rank.link.receive()
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
