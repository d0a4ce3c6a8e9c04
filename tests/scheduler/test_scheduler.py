"""Scenarios: events in, actions out. Pages hold 4 tokens here; the books are audited after every event."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import pytest

from punica_scheduler import events
from punica_scheduler.actions import Action, AnnounceLimits, Deliver, Start, Stop
from punica_scheduler.scheduler import Scheduler
from punica_serve import protocol
from punica_serve.protocol import (
    AdapterRef,
    AssignmentId,
    Deliveries,
    GpuInfo,
    Limits,
    Request,
    SamplingParams,
    StepReport,
    TokenLogprobs,
)

PAGE_SIZE = 4
INCARNATION = 1_000


def adapter(name: str, rank: int = 8) -> AdapterRef:
    return AdapterRef(digest=name, uri=f"/adapters/{name}", num_bytes=1, ranks={"q_proj": rank})


class Row(NamedTuple):
    """A token of a step report."""

    counter: int
    position: int
    logprobs: TokenLogprobs | None = None


@dataclass
class Worker:
    """Keeps the commands to one GPU and counts its pages honestly."""

    info: GpuInfo
    commands: dict[int, Start | Stop] = field(default_factory=dict)
    #: Tokens of each assignment that has been started.
    num_tokens: dict[AssignmentId, int] = field(default_factory=dict)

    def num_free(self, applied_seq: int) -> int:
        applied = [command for seq, command in sorted(self.commands.items()) if seq <= applied_seq]
        started = {command.assignment for command in applied if isinstance(command, Start)}
        stopped = {command.assignment for command in applied if isinstance(command, Stop)}
        running = [self.num_tokens[assignment] for assignment in started - stopped if assignment in self.num_tokens]
        return self.info.num_kv_pages - sum(-(-(num_tokens + 1) // PAGE_SIZE) for num_tokens in running)


class Cluster:
    """A scheduler, and words to tell it what happens. Each answers what it does, in words."""

    def __init__(self, **settings: Any) -> None:
        self.scheduler = Scheduler(INCARNATION, **settings)
        self.now_ns = INCARNATION
        self.workers: dict[str, Worker] = {}
        self.num_steps = 0
        #: Of each handle, the request's.
        self.names: dict[int, str] = {}
        #: The newest assignment of each request, and all tokens delivered.
        self.assignments: dict[str, AssignmentId] = {}
        self.delivered: dict[str, list[int]] = {}
        self.actions: list[Action] = []

    def tell(self, event: events.Event) -> list[str]:
        self.actions = self.scheduler.handle(event, self.now_ns)
        self.scheduler.check_invariants()
        words: list[str] = []
        for action in self.actions:
            match action:
                case Deliver(_, deliveries):
                    words += self._note_deliveries(deliveries)
                case Start() | Stop():
                    words.append(self._note_command(action))
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
        for handle, position, token_id in rows:
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
    def error(self) -> protocol.WireError:
        """Of the newest event's only failed request."""
        deliveries = [action.deliveries for action in self.actions if isinstance(action, Deliver)]
        (error,) = [ending.error for delivery in deliveries for ending in delivery.endings if ending.error]
        return error

    def counter(self, name: str) -> int:
        return self.scheduler.snapshot(self.now_ns).counters[name]

    def working_sets(self) -> dict[str, int]:
        return {gpu.gpu.uuid: gpu.working_set for gpu in self.scheduler.snapshot(self.now_ns).gpus}

    # ---------------------------------------------------------- what may happen

    def gpu_joins(
        self, uuid: str, *, pages: int = 16, batch: int = 8, lora: int = 8, runner: str = "runner"
    ) -> list[str]:
        info = GpuInfo(uuid, "cpu", batch, PAGE_SIZE, pages, {"qkv": lora})
        self.workers[uuid] = Worker(info)
        return self.tell(events.GpuJoined(runner, info))

    def gpu_is_lost(self, uuid: str) -> list[str]:
        return self.tell(events.GpuLost(uuid))

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
    ) -> list[str]:
        """A request; ``at`` is its arrival, by default after all others."""
        self.now_ns += 1
        sampling = SamplingParams(max_tokens=max_tokens, logprobs=logprobs)
        request = Request(name, at or self.now_ns, (7,) * prompt, sampling, lora, tuple(range(generated)))
        if generated:
            self.delivered[name] = list(range(generated))
        self.names[self.now_ns] = name
        return self.tell(events.RequestArrived(frontend, self.now_ns, request))

    def is_cancelled(self, name: str, *, frontend: str = "frontend") -> list[str]:
        return self.tell(events.RequestCancelled(frontend, name))

    def steps(
        self,
        uuid: str,
        names: str = "",
        *,
        finished: str = "",
        applied: int | None = None,
        starved: str = "",
    ) -> list[str]:
        """A step that gave each of ``names`` its next token; by default all commands were applied before it."""
        positions = {name: count(len(self.delivered.get(name, []))) for name in names.split()}
        rows = [Row(self.assignments[name].counter, next(positions[name])) for name in names.split()]
        return self.reports(uuid, rows, finished=finished, applied=applied, starved=starved)

    def reports(
        self,
        uuid: str,
        rows: list[Row],
        *,
        finished: str = "",
        applied: int | None = None,
        starved: str = "",
        incarnation: int = INCARNATION,
    ) -> list[str]:
        worker = self.workers[uuid]
        applied_seq = len(worker.commands) if applied is None else applied
        for row in rows:
            worker.num_tokens[AssignmentId(INCARNATION, row.counter)] += 1
        ends = [self.assignments[name] for name in finished.split()]
        for end in ends:
            del worker.num_tokens[end]
        self.num_steps += 1
        return self.tell(
            events.StepFinished(
                StepReport(
                    gpu_uuid=uuid,
                    epoch=0,
                    step=self.num_steps,
                    applied_seq=applied_seq,
                    incarnation=incarnation,
                    counters=tuple(row.counter for row in rows),
                    positions=tuple(row.position for row in rows),
                    token_ids=tuple(100 + row.position for row in rows),
                    logprobs=tuple(row.logprobs for row in rows) if any(row.logprobs for row in rows) else (),
                    finished=tuple((end.counter, "stop") for end in ends),
                    free_kv_pages=worker.num_free(applied_seq),
                    batch_size=len(rows),
                    num_prefill_tokens=0,
                    num_adapters=0,
                    duration_s=0.01,
                    starved=tuple(self.assignments[name].counter for name in starved.split()),
                )
            )
        )

    def load_fails(self, uuid: str, name: str, *, permanent: bool = False) -> list[str]:
        worker = self.workers[uuid]
        failure = protocol.AssignmentsFailed(
            uuid,
            0,
            len(worker.commands),
            (self.assignments[name],),
            permanent,
            protocol.WireError("request_failed", "the disk is gone"),
        )
        del worker.num_tokens[self.assignments[name]]
        return self.tell(events.AssignmentsFailed(failure))

    def time_passes(self, seconds: float) -> list[str]:
        self.now_ns += round(seconds * 1e9)
        return self.tell(events.Tick())


@pytest.fixture
def cluster() -> Cluster:
    """Two GPUs, A and B."""
    cluster = Cluster()
    cluster.gpu_joins("A")
    cluster.gpu_joins("B")
    return cluster


def filled(*uuids: str, **gpu: Any) -> Cluster:
    """A cluster of equal GPUs."""
    cluster = Cluster()
    for uuid in uuids:
        cluster.gpu_joins(uuid, **gpu)
    return cluster


# -------------------------------------------------------------- placement


def test_ties_go_to_the_highest_uuid(cluster: Cluster) -> None:
    assert cluster.arrives("r1") == ["B: start r1"]


def test_the_largest_working_set_wins(cluster: Cluster) -> None:
    cluster.arrives("r1")
    cluster.gpu_joins("C")
    assert cluster.arrives("r2") == ["B: start r2"]


def test_a_full_batch_is_passed_over() -> None:
    cluster = filled("A", "B", batch=2)
    assert [cluster.arrives(f"r{i}") for i in range(1, 4)] == [["B: start r1"], ["B: start r2"], ["A: start r3"]]


def test_memory_is_for_prompt_and_one_token_whatever_max_tokens_says() -> None:
    cluster = filled("A", pages=8)
    assert cluster.arrives("r1", prompt=14, max_tokens=18) == ["A: start r1"]  # 4 pages, though it may grow to 8
    assert cluster.arrives("r2", prompt=14, max_tokens=18) == ["A: start r2"]  # the other 4
    assert cluster.arrives("r3", prompt=1) == []


def test_a_request_that_would_be_evicted_before_its_first_token_does_not_start() -> None:
    cluster = filled("A", pages=3)
    cluster.arrives("r1", prompt=1, max_tokens=7)
    assert cluster.arrives("r2", prompt=7, max_tokens=2) == []  # 2 pages are free, but the next steps take a fourth
    for _ in range(6):
        assert not [words for words in cluster.steps("A", "r1") if "r2" in words]
    assert cluster.steps("A", "r1", finished="r1")[1:] == ["A: start r2"]
    assert cluster.steps("A", "r2", finished="r2") == ["r2: 1 token at 0 stop"]
    assert cluster.counter("evictions") == 0


def test_evictions_are_bounded_by_the_pages_that_others_take() -> None:
    cluster = filled("A", pages=6)
    for name in ("r1", "r2", "r3"):
        cluster.arrives(name, prompt=3, max_tokens=21)
    live = {"r1", "r2", "r3"}
    while live:
        running = [record.request_id for record in cluster.scheduler._gpus["A"].working_set.values()]
        ends = {name for name in running if len(cluster.delivered.get(name, [])) == 20}
        cluster.steps("A", " ".join(running), finished=" ".join(ends))
        live -= ends
    assert cluster.counter("evictions") <= 4
    assert cluster.delivered["r3"] == list(range(100, 121))


def test_memory_counts_generated_tokens_and_the_next() -> None:
    cluster = filled("A", pages=4)
    cluster.arrives("r1", prompt=7, max_tokens=1)
    assert cluster.arrives("r2", prompt=4, generated=4) == []  # 9 tokens take 3 pages; 2 are free
    assert cluster.is_cancelled("r2") == []
    assert cluster.arrives("r3", prompt=4, max_tokens=4, generated=3) == ["A: start r3 after 3"]


def test_starts_that_are_not_acknowledged_count_as_used() -> None:
    cluster = filled("A", pages=4)
    cluster.arrives("r1", prompt=8, max_tokens=2)  # 3 pages
    cluster.steps("A", applied=0)
    assert cluster.arrives("r2", prompt=4) == []  # 2 pages


def test_pages_of_a_stop_count_once_acknowledged() -> None:
    cluster = filled("A", pages=4)
    cluster.arrives("r1", prompt=8, max_tokens=4)
    cluster.steps("A", "r1")
    assert cluster.is_cancelled("r1") == ["A: stop r1"]
    assert cluster.arrives("r2", prompt=8, max_tokens=4) == []
    assert cluster.steps("A", applied=1) == []
    assert cluster.steps("A", applied=2) == ["A: start r2"]


def test_a_start_and_its_stop_both_on_their_way_count_as_used() -> None:
    cluster = filled("A", pages=4)
    cluster.arrives("r1", prompt=8, max_tokens=4)
    assert cluster.is_cancelled("r1") == ["A: stop r1"]
    assert cluster.arrives("r2", prompt=8, max_tokens=4) == []
    assert cluster.steps("A") == ["A: start r2"]


def test_the_whole_working_set_counts_as_used_also_what_waits_for_pages() -> None:
    cluster = filled("A", pages=6)
    cluster.arrives("r1", prompt=8)
    cluster.workers["A"].num_tokens.clear()  # the worker has it, but has not taken its 3 pages yet
    cluster.steps("A")
    assert cluster.arrives("r2", prompt=12, max_tokens=4) == []


def test_the_adapters_of_a_working_set_fit_the_pool_together() -> None:
    cluster = filled("A", "B", lora=3)
    two_pages = adapter("two pages", rank=16)
    assert cluster.arrives("r1", lora=two_pages) == ["B: start r1"]
    assert cluster.arrives("r2", lora=adapter("two others", rank=9)) == ["A: start r2"]
    assert cluster.arrives("r3", lora=two_pages) == ["B: start r3"]  # shares r1's pages
    assert cluster.arrives("r4", lora=adapter("one page")) == ["B: start r4"]
    assert cluster.arrives("r5", lora=adapter("a third", rank=16)) == []
    assert cluster.steps("A", "r2", finished="r2") == ["r2: 1 token at 0 stop", "A: start r5"]


# -------------------------------------------------------------- first come, first served


def test_a_head_that_does_not_fit_blocks_those_that_would() -> None:
    cluster = filled("A", pages=8)
    cluster.arrives("r1", prompt=20)
    assert cluster.arrives("long", prompt=20) == []
    assert cluster.arrives("short", prompt=1) == []
    assert cluster.steps("A", "r1", finished="r1") == ["r1: 1 token at 0 stop", "A: start long", "A: start short"]


def test_the_queue_goes_by_arrival_at_the_frontend_then_by_id() -> None:
    cluster = Cluster()
    for name, at in (("b", 5), ("a", 5), ("late", 9), ("early", 1)):
        cluster.arrives(name, at=at)
    assert cluster.gpu_joins("A") == ["A: start early", "A: start a", "A: start b", "A: start late"]


def test_no_gpu_means_queue() -> None:
    cluster = Cluster()
    assert cluster.arrives("r1", prompt=10_000) == []
    assert cluster.scheduler.snapshot(0).queue_length == 1


def test_a_full_queue_refuses_newcomers_but_not_streams_that_come_back() -> None:
    cluster = Cluster(max_queue=1)
    cluster.arrives("r1")
    assert cluster.arrives("r2") == ["r2: out_of_capacity"]
    assert cluster.arrives("r3", generated=2) == []
    assert cluster.counter("failed") == 1


def test_waiting_has_a_deadline() -> None:
    cluster = Cluster(queue_timeout_ns=5 * 10**9)
    cluster.arrives("r1")
    cluster.time_passes(3)
    cluster.arrives("r2")
    assert cluster.time_passes(2) == ["r1: out_of_capacity"]
    assert cluster.time_passes(3) == ["r2: out_of_capacity"]


def test_nothing_is_placed_before_the_first_tick_after_settling() -> None:
    cluster = Cluster(settle_ns=10**9)
    cluster.gpu_joins("A")
    assert cluster.arrives("r2") == []
    assert cluster.time_passes(0.5) == []
    assert cluster.arrives("r1", at=1) == []
    assert cluster.time_passes(0.5) == ["A: start r1", "A: start r2"]


# -------------------------------------------------------------- steps


def test_tokens_reach_their_frontend_in_order(cluster: Cluster) -> None:
    cluster.arrives("r1")
    assert cluster.steps("B", "r1") == ["r1: 1 token at 0"]
    assert cluster.steps("B", "r1 r1") == ["r1: 2 token at 1"]
    assert cluster.steps("B", "r1", finished="r1") == ["r1: 1 token at 3 stop"]
    assert cluster.delivered["r1"] == [100, 101, 102, 103]
    assert cluster.working_sets() == {"A": 0, "B": 0}
    assert (cluster.counter("finished"), cluster.counter("tokens")) == (1, 4)


def test_logprobs_travel_with_their_tokens(cluster: Cluster) -> None:
    cluster.arrives("r1", logprobs=1)
    logprobs = TokenLogprobs(-0.5, (100,), (-0.5,))
    cluster.arrives("r2")
    cluster.arrives("r3", logprobs=1)
    cluster.arrives("r4")
    counters = [cluster.assignments[name].counter for name in ("r1", "r2", "r3", "r4")]
    columns = (logprobs, None, logprobs, None)
    cluster.reports("B", [Row(counter, 0, column) for counter, column in zip(counters, columns, strict=True)])
    (delivery,) = [action.deliveries for action in cluster.actions if isinstance(action, Deliver)]
    assert (delivery.token_ids, delivery.logprobs) == ((100,) * 4, columns)


@pytest.mark.parametrize("position", [0, 2], ids=["repeat", "gap"])
def test_a_broken_stream_is_stopped_and_goes_on_elsewhere(cluster: Cluster, position: int) -> None:
    cluster.arrives("r1")
    cluster.steps("B", "r1")
    broken = Row(cluster.assignments["r1"].counter, position)
    assert cluster.reports("B", [broken]) == ["B: stop r1", "A: start r1 after 1"]
    assert cluster.steps("A", "r1", finished="r1") == ["r1: 1 token at 1 stop"]
    assert cluster.delivered["r1"] == [100, 101]


def test_a_stream_that_breaks_thrice_fails(cluster: Cluster) -> None:
    cluster.arrives("r1")
    for uuid in ("B", "A"):
        cluster.reports(uuid, [Row(cluster.assignments["r1"].counter, 9)])
    broken = Row(cluster.assignments["r1"].counter, 9)
    assert cluster.reports("B", [broken]) == ["r1: request_failed", "B: stop r1"]


def test_reports_of_unknown_gpus_and_assignments_are_dropped(cluster: Cluster) -> None:
    cluster.arrives("r1")
    assert cluster.reports("B", []) == []
    cluster.workers["B"].num_tokens[AssignmentId(INCARNATION, 99)] = 0
    assert cluster.reports("B", [Row(99, 0)]) == []
    assert cluster.reports("B", [Row(cluster.assignments["r1"].counter, 0)], incarnation=INCARNATION - 1) == []
    cluster.gpu_is_lost("B")
    assert cluster.steps("B") == []


# -------------------------------------------------------------- eviction and migration


def test_the_newest_by_arrival_is_evicted_not_the_newest_placed() -> None:
    cluster = filled("A", pages=5)
    cluster.arrives("young", prompt=6, at=20)  # 2 pages
    cluster.arrives("old", prompt=6, at=10)  # 2 pages
    # After one token each, two more steps need 9 tokens of both: 3 pages each, and there are 5.
    assert cluster.steps("A", "young old") == ["young: 1 token at 0", "old: 1 token at 0", "A: stop young"]
    assert cluster.counter("evictions") == 1


def test_an_evicted_request_goes_on_elsewhere_with_its_tokens() -> None:
    cluster = filled("A", "B", pages=5)
    cluster.arrives("r1", prompt=6)
    cluster.arrives("r2", prompt=6)
    assert cluster.steps("B", "r1 r2")[2:] == ["B: stop r2", "A: start r2 after 1"]
    stale = Row(2, 1)
    assert cluster.reports("B", [stale], applied=2) == []
    assert cluster.steps("A", "r2") == ["r2: 1 token at 1"]
    assert cluster.delivered["r2"] == [100, 101]
    assert cluster.counter("migrations") == 1


def test_an_evicted_request_does_not_return_in_the_same_decision() -> None:
    cluster = filled("A", pages=6)
    cluster.arrives("r1", prompt=7)
    cluster.arrives("r2", prompt=3)
    # The worker lacks a page that the book has: r2 would fit again at once.
    assert cluster.steps("A", "r1", starved="r2") == ["r1: 1 token at 0", "A: stop r2"]
    assert cluster.time_passes(0) == ["A: start r2"]
    assert cluster.counter("migrations") == 0


def test_a_starved_worker_waits_for_stops_on_their_way() -> None:
    cluster = filled("A", pages=6)
    for name in ("r1", "r2", "r3"):
        cluster.arrives(name, prompt=3)
    cluster.is_cancelled("r1")
    assert cluster.steps("A", "r2", applied=3, starved="r3") == ["r2: 1 token at 0"]


def test_an_evicted_request_waits_at_its_place_by_arrival() -> None:
    cluster = filled("A", pages=5)
    cluster.arrives("r1", prompt=6)
    cluster.arrives("r2", prompt=6)
    cluster.arrives("r3", prompt=6)
    cluster.steps("A", "r1 r2")
    assert cluster.steps("A", "r1", finished="r1")[1:] == ["A: start r2 after 1", "A: start r3"]


def test_eviction_goes_on_until_the_rest_fits() -> None:
    cluster = filled("A", pages=8)
    for name in ("r1", "r2", "r3", "r4"):
        cluster.arrives(name, prompt=6)
    cluster.steps("A", "r1 r2 r3 r4")
    assert cluster.working_sets() == {"A": 2}
    assert cluster.counter("evictions") == 2


def test_growth_stops_at_max_tokens() -> None:
    cluster = filled("A", pages=4)
    cluster.arrives("r1", prompt=7, max_tokens=1)
    cluster.arrives("r2", prompt=7, max_tokens=1)
    assert cluster.steps("A") == []  # 2 pages each hold all that they can ever have


def test_a_request_that_outgrows_its_gpu_moves_to_a_larger_one() -> None:
    cluster = Cluster()
    cluster.gpu_joins("small", pages=2)
    cluster.gpu_joins("large", pages=4)
    cluster.arrives("r1", prompt=5, max_tokens=8)
    assert cluster.steps("small", "r1") == ["r1: 1 token at 0"]
    assert cluster.steps("small", "r1")[1:] == ["small: stop r1", "large: start r1 after 2"]


def test_a_request_that_has_outgrown_a_gpu_does_not_come_back_to_it() -> None:
    cluster = Cluster()
    cluster.gpu_joins("small", pages=2)
    cluster.gpu_joins("large", pages=4, batch=1)
    cluster.arrives("r1", prompt=12, max_tokens=4)
    cluster.arrives("r2", prompt=5, max_tokens=8)
    cluster.steps("small", "r2")
    assert cluster.steps("small", "r2")[1:] == ["small: stop r2"]
    assert cluster.steps("small") == []
    assert cluster.steps("large", "r1", finished="r1")[1:] == ["large: start r2 after 2"]


def test_a_request_that_has_outgrown_all_that_is_left_fails() -> None:
    cluster = Cluster()
    cluster.gpu_joins("small", pages=2)
    cluster.gpu_joins("large", pages=4)
    cluster.arrives("r1", prompt=5, max_tokens=8)
    cluster.steps("small", "r1")
    cluster.gpu_is_lost("large")
    assert cluster.steps("small", "r1") == ["r1: 1 token at 1 request_failed", "small: stop r1"]
    assert "7 tokens" in cluster.error.message


def test_migration_as_in_the_paper() -> None:
    """Punica, figure 5: a long request outgrows the busiest GPU, and the newest there moves to the next busiest."""
    cluster = filled("1", "2", "3", pages=8, batch=4)
    for name in ("r1", "r2", "r3", "r4"):
        cluster.arrives(name, prompt=6, max_tokens=20)  # 2 pages each: GPU 3 is full
    cluster.arrives("r5", prompt=6, max_tokens=20)
    assert cluster.working_sets() == {"1": 0, "2": 1, "3": 4}
    assert cluster.steps("3", "r1 r2 r3 r4")[4:] == [
        "3: stop r4",
        "3: stop r3",
        "2: start r3 after 1",
        "2: start r4 after 1",
    ]
    assert cluster.arrives("r6", prompt=6) == ["1: start r6"]


# -------------------------------------------------------------- cancellation


def test_cancelling_a_queued_request_lets_the_next_pass() -> None:
    cluster = filled("A", pages=8)
    cluster.arrives("r1", prompt=20)
    cluster.arrives("long", prompt=20)
    cluster.arrives("short", prompt=1)
    assert cluster.is_cancelled("long") == ["A: start short"]


def test_a_cancelled_request_gets_nothing_more(cluster: Cluster) -> None:
    cluster.arrives("r1")
    assert cluster.is_cancelled("r1") == ["B: stop r1"]
    assert cluster.steps("B", "r1", applied=1) == []
    assert cluster.steps("B", "r1", finished="r1", applied=1) == []
    assert cluster.is_cancelled("r1") == []
    assert cluster.counter("cancelled") == 1


def test_only_its_own_frontend_cancels_a_request(cluster: Cluster) -> None:
    cluster.arrives("r1", frontend="mine")
    assert cluster.is_cancelled("r1", frontend="yours") == []
    assert cluster.working_sets()["B"] == 1


def test_a_lost_frontend_has_its_requests_cancelled(cluster: Cluster) -> None:
    cluster.arrives("r1", frontend="mine")
    cluster.arrives("r2", frontend="yours")
    assert cluster.tell(events.FrontendLost("mine")) == ["B: stop r1"]
    assert cluster.working_sets()["B"] == 1


# -------------------------------------------------------------- losses and failures


def test_requests_of_a_lost_gpu_go_on_elsewhere_in_order_of_arrival(cluster: Cluster) -> None:
    cluster.arrives("r2", at=20)
    cluster.arrives("r1", at=10)
    cluster.steps("B", "r1 r2")
    assert cluster.gpu_is_lost("B") == ["A: start r1 after 1", "A: start r2 after 1"]
    assert (cluster.counter("gpus_lost"), cluster.counter("migrations")) == (1, 2)


def test_a_lost_runner_loses_all_its_gpus_in_one_decision() -> None:
    cluster = Cluster()
    cluster.tell(events.RunnerJoined("host 1"))
    for uuid, runner in (("A", "host 2"), ("B", "host 1"), ("C", "host 1")):
        cluster.gpu_joins(uuid, runner=runner)
    cluster.arrives("r1")
    assert cluster.tell(events.RunnerLost("host 1")) == ["A: start r1"]
    assert cluster.working_sets() == {"A": 1}


def test_a_gpu_that_joins_again_starts_empty(cluster: Cluster) -> None:
    cluster.arrives("r1")
    old = cluster.assignments["r1"]
    assert cluster.gpu_joins("B") == ["B: start r1"]
    assert isinstance(start := cluster.actions[0], Start) and start.seq == 1
    assert cluster.assignments["r1"] != old


def test_a_request_with_all_its_tokens_ends_when_its_gpu_is_lost(cluster: Cluster) -> None:
    cluster.arrives("r1", max_tokens=1)
    cluster.steps("B", "r1")
    assert cluster.gpu_is_lost("B") == ["r1: length"]


# -------------------------------------------------------------- requests that may be poison


def with_suspects(*names: str, prompt: int = 3) -> Cluster:
    """No GPU is left: B, and then A, were lost while these were running on them."""
    cluster = filled("A", "B", pages=32)
    for name in names:
        cluster.arrives(name, prompt=prompt, max_tokens=40, lora=adapter("toxic"))
    for uuid in ("B", "A"):
        cluster.steps(uuid)
        cluster.gpu_is_lost(uuid)
    return cluster


def test_a_request_that_was_running_at_two_losses_runs_alone_and_the_others_elsewhere() -> None:
    cluster = with_suspects("r1")
    assert cluster.gpu_joins("B") == ["B: start r1"]
    assert cluster.arrives("r2") == []
    assert cluster.gpu_joins("A") == ["A: start r2"]
    assert cluster.arrives("r3") == ["A: start r3"]


def test_a_third_loss_alone_fails_it_and_names_its_adapter() -> None:
    cluster = with_suspects("r1")
    cluster.arrives("r2")
    cluster.gpu_joins("B")
    cluster.steps("B", "r1")
    assert cluster.gpu_is_lost("B") == ["r1: request_failed"]
    assert "or its adapter toxic," in cluster.error.message
    assert cluster.gpu_joins("B") == ["B: start r2"]


def test_losses_before_a_start_was_applied_do_not_count() -> None:
    cluster = filled("A")
    cluster.arrives("r1")
    for _ in range(5):
        assert cluster.gpu_joins("A") == ["A: start r1"]
    assert cluster.arrives("r2") == ["A: start r2"]


def test_an_acquitted_request_has_company_again_and_counts_from_zero() -> None:
    cluster = with_suspects("r1")
    cluster.gpu_joins("B", pages=32)
    for _ in range(15):
        cluster.steps("B", "r1")
    assert cluster.arrives("r2") == []
    assert cluster.steps("B", "r1") == ["r1: 1 token at 15", "B: start r2"]
    assert cluster.gpu_joins("B", pages=32) == ["B: start r1 after 16", "B: start r2"]


def test_suspects_are_tried_one_after_the_other() -> None:
    cluster = with_suspects("r1", "r2")
    assert cluster.gpu_joins("A", pages=32) == ["A: start r1"]
    assert cluster.gpu_joins("B", pages=32) == []
    assert cluster.arrives("r3") == ["B: start r3"]
    assert cluster.steps("A", "r1", finished="r1")[1:] == ["B: stop r3", "B: start r2", "A: start r3"]


def test_a_gpu_is_kept_for_a_suspect_until_its_pages_are_back() -> None:
    cluster = filled("A", "B", pages=9)
    for name in ("r1", "r2"):
        cluster.arrives(name, prompt=11, max_tokens=24, generated=1)
    for uuid in ("B", "A"):
        cluster.steps(uuid)
        cluster.gpu_is_lost(uuid)
    cluster.gpu_joins("A", pages=9)
    for _ in range(15):
        cluster.steps("A", "r1")
    assert cluster.arrives("r3") == []
    assert cluster.steps("A", "r1") == ["r1: 1 token at 16", "A: stop r1"]
    assert cluster.steps("A") == ["A: start r2 after 1"]
    assert cluster.steps("A", "r2", finished="r2") == ["r2: 1 token at 1 stop", "A: start r1 after 17"]


def test_a_trial_is_rather_not_where_the_request_was_lost_last() -> None:
    cluster = filled("A", "B")
    cluster.arrives("r1")
    cluster.steps("B")
    cluster.gpu_is_lost("B")
    cluster.gpu_joins("B")
    cluster.steps("A")
    assert cluster.gpu_joins("A") == ["B: start r1"]


def test_a_suspect_may_be_cancelled_wherever_it_is() -> None:
    cluster = with_suspects("r1", "r2", "r3")
    assert cluster.scheduler.snapshot(0).queue_length == 3
    assert cluster.is_cancelled("r2") == []
    assert cluster.gpu_joins("A", pages=32) == ["A: start r1"]
    assert cluster.is_cancelled("r1") == ["A: stop r1", "A: start r3"]


def test_a_suspect_waits_no_longer_than_others() -> None:
    cluster = with_suspects("r1")
    assert cluster.time_passes(600) == ["r1: out_of_capacity"]


def test_a_suspect_that_no_gpu_can_run_fails() -> None:
    cluster = with_suspects("r1", "r2")
    assert cluster.gpu_joins("A", lora=0) == ["r1: invalid_request", "r2: invalid_request"]


def test_a_suspect_that_outgrows_its_gpu_goes_on_in_another() -> None:
    cluster = with_suspects("r1")
    cluster.arrives("r2")
    cluster.gpu_joins("A", pages=32)
    assert cluster.gpu_joins("B", pages=32) == ["B: start r2"]
    assert cluster.steps("A", starved="r1") == ["A: stop r1", "B: stop r2", "B: start r1", "A: start r2"]


def test_a_failed_load_is_tried_elsewhere_three_times_in_all(cluster: Cluster) -> None:
    cluster.arrives("r1", lora=adapter("broken"))
    assert cluster.load_fails("B", "r1") == ["A: start r1"]
    assert cluster.load_fails("A", "r1") == ["B: start r1"]
    assert cluster.load_fails("B", "r1") == ["r1: request_failed"]
    assert "the disk is gone" in cluster.error.message


def test_a_failed_load_does_not_go_back_in_the_same_decision() -> None:
    cluster = filled("A", pages=2)
    cluster.arrives("r1", lora=adapter("slow disk"), prompt=7, max_tokens=1)
    assert cluster.load_fails("A", "r1") == []
    assert cluster.time_passes(0) == ["A: start r1"]  # its pages are back, though no step has told so


def test_a_permanently_failed_load_fails_the_request_and_no_other(cluster: Cluster) -> None:
    cluster.arrives("r1", lora=adapter("broken"))
    cluster.arrives("r2")
    assert cluster.load_fails("B", "r1", permanent=True) == ["r1: request_failed"]
    assert cluster.working_sets()["B"] == 1


# -------------------------------------------------------------- requests that come again


def test_a_request_added_with_tokens_goes_on_from_there(cluster: Cluster) -> None:
    assert cluster.arrives("r1", generated=3) == ["B: start r1 after 3"]
    assert cluster.steps("B", "r1") == ["r1: 1 token at 3"]


def test_a_request_added_again_supersedes_itself(cluster: Cluster) -> None:
    cluster.arrives("r1")
    cluster.steps("B", "r1 r1")
    assert cluster.arrives("r1", generated=1) == ["B: stop r1", "B: start r1 after 1"]
    assert (cluster.counter("arrived"), cluster.counter("cancelled")) == (2, 1)


def test_an_id_of_another_frontend_is_refused_and_harms_nobody(cluster: Cluster) -> None:
    cluster.arrives("r1", frontend="mine")
    assert cluster.arrives("r1", frontend="yours") == ["r1: invalid_request"]
    assert isinstance(refusal := cluster.actions[0], Deliver) and refusal.frontend_id == "yours"
    assert cluster.working_sets()["B"] == 1


# -------------------------------------------------------------- refusals and limits


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param"),
    [(7, 2, "max_tokens"), (8, 1, "prompt"), (20, 1, "prompt")],
)
def test_what_no_kvcache_can_hold_is_refused(prompt: int, max_tokens: int, param: str) -> None:
    cluster = filled("A", pages=2)
    assert cluster.arrives("r1", prompt=prompt, max_tokens=max_tokens) == ["r1: invalid_request"]
    assert cluster.error.param == param
    assert cluster.arrives("r2", prompt=7, max_tokens=1) == ["A: start r2"]


def test_an_adapter_that_no_pool_can_hold_is_refused() -> None:
    cluster = filled("A", lora=2)
    assert cluster.arrives("r1", lora=adapter("huge", rank=24)) == ["r1: invalid_request"]
    assert cluster.error.param == "lora_id"


def test_a_request_that_waited_for_a_gpu_too_small_is_refused_then() -> None:
    cluster = Cluster()
    cluster.arrives("r1", prompt=50)
    cluster.arrives("r2")
    assert cluster.gpu_joins("A", pages=4) == ["r1: invalid_request", "A: start r2"]


def test_limits_are_announced_at_joining_and_on_change() -> None:
    cluster = Cluster()

    def announced() -> list[Action]:
        return [action for action in cluster.actions if isinstance(action, AnnounceLimits)]

    cluster.tell(events.FrontendJoined("f"))
    assert announced() == [AnnounceLimits("f", Limits(0))]
    cluster.gpu_joins("A", pages=2)
    assert announced() == [AnnounceLimits("f", Limits(1, 8))]
    cluster.gpu_joins("B", pages=3)
    assert announced() == [AnnounceLimits("f", Limits(2, 12))]
    cluster.steps("B")
    assert announced() == []
    cluster.gpu_is_lost("B")
    assert announced() == [AnnounceLimits("f", Limits(1, 8))]


# -------------------------------------------------------------- what people see


def test_the_snapshot_shows_gpus_queue_and_peers() -> None:
    cluster = Cluster()
    cluster.tell(events.FrontendJoined("f"))
    cluster.tell(events.RunnerJoined("runner"))
    cluster.gpu_joins("A", pages=4)
    cluster.arrives("r1", prompt=8, max_tokens=4)
    cluster.arrives("r2", prompt=8, max_tokens=4)
    cluster.steps("A", "r1")
    snapshot = cluster.scheduler.snapshot(77)
    assert (snapshot.incarnation, snapshot.now_ns) == (INCARNATION, 77)
    assert (snapshot.queue_length, snapshot.num_frontends, snapshot.num_runners) == (1, 1, 1)
    (gpu,) = snapshot.gpus
    assert (gpu.runner_id, gpu.working_set, gpu.batch_size, gpu.free_kv_pages) == ("runner", 1, 1, 1)
    assert (gpu.steps, gpu.tokens) == (1, 1)


def test_the_story_replays() -> None:
    cluster = filled("A", "B", pages=5)
    for name in ("r1", "r2", "r3"):
        cluster.arrives(name, prompt=6)
    cluster.steps("B", "r1 r2")
    cluster.is_cancelled("r1")
    again = Scheduler(INCARNATION)
    for entry in cluster.scheduler.story:
        assert again.handle(entry.event, entry.now_ns) == entry.actions
