import pytest

from punica_scheduler.core.actions import Deliver
from punica_serve.protocol import AssignmentId, PrefixCaching, TokenLogprobs
from scheduler_in_words import Cluster, NewCluster


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
    cluster.reports("B", [(counter, 0) for counter in counters], logprobs=columns)
    (delivery,) = [action.deliveries for action in cluster.actions if isinstance(action, Deliver)]
    assert (delivery.token_ids, delivery.logprobs) == ((100,) * 4, columns)


@pytest.mark.parametrize("position", [0, 2], ids=["repeat", "gap"])
def test_a_broken_stream_is_stopped_and_goes_on_elsewhere(cluster: Cluster, position: int) -> None:
    cluster.arrives("r1")
    cluster.steps("B", "r1")
    broken = (cluster.assignments["r1"].counter, position)
    assert cluster.reports("B", [broken]) == ["B: stop r1", "A: start r1 after 1"]
    assert cluster.steps("A", "r1", finished="r1") == ["r1: 1 token at 1 stop"]
    assert cluster.delivered["r1"] == [100, 101]


def test_a_stream_that_breaks_thrice_fails(cluster: Cluster) -> None:
    cluster.arrives("r1")
    for uuid in ("B", "A"):
        cluster.reports(uuid, [(cluster.assignments["r1"].counter, 9)])
    broken = (cluster.assignments["r1"].counter, 9)
    assert cluster.reports("B", [broken]) == ["r1: request_failed", "B: stop r1"]


def test_reports_of_unknown_gpus_and_assignments_are_dropped(cluster: Cluster) -> None:
    cluster.arrives("r1")
    assert cluster.reports("B", []) == []
    cluster.workers["B"].num_tokens[AssignmentId(cluster.incarnation, 99)] = 0
    assert cluster.reports("B", [(99, 0)]) == []
    assert cluster.reports("B", [(cluster.assignments["r1"].counter, 0)], incarnation=cluster.incarnation - 1) == []
    cluster.gpu_is_lost("B")
    assert cluster.steps("B") == []


def test_prompt_tokens_of_another_incarnation_advance_no_prompt(cluster: Cluster) -> None:
    cluster.arrives("r1", prompt=9)
    (due,) = cluster.scheduler._fleet.gpus["B"].load_sums.prefills
    cluster.reports("B", [], incarnation=cluster.incarnation - 1, prefilled=4)
    assert due.num_cached == 0
    cluster.reports("B", [], prefilled=4)
    assert due.num_cached == 4


def test_cached_tokens_are_told_once_with_the_first_token(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.gpu_joins("C", prefix_caching=PrefixCaching("base"))
    for name in ("r1", "r2", "r3"):
        cluster.arrives(name, prompt=6)

    def told() -> list[tuple[str, int]]:
        deliveries = [action.deliveries for action in cluster.actions if isinstance(action, Deliver)]
        return [(cluster.names[handle], count) for delivery in deliveries for handle, count in delivery.cached]

    cluster.steps("C", "r1 r2", cached={"r1": 4})
    assert told() == [("r1", 4), ("r2", 0)]
    cluster.steps("C", "r1 r2")
    assert told() == []
    cluster.steps("C", "r3 r1 r2", cached={"r3": 4}, finished="r3")
    assert told() == [("r3", 4)]


def test_gpus_that_share_no_pages_tell_nothing_of_them(cluster: Cluster) -> None:
    cluster.arrives("r1")
    cluster.steps("B", "r1")
    assert [action.deliveries.cached for action in cluster.actions if isinstance(action, Deliver)] == [()]
