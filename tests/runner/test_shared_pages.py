"""Workers that share pages, under a scheduler: whatever moves, is preempted or dies, requests see their own tokens."""

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from all_placements import ALL_PLACEMENTS
from checked_pages import NUM_TOKENS, PageCheckingRunner, expected_answer
from cluster_history import EAGER
from late_cluster import LateCluster
from punica_runner.step_loop import Report, StepLoop
from punica_scheduler.core import events
from punica_scheduler.core.actions import Start, Stop
from punica_scheduler.core.settings import SchedulerSettings
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine import device_runner
from punica_serve.engine.engine import Engine
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.protocol import (
    AdapterRef,
    AssignmentsFailed,
    GpuInfo,
    Request,
    RowHeaderEncoder,
    SamplingParams,
    StartRequest,
    StepReport,
    StopRequest,
)

NUM_REQUESTS, PAGE_SIZE, BUDGET = 30, 4, 8
#: Begin prompts that share pages.
PREFIXES = tuple(tuple((7 * place + number) % 90 + 1 for place in range(23)) for number in range(2))
#: Pages of two of the longest requests, so that some are preempted.
NUM_PAGES = 2 * -(-(23 + 6 + 9) // PAGE_SIZE)


class EngineWorker:
    """A worker of a late cluster that runs an engine."""

    def __init__(self, config: EngineConfig, uuid: str) -> None:
        self.engine = Engine(config)
        self._loop = StepLoop(self.engine, uuid, uuid)
        self._row_headers = RowHeaderEncoder()
        self.commands: deque[Start | Stop] = deque()
        self.reports: deque[events.Event] = deque()
        #: Nobody counts what dies with it.
        self.sequences: dict[Any, Any] = {}
        self.info = GpuInfo(
            uuid,
            "cpu",
            config.max_batch_size,
            PAGE_SIZE,
            self.engine.num_kv_pages,
            self.engine.num_lora_pages,
            prefix_caching=self.engine.prefix_caching,
            max_prefills=config.num_prefills,
            window=self.engine.kv_window,
        )

    def step(self, max_commands: int) -> None:
        commands = [self.commands.popleft() for _ in range(min(max_commands, len(self.commands)))]
        self._send(self._loop.apply(map(_command, commands)))
        reports, has_run = self._loop.step()
        self.engine.check_invariants()
        self._send(reports)
        if self.engine.num_requests and not has_run:
            self.engine.wait(0.01)

    def _send(self, reports: list[Report]) -> None:
        for report in reports:
            if isinstance(report, StepReport):
                self.reports.append(events.StepFinished(self._row_headers.encode(report)))
            assert not isinstance(report, AssignmentsFailed)


def _command(action: Start | Stop) -> StartRequest | StopRequest:
    if isinstance(action, Start):
        return StartRequest(action.gpu_uuid, action.seq, action.assignment, action.request)
    return StopRequest(action.gpu_uuid, action.seq, action.assignment)


class EngineCluster(LateCluster):
    """A late cluster whose workers run engines."""

    def __init__(self, settings: SchedulerSettings, config: EngineConfig) -> None:
        super().__init__(settings, {}, lambda event, actions: self.scheduler.check_invariants())
        self._config = config
        self.engines: list[Engine] = []
        self.tell(events.FrontendJoined("f"))

    def gpu_joins(self, uuid: str) -> None:
        worker: Any = EngineWorker(self._config, uuid)
        self.engines.append(worker.engine)
        self.workers[uuid], self.runners[uuid] = worker, "host"
        self.tell(events.GpuJoined("host", worker.info))


@pytest.fixture(params=["whole", "window"])
def model(request: pytest.FixtureRequest, tiny_llama: Path, make_model: Callable[..., Path]) -> Path:
    return tiny_llama if request.param == "whole" else make_model("mistral", sliding_window=6)


@pytest.fixture
def adapter(tiny_model: ModelConfig, tmp_path: Path) -> AdapterRef:
    write_random_adapter(tmp_path, tiny_model, rank=8, seed=1)
    return read_adapter(tmp_path, tiny_model)


def _request(number: int, chance: random.Random, adapter: AdapterRef) -> Request:
    own = tuple(chance.randrange(1, NUM_TOKENS) for _ in range(chance.randrange(1, 7)))
    prefix = chance.choice(PREFIXES)[: chance.choice((8, 16, 23))]
    return Request(
        f"r{number}",
        number,
        prefix + own,
        SamplingParams(max_tokens=chance.randrange(1, 10), ignore_eos=True),
        chance.choice((None, adapter)),
        tenant_id=chance.choice(("a", "b")),
        cache_salt=chance.choice((None, "a")),
    )


def _goes_on(cluster: EngineCluster, chance: random.Random) -> None:
    """Workers obey and report late; drains come and go, clients leave, and seldom a worker dies."""
    for uuid, worker in list(cluster.workers.items()):
        worker.step(chance.choice((0, 1, 9)))
        while worker.reports and chance.random() < 0.8:
            cluster.tell(worker.reports.popleft())
        if chance.random() < 0.05:
            cluster.drain_gpu(uuid, drain=uuid not in cluster.drained_uuids)
    if cluster.live and chance.random() < 0.05:
        stream = chance.choice(cluster.live)
        cluster.tell(events.RequestCancelled("f", stream.request.request_id))
    cluster.tell(events.Tick())


@pytest.mark.parametrize("seed", range(4))
def test_any_history_gives_each_request_its_own_tokens(
    model: Path, adapter: AdapterRef, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(device_runner, "CpuRunner", PageCheckingRunner)
    chance = random.Random(seed)
    config = EngineConfig(
        model=model,
        dtype="float32",
        page_size=PAGE_SIZE,
        num_kv_pages=NUM_PAGES,
        num_lora_pages=4,
        max_batch_size=4,
        prefill_budget_tokens=BUDGET,
        max_prefills=1 + seed % 2,
        cpu_threads=1,
    )
    placement = ALL_PLACEMENTS[chance.choice(("punica", "most_idle", "random"))]()
    settings = SchedulerSettings(placement, consolidation=EAGER, prefill_budget=PrefillBudget(BUDGET))
    cluster = EngineCluster(settings, config)
    for uuid in ("A", "B"):
        cluster.gpu_joins(uuid)
    for number in range(NUM_REQUESTS):
        cluster.arrives("f", _request(number, chance, adapter))
        for _ in range(chance.randrange(4)):
            _goes_on(cluster, chance)
        if number == NUM_REQUESTS // 2:
            cluster.lose_gpu("B")
            cluster.gpu_joins("B")
    cluster.end_drains()
    cluster.finish_all()
    for stream in cluster.streams.values():
        assert stream.end is not None and stream.end.reason in ("length", "cancelled")
        answer = expected_answer(stream.request)
        assert stream.tokens == (answer if stream.end.reason == "length" else answer[: len(stream.tokens)])
    assert sum(engine.prefix_tokens[1] for engine in cluster.engines) > 0
    for worker in cluster.workers.values():
        worker.step(9)
    for snapshot in cluster.scheduler.snapshot(cluster.now_ns).gpus:
        assert snapshot.free_kv_pages == NUM_PAGES
    for engine in cluster.engines:
        engine.close()
