"""What is measured of CPU processes when an engine starts."""

import os
import signal
import time
from types import SimpleNamespace

import pytest

from assisted_engine import pids_of
from cpu_assist_host import NEEDS_CPU_ASSIST
from punica_serve.engine.adapters.layer_arrival import ArrivalFailed
from punica_serve.engine.cpu_assist import assist_profile
from punica_serve.engine.cpu_assist.assist_forecast import AssistTimes, ExchangeWork
from punica_serve.engine.cpu_assist.assist_job import AssistJob
from punica_serve.engine.cpu_assist.assist_profile import TimeExchanges, measure_exchanges
from punica_serve.engine.cpu_assist.assistant import CpuAssist
from punica_serve.engine.cpu_assist.exchange_memory import JobWords
from punica_serve.engine.cpu_assist.process_pool import ProcessPool
from punica_serve.engine.cpu_assist.torch_exchange import time_exchanges
from punica_serve.engine.engine import Engine
from waits import DEADLINE_S

pytestmark = NEEDS_CPU_ASSIST


@pytest.fixture
def assist(engine: Engine) -> CpuAssist:
    assist = engine._opening.tiers.assist
    assert assist is not None and assist.wait_until_free(DEADLINE_S)
    return assist


def measured(assist: CpuAssist, time_exchanges: TimeExchanges = time_exchanges) -> AssistTimes:
    times = measure_exchanges(assist, time_exchanges)
    assert times is not None
    return times


def exchange_s(assist: CpuAssist, times: AssistTimes, num_processes: int) -> float:
    work = ExchangeWork.of(assist.shape.groups[0], 1, 1, assist.shape.torch_dtype.itemsize)
    return times.of(num_processes).exchange_s(work, num_processes)


def test_layers_that_have_arrived_are_measured_by_themselves(assist: CpuAssist) -> None:
    """Their jobs take another time here: processes compute no layer of them, and all layers of the others."""

    def time_by_computer(job: AssistJob) -> float:
        time_exchanges(job)
        own = job.memory.sent_words[:: len(assist.shape.groups)] == -job.key
        assert own.all() or not own.any()
        return 1e-6 if own.all() else 1e-3

    times = measured(assist, time_by_computer)
    assert times.arrived_s == 1e-6
    assert all(exchange_s(assist, times, count) == pytest.approx(1e-3) for count in (1, 2))


def test_a_process_that_is_replaced_costs_one_of_the_runs(
    engine: Engine, assist: CpuAssist, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assist_profile, "_MAX_WAIT_S", DEADLINE_S)
    victims = pids_of(engine)[:1]

    def time_and_kill(job: AssistJob) -> float:
        while victims:
            os.kill(victims.pop(), signal.SIGKILL)
        return time_exchanges(job)

    assert measured(assist, time_and_kill).alone.fixed_s > 0.0


def test_nothing_is_known_of_processes_that_never_answer(assist: CpuAssist, caplog: pytest.LogCaptureFixture) -> None:
    def wait_in_vain(job: AssistJob) -> float:
        job.is_late = True
        raise ArrivalFailed

    assert measure_exchanges(assist, wait_in_vain) is None
    assert "CPU processes did not answer in time" in caplog.text


def test_the_time_in_which_processes_wake_counts_once_for_a_step(
    assist: CpuAssist, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time takes the clock far longer than any exchange."""
    wake, waking_s, late_s = ProcessPool.wake, 1_000.0, 0.0

    def wake_slowly(pool: ProcessPool, job: JobWords) -> None:
        nonlocal late_s
        wake(pool, job)
        late_s += waking_s

    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + late_s, sleep=time.sleep)
    monkeypatch.setattr(assist_profile, "time", clock)
    monkeypatch.setattr(ProcessPool, "wake", wake_slowly)
    times = measured(assist)
    assert min(times.alone.start_s, times.together.start_s) >= waking_s
    assert all(exchange_s(assist, times, count) < waking_s / assist.shape.num_layers for count in (1, 2))
