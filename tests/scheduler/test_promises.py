"""Whatever happens in whatever order: exactly once, in order, and all pages back in the end.

Hypothesis drives a scheduler, workers that obey late and report late, and a frontend that believes nothing.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from punica_scheduler import events
from punica_scheduler.actions import Deliver, Start, Stop
from punica_scheduler.scheduler import Scheduler
from punica_scheduler.settings import SchedulerSettings
from punica_serve.protocol import (
    AdapterRef,
    AssignmentId,
    AssignmentsFailed,
    Deliveries,
    Ending,
    EndReason,
    GpuInfo,
    LoraGroup,
    Request,
    SamplingParams,
    StepReport,
    WireError,
)

PAGE_SIZE = 2
MAX_TOTAL_TOKENS = 12
#: Every pool holds the longest request, so none may fail for its size.
POOLS = (6, 8, 11)
ADAPTERS = (None, *(AdapterRef(f"lora{rank}", "", 1, {"q_proj": rank, "o_proj": 8}) for rank in (8, 12, 16)))


def answer(request: Request) -> list[int]:
    """All tokens of a request, wherever it runs: it ends at max_tokens or by itself."""
    seed = request.arrival_ns
    tokens = [(seed * 31 + position * 7) % 1000 for position in range(request.sampling.max_tokens)]
    return tokens[: 1 + seed % 8]


def pages_for(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_SIZE)


@dataclass
class Sequence:
    request: Request
    generated: list[int]
    num_pages: int = 0
    is_prefilled: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_ids) + len(self.generated)


@dataclass
class Worker:
    """The engine's rules without a model: pages on admission, growth when needed, the newest gives way."""

    info: GpuInfo
    incarnation: int
    commands: deque[Start | Stop] = field(default_factory=deque)
    reports: deque[events.Event] = field(default_factory=deque)
    sequences: dict[AssignmentId, Sequence] = field(default_factory=dict)
    applied_seq: int = 0
    num_steps: int = 0

    @property
    def num_free(self) -> int:
        return self.info.num_kv_pages - sum(sequence.num_pages for sequence in self.sequences.values())

    def step(self, max_commands: int) -> None:
        for _ in range(min(max_commands, len(self.commands))):
            self._apply(self.commands.popleft())
        for assignment in self._by_arrival():
            sequence = self.sequences[assignment]
            needed = pages_for(sequence.num_tokens + 1)
            if not sequence.num_pages and needed <= self.num_free:
                sequence.num_pages = needed
        starved = self._grow()
        positions, token_ids, finished = self._compute()
        self.num_steps += 1
        self.reports.append(
            events.StepFinished(
                StepReport(
                    gpu_uuid=self.info.uuid,
                    epoch=0,
                    step=self.num_steps,
                    applied_seq=self.applied_seq,
                    incarnation=self.incarnation,
                    counters=tuple(positions),
                    positions=tuple(positions.values()),
                    token_ids=tuple(token_ids),
                    finished=tuple(finished.items()),
                    free_kv_pages=self.num_free,
                    batch_size=len(token_ids),
                    num_prefill_tokens=0,
                    num_adapters=0,
                    duration_s=0.01,
                    starved=tuple(assignment.counter for assignment in starved),
                )
            )
        )

    def fail_load(self, assignment: AssignmentId, *, permanent: bool) -> None:
        del self.sequences[assignment]
        failure = AssignmentsFailed(
            self.info.uuid, 0, self.applied_seq, (assignment,), permanent, WireError("request_failed", "gone")
        )
        self.reports.append(events.AssignmentsFailed(failure))
        self.step(0)

    def _apply(self, command: Start | Stop) -> None:
        assert command.seq == self.applied_seq + 1
        self.applied_seq = command.seq
        if isinstance(command, Start):
            self.sequences[command.assignment] = Sequence(command.request, list(command.request.generated_ids))
            self._check_batch()
        else:
            self.sequences.pop(command.assignment, None)

    def _check_batch(self) -> None:
        """What the scheduler must never ask of a worker."""
        assert len(self.sequences) <= self.info.max_batch_size
        adapters = {s.request.adapter.digest: s.request.adapter for s in self.sequences.values() if s.request.adapter}
        groups: tuple[tuple[LoraGroup, str], ...] = (("qkv", "q_proj"), ("o", "o_proj"))
        for group, module in groups:
            needed = sum(-(-adapter.ranks[module] // 8) for adapter in adapters.values())
            assert needed <= self.info.num_lora_pages[group]

    def _by_arrival(self) -> list[AssignmentId]:
        return sorted(self.sequences, key=lambda a: (self.sequences[a].request.arrival_ns, a))

    def _grow(self) -> tuple[AssignmentId, ...]:
        starved: list[AssignmentId] = []
        for assignment in self._by_arrival():
            sequence = self.sequences[assignment]
            while sequence.num_pages and (missing := pages_for(sequence.num_tokens) - sequence.num_pages) > 0:
                if missing <= self.num_free:
                    sequence.num_pages += missing
                    continue
                newest = [other for other in self._by_arrival() if self.sequences[other].num_pages][-1]
                self.sequences[newest].num_pages = 0
                self.sequences[newest].is_prefilled = False
                starved.append(newest)
        return tuple(starved)

    def _compute(self) -> tuple[dict[int, int], list[int], dict[int, EndReason]]:
        """One prefill at most, and all decodes: positions, tokens, and ends by the assignment's counter."""
        positions: dict[int, int] = {}
        token_ids: list[int] = []
        finished: dict[int, EndReason] = {}
        has_prefilled = False
        for assignment in self._by_arrival():
            sequence = self.sequences[assignment]
            if not sequence.num_pages or (not sequence.is_prefilled and has_prefilled):
                continue
            has_prefilled |= not sequence.is_prefilled
            sequence.is_prefilled = True
            position, whole = len(sequence.generated), answer(sequence.request)
            sequence.generated.append(whole[position])
            positions[assignment.counter] = position
            token_ids.append(whole[position])
            if len(sequence.generated) == len(whole):
                is_full = len(whole) == sequence.request.sampling.max_tokens
                finished[assignment.counter] = "length" if is_full else "stop"
                del self.sequences[assignment]
        return positions, token_ids, finished


@dataclass
class Stream:
    """A request as its frontend sees it."""

    handle: int
    request: Request
    tokens: list[int] = field(default_factory=list)
    num_load_failures: int = 0
    #: Workers lost that had applied a start of it, acknowledged or not.
    num_losses: int = 0
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
            assert ending.error is not None and ending.error.code == "request_failed", ending.error
            assert self.num_load_failures >= 3 or self.num_losses >= 3, ending.error
        else:
            assert self.tokens == answer(self.request)


class ClusterMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.incarnation = 1
        self.scheduler = Scheduler(self.incarnation)
        self.now_ns = 1
        self.num_requests = 0
        self.num_gpus = 0
        self.workers: dict[str, Worker] = {}
        self.streams: dict[str, Stream] = {}
        self.tell(events.FrontendJoined("f"))

    def tell(self, event: events.Event) -> None:
        self.now_ns += 1
        for action in self.scheduler.handle(event, self.now_ns):
            match action:
                case Start() | Stop():
                    self.workers[action.gpu_uuid].commands.append(action)
                case Deliver(_, deliveries):
                    self.deliver(deliveries)

    def deliver(self, deliveries: Deliveries) -> None:
        by_handle = {stream.handle: stream for stream in self.streams.values()}
        for handle, position, token_id in zip(
            deliveries.handles, deliveries.positions, deliveries.token_ids, strict=True
        ):
            by_handle[handle].take(position, token_id)
        for ending in deliveries.endings:
            by_handle[ending.handle].take_end(ending)

    @property
    def live(self) -> list[Stream]:
        return [stream for stream in self.streams.values() if stream.end is None]

    @rule(prompt=st.integers(1, 6), room=st.integers(1, 6), adapter=st.sampled_from(ADAPTERS), skew=st.integers(0, 9))
    def request_arrives(self, prompt: int, room: int, adapter: AdapterRef | None, skew: int) -> None:
        self.num_requests += 1
        sampling = SamplingParams(max_tokens=min(room, MAX_TOTAL_TOKENS - prompt))
        arrival_ns = 10 * self.num_requests - 10 * skew + 100
        request = Request(f"r{self.num_requests}", arrival_ns, (1,) * prompt, sampling, adapter)
        self.streams[request.request_id] = Stream(self.num_requests, request)
        self.tell(events.RequestArrived("f", self.num_requests, request))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def request_is_cancelled(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(self.live))
        stream.end = "cancelled"
        self.tell(events.RequestCancelled("f", stream.request.request_id))

    @precondition(lambda self: len(self.workers) < 3)
    @rule(num_pages=st.sampled_from(POOLS), batch=st.integers(1, 4), num_lora_pages=st.integers(2, 4))
    def gpu_joins(self, num_pages: int, batch: int, num_lora_pages: int) -> None:
        self.num_gpus += 1
        lora: dict[LoraGroup, int] = {"qkv": num_lora_pages, "o": num_lora_pages}
        info = GpuInfo(f"GPU-{self.num_gpus * 7 % 10}-{self.num_gpus}", "cpu", batch, PAGE_SIZE, num_pages, lora)
        self.workers[info.uuid] = Worker(info, self.incarnation)
        self.tell(events.GpuJoined("runner", info))

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def gpu_is_lost(self, data: st.DataObject) -> None:
        uuid = data.draw(st.sampled_from(sorted(self.workers)))
        self.note_loss(self.workers.pop(uuid))
        self.tell(events.GpuLost(uuid))

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def gpu_joins_again(self, data: st.DataObject) -> None:
        """Nobody has said that it was lost."""
        uuid = data.draw(st.sampled_from(sorted(self.workers)))
        info = self.workers[uuid].info
        self.note_loss(self.workers[uuid])
        self.workers[uuid] = Worker(info, self.incarnation)
        self.tell(events.GpuJoined("runner", info))

    def note_loss(self, worker: Worker) -> None:
        for sequence in worker.sequences.values():
            self.streams[sequence.request.request_id].num_losses += 1

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), max_commands=st.integers(0, 4))
    def worker_steps(self, data: st.DataObject, max_commands: int) -> None:
        data.draw(st.sampled_from(list(self.workers.values()))).step(max_commands)

    @precondition(lambda self: any(worker.reports for worker in self.workers.values()))
    @rule(data=st.data(), num_reports=st.integers(1, 3))
    def reports_arrive(self, data: st.DataObject, num_reports: int) -> None:
        worker = data.draw(st.sampled_from([worker for worker in self.workers.values() if worker.reports]))
        for _ in range(min(num_reports, len(worker.reports))):
            self.tell(worker.reports.popleft())

    @precondition(lambda self: any(self.loading(worker) for worker in self.workers.values()))
    @rule(data=st.data(), permanent=st.booleans())
    def load_fails(self, data: st.DataObject, permanent: bool) -> None:
        worker = data.draw(st.sampled_from([worker for worker in self.workers.values() if self.loading(worker)]))
        assignment = data.draw(st.sampled_from(self.loading(worker)))
        stream = self.streams[worker.sequences[assignment].request.request_id]
        stream.num_load_failures += 3 if permanent else 1
        worker.fail_load(assignment, permanent=permanent)

    @rule(dice=st.integers(1, 6))
    def frontend_reconnects(self, dice: int) -> None:
        """Seldom, or no request would ever live long."""
        if dice < 6:
            return
        self.tell(events.FrontendLost("f"))
        self.tell(events.FrontendJoined("f"))
        self.add_again(self.live)

    @rule(data=st.data(), dice=st.integers(1, 6), settle_ns=st.integers(0, 5))
    def scheduler_restarts(self, data: st.DataObject, dice: int, settle_ns: int) -> None:
        """Workers are reset, and all come back in any order."""
        if dice < 6:
            return
        self.now_ns += 1
        self.incarnation = self.now_ns
        self.scheduler = Scheduler(self.incarnation, SchedulerSettings(settle_ns=settle_ns))
        infos = [worker.info for worker in self.workers.values()]
        self.workers = {}
        frontend_first = data.draw(st.booleans())
        if frontend_first:
            self.frontend_comes_back(data)
        for info in data.draw(st.permutations(infos)):
            self.workers[info.uuid] = Worker(info, self.incarnation)
            self.tell(events.GpuJoined("runner", info))
        if not frontend_first:
            self.frontend_comes_back(data)

    def frontend_comes_back(self, data: st.DataObject) -> None:
        self.tell(events.FrontendJoined("f"))
        self.add_again(data.draw(st.permutations(self.live)))

    def add_again(self, streams: list[Stream]) -> None:
        for stream in streams:
            request = stream.request
            again = Request(
                request.request_id,
                request.arrival_ns,
                request.prompt_ids,
                request.sampling,
                request.adapter,
                tuple(stream.tokens),
            )
            self.tell(events.RequestArrived("f", stream.handle, again))

    @rule()
    def time_passes(self) -> None:
        self.tell(events.Tick())

    @invariant()
    def books_are_sound(self) -> None:
        self.scheduler.check_invariants()

    def teardown(self) -> None:
        """Left alone, every request ends, and what was taken is given back."""
        if not self.workers:
            self.gpu_joins(num_pages=POOLS[0], batch=2, num_lora_pages=4)
        rounds = 0
        while self.live or any(worker.commands or worker.reports for worker in self.workers.values()):
            rounds += 1
            assert rounds < 50 * (len(self.streams) + 1), "requests go round in circles"
            for worker in self.workers.values():
                worker.step(max_commands=100)
                while worker.reports:
                    self.tell(worker.reports.popleft())
            self.time_passes()
            self.scheduler.check_invariants()
        self.check_all_is_given_back()

    def check_all_is_given_back(self) -> None:
        snapshot = self.scheduler.snapshot(self.now_ns)
        assert snapshot.queue_length == 0
        for gpu in snapshot.gpus:
            assert gpu.working_set == 0
            assert gpu.free_kv_pages == gpu.gpu.num_kv_pages
            assert not self.workers[gpu.gpu.uuid].sequences

    @staticmethod
    def loading(worker: Worker) -> list[Any]:
        return [a for a, sequence in worker.sequences.items() if sequence.request.adapter and not sequence.is_prefilled]


ClusterMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestPromises = ClusterMachine.TestCase
