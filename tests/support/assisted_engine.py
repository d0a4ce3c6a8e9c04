"""An engine whose CPU processes help prefills: what its steps do, and its processes."""

from collections.abc import Callable
from threading import Event

import pytest

from punica_serve.engine.adapters.layer_arrival import CpuArrival
from punica_serve.engine.cpu_assist.assist_job import AssistJob
from punica_serve.engine.cpu_assist.assistant import CpuAssist
from punica_serve.engine.cpu_assist.process_pool import ProcessPool
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import Failure
from punica_serve.protocol import AdapterRef

#: Each layer and group of a step with help: the layer, and whether a process computed it.
Exchanges = list[tuple[int, bool]]
#: Installs a function to call with each layer before its exchanges, on the thread of the step.
BeforeLayer = Callable[[Callable[[int], None]], None]
#: Called with requests: the tokens and failures of an engine that waits for all of an adapter.
Resident = Callable[..., tuple[dict[str, list[int]], list[Failure]]]


def pool_of(engine: Engine) -> ProcessPool:
    assert engine._opening.tiers.assist is not None
    return engine._opening.tiers.assist.pool


def pids_of(engine: Engine) -> list[int]:
    return [pid for number in range(2) if (pid := pool_of(engine).pid(number)) is not None]


def arrival_of(engine: Engine, ref: AdapterRef) -> CpuArrival:
    arrival = engine._loader.arrivals.arrival(ref.digest)
    assert isinstance(arrival, CpuArrival)
    return arrival


def event_of_suspicion(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Set once a step has waited for processes in vain."""
    told, suspect = Event(), CpuAssist.suspect

    def spy(assist: CpuAssist, job: AssistJob) -> None:
        suspect(assist, job)
        told.set()

    monkeypatch.setattr(CpuAssist, "suspect", spy)
    return told
