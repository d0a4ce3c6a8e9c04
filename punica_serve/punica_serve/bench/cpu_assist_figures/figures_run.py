"""Runs all figures of `bench cpu-assist` on one device."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress

from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS, pages_of_rank
from punica_serve.bench.cpu_assist_figures.figure_settings import AssistedPrefillTime, FigureSettings, FiguresMeasured
from punica_serve.bench.cpu_assist_figures.layer_times import measure_layers
from punica_serve.bench.cpu_assist_figures.round_trips import measure_round_trips
from punica_serve.bench.subject import Subject
from punica_serve.bench.token_bar import timed
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.cpu_assist.assistant import MAX_ASSISTED_ROWS, CpuAssist, open_cpu_assist
from punica_serve.engine.memory.pinned_memory import HostMemory, open_host_memory
from punica_serve.errors import ConfigError, RequestFailed


def run_figures(subject: Subject, settings: FigureSettings, progress: Progress) -> FiguresMeasured:
    """Raises ConfigError if there are more tokens than CPU processes help with, or no shared memory."""
    if settings.num_tokens > MAX_ASSISTED_ROWS:
        message = f"CPU processes help prefills of up to {MAX_ASSISTED_ROWS} tokens, not of {settings.num_tokens}"
        raise ConfigError(message, param="tokens")
    with timed(progress, "figure 17, rows to processes and back"):
        num_bytes = settings.num_tokens * subject.model.hidden_size * subject.dtype.itemsize
        round_trips = measure_round_trips(settings.counts, num_bytes, settings.num_repeats)
    with _opened(subject, settings) as (assist, host):
        weights = assist.weights_of_first_group(pages_of_rank(settings.rank))
        failures: list[str] = []
        prefills: list[AssistedPrefillTime] = []
        with timed(progress, "figure 18, processes and threads"):
            layers = measure_layers(assist, host, weights, settings)
        if subject.on_gpu:
            from punica_serve.bench.cpu_assist_figures.prefill_times import measure_prefills

            try:
                with timed(progress, "figure 16, sync-free and synchronous"):
                    prefills = measure_prefills(assist, weights, settings)
            except RequestFailed as error:
                failures.append(f"figure 16: {error.message}")
        return FiguresMeasured(round_trips, layers, prefills, failures)


@contextmanager
def _opened(subject: Subject, settings: FigureSettings) -> Iterator[tuple[CpuAssist, HostMemory]]:
    """CPU assistance without an engine, and host memory with room for an adapter of zeros."""
    host = open_host_memory(_host_bytes(subject, settings), subject.device, is_shared=True)
    host.bytes.zero_()
    try:
        assist = open_cpu_assist(_config(subject, settings), subject.model, subject.dtype, host, subject.device)
        if assist is None:
            raise ConfigError("this machine has no shared memory for CPU processes; the log says why")
        try:
            assist.wait_until_ready()
            yield assist, host
        finally:
            assist.close()
    finally:
        host.close()


def _config(subject: Subject, settings: FigureSettings) -> EngineConfig:
    changed = {
        "cold_start": "cpu_assist",
        "cpu_assist_processes": max(settings.counts),
        "prefill_budget_tokens": settings.num_tokens,
    }
    return subject.config.model_copy(update=changed)


def _host_bytes(subject: Subject, settings: FigureSettings) -> int:
    """Bytes of A and B of the first group, all layers."""
    group, num_ranks = subject.model.spec.groups[0], pages_of_rank(settings.rank) * LORA_PAGE_RANKS
    num_slices = len(group.out_offsets) - 1
    numel = num_ranks * (num_slices * group.in_features + group.out_offsets[-1])
    return numel * subject.model.num_hidden_layers * subject.dtype.itemsize
