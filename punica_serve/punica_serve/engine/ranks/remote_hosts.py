"""The hosts that join a group: its leader waits for them at the rendezvous, and tells each which ranks to start."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future

from punica_serve.config.device_groups import place_of
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.group_listener import GroupListener
from punica_serve.engine.ranks.group_settings import Rendezvous
from punica_serve.engine.ranks.host_connection import TcpConnection
from punica_serve.engine.ranks.host_messages import FirstMessage, HostHello, HostToLeader, HostWelcome, RankArrival
from punica_serve.engine.ranks.rank_link import RankLink
from punica_serve.engine.ranks.rank_messages import RankToLeader, group_version
from punica_serve.engine.ranks.rank_ring import RankRing
from punica_serve.engine.ranks.remote_host import RemoteHost
from punica_serve.engine.ranks.remote_rank import RemoteRank
from punica_serve.errors import ProtocolError
from punica_serve.protocol import AdapterRef, Refused, WireError

log = logging.getLogger(__name__)


class RemoteHosts:
    """Listens until it is closed. Each host joins once: a group that has lost one is over."""

    def __init__(
        self,
        config: EngineConfig,
        devices: Sequence[str],
        rendezvous: Rendezvous,
        silence_timeout_s: float,
        ring: RankRing,
        first_reader: int,
    ) -> None:
        """``devices``: of all ranks. ``first_reader``: of the hosts' places in the ring. Raises ConfigError."""
        self._config = config
        self._num_ranks = len(devices)
        self._rendezvous = rendezvous
        self.hosts = _hosts(devices, ring, first_reader, silence_timeout_s)
        self._listener = GroupListener(rendezvous, silence_timeout_s, self._admit)
        log.info("waiting at %s for %s", rendezvous, _named(self.absent))

    @property
    def address(self) -> str:
        """The leader's host, as the others reach it."""
        return self._rendezvous.host

    @property
    def ranks(self) -> list[RemoteRank]:
        return [rank for host in self.hosts for rank in host.ranks]

    @property
    def absent(self) -> list[int]:
        """The numbers of the hosts that have not joined."""
        return [host.number for host in self.hosts if not host.has_joined]

    def why_late(self) -> str:
        """Names the hosts that have not joined, and what to do, for an error; "" if all have."""
        if not (absent := self.absent):
            return ""
        return (
            f": {_named(absent)} did not come to {self._rendezvous}; run `punica-serve runner --host-index {absent[0]}`"
            " there"
        )

    def fetch(self, ref: AdapterRef) -> "list[Future[None]]":
        """See ``RemoteHost.fetch``."""
        return [host.fetch(ref) for host in self.hosts]

    def leave(self) -> None:
        """Ends the connections of all hosts, and with them their ranks. On any thread."""
        for host in self.hosts:
            host.leave()

    def close(self) -> None:
        """Ends all connections, and listens no more. May be called again."""
        self._listener.close()
        for host in self.hosts:
            host.close()

    def _admit(self, message: FirstMessage, connection: TcpConnection) -> None:
        """Raises ProtocolError for what can't join, after it was told, OSError and LinkEnded."""
        try:
            if isinstance(message, HostHello):
                self._admit_host(message, connection)
            else:
                self._admit_rank(message, connection)
        except BaseException:
            connection.close()
            raise

    def _admit_host(self, hello: HostHello, connection: TcpConnection) -> None:
        link = RankLink(connection, HostToLeader)
        if refusal := self._why_not(hello):
            link.send(Refused(WireError(ProtocolError.code, refusal)))
            raise ProtocolError(refusal)
        host = next(host for host in self.hosts if host.number == hello.host)
        link.send(HostWelcome(self._config.model_dump_json(), self._num_ranks, host.ranks[0].index))
        host.join(link)
        log.info("host %d has joined with %s", host.number, ", ".join(host.devices))

    def _why_not(self, hello: HostHello) -> str | None:
        """Why a host can't join; None if it can."""
        if hello.version != (own := group_version()):
            return f"host {hello.host} runs version {hello.version}, host 0 {own}; run the same release on both"
        num_hosts = len(self.hosts) + 1  # and the leader's
        if hello.num_hosts != num_hosts:
            theirs, ours = f"host {hello.host} has `runner.hosts: {hello.num_hosts}`", f"host 0 {num_hosts}"
            return f"{theirs}, {ours}; set the same on all hosts"
        host = next((host for host in self.hosts if host.number == hello.host), None)
        if host is None:
            return f"there is no host {hello.host} in this group of {num_hosts}; see `runner.hosts`"
        if hello.devices != host.devices:
            theirs, ours = (",".join(devices) for devices in (hello.devices, host.devices))
            return f"host {hello.host} has the devices {theirs}, host 0 {ours}; set the same `runner.devices` on both"
        if host.has_joined:
            return f"host {hello.host} has joined already; give each host a number of its own by `--host-index`"
        return None

    def _admit_rank(self, arrival: RankArrival, connection: TcpConnection) -> None:
        rank = next((rank for rank in self.ranks if rank.index == arrival.rank), None)
        if rank is None or rank.joined.done():
            raise ProtocolError(f"rank {arrival.rank} is not awaited")
        rank.join(RankLink(connection, RankToLeader))


def _hosts(devices: Sequence[str], ring: RankRing, first_reader: int, silence_timeout_s: float) -> list[RemoteHost]:
    places = [(index, *place_of(device)) for index, device in enumerate(devices)]
    hosts = []
    for number in range(1, max(host for _, host, _ in places) + 1):
        own = [(index, device) for index, host, device in places if host == number]
        reader = ring.reader(first_reader + number - 1)
        hosts.append(RemoteHost(number, [device for _, device in own], own[0][0], reader, silence_timeout_s))
    return hosts


def _named(hosts: Sequence[int]) -> str:
    return " and ".join(f"host {number}" for number in hosts)
