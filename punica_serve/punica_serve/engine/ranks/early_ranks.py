"""The processes of a group's other ranks on its leader's host, before they know what they serve.

A rank takes seconds to import torch, whatever it serves. So a leader starts its ranks first of all, before it reads its
own settings, and this module imports little.
"""

from collections.abc import Sequence

from punica_serve.config.device_groups import place_of, ranks_of, why_no_group
from punica_serve.engine.ranks.rank_process import RankProcess
from punica_serve.engine.ranks.rank_ring import RankRing


class EarlyRanks:
    """Owns them until ``end``, or until ``RankProcesses`` takes them."""

    def __init__(self, devices: Sequence[str]) -> None:
        """Starts the processes of all ``devices`` of this host but the first, which is the leader's own."""
        places = [place_of(device) for device in devices]
        own = [(index, device) for index, (host, device) in enumerate(places) if index and not host]
        #: They join the group later, with ranks of their own.
        self.num_other_hosts = max(host for host, _ in places)
        self.ring = RankRing(len(own) + self.num_other_hosts)
        #: Each with its device, as that is called on this host.
        self.ranks: list[tuple[RankProcess, str]] = []
        try:
            for reader, (index, device) in enumerate(own):
                self.ranks.append((RankProcess(index, device, self.ring.place(reader)), device))
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Ends them by force."""
        for rank, _ in self.ranks:
            rank.kill()
        for rank, _ in self.ranks:
            rank.stop(0.0)
        self.ring.close()


def start_early(device: str) -> EarlyRanks | None:
    """The other ranks of a worker's device; None if it is no group, or one that is refused later, with the reason."""
    devices = ranks_of(device)
    return None if len(devices) == 1 or why_no_group(devices) else EarlyRanks(devices)
