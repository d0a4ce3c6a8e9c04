"""All that an engine opens at its start and ends with it: its group, its parts, the loader of adapters, and graphs.

All ranks of a group open the same in the same order, since they wait for each other: see ``RankEngine``.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event

import torch

from punica_serve.base_model.prefill_budget import prefill_budget_of
from punica_serve.base_model.rank import Rank
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.host_loader import Fetch
from punica_serve.engine.adapters.loader import AdapterLoader
from punica_serve.engine.batching.step_planner import StepPlanner
from punica_serve.engine.device_runner import import_runner, make_runner
from punica_serve.engine.engine_parts import EngineParts, open_engine_device
from punica_serve.engine.group_start import devices_of, start_group
from punica_serve.engine.host_tiers import HostTiers, open_early
from punica_serve.engine.led_group import LedGroup
from punica_serve.engine.memory.host_memory_opening import HostMemoryOpening
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.joining import Joining
from punica_serve.engine.ranks.rank_processes import RankProcesses
from punica_serve.engine.step_runner import StepRunner
from punica_serve.errors import PunicaError
from punica_serve.models.collectives import Collectives
from punica_serve.process.start_clock import StartClock
from punica_serve.store.packed_folder import PackedCache


class EngineOpening:
    """The start of one engine. If it fails, it ends what it has opened, and the other ranks."""

    def __init__(
        self,
        config: EngineConfig,
        device: str,
        fetch: Fetch,
        packed_cache: PackedCache | None,
        collectives: Collectives,
        others: GroupSettings | RankProcesses | None,
        on_loss: Callable[[PunicaError], None] | None,
        clock: StartClock,
    ) -> None:
        """See ``Engine``."""
        devices = devices_of(device)
        with clock.phase("device"):
            self.device = open_engine_device(config, devices[0])
        self.group = LedGroup(self.device)
        #: Threads, processes and pinned memory, the newest first.
        self._opened = ExitStack()
        #: Set when a step may have something to do.
        self.work = Event()
        with self.closing_on_failure():
            rank = Rank(0, len(devices)) if len(devices) > 1 else collectives.rank
            host_memory = open_early(config, self.device, rank)
            self._opened.callback(host_memory.close)
            if len(devices) > 1:
                others = others or GroupSettings()
                group, joining = start_group(config, devices, self.device, others, packed_cache, on_loss, clock=clock)
                self.group = LedGroup(self.device, group)
            else:
                joining = Joining.done(collectives)
            with clock.phase("imports"):
                import_runner(self.device)
            self._make(config, fetch, packed_cache, host_memory, joining, clock)

    def close(self) -> None:
        """Ends all but the group, which its caller ends afterwards. May be called again."""
        self._opened.close()

    def _make(
        self,
        config: EngineConfig,
        fetch: Fetch,
        packed_cache: PackedCache | None,
        host_memory: HostMemoryOpening,
        joining: Joining,
        clock: StartClock,
    ) -> None:
        agree = clock.as_wait(self.group.smallest)
        self.parts = EngineParts.make(config, self.device, joining, agree, self._opened, clock)
        with clock.phase("host memory"):
            self.tiers = HostTiers.open(config, self.parts, host_memory.take(clock.at), packed_cache, agree)
        self.loader = self._open_loader(config, fetch)
        self.planner = StepPlanner(
            self.parts.cache,
            max_batch_size=config.max_batch_size,
            prefill_budget=prefill_budget_of(self.parts.share.whole, config.prefill_budget_tokens),
            max_prefills=config.num_prefills,
        )
        with clock.phase("graphs", together=True):
            runner = self._make_runner(config, clock)
        self.runner = self.group.follow(runner, clock)

    def _open_loader(self, config: EngineConfig, fetch: Fetch) -> AdapterLoader:
        """The loader closes before the tiers: its threads write to the host cache's memory."""
        self._opened.callback(self.tiers.close)
        loader = AdapterLoader(
            self.parts.lora_pool,
            self.tiers.cache,
            self.parts.share,
            self.parts.dtype,
            self.work.set,
            self._newest_end,
            fetch,
            self.tiers.packed_store,
            self.group.adapter_peers(self.work.set),
            by_layer=config.starts_by_layer,
            arrival_words=self.tiers.arrival_words,
        )
        self._opened.callback(loader.close)
        return loader

    def _make_runner(self, config: EngineConfig, clock: StartClock) -> StepRunner:
        parts = self.parts
        return make_runner(
            config,
            parts.model,
            parts.cache,
            parts.lora_pool,
            parts.sampler,
            self.loader.adapters.pages,
            self.loader.arrivals.arrival,
            parts.collectives,
            self._opened,
            self.tiers.assist,
            clock.at,
        )

    def _newest_end(self) -> torch.cuda.Event | None:
        """The end of the newest launched step on the device."""
        return self.runner.newest_end

    @contextmanager
    def closing_on_failure(self) -> Iterator[None]:
        """Around what follows in a start: ends everything, and the other ranks, if that fails."""
        try:
            yield
        except BaseException:
            self.close()
            self.group.kill()
            raise
