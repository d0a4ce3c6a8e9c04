"""The main process of a host that joins a group led on another one: `punica-serve runner --host-index 1`.

It keeps dialling the leader, starts this host's ranks as the leader says, and ends them with the connection. It has no
link to the scheduler: a group is one GPU, which the leader's runner announces.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Never

from punica_runner.host_disk import HostDisk, cache_folder, open_cache
from punica_runner.host_session import HostSession
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.device_groups import place_of, ranks_of
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.group_settings import GroupSettings, Rendezvous
from punica_serve.engine.ranks.host_connection import TcpConnection, dial
from punica_serve.engine.ranks.host_messages import HelloAnswer, HostHello, HostWelcome, RankArrival
from punica_serve.engine.ranks.host_ranks import HostRanks
from punica_serve.engine.ranks.rank_link import LinkEnded, RankLink
from punica_serve.engine.ranks.rank_messages import group_version
from punica_serve.engine.ranks.rank_options import GroupOptions
from punica_serve.errors import ClusterUnavailable, ConfigError, ProtocolError, PunicaError
from punica_serve.links.backoff import Backoff
from punica_serve.process.readiness import READY, notify
from punica_serve.protocol import Refused, encode
from punica_serve.store.packed_folder import PackedCache

log = logging.getLogger(__name__)

#: From a hello to its answer.
_ANSWER_TIMEOUT_S = 10.0
#: A leader that restarts is back within seconds; one that stays away must not be flooded with dials.
_FIRST_WAIT_S, _HIGHEST_WAIT_S = 0.2, 2.0
#: Settings that name files, which each host has where it has them.
_FILES = ("model", "tokenizer", "attention_times", "exchange_times")


async def serve(config: ClusterConfig, token: str, *, host: int) -> Never:
    """Lends this host's devices to the group until cancelled, and leaves no process behind then.

    ``host``: this one's number. Raises ConfigError.
    """
    _check_number(config, host)
    assert config.runner.rendezvous is not None
    level = logging.getLevelName(log.getEffectiveLevel()).lower()
    rendezvous = Rendezvous.of(config.runner.rendezvous, token)
    name = f"host {host} rank"
    settings = GroupSettings.of_runner(config.runner, name, level, config.log.format.value, rendezvous)
    disk = HostDisk(open_cache(config, lambda _came, _left: None), timeout_s=config.runner.fetch_timeout_s)
    try:
        notify(READY)
        await JoinedHost(config, host, settings, disk).keep_joined(rendezvous)
    finally:
        await disk.close()
        log.info("host %d has left the group at %s for good", host, rendezvous)


def _check_number(config: ClusterConfig, host: int) -> None:
    if host >= config.runner.hosts:
        last = config.runner.hosts - 1
        has = f"hosts have the numbers 0 to {last}" if last else "there is no group over several hosts"
        raise ConfigError(f"`--host-index` is {host}, but `runner.hosts` is {last + 1}: {has}", param="runner.hosts")


class JoinedHost:
    """One host, for as many groups as its leader starts, one after the other."""

    def __init__(self, config: ClusterConfig, host: int, settings: GroupSettings, disk: HostDisk) -> None:
        """``settings``: with a rendezvous. ``disk``: the caller's."""
        self._engine = config.engine
        self._packed_cache = PackedCache(cache_folder(config), config.store.cache_bytes)
        self._host, self._num_hosts = host, config.runner.hosts
        self._settings = settings
        self._disk = disk
        places = map(place_of, ranks_of(config.runner.workers[0]))
        self._devices = tuple(device for number, device in places if number == host)

    async def keep_joined(self, rendezvous: Rendezvous) -> Never:
        """Joins group after group. Logs the first failure to join, and what follows only if it is another one."""
        backoff = Backoff(_FIRST_WAIT_S, _HIGHEST_WAIT_S, reset_after_s=_HIGHEST_WAIT_S)
        logged: str | None = None
        while True:
            stayed_s = 0.0
            try:
                link, welcome = await asyncio.to_thread(self._join, rendezvous)
                log.info("joined the group at %s as host %d of %d ranks", rendezvous, self._host, welcome.num_ranks)
                joined_s, logged = time.monotonic(), None
                reason = await self._stay(link, welcome, rendezvous)
                stayed_s = time.monotonic() - joined_s
                log.warning("left the group at %s: %s; joining again", rendezvous, reason)
            except (ClusterUnavailable, ProtocolError) as error:
                if error.message != logged:
                    log.warning("%s; dialling again until it answers", error)
                logged = error.message
            await asyncio.sleep(backoff.after(stayed_s))

    def _join(self, rendezvous: Rendezvous) -> tuple[RankLink, HostWelcome]:
        """Blocks. Raises ClusterUnavailable and ProtocolError."""
        link = RankLink(dial(rendezvous, self._settings.silence_timeout_s), HelloAnswer)
        try:
            link.send(HostHello(group_version(), self._host, self._num_hosts, self._devices))
            if not link.await_message(_ANSWER_TIMEOUT_S):
                raise ClusterUnavailable(f"host 0 at {rendezvous} has not answered within {_ANSWER_TIMEOUT_S:g} s")
            answer = link.receive()
            if isinstance(answer, Refused):
                raise ProtocolError(f"host 0 at {rendezvous} refused this host: {answer.error.message}")
            return link, answer
        except LinkEnded:
            link.close()
            raise ClusterUnavailable(f"host 0 at {rendezvous} has ended the connection") from None
        except PunicaError:
            link.close()
            raise

    async def _stay(self, link: RankLink, welcome: HostWelcome, rendezvous: Rendezvous) -> str:
        """Runs this host's ranks until the group ends. Returns why it has, in words. Raises ClusterUnavailable."""
        devices = {welcome.first_rank + i: device for i, device in enumerate(self._devices)}
        try:
            connections = await asyncio.to_thread(self._dial_ranks, devices, rendezvous)
            try:
                # On this thread, since the kernel ends processes with the thread that has started them.
                ranks = HostRanks(self._options(welcome), devices, connections)
            finally:
                _close(connections)  # the processes have them now
            session = HostSession(link, ranks, self._disk, self._settings.silence_timeout_s)
            running = asyncio.create_task(asyncio.to_thread(session.run))
            try:
                return await asyncio.shield(running)
            finally:
                link.end()
                await asyncio.wait([running])
                session.close()
                await asyncio.to_thread(ranks.end, self._settings.stop_timeout_s if session.was_stopped else 0.0)
        finally:
            link.close()

    def _dial_ranks(self, devices: Mapping[int, str], rendezvous: Rendezvous) -> dict[int, TcpConnection]:
        """The connection of each rank. Blocks. Raises ClusterUnavailable and ProtocolError."""
        connections: dict[int, TcpConnection] = {}
        try:
            for rank in devices:
                connections[rank] = dial(rendezvous, self._settings.silence_timeout_s)
                connections[rank].send_bytes(encode(RankArrival(rank)))
        except OSError:
            _close(connections)
            raise ClusterUnavailable(f"host 0 at {rendezvous} has ended the connection") from None
        except PunicaError:
            _close(connections)
            raise
        return connections

    def _options(self, welcome: HostWelcome) -> GroupOptions:
        engine = EngineConfig.model_validate_json(welcome.engine)
        own_files = {name: getattr(self._engine, name) for name in _FILES}
        engine = engine.model_copy(update=own_files)
        return GroupOptions(engine, self._settings, self._packed_cache, welcome.num_ranks)


def _close(connections: Mapping[int, TcpConnection]) -> None:
    for connection in connections.values():
        connection.close()
