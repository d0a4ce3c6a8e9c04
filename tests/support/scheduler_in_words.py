"""A scheduler in words: tests say what happens and read what it does about it.

Pages hold 4 tokens here, and the state is audited after every event.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Any

from punica_scheduler.core import events
from punica_scheduler.core.actions import (
    Action,
    Advise,
    CallAnswered,
    Deliver,
    RecordEvent,
    RecordTokens,
    RunnerDrained,
    Start,
    Stop,
)
from punica_scheduler.core.scheduler import Scheduler
from punica_scheduler.core.settings import SchedulerSettings
from punica_scheduler.telemetry.observer import ClusterObserver
from punica_serve import protocol
from punica_serve.paging.page_rule import PageRule
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.protocol import (
    AdapterRef,
    AssignmentId,
    Deliveries,
    GpuInfo,
    Request,
    RowHeaderEncoder,
    SamplingParams,
    StepReport,
    TokenLogprobs,
)

PAGE_SIZE = 4
INCARNATION = 1_000


NOTHING: Mapping[str, int] = MappingProxyType({})


def adapter(name: str, rank: int = 8) -> AdapterRef:
    return AdapterRef(digest=name, uri=f"/adapters/{name}", num_bytes=1, ranks={"q_proj": rank})


@dataclass
class Worker:
    """Keeps the commands to one GPU and counts its pages honestly."""

    info: GpuInfo
    row_headers: RowHeaderEncoder = field(default_factory=RowHeaderEncoder)
    commands: dict[int, Start | Stop] = field(default_factory=dict)
    #: Tokens of each assignment that has been started.
    num_tokens: dict[AssignmentId, int] = field(default_factory=dict)

    def num_free(self, applied_seq: int) -> int:
        applied = [command for seq, command in sorted(self.commands.items()) if seq <= applied_seq]
        running = {each.assignment: each.request.num_tokens for each in applied if isinstance(each, Start)}
        for command in applied:
            if isinstance(command, Stop):
                running.pop(command.assignment, None)
        held = [self._held(num, self.num_tokens[each]) for each, num in running.items() if each in self.num_tokens]
        return self.info.num_kv_pages - sum(held)

    def _held(self, num_at_start: int, num_tokens: int) -> int:
        rule = PageRule.of(PAGE_SIZE, self.info.window)
        return rule.held_decoding(num_tokens + 1) if num_tokens > num_at_start else rule.to_start(num_tokens)


class Cluster:
    """A scheduler, and words to tell it what happens. Each answers what it does, in words."""

    incarnation = INCARNATION

    def __init__(self, model: StepTimeModel | None = None, **settings: Any) -> None:
        self.scheduler = Scheduler(INCARNATION, SchedulerSettings(**settings))
        #: GPUs whose steps differ from the model's, each time that the log would say so.
        self.warnings: list[str] = []
        self.observer = ClusterObserver(self.scheduler, INCARNATION, model, lambda uuid, _: self.warnings.append(uuid))
        self.now_ns = INCARNATION
        self.workers: dict[str, Worker] = {}
        self.num_steps = 0
        #: The request's name, by handle.
        self.names: dict[int, str] = {}
        #: The newest assignment of each request, and all tokens delivered.
        self.assignments: dict[str, AssignmentId] = {}
        self.delivered: dict[str, list[int]] = {}
        self.actions: list[Action] = []

    def tell(self, event: events.Event) -> list[str]:
        actions = self.scheduler.handle(event, self.now_ns)
        self.observer.observe(event, actions, self.now_ns)
        self.actions = [action for action in actions if not isinstance(action, RecordEvent | RecordTokens)]
        self.scheduler.check_invariants()
        words: list[str] = []
        for action in self.actions:
            match action:
                case Deliver(_, deliveries):
                    words += self._note_deliveries(deliveries)
                case Start() | Stop():
                    words.append(self._note_command(action))
                case RunnerDrained(runner_id):
                    words.append(f"{runner_id}: drained")
                case CallAnswered(frontend_id, call_id, error):
                    words.append(f"{frontend_id}: answer {call_id}" + (f" {error.code}" if error else ""))
        return words

    def _note_command(self, action: Start | Stop) -> str:
        match action:
            case Start(gpu_uuid, seq, assignment, request):
                worker = self.workers[gpu_uuid]
                worker.commands[seq] = action
                worker.num_tokens[assignment] = request.num_tokens
                self.assignments[request.request_id] = assignment
                generated = f" after {len(request.generated_ids)}" if request.generated_ids else ""
                return f"{gpu_uuid}: start {request.request_id}{generated}"
            case Stop(gpu_uuid, seq, assignment):
                self.workers[gpu_uuid].commands[seq] = action
                return f"{gpu_uuid}: stop {self.name_of(gpu_uuid, assignment)}"
        raise AssertionError(action)

    def _note_deliveries(self, deliveries: Deliveries) -> list[str]:
        """A line for each request: how many tokens it got, from where on, and how it ended."""
        tokens: dict[int, list[int]] = {}
        rows = zip(deliveries.handles, deliveries.positions, deliveries.token_ids, strict=True)
        for handle, start, token_id in rows:
            position = start + deliveries.offset
            delivered = self.delivered.setdefault(self.names[handle], [])
            assert position == len(delivered)
            delivered.append(token_id)
            tokens.setdefault(handle, []).append(position)
        lines = {handle: f" {len(positions)} token at {positions[0]}" for handle, positions in tokens.items()}
        for ending in deliveries.endings:
            assert ending.num_tokens == len(self.delivered.get(self.names[ending.handle], []))
            end = ending.error.code if ending.error else ending.reason
            lines[ending.handle] = f"{lines.get(ending.handle, '')} {end}"
        return [f"{self.names[handle]}:{line}" for handle, line in lines.items()]

    def name_of(self, gpu_uuid: str, assignment: AssignmentId) -> str:
        commands = self.workers[gpu_uuid].commands.values()
        return next(c.request.request_id for c in commands if isinstance(c, Start) and c.assignment == assignment)

    @property
    def advice(self) -> protocol.ScaleAdvice | None:
        """The scale advice of the newest event; None if it did not change."""
        advised = [action.advice for action in self.actions if isinstance(action, Advise)]
        return advised[0] if advised else None

    @property
    def error(self) -> protocol.WireError:
        """The error of the newest event's only failed request."""
        deliveries = [action.deliveries for action in self.actions if isinstance(action, Deliver)]
        (error,) = [ending.error for delivery in deliveries for ending in delivery.endings if ending.error]
        return error

    def counter(self, name: str) -> int:
        return self.scheduler.snapshot(self.now_ns).counters[name]

    def working_sets(self) -> dict[str, int]:
        return {gpu.gpu.uuid: gpu.working_set for gpu in self.scheduler.snapshot(self.now_ns).gpus}

    # ---------------------------------------------------------- what may happen

    def gpu_joins(
        self,
        uuid: str,
        *,
        pages: int = 16,
        batch: int = 8,
        lora: int = 8,
        runner: str = "runner",
        name: str = "",
        **settings: Any,
    ) -> list[str]:
        info = GpuInfo(uuid, "cpu", batch, PAGE_SIZE, pages, {"qkv": lora}, name, **settings)
        self.workers[uuid] = Worker(info)
        return self.tell(events.GpuJoined(runner, info))

    def gpu_is_lost(self, uuid: str) -> list[str]:
        return self.tell(events.GpuLost(uuid))

    def is_drained(self, uuid: str, *, drain: bool = True) -> list[str]:
        """Someone asks for it, or takes it back."""
        return self.tell(events.GpuDrainRequested("f", 7, uuid, drain))

    def runs_one_each(self) -> None:
        """A, lightly loaded, runs a1, and B, as lightly, b1; each has had its first token."""
        for uuid, name in (("A", "a1"), ("B", "b1")):
            self.gpu_joins(uuid, pages=64)
            self.arrives(name, max_tokens=60)
            self.steps(uuid, name)
            self.is_drained("A", drain=uuid == "A")

    def arrives(
        self,
        name: str,
        *,
        prompt: int = 3,
        max_tokens: int = 10,
        at: int | None = None,
        lora: AdapterRef | None = None,
        generated: int = 0,
        frontend: str = "frontend",
        logprobs: int | None = None,
        tenant: str | None = None,
        is_new: bool = True,
        slo: protocol.Slo | None = None,
    ) -> list[str]:
        """A request; ``at`` is its arrival, by default after all others. One with tokens is added again."""
        self.now_ns += 1
        sampling = SamplingParams(max_tokens=max_tokens, logprobs=logprobs)
        arrival_ns, generated_ids = at or self.now_ns, tuple(range(generated))
        request = Request(name, arrival_ns, (7,) * prompt, sampling, lora, generated_ids, tenant_id=tenant, slo=slo)
        if generated:
            self.delivered[name] = list(range(generated))
        self.names[self.now_ns] = name
        return self.tell(events.RequestArrived(frontend, self.now_ns, request, is_new=is_new and not generated))

    def is_cancelled(self, name: str, *, frontend: str = "frontend") -> list[str]:
        """A request that is already there ends as cancelled."""
        ended, *others = self.tell(events.RequestCancelled(frontend, name)) or [""]
        assert ended in ("", f"{name}: cancelled"), ended
        return others

    def steps(
        self,
        uuid: str,
        names: str = "",
        *,
        finished: str = "",
        applied: int | None = None,
        starved: str = "",
        cached: Mapping[str, int] = NOTHING,
        shared: int = 0,
    ) -> list[str]:
        """A step that gave each of ``names`` its next token; by default all commands were applied before it."""
        positions = {name: count(len(self.delivered.get(name, []))) for name in names.split()}
        rows = [(self.assignments[name].counter, next(positions[name])) for name in names.split()]
        found = tuple((self.assignments[name].counter, num_tokens) for name, num_tokens in cached.items())
        return self.reports(
            uuid, rows, finished=finished, applied=applied, starved=starved, cached=found, shared=shared
        )

    def reports(
        self,
        uuid: str,
        rows: list[tuple[int, int]],
        *,
        logprobs: tuple[TokenLogprobs | None, ...] = (),
        finished: str = "",
        applied: int | None = None,
        starved: str = "",
        incarnation: int = INCARNATION,
        resident: tuple[str, ...] | None = None,
        cached: tuple[tuple[int, int], ...] = (),
        shared: int = 0,
        hints: tuple[int, ...] = (),
        prefilled: int = 0,
    ) -> list[str]:
        """A step with these rows, of assignment's counter and token's position."""
        worker = self.workers[uuid]
        applied_seq = len(worker.commands) if applied is None else applied
        for counter, _ in rows:
            worker.num_tokens[AssignmentId(INCARNATION, counter)] += 1
        ends = [self.assignments[name] for name in finished.split()]
        for end in ends:
            del worker.num_tokens[end]
        self.num_steps += 1
        report = StepReport(
            gpu_uuid=uuid,
            epoch=0,
            step=self.num_steps,
            applied_seq=applied_seq,
            incarnation=incarnation,
            assignments=tuple(counter for counter, _ in rows),
            positions=tuple(position for _, position in rows),
            token_ids=tuple(100 + position for _, position in rows),
            logprobs=logprobs,
            finished=tuple((end.counter, "stop") for end in ends),
            free_kv_pages=worker.num_free(applied_seq) + shared,
            num_shared_kv_pages=shared,
            cached=cached,
            prefix_hints=hints,
            batch_size=len(rows),
            num_prefill_tokens=prefilled,
            num_adapters=0,
            duration_s=0.01,
            starved=tuple(self.assignments[name].counter for name in starved.split()),
            resident=resident,
        )
        return self.tell(events.StepFinished(worker.row_headers.encode(report)))

    def load_fails(self, uuid: str, name: str, *, permanent: bool = False, code: str = "request_failed") -> list[str]:
        worker = self.workers[uuid]
        failure = protocol.AssignmentsFailed(
            uuid,
            0,
            len(worker.commands),
            (self.assignments[name],),
            permanent,
            protocol.WireError(code, "the disk is gone"),
        )
        del worker.num_tokens[self.assignments[name]]
        return self.tell(events.AssignmentsFailed(failure))

    def time_passes(self, seconds: float) -> list[str]:
        self.now_ns += round(seconds * 1e9)
        return self.tell(events.Tick())


NewCluster = Callable[..., Cluster]
NewAdapter = Callable[..., AdapterRef]
