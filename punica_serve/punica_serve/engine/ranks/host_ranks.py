"""The ranks of a host that has joined a group: their processes, and the ring by which they get its frames."""

import logging
import time
from collections.abc import Mapping

from punica_serve.engine.ranks.host_connection import TcpConnection
from punica_serve.engine.ranks.rank_child import RankChild
from punica_serve.engine.ranks.rank_options import GroupOptions
from punica_serve.engine.ranks.rank_process import rank_name
from punica_serve.engine.ranks.rank_ring import RankRing

log = logging.getLogger(__name__)


class HostRanks:
    """Owns the processes until ``end``."""

    def __init__(self, options: GroupOptions, devices: Mapping[int, str], links: Mapping[int, TcpConnection]) -> None:
        """``devices``: of this host, by rank. ``links``: of each rank to the leader, the caller's."""
        self._ring = RankRing(len(devices))
        self._children: dict[str, RankChild] = {}
        try:
            for reader, (index, device) in enumerate(devices.items()):
                child = RankChild(self._ring.place(reader), links[index].fileno())
                self._children[rank_name(index, device)] = child
                child.begin(options.of(index, device))
        except BaseException:
            self.end(0.0)
            raise

    def write(self, frame: bytes, timeout_s: float) -> None:
        """Raises RingStuck for a rank that has read nothing for so long."""
        self._ring.write(frame, timeout_s)

    def end(self, timeout_s: float) -> None:
        """Waits until all have ended, and kills those that have not within the timeout. Logs which had ended."""
        deadline_s = time.monotonic() + timeout_s
        for name, child in self._children.items():
            if (reason := child.end_reason(0.0)) is not None:
                log.info("%s has ended: %s", name, reason)
        for child in self._children.values():
            child.stop(deadline_s - time.monotonic())
        self._ring.close()
