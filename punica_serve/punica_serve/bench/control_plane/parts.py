"""The parts of the scheduler's CPU time per token that need no socket, measured one after the other in this process.

The rest of the whole process's time is frames: system calls, event loop and websockets.
"""

import random
import time
from dataclasses import dataclass

from punica_scheduler.core import events
from punica_scheduler.core.actions import Deliver, Start
from punica_scheduler.core.scheduler import Scheduler
from punica_serve.bench.control_plane.hosts import Gpu
from punica_serve.bench.control_plane.settings import NUM_KV_PAGES, PAGE_SIZE, PROMPT_TOKENS, ControlPlaneSettings
from punica_serve.protocol import Decoder, GpuInfo, Request, SamplingParams, StartRequest, ToScheduler, encode, join

_INCARNATION = 1


@dataclass(slots=True)
class PartTimes:
    """CPU time in µs per token."""

    decode: float = 0.0
    handle: float = 0.0
    encode: float = 0.0


def parts_us(settings: ControlPlaneSettings) -> PartTimes:
    """Measured with reports of all GPUs in turn, one per frame, while no request arrives or ends."""
    scheduler = Scheduler(_INCARNATION)
    gpus = _filled(scheduler, settings)
    decode = Decoder(ToScheduler)
    decode_s = handle_s = encode_s = 0.0
    num_tokens = 0
    order = list(gpus)
    for turn in range(settings.num_part_steps):
        random.Random(turn).shuffle(order)
        for name in order:
            frame = join([encode(gpus[name].step())])
            start_s = time.thread_time()
            (report,) = decode.joined(frame)
            decoded_s = time.thread_time()
            actions = scheduler.handle(events.StepFinished(report), _INCARNATION)
            handled_s = time.thread_time()
            for action in actions:
                if isinstance(action, Deliver):
                    encode(action.deliveries)
            encoded_s = time.thread_time()
            num_tokens += len(report.token_ids)
            decode_s += decoded_s - start_s
            handle_s += handled_s - decoded_s
            encode_s += encoded_s - handled_s
    return PartTimes(*(1e6 * seconds / num_tokens for seconds in (decode_s, handle_s, encode_s)))


def _filled(scheduler: Scheduler, settings: ControlPlaneSettings) -> dict[str, Gpu]:
    """All GPUs, full."""
    gpus: dict[str, Gpu] = {}
    for index in range(settings.num_gpus):
        info = GpuInfo(f"GPU-{index:05}", "simulated", settings.batch_size, PAGE_SIZE, NUM_KV_PAGES, {})
        gpus[info.uuid] = Gpu(info, _INCARNATION)
        scheduler.handle(events.GpuJoined(f"host-{index // 8}", info), _INCARNATION)
    draw = random.Random(0)
    for number in range(settings.num_requests):
        prompt = (1_000,) * draw.randint(1, 2 * PROMPT_TOKENS)  # so that they need new pages at different times
        request = Request(f"request-{number}", number, prompt, SamplingParams(max_tokens=settings.endless_tokens))
        frontend = f"frontend-{number % settings.num_frontends}"
        for action in scheduler.handle(events.RequestArrived(frontend, number, request), _INCARNATION):
            if isinstance(action, Start):
                gpus[action.gpu_uuid].start(
                    StartRequest(action.gpu_uuid, action.seq, action.assignment, action.request)
                )
    return gpus
