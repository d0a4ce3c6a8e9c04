"""A rank that follows its leader: it runs the leader's steps, and loads adapters to the pages that the leader names.

It plans nothing and reports no tokens. Its steps exchange what the leader's do, so both get the same tokens.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.copy_error import copy_error
from punica_serve.engine.adapters.layer_arrival import ArrivalFailed
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.engine.device_runner import make_runner
from punica_serve.engine.engine_parts import Agree, EngineParts, alone
from punica_serve.engine.host_tiers import HostTiers
from punica_serve.engine.memory.host_memory_opening import HostMemoryOpening
from punica_serve.engine.ranks.launch_times import LaunchTimes
from punica_serve.engine.ranks.rank_adapters import RankAdapters
from punica_serve.engine.ranks.rank_assist import RankAssist
from punica_serve.engine.ranks.rank_copies import RankCopies
from punica_serve.engine.ranks.rank_messages import (
    AssistStep,
    AuditRank,
    AwaitQueued,
    CopyAdapter,
    Done,
    ForgetAdapter,
    FreeAdapter,
    Introduce,
    RankAudit,
    RankCommand,
    ReadAdapter,
    SlowCopies,
    StopRank,
)
from punica_serve.engine.ranks.ring_frames import PackedStep
from punica_serve.engine.ranks.step_frames import StepDecoder
from punica_serve.errors import PunicaError, RequestFailed
from punica_serve.process.start_clock import StartClock
from punica_serve.protocol import WireError
from punica_serve.store.packed_folder import PackedCache


class RankEngine:
    """One rank's share of an engine. All methods run on one thread."""

    def __init__(
        self,
        config: EngineConfig,
        parts: EngineParts,
        reply: Callable[[Done], None],
        clock: StartClock,
        host_memory: HostMemoryOpening,
        packed_cache: PackedCache | None = None,
        agree: Agree = alone,
        *,
        on_launch: Callable[[int], None],
    ) -> None:
        """``reply`` may be called on any thread. ``host_memory``: its cache's. Raises ConfigError.

        ``on_launch`` is told when a step was launched, in ns of the monotonic clock.
        """
        self._reply = reply
        self._on_launch = on_launch
        self._cache = parts.cache
        self._steps = StepDecoder(config.context_of(parts.share), parts.cache.page_size, parts.share.spec)
        with clock.phase("host memory"):
            tiers = HostTiers.open(config, parts, host_memory.take(clock.at), packed_cache, agree)
        reader = AdapterReader(tiers.cache, parts.share, parts.dtype, parts.device, tiers.packed_store)
        self._lora_pool = parts.lora_pool
        self._copies = RankCopies(
            parts.lora_pool, tiers.cache, by_layer=config.starts_by_layer, arrival_words=tiers.arrival_words
        )
        self._assist = RankAssist(tiers.assist, tiers.cache, self._copies, reply)
        self._adapters = RankAdapters(self._copies, tiers.cache, reader)
        self._launches = LaunchTimes()
        self._opened = ExitStack()
        with clock.phase("graphs", together=True):
            self._runner = make_runner(
                config,
                parts.model,
                parts.cache,
                parts.lora_pool,
                parts.sampler,
                self._copies.pages,
                self._copies.arrival,
                parts.collectives,
                self._opened,
                tiers.assist,
                clock.at,
            )

    @property
    def is_running(self) -> bool:
        """Whether the newest step is on the device."""
        end = self._runner.newest_end
        return end is not None and not end.query()

    def run_step(self, words: PackedStep) -> None:
        """Launches a step. Its tokens stay here. All ranks give up one whose adapter will not arrive on one of them."""
        read_ns = time.monotonic_ns()
        plan = self._assist.begin(self._steps.decode(words))
        self._cache.clear(self._steps.empty_pages)
        decoded_ns = time.monotonic_ns()
        with suppress(ArrivalFailed):  # the leader plans it anew
            launched = self._runner.launch(plan)
            self._on_launch(self._launches.add(read_ns, decoded_ns, *launched.phases_ns))
        self._steps.advance()
        self._assist.finish(plan, self._runner.newest_end)
        used = (digest for sequence in plan.sequences if (digest := sequence.digest) is not None)
        self._copies.mark_used(used, self._runner.newest_end)

    def apply(self, command: RankCommand) -> bool:
        """Whether to go on."""
        match command:
            case Introduce():
                self._steps.introduce(command.number, command.request)
            case ReadAdapter():
                self._adapters.read(command.adapter)
            case CopyAdapter():
                copied = self._adapters.copy(command.adapter, command.pages)
                copied.add_done_callback(lambda future: self._reply(_done(command.number, future)))
            case AwaitQueued():
                queued = self._copies.queued(command.digest)
                queued.add_done_callback(lambda future: self._reply(_done(command.number, future)))
            case FreeAdapter():
                self._adapters.free(command.digest)
            case ForgetAdapter():
                self._adapters.forget(command.digest)
            case AssistStep():
                self._assist.expect(command.number)
            case SlowCopies():
                self._lora_pool.copies_per_page = command.factor
            case AuditRank():
                audit = RankAudit(self._steps.known, self._copies.pages_by_digest, self._launches.newest_ns)
                self._reply(Done(command.number, audit=audit))
            case StopRank():
                return False
        return True

    def close(self) -> None:
        """Ends steps and copies in flight, its graphs and processes, and what it compiles."""
        self._opened.close()
        if self._runner.newest_end is not None:
            self._runner.newest_end.synchronize()
        self._assist.close()
        self._adapters.close()
        del self._runner


def _done(number: int, future: "Future[None]") -> Done:
    error = copy_error(future)
    if error is None:
        return Done(number)
    kind = error if isinstance(error, PunicaError) else RequestFailed(f"{type(error).__name__}: {error}")
    return Done(number, WireError.of(kind))
