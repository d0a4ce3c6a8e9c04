"""The events of a history that come from workers, which obey late and report late."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from frontend_rules import ADAPTERS
from gpu_rules import RUNNERS
from late_cluster import LateCluster
from late_worker import PAGE_SIZE, Worker
from punica_scheduler.core import events
from punica_serve.paging.prefix_hash import hints_of
from punica_serve.protocol import AdapterRef, AdaptersCached, PrefixCaching

#: Error codes of failed loads.
LOAD_FAILURES = ("request_failed", "store_unavailable")


class WorkerRules(RuleBasedStateMachine):
    cluster: LateCluster

    @property
    def workers(self) -> list[Worker]:
        return list(self.cluster.workers.values())

    @property
    def loading(self) -> list[Worker]:
        """Those that await an adapter."""
        return [worker for worker in self.workers if worker.loading]

    @property
    def reporting(self) -> list[Worker]:
        """Those with reports on their way."""
        return [worker for worker in self.workers if worker.reports]

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), max_commands=st.integers(0, 4))
    def worker_steps(self, data: st.DataObject, max_commands: int) -> None:
        data.draw(st.sampled_from(self.workers)).step(max_commands)

    @precondition(lambda self: self.reporting)
    @rule(data=st.data(), num_reports=st.integers(1, 3))
    def reports_arrive(self, data: st.DataObject, num_reports: int) -> None:
        worker = data.draw(st.sampled_from(self.reporting))
        for _ in range(min(num_reports, len(worker.reports))):
            self.cluster.tell(worker.reports.popleft())

    @rule(num_rounds=st.integers(1, 4))
    def all_goes_well(self, num_rounds: int) -> None:
        for _ in range(num_rounds):
            self.cluster.go_well()

    @precondition(lambda self: self.workers and self.cluster.live)
    @rule(data=st.data(), is_true=st.booleans())
    def worker_tells_of_prefixes(self, data: st.DataObject, is_true: bool) -> None:
        """They are of prompts that it may never have had, or of none: workers do not say what they have given away."""
        worker = data.draw(st.sampled_from(self.workers))
        request = data.draw(st.sampled_from(self.cluster.live)).request
        settings = worker.info.prefix_caching or PrefixCaching("base")
        worker.prefix_hints = hints_of(request, settings, PAGE_SIZE, request.prompt_ids) if is_true else (7, 7, 8)

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), permanent=st.booleans(), code=st.sampled_from(LOAD_FAILURES))
    def load_fails(self, data: st.DataObject, permanent: bool, code: str) -> None:
        worker = data.draw(st.sampled_from(self.loading))
        assignment = data.draw(st.sampled_from(worker.loading))
        stream = self.cluster.streams[worker.sequences[assignment].request.request_id]
        stream.num_load_failures += 3 if permanent else 1
        worker.fail_load(assignment, permanent=permanent, code=code)

    @rule(ref=st.sampled_from(ADAPTERS), runner_id=st.sampled_from(RUNNERS), is_there=st.booleans())
    def adapter_comes_to_a_disk_or_leaves_it(self, ref: AdapterRef, runner_id: str, is_there: bool) -> None:
        change = AdaptersCached(None, (ref.digest,), ()) if is_there else AdaptersCached(None, (), (ref.digest,))
        self.cluster.tell(events.AdaptersCached(runner_id, change))
