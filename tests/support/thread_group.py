"""A group whose other ranks are threads of this process: the leader's frames go through queues instead of a ring."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine import engine_opening
from punica_serve.engine.adapters.host_loader import Fetch, no_fetch
from punica_serve.engine.engine import Engine
from punica_serve.engine.engine_parts import EngineParts, alone
from punica_serve.engine.host_tiers import open_early
from punica_serve.engine.rank_engine import RankEngine
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.joining import Joining
from punica_serve.engine.ranks.launch_times import LaunchTimes
from punica_serve.engine.ranks.pending_commands import PendingCommands
from punica_serve.engine.ranks.rank_group import RankGroup
from punica_serve.engine.ranks.rank_messages import Done, StopRank
from punica_serve.engine.ranks.ring_frames import read_frame
from punica_serve.engine.ranks.step_frames import StepEncoder
from punica_serve.engine.ranks.step_wait import StepWait
from punica_serve.process.start_clock import StartClock
from punica_serve.store.packed_folder import PackedCache
from thread_ranks import ThreadCollectives, thread_collectives

_DEADLINE_S = 60.0


class _ThreadRank:
    """A rank that follows its leader."""

    def __init__(
        self,
        config: EngineConfig,
        collectives: ThreadCollectives,
        pending: PendingCommands,
        packed_cache: PackedCache | None,
    ) -> None:
        self.index = collectives.rank.index
        self.name = f"rank {self.index}"
        self.launched_ns = 0
        self.frames: SimpleQueue[bytes] = SimpleQueue()
        #: Once it is ready.
        self.engine: RankEngine | None = None
        self.is_ready = threading.Event()
        self.clock = StartClock()
        self._config = config
        self._collectives = collectives
        self._pending = pending
        self._packed_cache = packed_cache
        self._thread = threading.Thread(target=self._run, name=self.name)
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._follow()
        except BaseException:
            self._collectives.abort()
            raise

    def _follow(self) -> None:
        parts = EngineParts.make(
            self._config, torch.device("cpu"), Joining.done(self._collectives), alone, ExitStack(), self.clock
        )
        host_memory = open_early(self._config, parts.device, self._collectives.rank)
        rank = self.engine = RankEngine(
            self._config,
            parts,
            self._reply,
            self.clock,
            host_memory,
            self._packed_cache,
            on_launch=self._launched,
        )
        self.is_ready.set()
        goes_on = True
        while goes_on:
            frame: Any = read_frame(self.frames.get(timeout=_DEADLINE_S))
            if isinstance(frame, tuple):
                rank.run_step(frame)
            else:
                goes_on = rank.apply(frame)
        rank.close()

    def _launched(self, launched_ns: int) -> None:
        self.launched_ns = launched_ns

    def _reply(self, done: Done) -> None:
        self._pending.end(self.name, done)


class ThreadGroup(RankGroup):
    """Has no processes to start, watch or kill; everything else is that of a group."""

    def __init__(self, config: EngineConfig, others: list[ThreadCollectives], packed_cache: PackedCache | None) -> None:
        self._settings = GroupSettings()
        self._loss = None
        self._pending = PendingCommands()
        self._encoder = StepEncoder()
        self.step_wait = StepWait(_DEADLINE_S)
        self.launches = LaunchTimes()
        self._threads = [_ThreadRank(config, collectives, self._pending, packed_cache) for collectives in others]
        self.ranks: Any = self._threads

    def smallest(self, name: str, value: int) -> int:
        return value

    def await_ready(self) -> list[dict[str, float]]:
        for rank in self._threads:
            assert rank.is_ready.wait(_DEADLINE_S), f"{rank.name} is not ready"
        return [rank.clock.phases for rank in self._threads]

    def launched_early_s(self, own_early_s: float) -> dict[int, float]:
        return self.launches.early_s(own_early_s, {rank.index: rank.launched_ns for rank in self._threads})

    def _write(self, frame: bytes) -> None:
        for rank in self._threads:
            rank.frames.put(frame)

    def close(self) -> None:
        self.send(StopRank())

    def wait(self) -> None:
        for rank in self._threads:
            assert rank.stop(_DEADLINE_S), f"{rank.name} has not ended"

    kill = close


@contextmanager
def thread_group(
    monkeypatch: pytest.MonkeyPatch,
    config: EngineConfig,
    size: int,
    fetch: Fetch = no_fetch,
    packed_cache: PackedCache | None = None,
) -> Iterator[Engine]:
    """The engine that leads a group of CPUs; audited and closed at the end. ``packed_cache``: all ranks'."""

    def start(config: EngineConfig, *_: Any, **__: Any) -> tuple[ThreadGroup, Joining]:
        own, *others = thread_collectives(size)
        return ThreadGroup(config, others, packed_cache), Joining.done(own)

    with monkeypatch.context() as patched:
        patched.setattr(engine_opening, "start_group", start)
        engine = Engine(config, ",".join(["cpu"] * size), fetch, packed_cache)
    try:
        yield engine
        engine.check_invariants()
    finally:
        engine.close()
