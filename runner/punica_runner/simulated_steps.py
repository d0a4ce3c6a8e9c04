"""The step loop of a simulated worker: its steps take real time, scaled by ``speed``. Free of torch."""

import threading
import time
from typing import NoReturn

from punica_runner.device_names import gpu_name, host_uuid
from punica_runner.supervisor_link import SupervisorLink
from punica_runner.worker_options import WorkerOptions
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.prefill_budget import prefill_budget_of
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.protocol import WorkerReady
from punica_serve.simulation.worker import SimulatedWorker, simulated_gpu_info

#: The longest sleep of an idle worker.
IDLE_WAIT_S = 1.0
#: Sleeps are not exact. A step that is late by no more than this begins, in simulated time, when it was due.
_MAX_LAG_S = 0.1


def run(options: WorkerOptions, link: SupervisorLink) -> NoReturn:
    """Reports that the simulated GPU is ready, and steps forever. Raises ConfigError and ModelRejected."""
    engine, place = options.engine, (options.runner_id, options.index)
    model = read_model_config(engine.model)
    info = simulated_gpu_info(
        engine, model, host_uuid("SIM", *place), gpu_name(*place), batch_limit=options.batch_limit
    )
    worker = SimulatedWorker(
        info,
        StepTimeModel(load_profile(options.simulation.profile)),
        prefill_budget=prefill_budget_of(model, engine.prefill_budget_tokens),
        vocab_size=model.vocab_size,
    )
    has_work = threading.Event()
    link.wake = has_work.set
    clock = Clock(options.simulation.speed)
    link.send([WorkerReady(info)])
    while True:
        has_work.clear()
        link.send(worker.apply(link.commands(), clock.now_s()))
        link.send(worker.cached())
        duration_s = worker.begin_step(clock.next_step_s())
        if duration_s is not None:
            clock.pass_step(duration_s)
            link.send([worker.end_step()])
        else:
            if reports := worker.idle():
                worker.check_invariants()
                link.send(reports)
            has_work.wait(clock.idle_wait_s(worker.wakes_at_s))
        link.num_turns += 1


class Clock:
    """A clock of simulated seconds, ``speed`` of them in a real second."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._started_s = time.monotonic()
        #: When the newest step ended.
        self._ended_s = 0.0

    def now_s(self) -> float:
        return (time.monotonic() - self._started_s) * self._speed

    def next_step_s(self) -> float:
        """The start of the next step: the end of the previous one, if that was just now."""
        return max(self._ended_s, self.now_s() - _MAX_LAG_S * self._speed)

    def pass_step(self, duration_s: float) -> None:
        """Sleeps until the end of a step that begins now."""
        self._ended_s = self.next_step_s() + duration_s
        time.sleep(max(0.0, (self._ended_s - self.now_s()) / self._speed))

    def idle_wait_s(self, wakes_at_s: float | None) -> float:
        """Real seconds to sleep if nothing can run before that time."""
        self._ended_s = self.now_s()
        if wakes_at_s is None:
            return IDLE_WAIT_S
        return min(IDLE_WAIT_S, max(0.0, (wakes_at_s - self._ended_s) / self._speed))
