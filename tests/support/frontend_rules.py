"""The events of a history that come from frontends and their clients."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from late_cluster import LateCluster
from punica_scheduler.core import events
from punica_serve.protocol import AdapterRef, Request, SamplingParams, Slo

FRONTENDS = ("f", "g")
TENANTS = ("a", "b")
ADAPTERS = tuple(AdapterRef(f"lora{rank}", "", 1, {"q_proj": rank, "o_proj": 8}) for rank in (8, 12, 16))
MAX_TOTAL_TOKENS = 12


class FrontendRules(RuleBasedStateMachine):
    cluster: LateCluster

    @rule(
        prompts=st.lists(st.integers(1, 6), min_size=1, max_size=5),
        room=st.integers(2, 8),
        adapter=st.sampled_from((None, *ADAPTERS)),
        skew=st.integers(0, 9),
        frontend_id=st.sampled_from(FRONTENDS),
        tenant=st.sampled_from((None, *TENANTS)),
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
        """One after another; a ``skew`` above 1 lets one arrive here after a later one."""
        for prompt in prompts:
            number = len(self.cluster.streams) + 1
            sampling = SamplingParams(max_tokens=min(room, MAX_TOTAL_TOKENS - prompt))
            arrival_ns = 11 * number - 10 * skew + 100
            request = Request(
                f"r{number}", arrival_ns, (1,) * prompt, sampling, adapter, tenant_id=tenant, tenant=tenant, slo=slo
            )
            self.cluster.arrives(frontend_id, request)

    @precondition(lambda self: self.cluster.live)
    @rule(data=st.data(), dice=st.integers(1, 3))
    def request_is_cancelled(self, data: st.DataObject, dice: int) -> None:
        if dice < 3:
            return
        stream = data.draw(st.sampled_from(self.cluster.live))
        self.cluster.tell(events.RequestCancelled(stream.frontend_id, stream.request.request_id))
        assert stream.end is not None and stream.end.reason == "cancelled"

    @rule(frontend_id=st.sampled_from(FRONTENDS), dice=st.integers(1, 6), is_lost=st.booleans())
    def frontend_reconnects(self, frontend_id: str, dice: int, is_lost: bool) -> None:
        """Seldom, or no request would ever live long. Whether anyone has seen that its link was lost or not."""
        if dice < 6:
            return
        if is_lost:
            self.cluster.tell(events.FrontendLost(frontend_id))
        self.cluster.tell(events.FrontendJoined(frontend_id))
        self.cluster.add_again(self.cluster.live_of(frontend_id))
