"""The engine of one device: requests in, tokens out, one step at a time.

A step decides (planner), launches (runner) and accounts (commit); nothing else happens in it. On a GPU steps overlap:
each is planned and launched while the device runs the one before, whose tokens are committed afterwards. New, moved and
recovered requests look the same: the engine prefills prompt and generated tokens and goes on.
"""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.host_loader import Fetch, no_fetch
from punica_serve.engine.adapters.load_trace import LoadTrace
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.cold_starts import ColdStarts
from punica_serve.engine.engine_opening import EngineOpening
from punica_serve.engine.in_flight import InFlight
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.launch_times import Phase
from punica_serve.engine.ranks.rank_process import FollowingRank
from punica_serve.engine.ranks.rank_processes import RankProcesses
from punica_serve.engine.request_check import RequestCheck
from punica_serve.engine.request_table import RequestTable
from punica_serve.engine.step_clock import StepClock
from punica_serve.engine.step_commit import commit
from punica_serve.engine.step_output import Failure, StepOutput
from punica_serve.errors import InvalidRequest, PunicaError
from punica_serve.models.collectives import SINGLE_RANK, Collectives
from punica_serve.paging.kv_window import kv_window_of
from punica_serve.paging.model_digest import prefix_caching_of
from punica_serve.paging.prefix_hash import prefix_hash
from punica_serve.paging.prefix_hints import PrefixHints
from punica_serve.process.start_clock import StartClock, StartTimes
from punica_serve.protocol import AdapterRef, LoraGroup, Request
from punica_serve.store.packed_folder import PackedCache

log = logging.getLogger(__name__)


class Engine:
    """One base model on one device, or on a group of them whose ranks it leads. Not thread-safe, but for ``wake``.

    Raises ModelRejected if the model can't be served and ConfigError if the device or the settings can't work.
    """

    def __init__(
        self,
        config: EngineConfig,
        device: str = "cpu",
        fetch: Fetch = no_fetch,
        packed_cache: PackedCache | None = None,
        collectives: Collectives = SINGLE_RANK,
        others: GroupSettings | RankProcesses | None = None,
        on_loss: Callable[[PunicaError], None] | None = None,
        clock: StartClock | None = None,
    ) -> None:
        """``packed_cache`` keeps packed adapters on the host's disk, so that they load faster the next time.

        ``collectives``: of the group in which this engine has a share of the model, if it does not lead that group.
        ``device``: several, with commas between, are a group: this process is its leader and starts the others within
        the deadlines of ``others``, unless that is they, started before: where this raises, they end with this process.
        ``on_loss`` is called, on another thread, when one of them is lost. ``clock``: of a start that began before.
        """
        clock = clock or StartClock()
        self._opening = EngineOpening(config, device, fetch, packed_cache, collectives, others, on_loss, clock)
        self.device = self._opening.device
        self._group, self._work = self._opening.group, self._opening.work
        with self._opening.closing_on_failure():
            self._take(self._opening, config)
        #: Where the seconds of the start went.
        self.start_times = StartTimes.of(clock, self._group.phases)
        log.info("ready in %s", self.start_times)

    def _take(self, opening: EngineOpening, config: EngineConfig) -> None:
        """Takes what was opened, and what steps need besides."""
        parts, planner = opening.parts, opening.planner
        #: This rank's share of the model; all of it in a group of one.
        self.share = parts.share
        self.model_config, self._cache, self._lora_pool = parts.share.whole, parts.cache, parts.lora_pool
        self.max_context = config.context_of(self.model_config)
        self.prefix_caching = prefix_caching_of(config, self.model_config)
        self.kv_window = kv_window_of(config, self.model_config)
        self._sampler = parts.sampler
        #: Adapters in host memory.
        self.host_cache = opening.tiers.cache
        self._loader, self._runner = opening.loader, opening.runner
        self._in_flight: InFlight | None = None
        self._clock = StepClock()
        self._check = RequestCheck(
            self.model_config.vocab_size, self.max_context, planner.longest_request, self._lora_pool
        )
        self._cold_starts = ColdStarts(planner, self._loader, self.host_cache, opening.tiers.assist, self._clock)
        self._requests = RequestTable(planner, self._loader, self._cold_starts)

    @property
    def ranks(self) -> tuple[FollowingRank, ...]:
        """The processes of the group's other ranks."""
        return self._group.ranks

    @property
    def num_kv_pages(self) -> int:
        return self._cache.pages.num_pages

    @property
    def num_free_kv_pages(self) -> int:
        return self._cache.pages.num_free

    @property
    def num_shared_kv_pages(self) -> int:
        """Holders of pages beyond each page's first."""
        return self._cache.pages.num_shared

    @property
    def num_known_kv_pages(self) -> int:
        """Pages that a request could find, held by others or free."""
        return self._cache.pages.num_known

    @property
    def prefix_tokens(self) -> tuple[int, int]:
        """Tokens of all requests that were admitted to share pages, and those of them that were found."""
        return self._cache.prefixes.num_queries, self._cache.prefixes.num_hits

    @property
    def prefix_hints(self) -> PrefixHints:
        """The beginnings of prompts that have become known or were found."""
        return self._cache.prefixes.hints

    @property
    def num_lora_pages(self) -> dict[LoraGroup, int]:
        return self._lora_pool.num_pages

    @property
    def resident_adapters(self) -> tuple[str, ...]:
        """Digests of the adapters on the device."""
        return self._loader.adapters.resident

    def take_load_traces(self) -> tuple[LoadTrace, ...]:
        """The loads that requests began since the last call, the newest ones. Some may still go on."""
        return self._loader.take_traces()

    @property
    def is_copying(self) -> bool:
        """Whether an adapter that a request waits for is being copied from host memory to the device."""
        return self._loader.adapters.has_unfinished_copies

    @property
    def longest_request(self) -> int:
        """Tokens, prompt and answer, of the longest request that this engine can finish by itself."""
        return self._check.longest

    @property
    def num_requests(self) -> int:
        """Requests that were added and have not ended."""
        return len(self._requests)

    @property
    def has_runnable(self) -> bool:
        """Whether a step could run anything now: not while all await adapters, or one has outgrown the KvCache."""
        is_busy = self._in_flight is not None and self._requests.has_running
        return is_busy or self._requests.has_runnable

    def add(self, request: Request, *, may_move: bool = False) -> None:
        """Adds a request, and reserves its pages if there is room, else at a later step.

        Raises InvalidRequest for a request that this engine could never finish. One that ``may_move`` may be too long
        for the KvCache: it is reported as preempted and waits until the caller cancels it.
        """
        if request.request_id in self._requests:
            raise InvalidRequest(f"request {request.request_id!r} is running already", param="request_id")
        self._check(request, may_move=may_move)
        if request.sampling.seed is None:
            sampling = msgspec.structs.replace(request.sampling, seed=secrets.randbits(64))
            request = msgspec.structs.replace(request, sampling=sampling)
        sequence = Sequence.of(request, self.max_context, self.model_config.spec)
        if self.prefix_caching is not None:
            settings, page_size = self.prefix_caching, self._cache.page_size
            sequence.prefix_hash = prefix_hash(request, settings, page_size, sequence.rotary_start, sequence.invoked_at)
        self._requests.add(sequence)
        self._requests.admit()
        self._work.set()

    def cancel(self, request_id: str) -> None:
        """Drops a request and frees its pages at once. Unknown ids are ignored."""
        if request_id in self._requests:
            self._requests.drop(request_id)
            self._work.set()

    def prefetch(self, ref: AdapterRef, *, pin: bool | None = None) -> None:
        """Loads an adapter before a request needs it. ``pin`` keeps it in host memory; False only unpins it."""
        self._loader.prefetch(ref, pin=pin)
        self._work.set()

    def prefetch_to_host(self, ref: AdapterRef) -> None:
        """Loads an adapter to host memory alone, which a request may need: a hint, with errors told at its use."""
        self._loader.queue_to_host(ref)
        self._work.set()

    def evict(self, digest: str) -> None:
        """Frees an adapter's memory once no request uses it. A later request simply reloads it."""
        self._loader.evict(digest)

    def slow_copies(self, factor: int) -> None:
        """Emulates a slower link, for benchmarks: adapters' bytes are copied to each device ``factor`` times."""
        self._lora_pool.copies_per_page = factor
        self._group.slow_copies(factor)

    def step(self) -> StepOutput:
        """Launches one invocation over all requests that can run, and returns the results of the newest that ended."""
        self._work.clear()
        failures = self._requests.drop_failed_loads()
        self._requests.admit()
        self._requests.prefetch_to_host()
        failures += self._await_copies()
        in_flight = self._in_flight
        forecast = self._clock.forecast(in_flight)
        plan, preempted = self._requests.plan(forecast)
        if preempted:
            self._work.set()  # their adapters can be evicted, so the next step may run others
        launched = self._cold_starts.launch(plan, forecast, self._runner) if plan else None
        if plan and not launched:
            self._work.set()
        if launched and in_flight:
            self._clock.launched(forecast, is_late=launched.step.is_late, has_ended=in_flight.step.has_ended)
        ended = launched
        if self._runner.overlap_scheduling:
            ended, self._in_flight = self._in_flight, launched
        if ended:
            output = commit(ended, self._requests, self._sampler, self._clock)
        else:
            output = StepOutput(has_run=launched is not None)
        margin = self._group.with_ranks(output.margin)
        return replace(output, failures=failures + output.failures, preempted=preempted, margin=margin)

    def wait_for_requests(self) -> bool:
        """Waits as long as the device is surely busy, if the next step has room for a request that may come meanwhile.

        To be called before requests are added for the next step, and again after each time that it returns True:
        something has come, and an adapter that it needs is loaded while the device is busy. A request then misses no
        step that begins after it came, and the device notices nothing.
        """
        if self._in_flight is None or not self._requests.has_room:
            return False
        left_s = self._clock.time_to_launch_s(self._in_flight)
        if not left_s or not self._work.wait(left_s):
            return False
        self._work.clear()
        return True

    def wait(self, timeout_s: float) -> None:
        """Waits until a step may have something to do, or for the timeout."""
        self._work.wait(timeout_s)

    def wake(self) -> None:
        """Ends a ``wait``, from any thread."""
        self._work.set()

    def close(self) -> None:
        """Ends the steps and copies in flight, frees pinned memory, and ends the group; it can't be used afterwards.

        May be called again.
        """
        if self._in_flight is not None and not self._group.is_lost:
            self._in_flight.step.sampled_tokens()
            if self._in_flight.plan.assist is not None:
                self._in_flight.plan.assist.end()
        self._in_flight = None
        self._opening.close()
        self._group.close()

    def check_invariants(self) -> None:
        """Audits all page and adapter accounting, of all ranks. Raises AssertionError on the first error."""
        self._requests.check_invariants()
        self._group.audit(self._loader.adapters.pages_by_digest)

    def launch_lags_us(self) -> Mapping[Phase, list[float]]:
        """How much later than this rank the last one of its group launched each of the newest steps, by phase, in µs.

        Oldest first; none without a group. No step may be running. Raises RankLost.
        """
        return self._group.launch_lags_us()

    def _await_copies(self) -> tuple[Failure, ...]:
        """Delays the launch while adapters are being copied and the device is busy anyway.

        A copy from pinned memory takes less than a step, so its request misses no step.
        """
        failures: tuple[Failure, ...] = ()
        while self._in_flight is not None and self._loader.adapters.is_copying:
            idle_s = self._clock.time_to_launch_s(self._in_flight)
            if not idle_s:
                break
            self._work.wait(idle_s)
            self._work.clear()
            failures += self._requests.drop_failed_loads()
        return failures
