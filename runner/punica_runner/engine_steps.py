"""The step loop of a worker that runs an engine."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from punica_runner.device_names import gpu_name, host_uuid
from punica_runner.step_loop import StepLoop
from punica_runner.supervisor_link import SupervisorLink
from punica_runner.worker_options import WorkerOptions
from punica_serve.config.device_groups import ranks_of
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.early_ranks import EarlyRanks
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.rank_processes import RankProcesses
from punica_serve.errors import ConfigError, PunicaError
from punica_serve.process.memory_tuning import freeze_gc
from punica_serve.process.run import missing_package
from punica_serve.process.start_clock import StartClock, process_age_s
from punica_serve.process.tracing import span_sink
from punica_serve.protocol import AdapterRef, GpuInfo, WorkerReady
from punica_serve.store.packed_folder import PackedCache

if TYPE_CHECKING:
    from punica_serve.engine.engine import Engine

log = logging.getLogger(__name__)

#: The longest sleep of an idle worker. Any work wakes it earlier.
IDLE_WAIT_S = 1.0


def run(
    options: WorkerOptions,
    settings: GroupSettings,
    link: SupervisorLink,
    early: EarlyRanks | None,
    on_loss: Callable[[PunicaError], None],
) -> NoReturn:
    """Makes the engine, reports that it is ready, and steps forever. Raises ConfigError and ModelRejected.

    ``early`` are the other ranks of a group, and ``settings`` their deadlines. ``on_loss`` is called on another thread
    when one of them is lost.
    """
    clock = StartClock(process_age_s())
    config, limit = _sized(options)
    if settings.rendezvous is not None:
        config = config.model_copy(update={"exchange": "nccl"})  # the others need memory that GPUs of one host map
    devices = ranks_of(options.device)
    others = RankProcesses(config, devices, settings, options.cache, early) if early is not None else None
    fetch = others.fetching(link.fetch) if others is not None else link.fetch
    engine = _make_engine(config, options.device, fetch, options.cache, others, on_loss, clock)
    gpu = replace(_describe(engine, config, options.device, options.runner_id, options.index), batch_limit=limit)
    link.wake = engine.wake
    freeze_gc()
    link.send([WorkerReady(gpu)])
    _step_forever(engine, StepLoop(engine, gpu.uuid, gpu.name, span_sink("worker", options.otlp_endpoint)), link)


def _step_forever(engine: "Engine", loop: StepLoop, link: SupervisorLink) -> NoReturn:
    while True:
        while engine.wait_for_requests():
            link.send(loop.apply(link.commands()))
        link.send(loop.apply(link.commands()))
        reports, has_run = loop.step()
        link.send(reports)
        link.num_turns += has_run or not engine.has_runnable
        # In this order: a command that arrives after this check ends the wait.
        if not has_run and not link.has_commands():
            engine.wait(IDLE_WAIT_S)


def _sized(options: WorkerOptions) -> tuple[EngineConfig, str]:
    """The engine's config with its batch size, and what limits that: for `auto` also the device's memory.

    Raises ConfigError.
    """
    config, limit = options.engine, options.batch_limit
    if limit == "max_batch_size":
        return config, limit
    from punica_serve.engine.memory.auto_batch_memory import largest_that_fits

    size = largest_that_fits(config, ranks_of(options.device))
    limit = limit if size == config.max_batch_size else "memory"
    log.info("a step has up to %d requests; more are limited by %s", size, limit)
    return config.model_copy(update={"max_batch_size": size}), limit


def _make_engine(
    config: EngineConfig,
    device: str,
    fetch: Callable[[AdapterRef], "Future[Path]"],
    packed_cache: PackedCache,
    others: RankProcesses | None,
    on_loss: Callable[[PunicaError], None],
    clock: StartClock,
) -> "Engine":
    """Raises ConfigError also if an extra is not installed: some are imported only for certain devices."""
    try:
        # Imported here, because it takes seconds: signals and the pipe's end are handled by now.
        from punica_serve.engine.engine import Engine

        clock.spent("imports", clock.total_s)
        return Engine(config, device, fetch, packed_cache, others=others, on_loss=on_loss, clock=clock)
    except ModuleNotFoundError as error:
        message = missing_package(error)
        if message is None:
            raise
        raise ConfigError(message) from error


def _describe(engine: "Engine", config: EngineConfig, device: str, runner_id: str, index: int) -> GpuInfo:
    return GpuInfo(
        uuid=_gpu_uuid(engine, runner_id, index),
        device=device,
        max_batch_size=config.max_batch_size,
        page_size=config.page_size,
        num_kv_pages=engine.num_kv_pages,
        num_lora_pages=engine.num_lora_pages,
        name=gpu_name(runner_id, index),
        device_name=_device_name(engine),
        prefix_caching=engine.prefix_caching,
        max_prefills=config.num_prefills,
        window=engine.kv_window,
        ranks=_rank_uuids(engine, runner_id, index),
    )


def _rank_uuids(engine: "Engine", runner_id: str, index: int) -> tuple[str, ...]:
    """UUIDs of a group's devices, the leader's first; none without a group."""
    if not engine.ranks:
        return ()
    others = (rank.gpu_uuid or f"{host_uuid('CPU', runner_id, index)}/{rank.index}" for rank in engine.ranks)
    return (_gpu_uuid(engine, runner_id, index), *others)


def _device_name(engine: "Engine") -> str:
    if engine.device.type == "cpu":
        return "cpu"
    import torch

    return torch.cuda.get_device_name(engine.device)


def _gpu_uuid(engine: "Engine", runner_id: str, index: int) -> str:
    """The GPU's own UUID; a CPU gets one that is stable over restarts."""
    if engine.device.type == "cpu":
        return host_uuid("CPU", runner_id, index)
    import torch

    return f"GPU-{torch.cuda.get_device_properties(engine.device).uuid}"
