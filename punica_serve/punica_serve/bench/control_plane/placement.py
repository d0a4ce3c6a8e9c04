"""The time to place a request, by the scheduler's core alone, in this process."""

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from punica_scheduler.core import events
from punica_scheduler.core.actions import Action, Start, Stop
from punica_scheduler.core.consolidate_slo import ConsolidateSloPlacement
from punica_scheduler.core.placement import MostIdlePlacement, Placement, PunicaPlacement
from punica_scheduler.core.rank_aware import RankAwarePlacement
from punica_scheduler.core.scheduler import Scheduler
from punica_scheduler.core.settings import SchedulerSettings
from punica_serve.base_model.lora_layout import LORA_GROUPS, pages_of_rank
from punica_serve.bench.control_plane.settings import NUM_KV_PAGES, PAGE_SIZE, ControlPlaneSettings
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_columns import StepTimeColumns
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.protocol import AdapterRef, AssignmentId, GpuInfo, Request, SamplingParams, Slo, StepReport

_PROMPT = tuple(range(1_000, 1_128))
#: Ranks of the requests' adapters, in turn. Each request has an adapter of its own.
_RANKS = (8, 16, 32, 64, 128)
_PROFILE = "h200-7b"
#: A promise that a half-full batch keeps and a full one breaks.
_SLO = Slo(first_token_s=1.0, time_per_token_s=0.008)
#: Passes over all policies, so that a slow moment of the machine meets each.
_NUM_ROUNDS = 3
#: Where LoRA pools are full: the adapters of the highest rank that a pool holds, and requests that wait at least.
_FULL_POOL_ADAPTERS, _NUM_WAITING = 4, 100


@dataclass(frozen=True, slots=True)
class PlacementTime:
    """A policy's mean CPU time from an arrival to its start."""

    policy: str
    num_gpus: int
    us: float
    #: From the end of a request to the starts that it makes room for, where every LoRA pool is full and requests wait.
    full_us: float


def placement_times(settings: ControlPlaneSettings) -> list[PlacementTime]:
    """The policies at the sizes of the settings, interleaved."""
    costs = StepTimeColumns(StepTimeModel(load_profile(_PROFILE)))
    policies: Mapping[str, Placement] = {
        "punica": PunicaPlacement(),
        "most_idle": MostIdlePlacement(),
        "rank_aware": RankAwarePlacement(costs),
        "consolidate_slo": ConsolidateSloPlacement(costs),
    }
    found: dict[tuple[int, str], list[float]] = {}
    full_us: dict[tuple[int, str], float] = {}
    for _ in range(_NUM_ROUNDS):
        for num_gpus in settings.placement_sizes:
            for name, placement in policies.items():
                times_s = _times_s(placement, num_gpus, settings)
                found.setdefault((num_gpus, name), []).append(1e6 * statistics.fmean(times_s))
                if (num_gpus, name) not in full_us:  # once: the pools take long to fill
                    full_us[num_gpus, name] = 1e6 * statistics.fmean(_full_times_s(placement, num_gpus, settings))
    return [PlacementTime(name, num_gpus, min(us), full_us[num_gpus, name]) for (num_gpus, name), us in found.items()]


def _times_s(placement: Placement, num_gpus: int, settings: ControlPlaneSettings) -> list[float]:
    """CPU time of each request that arrives at a half-full fleet, from the event to the start."""
    scheduler = _scheduler(placement, num_gpus, settings, num_lora_pages=settings.batch_size * max(_RANKS))
    draw = random.Random(0)
    requests = _requests()
    running = []
    for _ in range(num_gpus * settings.batch_size // 2):
        running.append(next(requests))
        _begin(scheduler, scheduler.handle(events.RequestArrived("frontend", len(running), running[-1]), 0))
    times_s = []
    for _ in range(settings.num_placements):
        # A random request leaves, so the next one has a choice of GPUs.
        place = draw.randrange(len(running))
        _, stop = scheduler.handle(events.RequestCancelled("frontend", running[place].request_id), 0)
        assert isinstance(stop, Stop), stop
        scheduler.handle(events.StepFinished(_report(stop.gpu_uuid, stop.seq)), 0)
        running[place] = next(requests)
        event = events.RequestArrived("frontend", 0, running[place])
        before_s = time.thread_time()
        actions = scheduler.handle(event, 0)
        times_s.append(time.thread_time() - before_s)
        _begin(scheduler, actions)
    return times_s


def _full_times_s(placement: Placement, num_gpus: int, settings: ControlPlaneSettings) -> list[float]:
    """CPU time of each request's end on a fleet whose LoRA pools are full, with the starts of those that waited."""
    num_pages = _FULL_POOL_ADAPTERS * pages_of_rank(max(_RANKS))
    scheduler = _scheduler(placement, num_gpus, settings, num_lora_pages=num_pages)
    running, requests, draw = list[str](), _requests(), random.Random(0)
    num_waiting, times_s = 0, list[float]()
    while num_waiting < _NUM_WAITING:
        started = _begin(scheduler, scheduler.handle(events.RequestArrived("frontend", 0, next(requests)), 0))
        running += started
        num_waiting += not started
    for _ in range(_NUM_WAITING // 2):
        request_id = running.pop(draw.randrange(len(running)))
        before_s = time.thread_time()
        actions = scheduler.handle(events.RequestCancelled("frontend", request_id), 0)
        (stop,) = (action for action in actions if isinstance(action, Stop))
        actions += scheduler.handle(events.StepFinished(_report(stop.gpu_uuid, stop.seq)), 0)
        times_s.append(time.thread_time() - before_s)
        running += _begin(scheduler, actions)
    return times_s


def _scheduler(
    placement: Placement, num_gpus: int, settings: ControlPlaneSettings, *, num_lora_pages: int
) -> Scheduler:
    """With empty GPUs."""
    scheduler = Scheduler(0, SchedulerSettings(placement=placement))
    lora_pages = dict.fromkeys(LORA_GROUPS, num_lora_pages)
    for index in range(num_gpus):
        info = GpuInfo(f"GPU-{index:05}", "simulated", settings.batch_size, PAGE_SIZE, NUM_KV_PAGES, lora_pages)
        scheduler.handle(events.GpuJoined(f"host-{index // 8}", info), 0)
    return scheduler


def _begin(scheduler: Scheduler, actions: Sequence[Action]) -> list[str]:
    """The requests that were started get their first tokens; returns their ids."""
    starts = [action for action in actions if isinstance(action, Start)]
    for start in starts:
        scheduler.handle(events.StepFinished(_report(start.gpu_uuid, start.seq, start.assignment)), 0)
    return [start.request.request_id for start in starts]


def _report(gpu_uuid: str, applied_seq: int, begun: AssignmentId | None = None) -> StepReport:
    """The GPU has executed all commands so far, and perhaps a prefill."""
    return StepReport(
        gpu_uuid=gpu_uuid,
        epoch=0,
        step=1,
        applied_seq=applied_seq,
        assignments=(begun.counter,) if begun else (),
        positions=(0,) if begun else (),
        token_ids=(7,) if begun else (),
        free_kv_pages=NUM_KV_PAGES // 2,
        batch_size=1,
        num_prefill_tokens=0,
        num_adapters=1,
        duration_s=0.03,
    )


def _requests() -> Iterator[Request]:
    number = 0
    modules = [module for group in LORA_GROUPS.values() for module in group]
    while True:
        number += 1
        rank = _RANKS[number % len(_RANKS)]
        adapter = AdapterRef(f"{number:064x}", f"/adapters/{number}", rank << 20, dict.fromkeys(modules, rank))
        yield Request(f"request-{number}", number, _PROMPT, SamplingParams(max_tokens=200), adapter, slo=_SLO)
