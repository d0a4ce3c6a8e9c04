"""The events of a history by which runners and GPUs come, go and are drained."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from late_cluster import LateCluster
from late_worker import PAGE_SIZE
from punica_scheduler.core import events
from punica_serve.protocol import GpuInfo, KvWindow, PrefixCaching

RUNNERS = ("host 0", "host 1")
#: The first two hold not every request, which may be refused for that, but fails for it only if it has never run.
POOLS = (2, 4, 6, 8, 24)


class GpuRules(RuleBasedStateMachine):
    cluster: LateCluster

    @precondition(lambda self: len(self.cluster.workers) < 4)
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
        number = len(self.cluster.runners) + 1
        uuid = f"GPU-{number * 7 % 10}-{number}"
        info = GpuInfo(
            uuid,
            "cpu",
            batch,
            PAGE_SIZE,
            num_pages,
            {"qkv": num_lora_pages, "o": num_lora_pages},
            window=window,
            prefix_caching=prefix_caching,
            max_prefills=max_prefills,
            ranks=(uuid, f"{uuid}/1") if is_group else (),
        )
        self.cluster.join(runner_id, info)

    @precondition(lambda self: self.cluster.workers)
    @rule(data=st.data(), dice=st.integers(1, 3))
    def gpu_is_lost(self, data: st.DataObject, dice: int) -> None:
        if dice == 3:
            self.cluster.lose_gpu(self.draw_gpu(data))

    @precondition(lambda self: self.cluster.workers)
    @rule(data=st.data(), runner_id=st.sampled_from(RUNNERS), dice=st.integers(1, 3))
    def gpu_joins_again(self, data: st.DataObject, runner_id: str, dice: int) -> None:
        """Nobody has said that it was lost."""
        if dice == 3:
            self.cluster.join(runner_id, self.cluster.workers[self.draw_gpu(data)].info)

    @rule(runner_id=st.sampled_from(RUNNERS), dice=st.integers(1, 4), comes_back=st.booleans())
    def runner_is_lost(self, runner_id: str, dice: int, comes_back: bool) -> None:
        if dice < 4:
            return
        if not comes_back:
            self.cluster.lose_runner(runner_id, events.RunnerLost(runner_id))
            return
        for info in self.cluster.lose_runner(runner_id, events.RunnerJoined(runner_id)):
            self.cluster.join(runner_id, info)

    @rule(runner_id=st.sampled_from(RUNNERS), dice=st.integers(1, 6))
    def runner_is_drained(self, runner_id: str, dice: int) -> None:
        if dice == 6:
            self.cluster.drain_runner(runner_id)

    @precondition(lambda self: self.cluster.workers)
    @rule(data=st.data(), drain=st.booleans())
    def gpu_is_drained(self, data: st.DataObject, drain: bool) -> None:
        uuid = self.draw_gpu(data)
        if drain or self.cluster.runners[uuid] not in self.cluster.drained_runners:
            self.cluster.drain_gpu(uuid, drain=drain)

    def draw_gpu(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.cluster.workers)))
