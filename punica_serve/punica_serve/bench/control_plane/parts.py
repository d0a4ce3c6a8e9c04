"""The parts of the scheduler's CPU time that need no socket, measured one after the other in this process.

The rest of the whole process's time is frames: system calls, event loop and websockets.
"""

import random
import time
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from punica_scheduler.core.actions import Deliver
from punica_serve.bench.control_plane.full_fleet import FullFleet
from punica_serve.bench.control_plane.settings import ControlPlaneSettings
from punica_serve.protocol import Decoder, StepReport, ToScheduler, encode, join


@dataclass(slots=True)
class PartTimes:
    """CPU time in µs per token."""

    decode: float = 0.0
    handle: float = 0.0
    encode: float = 0.0


class ChurnEvent(StrEnum):
    """The events under churn that `Scheduler.handle` takes a time of their own for."""

    REPEATS = "a report that repeats its rows"
    NEW_ROWS = "a report that names new rows"
    ENDS = "a report in which a request ends"
    ARRIVES = "a request that arrives, with its placement"


def parts_us(settings: ControlPlaneSettings) -> PartTimes:
    """Measured with reports of all GPUs in turn, one per frame, while no request arrives or ends."""
    fleet = FullFleet(settings, lambda: settings.endless_tokens)
    decode = Decoder(ToScheduler)
    decode_s = handle_s = encode_s = 0.0
    num_tokens = 0
    for _ in range(settings.num_part_steps):
        for gpu in fleet.shuffled():
            frame = join([encode(gpu.step())])
            start_s = time.thread_time()
            (report,) = decode.joined(frame)
            decode_s += time.thread_time() - start_s
            actions, seconds = fleet.report(report)
            handle_s += seconds
            start_s = time.thread_time()
            for action in actions:
                if isinstance(action, Deliver):
                    encode(action.deliveries)
            encode_s += time.thread_time() - start_s
            num_tokens += len(report.token_ids)
    return PartTimes(*(1e6 * seconds / num_tokens for seconds in (decode_s, handle_s, encode_s)))


def churn_us(settings: ControlPlaneSettings) -> dict[ChurnEvent, float]:
    """Mean CPU time of each event in µs, with reports of all GPUs in turn. A new request replaces each that ends."""
    draw = random.Random(0)
    # The first requests are as far on as those of a fleet that has run for long.
    fleet = FullFleet(settings, lambda: draw.randint(1, settings.answer_tokens[1]))
    times: dict[ChurnEvent, list[float]] = defaultdict(list)
    for _ in range(settings.num_part_steps):
        for gpu in fleet.shuffled():
            report = gpu.step()
            times[_event_of(report)].append(fleet.report(report)[1])
            times[ChurnEvent.ARRIVES] += [fleet.arrive() for _ in report.finished]
    return {event: 1e6 * fmean(times[event]) for event in ChurnEvent if times[event]}


def _event_of(report: StepReport) -> ChurnEvent:
    if report.finished:
        return ChurnEvent.ENDS
    return ChurnEvent.REPEATS if report.num_repeats else ChurnEvent.NEW_ROWS
