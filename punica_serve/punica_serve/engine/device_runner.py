"""Makes the step runner of a device."""

from contextlib import ExitStack
from importlib import import_module
from typing import Protocol

import torch

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.cpu_assist.assist_job import AssistJob
from punica_serve.engine.cpu_assist.assist_profile import measure_exchanges
from punica_serve.engine.cpu_assist.assistant import CpuAssist
from punica_serve.engine.cuda.batch_bucket import BatchBuckets
from punica_serve.engine.cuda.capture_memory import CaptureMemory
from punica_serve.engine.memory.device_memory import free_bytes, is_out_of_memory, total_bytes, unreserved_bytes
from punica_serve.engine.memory.step_memory import check_steps, steps_refused
from punica_serve.engine.sampler import Sampler
from punica_serve.engine.step_runner import CpuRunner, StepRunner
from punica_serve.engine.torch_lora import ArrivalOf, PagesOf
from punica_serve.errors.reasons import first_line
from punica_serve.models.collectives import Collectives
from punica_serve.models.model import Model
from punica_serve.process.start_clock import Progress, no_progress

#: Modules that only GPUs need. They import Triton.
_CUDA_MODULES = ("punica_serve.engine.cuda.attention_backend", "punica_serve.engine.cuda.cuda_runner")


def make_runner(
    config: EngineConfig,
    model: Model,
    cache: KvCache,
    lora_pool: LoraPool,
    sampler: Sampler,
    pages_of: PagesOf,
    arrival_of: ArrivalOf,
    collectives: Collectives,
    opened: ExitStack,
    assist: CpuAssist | None = None,
    progress: Progress = no_progress,
) -> StepRunner:
    """``opened``: gets what must end with the runner. ``assist``: its exchanges with the device are measured.
    ``progress`` counts the steps of a GPU that are compiled and captured.

    Raises ConfigError if a GPU has no memory for steps beside the KvCache, with the settings for which it has, or can't
    launch steps this large.
    """
    parts, device = (model, cache, lora_pool, sampler, pages_of, arrival_of, collectives), cache.pool.device
    if device.type != "cuda":
        return _measured(CpuRunner(*parts), assist)
    from punica_serve.engine.cuda.attention_backend import flashinfer_rows
    from punica_serve.engine.cuda.cuda_attention import AttentionOptions
    from punica_serve.engine.cuda.cuda_runner import CudaRunner

    room, num_gpu_bytes = free_bytes(device), total_bytes(device)
    check_steps(config, model.config, str(device), room=room, num_gpu_bytes=num_gpu_bytes)
    captures = CaptureMemory(room, lambda: unreserved_bytes(device), progress)
    try:
        runner = CudaRunner(
            *parts,
            BatchBuckets.of(config),
            use_graphs=config.cuda_graphs,
            by_layer=config.starts_by_layer,
            attention=AttentionOptions(
                flashinfer_rows(config, model.config, cache.pool.dtype, device, opened), config.reads_prefixes_once
            ),
            assist=assist,
            progress=captures.begin,
        )
        return _measured(runner, assist)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # The error still holds the memory that was taken.
        told = captures.told(room - free_bytes(device))
        needs = captures.needs(config, model.config)
        raise steps_refused(
            config,
            model.config,
            str(device),
            f"{told} ({first_line(error)})",
            needs,
            room=room,
            num_gpu_bytes=num_gpu_bytes,
        ) from error


def import_runner(device: torch.device) -> None:
    """Imports what runs steps on a GPU, which takes a second: while host memory is made ready, or other ranks are."""
    if device.type == "cuda":
        for module in _CUDA_MODULES:
            import_module(module)


class _TimedRunner(StepRunner, Protocol):
    def time_exchanges(self, job: AssistJob) -> float:
        """Seconds of one exchange with CPU processes of a job of the first group alone, which has just begun."""
        ...


def _measured(runner: _TimedRunner, assist: CpuAssist | None) -> StepRunner:
    """The runner, once CPU assistance knows how long its exchanges take."""
    if assist is not None:
        assist.wait_until_ready()
        assist.set_times(measure_exchanges(assist, runner.time_exchanges))
    return runner
