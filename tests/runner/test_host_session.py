"""A host's stay in a group: the leader's end of the link is in this process, and its ranks only record frames."""

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from msgspec.structs import replace

from punica_runner.host_disk import HostDisk
from punica_runner.host_session import HostSession
from punica_serve.engine.ranks.host_messages import HostToLeader
from punica_serve.engine.ranks.message_ring import RingStuck
from punica_serve.engine.ranks.rank_link import RankLink
from punica_serve.engine.ranks.rank_messages import ForgetAdapter, RankPing, RankPong, ReadAdapter, StopRank
from punica_serve.engine.ranks.ring_frames import command_frame, host_frame
from punica_serve.protocol import AdapterFetched, AdapterRef, FetchAdapter
from waits import DEADLINE_S, until

_REF = AdapterRef("d" * 64, "s3://bucket/a", 100, {"q_proj": 8})
_ON_LEADER = replace(_REF, uri="/leader/a")


class _Cache:
    """Has every adapter at once."""

    digests: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    async def fetch(self, ref: AdapterRef) -> Path:
        return Path("/here") / ref.digest

    def release(self, digest: str) -> None: ...

    async def forget(self, digest: str) -> bool:
        self.forgotten.append(digest)
        return True

    async def close(self) -> None: ...


class _Ranks:
    """Get frames, until they are full."""

    def __init__(self) -> None:
        self.frames: SimpleQueue[bytes] = SimpleQueue()
        self.is_full = False

    def write(self, frame: bytes, timeout_s: float) -> None:
        if self.is_full:
            raise RingStuck(f"reader 0 has read nothing for {timeout_s:g} s")
        self.frames.put(frame)


@dataclass
class _Group:
    leader: RankLink
    ranks: _Ranks
    cache: _Cache
    #: Why the session ended.
    reason: "asyncio.Task[str]"

    async def got(self) -> bytes:
        return await asyncio.to_thread(self.ranks.frames.get, timeout=DEADLINE_S)

    async def heard(self) -> HostToLeader:
        assert await asyncio.to_thread(self.leader.await_message, DEADLINE_S)
        message: HostToLeader = self.leader.receive()
        return message


@asynccontextmanager
async def _session() -> AsyncIterator[_Group]:
    ours, theirs = multiprocessing.Pipe()
    leader, link = RankLink(ours, HostToLeader), RankLink(theirs, None)
    ranks, cache = _Ranks(), _Cache()
    disk = HostDisk(cache, timeout_s=60.0)  # type: ignore[arg-type]
    session = HostSession(link, ranks, disk, 1.0)  # type: ignore[arg-type]
    running = asyncio.create_task(asyncio.to_thread(session.run))
    try:
        yield _Group(leader, ranks, cache, running)
    finally:
        leader.end()
        await running
        session.close()
        await disk.close()
        leader.close()
        link.close()


async def test_frames_are_passed_on_as_they_are_until_the_end() -> None:
    async with _session() as group:
        frames = [b"step" + bytes(8), command_frame(StopRank())]
        for frame in frames:
            group.leader.send_frame(frame)
        assert [await group.got() for _ in frames] == frames
        group.leader.end()
        assert await group.reason == "its leader has ended it"


async def test_adapters_are_read_from_where_this_host_has_them() -> None:
    async with _session() as group:
        group.leader.send_frame(command_frame(ReadAdapter(_ON_LEADER)))
        assert await group.got() == command_frame(ReadAdapter(_ON_LEADER)), "a folder that all hosts have"
        group.leader.send_frame(host_frame(FetchAdapter(_REF)))
        assert await group.heard() == AdapterFetched(_REF.digest, f"/here/{_REF.digest}")
        group.leader.send_frame(command_frame(ReadAdapter(_ON_LEADER)))
        assert await group.got() == command_frame(ReadAdapter(replace(_REF, uri=f"/here/{_REF.digest}")))
        group.leader.send_frame(command_frame(ForgetAdapter(_REF.digest)))
        assert await group.got() == command_frame(ForgetAdapter(_REF.digest))
        await until(lambda: group.cache.forgotten == [_REF.digest])


async def test_pings_are_answered_by_the_session_itself() -> None:
    async with _session() as group:
        group.leader.send_frame(host_frame(RankPing(3)))
        assert await group.heard() == RankPong(3)
        assert group.ranks.frames.empty()


async def test_it_ends_with_a_rank_that_reads_nothing_or_a_leader_that_speaks_otherwise() -> None:
    async with _session() as group:
        group.ranks.is_full = True
        group.leader.send_frame(b"step")
        assert await group.reason == "a rank on this host reads no commands for 1 s"
    async with _session() as group:
        group.leader.send_frame(b"hosthello")
        assert (await group.reason).startswith("its leader sent an invalid message: ")
