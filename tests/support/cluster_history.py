"""Any history of a cluster, by hypothesis: a scheduler of any policy, and all that may happen to it.

The scheduler audits its state after each rule. A test of a promise inherits this, and adds what it checks.
"""

from collections.abc import Callable
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from all_placements import ALL_PLACEMENTS
from examples import examples
from frontend_rules import FRONTENDS, FrontendRules
from gpu_rules import POOLS, RUNNERS, GpuRules
from late_cluster import LateCluster
from late_worker import BUDGET
from punica_scheduler.core import events
from punica_scheduler.core.actions import Action
from punica_scheduler.core.consolidation import ConsolidationRule
from punica_scheduler.core.queues import QUEUES
from punica_scheduler.core.settings import SchedulerSettings
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.protocol import PrefixCaching, TenantQuota
from worker_rules import WorkerRules

#: Ticks of the histories' clock, which counts events.
STORE_PATIENCE_NS = 20
#: Moves whenever it can.
EAGER = ConsolidationRule(interval_ns=1, light_load=0.5, prefill_tokens_per_s=10**6, idle_s=100)

HISTORIES = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)


class ClusterHistory(FrontendRules, GpuRules, WorkerRules):
    """``cluster`` is there from the first rule on."""

    def __init__(self) -> None:
        super().__init__()
        #: Those of tenants that have one, by id.
        self.quotas: dict[str, TenantQuota] = {}

    def observe(self, event: events.Event, actions: list[Action]) -> None:
        """Called after each event, once its actions have their effects. To be overridden."""

    @initialize(
        placement=st.sampled_from(sorted(ALL_PLACEMENTS)),
        queue=st.sampled_from(sorted(QUEUES)),
        migration=st.booleans(),
        consolidation=st.sampled_from([None, EAGER]),
        num_pages=st.sampled_from(POOLS),
        batch=st.sampled_from((1, 2, 4)),
        prefix_caching=st.sampled_from((None, PrefixCaching("base"))),
    )
    def begin(
        self,
        placement: str,
        queue: str,
        migration: bool,
        consolidation: ConsolidationRule | None,
        num_pages: int,
        batch: int,
        prefix_caching: PrefixCaching | None,
    ) -> None:
        settings = SchedulerSettings(
            ALL_PLACEMENTS[placement](),
            queue,
            migration,
            consolidation=consolidation,
            store_patience_ns=STORE_PATIENCE_NS,
            prefill_budget=PrefillBudget(BUDGET),
        )
        self.cluster = LateCluster(settings, self.quotas, self.observe)
        for frontend_id in FRONTENDS:
            self.cluster.tell(events.FrontendJoined(frontend_id))
        for runner_id, pool in zip(RUNNERS, (POOLS[-1], num_pages), strict=True):
            self.gpu_joins(pool, batch, num_lora_pages=4, runner_id=runner_id, prefix_caching=prefix_caching)

    @rule(data=st.data(), dice=st.integers(1, 6), settle_ns=st.integers(0, 5))
    def scheduler_restarts(self, data: st.DataObject, dice: int, settle_ns: int) -> None:
        """All come back in any order."""
        if dice < 6:
            return
        infos = self.cluster.restart_scheduler(settle_ns)
        returns: list[Callable[[], None]] = [
            *(partial(self.cluster.join, self.cluster.runners[info.uuid], info) for info in infos),
            *(partial(self.frontend_comes_back, frontend_id, data) for frontend_id in FRONTENDS),
        ]
        for come_back in data.draw(st.permutations(returns)):
            come_back()

    def frontend_comes_back(self, frontend_id: str, data: st.DataObject) -> None:
        self.cluster.tell(events.FrontendJoined(frontend_id))
        self.cluster.add_again(data.draw(st.permutations(self.cluster.live_of(frontend_id))))

    @rule()
    def time_passes(self) -> None:
        self.cluster.tell(events.Tick())

    @invariant()
    def state_is_sound(self) -> None:
        self.cluster.scheduler.check_invariants()

    def ends_well(self) -> None:
        """From now on nothing goes wrong, and there is a GPU that is large enough for all: every request ends."""
        self.cluster.end_drains()
        self.gpu_joins(num_pages=POOLS[-1], batch=2, num_lora_pages=4, runner_id=RUNNERS[0])
        self.cluster.finish_all()
