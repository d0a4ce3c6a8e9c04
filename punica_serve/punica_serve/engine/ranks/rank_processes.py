"""The processes of a group's other ranks, and the ring by which their leader commands them. Free of torch.

Each takes seconds to import torch, so a leader may start them before it does so itself.
"""

import logging
import os
import time
from collections.abc import Sequence

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.message_ring import RingWriter, make_ring
from punica_serve.engine.ranks.rank_process import RankProcess, rank_command
from punica_serve.protocol import MAX_FRAME_BYTES
from punica_serve.store.packed_folder import PackedCache

log = logging.getLogger(__name__)

#: The module that they run.
_RANK_MODULE = "punica_serve.engine.rank_main"
#: Room for the longest request and many steps. Pages that nobody has written take no memory.
_RING_BYTES = 2 * MAX_FRAME_BYTES


class RankProcesses:
    """Owns them until they have ended: who makes it calls ``end``, or gives it to a ``RankGroup``."""

    def __init__(
        self,
        config: EngineConfig,
        devices: Sequence[str],
        settings: GroupSettings,
        packed_cache: PackedCache | None = None,
    ) -> None:
        """Starts the processes of all ``devices`` but the first, which is the leader's own."""
        self.settings = settings
        num_ranks = len(devices) - 1
        ring_fd = make_ring(_RING_BYTES, num_ranks)
        self.ring = RingWriter(ring_fd, num_ranks)
        self.ranks: list[RankProcess] = []
        self._has_ended = False
        options = _options(config, settings, packed_cache)
        try:
            for index, device in enumerate(devices[1:], 1):
                own = {**options, "device": device, "rank": f"{index}", "size": f"{len(devices)}"}
                own["exchange-timeout-s"] = f"{settings.exchange_limit_s(device)}"
                own["name"] = f"{settings.name} {index}"
                self.ranks.append(RankProcess(index, device, rank_command(_RANK_MODULE, own), ring_fd))
        except BaseException:
            self.end(0.0)
            raise
        finally:
            os.close(ring_fd)  # the memory stays, as long as a process has mapped it

    def kill(self) -> None:
        """Kills all, on any thread, and waits for none: ``end`` does."""
        for rank in self.ranks:
            rank.kill()

    def end(self, timeout_s: float) -> None:
        """Waits until all have ended, and kills those that have not within the timeout. May be called again."""
        if self._has_ended:
            return
        self._has_ended = True
        deadline_s = time.monotonic() + timeout_s
        killed = [rank.name for rank in self.ranks if not rank.stop(deadline_s - time.monotonic())]
        if killed and timeout_s:
            log.warning("%s did not end within %g s and was killed", " and ".join(killed), timeout_s)


def _options(config: EngineConfig, settings: GroupSettings, packed_cache: PackedCache | None) -> dict[str, str]:
    """Options of the command line that all have."""
    options = {
        "engine-config": config.model_dump_json(),
        "log-level": settings.log_level,
        "log-format": settings.log_format,
        "ready-timeout-s": f"{settings.ready_timeout_s}",
    }
    if packed_cache is not None:
        options |= {"cache-folder": f"{packed_cache.folder}", "cache-bytes": f"{packed_cache.budget_bytes}"}
    return options
