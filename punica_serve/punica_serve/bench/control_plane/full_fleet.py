"""The real scheduler's core, called without sockets, and a fleet whose GPUs are all full."""

import random
import time
from collections.abc import Callable, Iterable

from punica_scheduler.core import events
from punica_scheduler.core.actions import Action, Start
from punica_scheduler.core.scheduler import Scheduler
from punica_serve.bench.control_plane.hosts import Gpu
from punica_serve.bench.control_plane.settings import NUM_KV_PAGES, PAGE_SIZE, PROMPT_TOKENS, ControlPlaneSettings
from punica_serve.protocol import GpuInfo, Request, SamplingParams, StartRequest, StepReport

_INCARNATION = 1


class FullFleet:
    """All requests differ in their prompts, so that they need new pages at different times."""

    def __init__(self, settings: ControlPlaneSettings, answer_tokens: Callable[[], int]) -> None:
        """``answer_tokens``: called for the length of each answer."""
        self._settings, self._answer_tokens = settings, answer_tokens
        self._scheduler = Scheduler(_INCARNATION)
        self._draw = random.Random(0)
        self._num_requests = 0
        self.gpus: dict[str, Gpu] = {}
        for index in range(settings.num_gpus):
            info = GpuInfo(f"GPU-{index:05}", "simulated", settings.batch_size, PAGE_SIZE, NUM_KV_PAGES, {})
            self.gpus[info.uuid] = Gpu(info, _INCARNATION)
            self._scheduler.handle(events.GpuJoined(f"host-{index // 8}", info), _INCARNATION)
        for _ in range(settings.num_requests):
            self.arrive()

    def shuffled(self) -> list[Gpu]:
        """All GPUs, in an order that differs from call to call."""
        gpus = list(self.gpus.values())
        self._draw.shuffle(gpus)
        return gpus

    def report(self, report: StepReport) -> tuple[list[Action], float]:
        """The scheduler's actions after a step, and its CPU time for them in seconds."""
        return self._handle(events.StepFinished(report))

    def arrive(self) -> float:
        """Adds a request to the GPU that the scheduler places it on. Returns the scheduler's CPU time in seconds."""
        number = self._num_requests
        self._num_requests += 1
        prompt = (1_000,) * self._draw.randint(1, 2 * PROMPT_TOKENS)
        sampling = SamplingParams(max_tokens=self._answer_tokens())
        request = Request(f"request-{number}", number, prompt, sampling)
        frontend = f"frontend-{number % self._settings.num_frontends}"
        actions, seconds = self._handle(events.RequestArrived(frontend, number, request))
        self._start(actions)
        return seconds

    def _handle(self, event: events.Event) -> tuple[list[Action], float]:
        start_s = time.thread_time()
        actions = self._scheduler.handle(event, _INCARNATION)
        return actions, time.thread_time() - start_s

    def _start(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                command = StartRequest(action.gpu_uuid, action.seq, action.assignment, action.request)
                self.gpus[action.gpu_uuid].start(command)
