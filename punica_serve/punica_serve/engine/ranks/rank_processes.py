"""A group's other ranks, and the ring by which their leader commands them. Free of torch.

Each takes seconds to import torch, so a leader starts them before it does so itself.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.copy_error import copy_error
from punica_serve.engine.ranks.early_ranks import EarlyRanks
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.joined_futures import joined
from punica_serve.engine.ranks.rank_options import GroupOptions
from punica_serve.engine.ranks.rank_process import FollowingRank
from punica_serve.engine.ranks.rank_ring import RankRing
from punica_serve.engine.ranks.remote_hosts import RemoteHosts
from punica_serve.errors import ConfigError
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedCache

log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"

_Fetch = Callable[[AdapterRef], "Future[Path]"]


class RankProcesses:
    """Owns them until they have ended: who makes it calls ``end``, or gives it to a ``RankGroup``."""

    def __init__(
        self,
        config: EngineConfig,
        devices: Sequence[str],
        settings: GroupSettings,
        packed_cache: PackedCache | None = None,
        early: EarlyRanks | None = None,
    ) -> None:
        """Tells the ranks of this host what they serve. ``early``: those of these ``devices``, if they were started.

        Those of other hosts are started there, by hosts that join at ``settings.rendezvous``. Raises ConfigError.
        """
        self.settings = settings
        early = early or EarlyRanks(devices)
        self.ring, num_hosts = early.ring, early.num_other_hosts
        self.ranks: list[FollowingRank] = [rank for rank, _ in early.ranks]
        self._remote: RemoteHosts | None = None
        self._has_ended = False
        options = GroupOptions(config, settings, packed_cache, len(devices))
        try:
            if num_hosts:
                self._remote = _wait_for_hosts(config, devices, settings, self.ring, len(early.ranks))
            for rank, device in early.ranks:
                rank.begin(options.of(rank.index, device))
        except BaseException:
            self.end(0.0)
            raise
        self._num_own = len(early.ranks)
        self._readers = [rank.name for rank in self.ranks] + [f"host {host}" for host in range(1, num_hosts + 1)]
        self.ranks += self._remote.ranks if self._remote is not None else ()

    @property
    def address(self) -> str:
        """This host, as all ranks reach it."""
        return self._remote.address if self._remote is not None else _LOOPBACK

    @property
    def has_other_hosts(self) -> bool:
        return self._remote is not None

    @property
    def slowest_reader(self) -> str:
        """Who has read least of the ring."""
        return self._readers[self.ring.slowest()]

    def launched_ns(self) -> dict[int, int]:
        """When each rank of this host launched its newest step, by rank: 0 before its first one.

        Other hosts have clocks of their own.
        """
        return {rank.index: self.ring.launched_ns(place) for place, rank in enumerate(self.ranks[: self._num_own])}

    def why_late(self) -> str:
        """See ``RemoteHosts.why_late``."""
        return self._remote.why_late() if self._remote is not None else ""

    def fetching(self, own: _Fetch) -> _Fetch:
        """Fetches an adapter's files to the disks of all hosts; the future has their folder on this one."""
        remote = self._remote
        if remote is None:
            return own

        def fetch(ref: AdapterRef) -> "Future[Path]":
            fetched, everywhere = own(ref), Future[Path]()

            def end(done: "Future[None]") -> None:
                if (error := copy_error(done)) is not None:
                    everywhere.set_exception(error)
                else:
                    everywhere.set_result(fetched.result())

            joined(fetched, *remote.fetch(ref)).add_done_callback(end)
            return everywhere

        return fetch

    def kill(self) -> None:
        """Kills all, on any thread, and waits for none: ``end`` does."""
        for rank in self.ranks:
            rank.kill()
        if self._remote is not None:
            self._remote.leave()

    def end(self, timeout_s: float) -> None:
        """Waits until all have ended, and kills those that have not within the timeout. May be called again."""
        if self._has_ended:
            return
        self._has_ended = True
        deadline_s = time.monotonic() + timeout_s
        killed = [rank.name for rank in self.ranks if not rank.stop(deadline_s - time.monotonic())]
        if killed and timeout_s:
            log.warning("%s did not end within %g s and was killed", " and ".join(killed), timeout_s)
        if self._remote is not None:
            self._remote.close()
        self.ring.close()


def _wait_for_hosts(
    config: EngineConfig, devices: Sequence[str], settings: GroupSettings, ring: RankRing, first_reader: int
) -> RemoteHosts:
    """Raises ConfigError."""
    if settings.rendezvous is None:
        raise ConfigError(
            "a group over several hosts is a runner's: `punica-serve runner` on each of them; here, take the devices of"
            " one host",
            param="runner.hosts",
        )
    return RemoteHosts(config, devices, settings.rendezvous, settings.silence_timeout_s, ring, first_reader)
