"""The time to place a request, by the scheduler's core alone, in this process."""

import random
import time
from collections.abc import Iterator

from punica_scheduler.core import events
from punica_scheduler.core.actions import Start, Stop
from punica_scheduler.core.scheduler import Scheduler
from punica_serve.bench.control_plane.settings import NUM_KV_PAGES, PAGE_SIZE, ControlPlaneSettings
from punica_serve.protocol import GpuInfo, Request, SamplingParams, StepReport

_PROMPT = tuple(range(1_000, 1_128))


def placement_times_s(settings: ControlPlaneSettings) -> list[float]:
    """CPU time of each request that arrives at a half-full fleet, from the event to the start."""
    scheduler = Scheduler(0)
    for index in range(settings.num_placement_gpus):
        info = GpuInfo(f"GPU-{index:05}", "simulated", settings.batch_size, PAGE_SIZE, NUM_KV_PAGES, {})
        scheduler.handle(events.GpuJoined(f"host-{index // 8}", info), 0)
    draw = random.Random(0)
    requests = _requests()
    running = []
    for _ in range(settings.num_placement_gpus * settings.batch_size // 2):
        running.append(next(requests))
        scheduler.handle(events.RequestArrived("frontend", len(running), running[-1]), 0)
    times_s = []
    for _ in range(settings.num_placements):
        # A random request leaves, so the next one has a choice of GPUs.
        place = draw.randrange(len(running))
        _leave(scheduler, running[place], settings)
        running[place] = next(requests)
        event = events.RequestArrived("frontend", 0, running[place])
        before_s = time.thread_time()
        actions = scheduler.handle(event, 0)
        times_s.append(time.thread_time() - before_s)
        assert isinstance(actions[0], Start), actions
    return times_s


def _leave(scheduler: Scheduler, request: Request, settings: ControlPlaneSettings) -> None:
    """Cancels a request, and reports that its GPU has executed all commands so far."""
    _, stop = scheduler.handle(events.RequestCancelled("frontend", request.request_id), 0)
    assert isinstance(stop, Stop), stop
    report = StepReport(
        gpu_uuid=stop.gpu_uuid,
        epoch=0,
        step=1,
        applied_seq=stop.seq,
        free_kv_pages=NUM_KV_PAGES // 2,
        batch_size=settings.batch_size,
        num_prefill_tokens=0,
        num_adapters=1,
        duration_s=0.03,
    )
    scheduler.handle(events.StepFinished(report), 0)


def _requests() -> Iterator[Request]:
    number = 0
    while True:
        number += 1
        yield Request(f"request-{number}", number, _PROMPT, SamplingParams(max_tokens=200))
