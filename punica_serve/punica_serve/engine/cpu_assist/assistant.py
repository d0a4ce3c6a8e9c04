"""CPU assistance of one engine: it decides which prefills get help, begins their jobs, and ends them.

A prefill gets help only if nobody decodes beside it, since exchanges would hold the others, and if the processes have
left the job before. It needs its adapter in the host cache, on the way to the device: layers that arrive are the
device's from then on.
"""

import logging
import math
import os
import platform
import time
from collections.abc import Callable, Sequence

import torch

from punica_kernels.exchange_words import MAX_EXCHANGES, MAX_PROCESSES
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.rank import SINGLE, Rank
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.copy_forecast import StepForecast
from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.layer_arrival import Arrival, ArrivalWords
from punica_serve.engine.adapters.packing import PackedAdapter
from punica_serve.engine.cpu_assist.assist_forecast import AssistForecast, AssistTimes
from punica_serve.engine.cpu_assist.assist_job import AssistJob, WaitLimits
from punica_serve.engine.cpu_assist.exchange_memory import (
    ExchangeMemory,
    ExchangeShape,
    GroupShape,
    GroupWeights,
    JobWords,
    exchange_num_bytes,
)
from punica_serve.engine.cpu_assist.life_word import require_robust_lists
from punica_serve.engine.cpu_assist.process_pool import ProcessPool
from punica_serve.engine.memory.pinned_memory import HostMemory, open_host_memory
from punica_serve.errors import ConfigError

log = logging.getLogger(__name__)

#: Everybody who shares the memory relies on its stores becoming visible in their order, which other processors need
#: fences for.
_ARCHITECTURE = "x86_64"
#: Rows of a prefill beyond which CPUs are never faster than the link.
MAX_ASSISTED_ROWS = 256
#: The time in which a process imports torch, on a machine that does much else.
_START_TIMEOUT_S = 60.0
#: A step waits at most so many times as long as its exchanges, and each of them, are predicted to take, and as long as
#: a process may have to wait for its core; but never longer in all.
_PATIENCE, _LEAST_WAIT_S, _MOST_WAIT_S = 4.0, 0.02, 0.25
#: The same on a CPU, where a wait holds no device that others need.
_CPU_WAIT_S = 10.0
#: Between two looks whether the processes have left a job.
_PAUSE_S = 100e-6


class CpuAssist:
    """Owns the shared memory and the processes. All methods run on the step loop's thread."""

    def __init__(
        self, config: EngineConfig, shape: ExchangeShape, host: HostMemory, device: torch.device, rank: Rank = SINGLE
    ) -> None:
        """Raises ConfigError if the shared memory can't be had or pinned."""
        self.shape = shape
        self._mode = config.cold_start
        self._is_cpu = device.type == "cpu"
        self._host = host
        self._shared = open_host_memory(exchange_num_bytes(shape), device, is_shared=True)
        self.memory = ExchangeMemory(self._shared.bytes, shape)
        #: They tell a GPU's steps which layers have arrived.
        self.arrival_words = None if self._is_cpu else ArrivalWords(shape.num_layers, device)
        self._pool = ProcessPool(
            self.memory, self._shared, host, assist_cores(config.cpu_assist_processes, device, rank)
        )
        self._forecast: AssistForecast | None = None
        self._key = 0

    @property
    def pool(self) -> ProcessPool:
        return self._pool

    def wait_until_ready(self) -> None:
        """Waits for the processes, as long as it takes to start them."""
        if not self._pool.wait_until_ready(_START_TIMEOUT_S):
            log.warning("some CPU processes of `engine.cold_start` are not ready yet; prefills start without them")

    def wait_until_free(self, timeout_s: float) -> bool:
        """Waits until a job may begin. False if the last one was not left in time."""
        deadline_s = time.monotonic() + timeout_s
        while not self._pool.is_free:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_PAUSE_S)
        return True

    def has_memory_for(self, num_pages: int) -> bool:
        """Whether an adapter of so many pages of the first group would lie in the host cache's memory."""
        return self._b_start(num_pages) + self._num_bytes(self.shape.b_shape(0, num_pages)) <= len(self._host.bytes)

    def weights_of_first_group(self, num_pages: int) -> list[GroupWeights]:
        """An adapter of nothing but that, whatever its numbers, for measuring."""
        rest = [GroupWeights()] * (len(self.shape.groups) - 1)
        return [GroupWeights(0, self._b_start(num_pages), num_pages), *rest]

    def _b_start(self, num_pages: int) -> int:
        return self._num_bytes(self.shape.a_shape(0, num_pages))

    def _num_bytes(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * self.shape.torch_dtype.itemsize

    def set_times(self, times: AssistTimes | None) -> None:
        """Takes the measured times of exchanges. Without it ``auto`` never asks for help."""
        self._forecast = AssistForecast(self.shape, times) if times else None

    def may_help(self, num_rows: int, copy: HostCopy) -> bool:
        """Whether a prefill of so many rows could get help now."""
        return (
            0 < num_rows <= self.shape.max_rows
            and self._pool.is_free
            and bool(self._pool.ready)
            and self._weights(copy.packed) is not None
        )

    def is_worth_it(
        self, num_rows: int, copy: HostCopy, arrives_in_s: Sequence[float] | None, step: StepForecast
    ) -> bool:
        """Whether the mode asks for help for this prefill. ``arrives_in_s``: see ``CopyForecast.arrives_in_s``."""
        if self._mode == "cpu_assist":
            return True
        if self._forecast is None or arrives_in_s is None or not any(arrives_in_s):
            return False
        costs = self._forecast.costs(num_rows, self._pages(copy.packed), len(self._pool.ready))
        return self._forecast.pays(arrives_in_s, step, costs)

    def begin(self, num_rows: int, copy: HostCopy, arrival: Arrival, cache: HostCache) -> AssistJob | None:
        """Begins a job for a step that is launched now; ``copy`` is held until it has ended. None: no help any more."""
        if not self.may_help(num_rows, copy):
            return None
        weights, ready = self._weights(copy.packed), self._pool.ready
        if weights is None or not ready:
            return None
        cache.hold(copy)
        num_processes, limits = self._plan(num_rows, copy.packed, len(ready))

        def end(job: AssistJob, is_late: bool) -> None:
            cache.release(copy)
            if is_late:
                self._report(job)

        return self.start_job(weights, num_rows, ready[:num_processes], arrival, limits, end)

    def start_job(
        self,
        weights: Sequence[GroupWeights],
        num_rows: int,
        processes: Sequence[int],
        arrival: Arrival,
        limits: WaitLimits,
        on_end: Callable[[AssistJob, bool], None],
    ) -> AssistJob:
        """Wakes processes, in ascending order, which divide the weights of a job among them."""
        self._key += 1
        words = JobWords(self._key, num_rows, tuple(processes), tuple(weights))
        job = AssistJob(words, self.memory, arrival, limits, on_end)
        self.memory.write_job(words)
        self._pool.wake(words)
        return job

    def suspect(self, job: AssistJob) -> None:
        """Replaces the processes of a job that don't leave it soon. Its step has ended."""
        self._pool.suspect(job.words)

    def close(self) -> None:
        """Ends the processes. No step may be in flight."""
        self._pool.close()
        self._shared.close()

    def _plan(self, num_rows: int, packed: PackedAdapter, num_ready: int) -> tuple[int, WaitLimits]:
        """How many processes compute, and how long the step may wait for them."""
        if self._forecast is None:
            return num_ready, WaitLimits.both(_CPU_WAIT_S if self._is_cpu else _MOST_WAIT_S)
        pages = self._pages(packed)
        num_processes = self._forecast.num_processes(num_rows, pages, num_ready)
        exchanges_s = self._forecast.exchanges_s(num_rows, pages, num_processes)
        limits = WaitLimits.both(_CPU_WAIT_S) if self._is_cpu else wait_limits(exchanges_s, self.shape.num_layers)
        return num_processes, limits

    def _pages(self, packed: PackedAdapter) -> tuple[int, ...]:
        """Pages of each group of the model."""
        groups = (packed.groups.get(group.name) for group in self.shape.groups)
        return tuple(len(own.a) if own is not None else 0 for own in groups)

    def _weights(self, packed: PackedAdapter) -> tuple[GroupWeights, ...] | None:
        """Where the adapter lies; None if that is not in the host cache's memory, which alone the processes see."""
        weights = []
        for group in self.shape.groups:
            own = packed.groups.get(group.name)
            if own is None:
                weights.append(GroupWeights())
                continue
            a_start, b_start = (part.data_ptr() - self._host.bytes.data_ptr() for part in (own.a, own.b))
            if not (0 <= a_start < len(self._host.bytes) and 0 <= b_start < len(self._host.bytes)):
                return None
            weights.append(GroupWeights(a_start, b_start, len(own.a)))
        return tuple(weights)

    def _report(self, job: AssistJob) -> None:
        limits = job.limits
        log.warning(
            "%s; the prefill of %d tokens starts again when its adapter is on the device",
            "a CPU process of `engine.cold_start` ended while it helped"
            if self.memory.has_lost(job.words.processes)
            else "CPU processes of `engine.cold_start` did not answer within"
            f" {1e3 * limits.for_one_s:.0f} ms, or {1e3 * limits.in_all_s:.0f} ms in all",
            job.num_rows,
        )
        self.suspect(job)


def open_cpu_assist(
    config: EngineConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    host: HostMemory,
    device: torch.device,
    agree: Callable[[str, int], int] = lambda _, value: value,
) -> CpuAssist | None:
    """CPU assistance if the mode asks for it. None, and a warning, where the machine can't do it.

    None for `auto` in a group: the processes of all its ranks would have to be faster than copies, and never were
    (docs/coldstart.md, "Groups").

    ``agree``: gives the smallest number of all ranks, since one that can't do it has no such steps either.
    """
    if not config.uses_cpu_assist or (config.cold_start == "auto" and model.rank.size > 1):
        return None
    assist = _open(config, model, dtype, host, device)
    if agree("CPU assistance", int(assist is not None)):
        return assist
    if assist is not None:
        log.warning("`engine.cold_start` goes on without CPU processes: another rank of the group can't have them")
        assist.close()
    return None


def _open(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, host: HostMemory, device: torch.device
) -> CpuAssist | None:
    try:
        _check(model)
        return CpuAssist(config, _shape(config, model, dtype), host, device, model.rank)
    except ConfigError as error:
        log.warning("`engine.cold_start` goes on without CPU processes: %s", error.message)
        return None


def _check(model: ModelConfig) -> None:
    """Raises ConfigError if this host or the model can't have such processes."""
    if (machine := platform.machine()) != _ARCHITECTURE:
        raise ConfigError(f"they need x86-64, and this host is {machine}")
    try:
        require_robust_lists()
    except OSError as error:
        raise ConfigError(str(error.strerror)) from None
    if any(group.divided_a is not None for group in model.spec.groups):
        raise ConfigError("ranks add up x A (`engine.divide_lora_from`)")


def _shape(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> ExchangeShape:
    """Raises ConfigError if the model has too many exchanges."""
    groups = tuple(GroupShape(g.name, g.in_features, g.out_offsets) for g in model.spec.groups)
    max_rows = min(MAX_ASSISTED_ROWS, config.prefill_budget_tokens)
    shape = ExchangeShape(str(dtype).removeprefix("torch."), model.num_hidden_layers, groups, max_rows)
    if shape.num_exchanges > MAX_EXCHANGES:
        raise ConfigError("the model has too many layers")
    return shape


def wait_limits(exchanges_s: Sequence[float], num_layers: int) -> WaitLimits:
    """How long a step on a GPU waits. ``exchanges_s``: those of one layer, as predicted."""
    in_all_s = min(_PATIENCE * num_layers * sum(exchanges_s) + _LEAST_WAIT_S, _MOST_WAIT_S)
    return WaitLimits(in_all_s, min(_PATIENCE * max(exchanges_s) + _LEAST_WAIT_S, in_all_s))


def assist_cores(num_processes: int, device: torch.device, rank: Rank = SINGLE) -> list[int]:
    """A core for each process, and no more processes than cores: they would wait for each other.

    They are those at the end of what this worker may use, other ones for each GPU or rank as far as there are any.
    """
    cores = sorted(os.sched_getaffinity(0), reverse=True)
    count = min(num_processes, len(cores), MAX_PROCESSES)
    first = (rank.index if device.index is None else device.index) * count
    return [cores[(first + number) % len(cores)] for number in range(count)]
