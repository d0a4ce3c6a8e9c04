"""The engine of one device: requests in, tokens out, one step at a time.

A step decides (planner), launches (runner) and accounts (commit); nothing else happens in it. On a GPU steps overlap:
one is planned and launched while the device runs the one before, and then that one's tokens are accounted for. Requests
that are new, moved or recovered look the same: the engine prefills prompt and generated tokens and goes on.
"""

import secrets
import time
from collections import Counter
from dataclasses import dataclass, replace
from threading import Event

import msgspec
import torch

from punica_serve.config import EngineConfig
from punica_serve.engine.adapter_loader import AdapterLoader
from punica_serve.engine.device_memory import free_bytes, gib, open_device
from punica_serve.engine.host_cache import HostCache
from punica_serve.engine.kv_cache import make_kv_cache
from punica_serve.engine.lora_pool import make_lora_pool
from punica_serve.engine.model_loader import load_model
from punica_serve.engine.pinned_memory import open_host_memory
from punica_serve.engine.planner import Planner, StepPlan
from punica_serve.engine.request_check import RequestCheck
from punica_serve.engine.sampler import Sampler
from punica_serve.engine.sequence import Sequence
from punica_serve.engine.step_clock import StepClock
from punica_serve.engine.step_output import Failure, GeneratedToken, StepOutput
from punica_serve.engine.step_runner import CpuRunner, LaunchedStep, StepRunner
from punica_serve.engine.step_shape import StepShapes
from punica_serve.errors import ConfigError, InvalidRequest, RequestFailed
from punica_serve.model_config import read_model_config
from punica_serve.protocol import EndReason, LoraGroup, Request

#: How many waiting requests are looked at for adapters that could be read from disk meanwhile.
_NUM_PREFETCHED = 32


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A step that is on the device."""

    plan: StepPlan
    step: LaunchedStep
    launched_s: float


class Engine:
    """One base model on one device. Not thread-safe, but for ``wake``.

    Raises ModelRejected if the model can't be served and ConfigError if the device or the settings can't work.
    """

    def __init__(self, config: EngineConfig, device: str = "cpu") -> None:
        if config.cpu_threads is not None:
            torch.set_num_threads(config.cpu_threads)
        self.device = open_device(device)
        self.model_config = read_model_config(config.model)
        dtype: torch.dtype = getattr(torch, config.dtype_of(self.model_config))
        self.max_context = config.context_of(self.model_config)
        self._model = load_model(config, self.model_config, dtype, self.device)
        self._lora_pool = make_lora_pool(config, self.model_config, dtype, self.device)
        self._cache = make_kv_cache(config, self.model_config, dtype, self.device)
        self._work = Event()
        #: Adapters in host memory.
        self.host_cache = HostCache(open_host_memory(config.host_cache_bytes, self.device))
        self._loader = AdapterLoader(
            self._lora_pool, self.host_cache, self.model_config, dtype, self._work.set, self._newest_end
        )
        self._planner = Planner(
            self._cache,
            max_batch_size=config.max_batch_size,
            prefill_budget_tokens=config.prefill_budget_tokens,
        )
        self._sampler = Sampler(
            self.model_config.vocab_size,
            self.model_config.generation.eos_token_ids,
            max_batch_size=config.max_batch_size,
            device=self.device,
        )
        try:
            self._runner = self._make_runner(config)
        except BaseException:
            self._close_loader()
            raise
        self._in_flight: _InFlight | None = None
        self._clock = StepClock()
        self._check = RequestCheck(
            self.model_config.vocab_size, min(self.max_context, self._cache.capacity_tokens), self._lora_pool
        )
        self._sequences: dict[str, Sequence] = {}

    def _make_runner(self, config: EngineConfig) -> StepRunner:
        parts = (self._model, self._cache, self._lora_pool, self._sampler, self._loader.pages)
        if self.device.type != "cuda":
            return CpuRunner(*parts)
        from punica_serve.engine.cuda_runner import CudaRunner

        shapes = StepShapes(max_batch_size=config.max_batch_size, prefill_budget_tokens=config.prefill_budget_tokens)
        try:
            return CudaRunner(*parts, shapes, use_graphs=config.cuda_graphs)
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"steps of {config.max_batch_size} requests and {config.prefill_budget_tokens} prompt tokens do not fit"
                f" {self.device} beside its KvCache, of which {gib(free_bytes(self.device))} are left; lower"
                " `engine.device_memory_share`, `engine.max_batch_size` or `engine.prefill_budget_tokens`"
                f" ({str(error).splitlines()[0]})",
                param="engine.device_memory_share",
            ) from error

    @property
    def num_kv_pages(self) -> int:
        return self._cache.pages.num_pages

    @property
    def num_free_kv_pages(self) -> int:
        return self._cache.pages.num_free

    @property
    def num_lora_pages(self) -> dict[LoraGroup, int]:
        return self._lora_pool.num_pages

    @property
    def resident_adapters(self) -> tuple[str, ...]:
        """Digests of the adapters on the device."""
        return self._loader.resident

    @property
    def num_requests(self) -> int:
        """Requests added and not gone."""
        return len(self._sequences)

    @property
    def has_runnable(self) -> bool:
        """Whether a step could run something now: not while all requests await their adapters."""
        if self._planner.running:
            return self._in_flight is not None or self._planner.has_runnable(self._is_ready)
        return any(
            sequence.adapter is None or self._loader.has_room_for(sequence.adapter)
            for sequence in self._planner.next_waiting(1)
        )

    def add(self, request: Request) -> None:
        """Takes a request in and reserves its pages if there is room, else at a later step.

        Raises InvalidRequest for a request that this engine could never finish.
        """
        if request.request_id in self._sequences:
            raise InvalidRequest(f"request {request.request_id!r} is running already", param="request_id")
        self._check(request)
        if request.sampling.seed is None:
            sampling = msgspec.structs.replace(request.sampling, seed=secrets.randbits(64))
            request = msgspec.structs.replace(request, sampling=sampling)
        sequence = Sequence.of(request, self.max_context)
        self._sequences[request.request_id] = sequence
        self._planner.add(sequence)
        self._admit()
        self._work.set()

    def cancel(self, request_id: str) -> None:
        """Drops a request; its pages come back at once. Unknown ids are ignored."""
        if request_id in self._sequences:
            self._drop(self._sequences[request_id])
            self._work.set()

    def step(self) -> StepOutput:
        """Launches one model invocation over all that can run, and tells what has come of the newest one that ended."""
        self._work.clear()
        failures = self._drop_failed_loads()
        self._admit()
        self._prefetch()
        failures += self._await_copies()
        plan, displaced = self._planner.plan(self._is_ready)
        self._let_go(displaced)
        launched = self._launch(plan) if plan else None
        ended = launched
        if self._runner.runs_ahead:
            ended, self._in_flight = self._in_flight, launched
        output = self._commit(ended) if ended else StepOutput(has_run=launched is not None)
        starved = tuple(sequence.request_id for sequence in displaced)
        return replace(output, failures=failures + output.failures, starved=starved)

    def wait(self, timeout_s: float) -> None:
        """Returns when a step may have something to do again, or at the timeout."""
        self._work.wait(timeout_s)

    def wake(self) -> None:
        """Ends a ``wait``, from any thread."""
        self._work.set()

    def close(self) -> None:
        """Ends what is under way, and gives pinned memory back. The engine is of no use afterwards."""
        if self._in_flight is not None:
            self._in_flight.step.draws()
            self._in_flight = None
        self._close_loader()

    def _close_loader(self) -> None:
        """The loader's threads first: they write what the host cache has pinned."""
        self._loader.close()
        self.host_cache.close()

    def check_invariants(self) -> None:
        """Audits all books; raises AssertionError on the first that is wrong."""
        self._planner.check_invariants()
        self._loader.check_invariants()
        known = {id(sequence) for sequence in (*self._planner.waiting, *self._planner.running)}
        assert known == {id(sequence) for sequence in self._sequences.values()}, "a sequence is lost or unknown"
        pinned = Counter(sequence.digest for sequence in self._planner.running if sequence.digest is not None)
        assert self._loader.num_users == pinned, "an adapter is pinned by nobody, or used without a pin"

    def _await_copies(self) -> tuple[Failure, ...]:
        """Holds the launch back while adapters are being copied and the device is busy anyway.

        A copy from pinned memory takes less than a step, so its request is in the same step as if it had been there.
        """
        failures: tuple[Failure, ...] = ()
        while self._in_flight is not None and self._loader.is_copying:
            idle_s = self._clock.time_to_launch_s(self._in_flight.launched_s)
            if not idle_s:
                break
            self._work.wait(idle_s)
            self._work.clear()
            failures += self._drop_failed_loads()
        return failures

    def _launch(self, plan: StepPlan) -> _InFlight:
        """From here on the sequences count what the step writes and draws, whether it has run yet or not."""
        launched_s = time.perf_counter()
        step = self._runner.launch(plan)
        for sequence in plan.decodes:
            sequence.num_cached += 1
        if plan.prefill:
            plan.prefill.sequence.num_cached = plan.prefill.end
        for sequence in plan.sampled:
            sequence.num_in_flight += 1
        return _InFlight(plan, step, launched_s)

    def _commit(self, ended: _InFlight) -> StepOutput:
        """Waits for the step, writes its draws into the sequences, and drops those that ended."""
        plan, draws = ended.plan, ended.step.draws()
        tokens: list[GeneratedToken] = []
        finished: list[tuple[str, EndReason]] = []
        failures: list[Failure] = []
        for sequence, draw in zip(plan.sampled, draws, strict=True):
            # Ended, cancelled or put back to wait since the launch: nobody wants this token any more.
            if self._sequences.get(sequence.request_id) is not sequence or not sequence.num_in_flight:
                continue
            sequence.num_in_flight -= 1
            if draw is None:
                failures.append(_not_finite(sequence))
                self._drop(sequence)
                continue
            tokens.append(GeneratedToken(sequence.request_id, len(sequence.generated_ids), *draw))
            sequence.token_ids.append(draw.token_id)
            reason = self._end_reason(sequence, draw.token_id)
            if reason is not None:
                finished.append((sequence.request_id, reason))
                self._drop(sequence)
        return StepOutput(
            tokens=tuple(tokens),
            finished=tuple(finished),
            failures=tuple(failures),
            has_run=True,
            batch_size=len(plan.sequences),
            num_prefill_tokens=plan.prefill.num_tokens if plan.prefill else 0,
            num_adapters=plan.num_adapters,
            duration_s=self._clock.end(ended.launched_s),
        )

    def _end_reason(self, sequence: Sequence, token_id: int) -> EndReason | None:
        if self._sampler.is_end(sequence, token_id):
            return "stop"
        return "length" if len(sequence.token_ids) >= sequence.max_length else None

    def _admit(self) -> None:
        """First come, first served: a request whose adapter has no room beside those in use blocks those behind it."""
        while sequence := self._planner.next_admissible():
            if sequence.adapter is not None:
                if not self._loader.has_room_for(sequence.adapter):
                    return
                self._loader.acquire(sequence.adapter)
            self._planner.admit(sequence)

    def _prefetch(self) -> None:
        """Brings the adapters of those that run next to the host, as far as there are threads to spare."""
        for sequence in self._planner.next_waiting(_NUM_PREFETCHED):
            if sequence.adapter is not None:
                self._loader.prefetch(sequence.adapter)

    def _newest_end(self) -> torch.cuda.Event | None:
        """What is behind the newest launched step on the device."""
        return self._runner.newest_end

    def _is_ready(self, sequence: Sequence) -> bool:
        return sequence.digest is None or self._loader.is_ready(sequence.digest)

    def _drop_failed_loads(self) -> tuple[Failure, ...]:
        """Requests whose adapters failed are dropped before the step; the others never notice."""
        failures = []
        for failure in self._loader.poll():
            lost = [sequence for sequence in self._planner.running if sequence.digest == failure.digest]
            for sequence in lost:
                self._drop(sequence)
            request_ids = tuple(sequence.request_id for sequence in lost)
            failures.append(Failure(request_ids, failure.permanent, failure.error))
        return tuple(failures)

    def _let_go(self, displaced: list[Sequence]) -> None:
        """The adapters of displaced sequences are free to leave, which others may wait for: the next step can run."""
        for sequence in displaced:
            self._release_adapter(sequence)
        if displaced:
            self._work.set()

    def _drop(self, sequence: Sequence) -> None:
        del self._sequences[sequence.request_id]
        if sequence.pages:
            self._release_adapter(sequence)
        self._planner.remove(sequence)

    def _release_adapter(self, sequence: Sequence) -> None:
        if sequence.digest is not None:
            self._loader.release(sequence.digest)


def _not_finite(sequence: Sequence) -> Failure:
    """Weights may be finite and yet too large: the answer would be noise, and its NaNs must go no further."""
    message = f"the model's output is not finite at position {sequence.position}; the weights are too large"
    error = RequestFailed(message, param="lora_id" if sequence.adapter else None)
    return Failure((sequence.request_id,), permanent=True, error=error)
