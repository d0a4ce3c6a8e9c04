"""In any order of events, each token arrives once, in order, and all pages are free in the end.

Hypothesis drives a scheduler of any policy, workers that obey late and report late, and frontends that believe nothing.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from all_placements import ALL_PLACEMENTS
from late_worker import BUDGET, PAGE_SIZE, Worker, answer
from punica_scheduler.core import events
from punica_scheduler.core.actions import CallAnswered, Deliver, RunnerDrained, Start, Stop
from punica_scheduler.core.consolidation import ConsolidationRule
from punica_scheduler.core.queues import QUEUES
from punica_scheduler.core.scheduler import Scheduler
from punica_scheduler.core.settings import SchedulerSettings
from punica_serve.paging.prefix_hash import hints_of
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.protocol import (
    AdapterRef,
    AdaptersCached,
    Deliveries,
    Ending,
    GpuInfo,
    KvWindow,
    LoraGroup,
    PrefixCaching,
    Request,
    SamplingParams,
    Slo,
)

MAX_TOTAL_TOKENS = 12
#: The first two hold not every request, which may be refused for that, but fails for it only if it has never run.
POOLS = (2, 4, 6, 8, 24)
ADAPTERS = (None, *(AdapterRef(f"lora{rank}", "", 1, {"q_proj": rank, "o_proj": 8}) for rank in (8, 12, 16)))
FRONTENDS = ("f", "g")
RUNNERS = ("host 0", "host 1")
#: Ticks of this test's clock, which counts events.
STORE_PATIENCE_NS = 20
#: Error codes of failed loads and requests.
CODES = {"request_failed", "store_unavailable"}
#: Error codes of requests that no GPU is large enough for.
REFUSALS = {"invalid_request", "context_length_exceeded", "out_of_capacity"}
#: Moves whenever it can.
EAGER = ConsolidationRule(interval_ns=1, light_load=0.5, prefill_tokens_per_s=10**6, idle_s=100)


@dataclass
class Stream:
    """A request as its frontend sees it."""

    frontend_id: str
    handle: int
    request: Request
    tokens: list[int] = field(default_factory=list)
    num_load_failures: int = 0
    #: Workers lost that had applied a start of it, acknowledged or not.
    num_losses: int = 0
    has_run: bool = False
    end: str | None = None

    def take(self, position: int, token_id: int) -> None:
        assert self.end is None, f"a token at {position} after the end"
        assert position == len(self.tokens), f"a token at {position} after {len(self.tokens)} tokens"
        assert token_id == answer(self.request)[position]
        self.tokens.append(token_id)

    def take_end(self, ending: Ending) -> None:
        assert self.end is None, f"{ending} after the end"
        assert ending.num_tokens == len(self.tokens), f"{ending} after {len(self.tokens)} tokens"
        self.end = ending.reason
        if self.end == "error":
            assert ending.error is not None
            if not self.has_run and ending.error.code in REFUSALS:
                return
            assert ending.error.code in CODES, ending.error
            assert self.num_load_failures >= 3 or self.num_losses >= 3, ending.error
        elif self.end != "cancelled":
            assert self.tokens == answer(self.request)


class ClusterMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.incarnation = 1
        self.settings = SchedulerSettings()
        self.scheduler = Scheduler(self.incarnation)
        self.now_ns = 1
        self.num_requests = 0
        self.num_gpus = 0
        self.workers: dict[str, Worker] = {}
        #: GPU UUID -> its runner.
        self.runners: dict[str, str] = {}
        self.streams: dict[str, Stream] = {}
        self.drained_uuids: set[str] = set()
        self.drained_runners: set[str] = set()
        self.told_runners: set[str] = set()
        self.num_answers = 0

    @initialize(
        placement=st.sampled_from(sorted(ALL_PLACEMENTS)),
        queue=st.sampled_from(sorted(QUEUES)),
        migration=st.booleans(),
        consolidation=st.sampled_from([None, EAGER]),
    )
    def begin(self, placement: str, queue: str, migration: bool, consolidation: ConsolidationRule | None) -> None:
        self.settings = SchedulerSettings(
            ALL_PLACEMENTS[placement](),
            queue,
            migration,
            consolidation=consolidation,
            store_patience_ns=STORE_PATIENCE_NS,
            prefill_budget=PrefillBudget(BUDGET),
        )
        self.scheduler = Scheduler(self.incarnation, self.settings)
        for frontend_id in FRONTENDS:
            self.tell(events.FrontendJoined(frontend_id))
        for runner_id in RUNNERS:
            self.gpu_joins(num_pages=POOLS[-1], batch=4, num_lora_pages=4, runner_id=runner_id)

    # -------------------------------------------------------------- what the scheduler says

    def tell(self, event: events.Event) -> None:
        self.now_ns += 1
        for action in self.scheduler.handle(event, self.now_ns):
            match action:
                case Start(gpu_uuid=uuid, request=request):
                    assert not self.is_draining(uuid), f"{action} where none may"
                    self.workers[uuid].commands.append(action)
                    self.streams[request.request_id].has_run = True
                case Stop(gpu_uuid=uuid):
                    self.workers[uuid].commands.append(action)
                case Deliver(frontend_id, deliveries):
                    self.deliver(frontend_id, deliveries)
                case RunnerDrained(runner_id):
                    self.check_is_drained(runner_id)
                case CallAnswered(_, call_id, error):
                    assert (call_id, error) == (self.num_answers, None)
                    self.num_answers += 1

    def deliver(self, frontend_id: str, deliveries: Deliveries) -> None:
        by_handle = {stream.handle: stream for stream in self.streams.values() if stream.frontend_id == frontend_id}
        for handle, position, token_id in zip(
            deliveries.handles, deliveries.positions, deliveries.token_ids, strict=True
        ):
            by_handle[handle].take(deliveries.offset + position, token_id)
        for ending in deliveries.endings:
            by_handle[ending.handle].take_end(ending)

    def check_is_drained(self, runner_id: str) -> None:
        assert runner_id in self.drained_runners - self.told_runners, f"{runner_id} did not ask, or knows already"
        self.told_runners.add(runner_id)
        gpus = [gpu for gpu in self.scheduler.snapshot(0).gpus if gpu.runner_id == runner_id]
        assert not any(gpu.working_set for gpu in gpus), f"{runner_id} is not drained"

    def is_draining(self, uuid: str) -> bool:
        return uuid in self.drained_uuids or self.runners[uuid] in self.drained_runners

    # -------------------------------------------------------------- frontends

    @property
    def live(self) -> list[Stream]:
        return [stream for stream in self.streams.values() if stream.end is None]

    @rule(
        prompts=st.lists(st.integers(1, 6), min_size=1, max_size=5),
        room=st.integers(2, 8),
        adapter=st.sampled_from(ADAPTERS),
        skew=st.integers(0, 9),
        frontend_id=st.sampled_from(FRONTENDS),
        tenant=st.sampled_from([None, "a", "b"]),
        slo=st.sampled_from([None, Slo(1e-9), Slo(5e-8), Slo(None, 0.1), Slo(None, 0.0045)]),
    )
    def requests_arrive(
        self,
        prompts: list[int],
        room: int,
        adapter: AdapterRef | None,
        skew: int,
        frontend_id: str,
        tenant: str | None,
        slo: Slo | None,
    ) -> None:
        for prompt in prompts:
            self.num_requests += 1
            sampling = SamplingParams(max_tokens=min(room, MAX_TOTAL_TOKENS - prompt))
            arrival_ns = 11 * self.num_requests - 10 * skew + 100
            name, prompt_ids = f"r{self.num_requests}", (1,) * prompt
            request = Request(name, arrival_ns, prompt_ids, sampling, adapter, (), tenant_id=tenant, slo=slo)
            self.streams[request.request_id] = Stream(frontend_id, self.num_requests, request)
            self.tell(events.RequestArrived(frontend_id, self.num_requests, request))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), dice=st.integers(1, 3))
    def request_is_cancelled(self, data: st.DataObject, dice: int) -> None:
        if dice < 3:
            return
        stream = data.draw(st.sampled_from(self.live))
        self.tell(events.RequestCancelled(stream.frontend_id, stream.request.request_id))
        assert stream.end == "cancelled"

    @rule(frontend_id=st.sampled_from(FRONTENDS), dice=st.integers(1, 6), is_lost=st.booleans())
    def frontend_reconnects(self, frontend_id: str, dice: int, is_lost: bool) -> None:
        """Seldom, or no request would ever live long. Whether anyone has seen that its link was lost or not."""
        if dice < 6:
            return
        if is_lost:
            self.tell(events.FrontendLost(frontend_id))
        self.tell(events.FrontendJoined(frontend_id))
        self.add_again([stream for stream in self.live if stream.frontend_id == frontend_id])

    def add_again(self, streams: list[Stream]) -> None:
        for stream in streams:
            again = replace(stream.request, generated_ids=tuple(stream.tokens))
            self.tell(events.RequestArrived(stream.frontend_id, stream.handle, again, is_new=False))

    # -------------------------------------------------------------- runners and GPUs

    @precondition(lambda self: len(self.workers) < 4)
    @rule(
        num_pages=st.sampled_from(POOLS),
        batch=st.integers(1, 4),
        num_lora_pages=st.integers(1, 4),
        window=st.sampled_from((None, KvWindow(3, 2))),
        prefix_caching=st.sampled_from((None, PrefixCaching("base"), PrefixCaching("other"))),
        is_group=st.booleans(),
        max_prefills=st.sampled_from((1, 2)),
        runner_id=st.sampled_from(RUNNERS),
    )
    def gpu_joins(
        self,
        num_pages: int,
        batch: int,
        num_lora_pages: int,
        runner_id: str,
        window: KvWindow | None = None,
        prefix_caching: PrefixCaching | None = None,
        is_group: bool = False,
        max_prefills: int = 1,
    ) -> None:
        self.num_gpus += 1
        lora: dict[LoraGroup, int] = {"qkv": num_lora_pages, "o": num_lora_pages}
        uuid = f"GPU-{self.num_gpus * 7 % 10}-{self.num_gpus}"
        info = GpuInfo(
            uuid,
            "cpu",
            batch,
            PAGE_SIZE,
            num_pages,
            lora,
            window=window,
            prefix_caching=prefix_caching,
            max_prefills=max_prefills,
            ranks=(uuid, f"{uuid}/1") if is_group else (),
        )
        self.join(runner_id, info)

    def join(self, runner_id: str, info: GpuInfo) -> None:
        self.workers[info.uuid] = Worker(info, self.incarnation)
        self.runners[info.uuid] = runner_id
        self.tell(events.GpuJoined(runner_id, info))

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), dice=st.integers(1, 3))
    def gpu_is_lost(self, data: st.DataObject, dice: int) -> None:
        if dice < 3:
            return
        uuid = data.draw(st.sampled_from(sorted(self.workers)))
        for sequence in self.workers.pop(uuid).sequences.values():
            self.streams[sequence.request.request_id].num_losses += 1
        self.tell(events.GpuLost(uuid))

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), runner_id=st.sampled_from(RUNNERS), dice=st.integers(1, 3))
    def gpu_joins_again(self, data: st.DataObject, runner_id: str, dice: int) -> None:
        """Nobody has said that it was lost."""
        if dice < 3:
            return
        self.join(runner_id, self.workers[data.draw(st.sampled_from(sorted(self.workers)))].info)

    @rule(runner_id=st.sampled_from(RUNNERS), dice=st.integers(1, 4), comes_back=st.booleans())
    def runner_is_lost(self, runner_id: str, dice: int, comes_back: bool) -> None:
        if dice < 4:
            return
        infos = [worker.info for uuid, worker in self.workers.items() if self.runners[uuid] == runner_id]
        for info in infos:
            del self.workers[info.uuid]
        self.drained_runners.discard(runner_id)
        self.told_runners.discard(runner_id)
        if not comes_back:
            self.tell(events.RunnerLost(runner_id))
            return
        self.tell(events.RunnerJoined(runner_id))
        for info in infos:
            self.join(runner_id, info)

    @rule(runner_id=st.sampled_from(RUNNERS), dice=st.integers(1, 6))
    def runner_is_drained(self, runner_id: str, dice: int) -> None:
        if dice < 6:
            return
        self.drained_runners.add(runner_id)
        self.tell(events.RunnerDrainRequested(runner_id))

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), drain=st.booleans())
    def gpu_is_drained(self, data: st.DataObject, drain: bool) -> None:
        uuid = data.draw(st.sampled_from(sorted(self.workers)))
        if drain or self.runners[uuid] not in self.drained_runners:
            self.drain(uuid, drain=drain)

    def drain(self, uuid: str, *, drain: bool) -> None:
        if drain:
            self.drained_uuids.add(uuid)
        else:
            self.drained_uuids.discard(uuid)
        num_before = self.num_answers
        self.tell(events.GpuDrainRequested("f", num_before, uuid, drain))
        assert self.num_answers == num_before + 1

    # -------------------------------------------------------------- workers

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), max_commands=st.integers(0, 4))
    def worker_steps(self, data: st.DataObject, max_commands: int) -> None:
        data.draw(st.sampled_from(list(self.workers.values()))).step(max_commands)

    @precondition(lambda self: self.workers and self.live)
    @rule(data=st.data(), is_true=st.booleans())
    def worker_tells_of_prefixes(self, data: st.DataObject, is_true: bool) -> None:
        """Of prompts that it may never have had, or of none: workers do not say what they have given away."""
        worker = data.draw(st.sampled_from(list(self.workers.values())))
        request = data.draw(st.sampled_from(self.live)).request
        settings = worker.info.prefix_caching or PrefixCaching("base")
        worker.prefix_hints = hints_of(request, settings, PAGE_SIZE, request.prompt_ids) if is_true else (7, 7, 8)

    @rule(num_rounds=st.integers(1, 4))
    def all_goes_well(self, num_rounds: int) -> None:
        for _ in range(num_rounds):
            for worker in self.workers.values():
                worker.step(max_commands=100)
                while worker.reports:
                    self.tell(worker.reports.popleft())
            self.time_passes()
            self.scheduler.check_invariants()

    @precondition(lambda self: any(worker.reports for worker in self.workers.values()))
    @rule(data=st.data(), num_reports=st.integers(1, 3))
    def reports_arrive(self, data: st.DataObject, num_reports: int) -> None:
        worker = data.draw(st.sampled_from([worker for worker in self.workers.values() if worker.reports]))
        for _ in range(min(num_reports, len(worker.reports))):
            self.tell(worker.reports.popleft())

    @precondition(lambda self: any(worker.loading for worker in self.workers.values()))
    @rule(data=st.data(), permanent=st.booleans(), code=st.sampled_from(sorted(CODES)))
    def load_fails(self, data: st.DataObject, permanent: bool, code: str) -> None:
        worker = data.draw(st.sampled_from([worker for worker in self.workers.values() if worker.loading]))
        assignment = data.draw(st.sampled_from(worker.loading))
        stream = self.streams[worker.sequences[assignment].request.request_id]
        stream.num_load_failures += 3 if permanent else 1
        worker.fail_load(assignment, permanent=permanent, code=code)

    @rule(ref=st.sampled_from(ADAPTERS[1:]), runner_id=st.sampled_from(RUNNERS), is_there=st.booleans())
    def adapter_comes_to_a_disk_or_leaves_it(self, ref: AdapterRef, runner_id: str, is_there: bool) -> None:
        change = AdaptersCached(None, (ref.digest,), ()) if is_there else AdaptersCached(None, (), (ref.digest,))
        self.tell(events.AdaptersCached(runner_id, change))

    # -------------------------------------------------------------- the scheduler

    @rule(data=st.data(), dice=st.integers(1, 6), settle_ns=st.integers(0, 5))
    def scheduler_restarts(self, data: st.DataObject, dice: int, settle_ns: int) -> None:
        """Workers are reset, drains forgotten, and all come back in any order."""
        if dice < 6:
            return
        self.now_ns += 1
        self.incarnation = self.now_ns
        self.scheduler = Scheduler(self.incarnation, dataclasses.replace(self.settings, settle_ns=settle_ns))
        self.drained_uuids, self.drained_runners, self.told_runners = set(), set(), set()
        infos, self.workers = [worker.info for worker in self.workers.values()], {}
        returns: list[Callable[[], None]] = [
            *(partial(self.join, self.runners[info.uuid], info) for info in infos),
            *(partial(self.frontend_comes_back, frontend_id, data) for frontend_id in FRONTENDS),
        ]
        for come_back in data.draw(st.permutations(returns)):
            come_back()

    def frontend_comes_back(self, frontend_id: str, data: st.DataObject) -> None:
        self.tell(events.FrontendJoined(frontend_id))
        streams = [stream for stream in self.live if stream.frontend_id == frontend_id]
        self.add_again(data.draw(st.permutations(streams)))

    @rule()
    def time_passes(self) -> None:
        self.tell(events.Tick())

    @invariant()
    def books_are_sound(self) -> None:
        self.scheduler.check_invariants()

    # -------------------------------------------------------------- in the end

    def teardown(self) -> None:
        """Left alone, every request ends, and what was taken is given back."""
        self.end_drains()
        rounds = 0
        while self.live or any(worker.commands or worker.reports for worker in self.workers.values()):
            rounds += 1
            assert rounds < 50 * (len(self.streams) + 1), "requests go round in circles"
            self.all_goes_well(num_rounds=1)
        self.check_all_is_given_back()

    def end_drains(self) -> None:
        """Runners that are drained leave; there is a GPU that is large enough for all."""
        for runner_id in sorted(self.drained_runners):
            self.drained_runners.discard(runner_id)
            for uuid in [uuid for uuid in self.workers if self.runners[uuid] == runner_id]:
                del self.workers[uuid]
            self.tell(events.RunnerLost(runner_id))
        for uuid in sorted(self.drained_uuids):
            self.drain(uuid, drain=False)
        self.gpu_joins(num_pages=POOLS[-1], batch=2, num_lora_pages=4, runner_id=RUNNERS[0])

    def check_all_is_given_back(self) -> None:
        snapshot = self.scheduler.snapshot(self.now_ns)
        assert snapshot.queue_length == 0
        for gpu in snapshot.gpus:
            assert gpu.working_set == 0
            assert gpu.free_kv_pages == gpu.gpu.num_kv_pages
            assert not self.workers[gpu.gpu.uuid].sequences


ClusterMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestPromises = ClusterMachine.TestCase
