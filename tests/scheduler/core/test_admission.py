import pytest

from punica_scheduler.core import events
from punica_scheduler.core.actions import Action, AnnounceLimits
from punica_serve.protocol import AdapterRef, Limits
from scheduler_in_words import NewAdapter, NewCluster


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param"),
    [(7, 2, "max_tokens"), (8, 1, "prompt"), (20, 1, "prompt")],
)
def test_what_no_kvcache_can_hold_is_refused(prompt: int, max_tokens: int, param: str, filled: NewCluster) -> None:
    cluster = filled("A", pages=2)
    assert cluster.arrives("r1", prompt=prompt, max_tokens=max_tokens) == ["r1: context_length_exceeded"]
    assert cluster.error.param == param
    assert cluster.arrives("r2", prompt=7, max_tokens=1) == ["A: start r2"]


def test_an_adapter_that_no_pool_can_hold_is_refused(filled: NewCluster, adapter: NewAdapter) -> None:
    cluster = filled("A", lora=2)
    assert cluster.arrives("r1", lora=adapter("huge", rank=24)) == ["r1: invalid_request"]
    assert cluster.error.param == "lora_id"


def test_an_adapter_of_the_head_is_refused_with_the_setting_where_no_gpu_has_pages_of_it(filled: NewCluster) -> None:
    cluster = filled("A", lora=2)
    head = AdapterRef("head", "/head", 1, {"q_proj": 8, "lm_head": 8})
    assert cluster.arrives("r1", lora=head) == ["r1: invalid_request"]
    assert "updates lm_head" in cluster.error.message and "set engine.lora_vocabulary to true" in cluster.error.message


def test_a_request_that_waited_for_a_gpu_too_small_is_refused_then(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.arrives("r1", prompt=50)
    cluster.arrives("r2")
    assert cluster.gpu_joins("A", pages=4) == ["r1: context_length_exceeded", "A: start r2"]


def test_limits_are_announced_at_joining_and_on_change(new_cluster: NewCluster) -> None:
    cluster = new_cluster()

    def announced() -> list[Action]:
        return [action for action in cluster.actions if isinstance(action, AnnounceLimits)]

    cluster.tell(events.FrontendJoined("f"))
    assert announced() == [AnnounceLimits("f", Limits(0))]
    cluster.gpu_joins("A", pages=2)
    assert announced() == [AnnounceLimits("f", Limits(1, 8))]
    cluster.is_drained("A")
    assert announced() == [AnnounceLimits("f", Limits(1, 8, num_draining=1))]
    cluster.is_drained("A", drain=False)
    assert announced() == [AnnounceLimits("f", Limits(1, 8))]
    cluster.gpu_joins("B", pages=3)
    assert announced() == [AnnounceLimits("f", Limits(2, 12))]
    cluster.steps("B")
    assert announced() == []
    cluster.gpu_is_lost("B")
    assert announced() == [AnnounceLimits("f", Limits(1, 8))]


def test_limits_tell_the_least_that_can_be_promised(new_cluster: NewCluster) -> None:
    cluster = new_cluster(least_first_token_s=0.02, least_time_per_token_s=0.005)
    cluster.tell(events.FrontendJoined("f"))
    assert cluster.actions == [AnnounceLimits("f", Limits(0, None, 0, 0.02, 0.005))]
    cluster.gpu_joins("A", pages=2)
    assert cluster.actions == [AnnounceLimits("f", Limits(1, 8, 0, 0.02, 0.005))]


def test_a_request_that_fits_only_a_gpu_that_drains_holds_up_nobody(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.gpu_joins("large", pages=16)
    cluster.gpu_joins("small", pages=2, batch=1)
    cluster.is_drained("large")
    assert cluster.arrives("r1", prompt=20) == ["r1: out_of_capacity"]
    cluster.is_drained("small")
    assert cluster.arrives("r2", prompt=20) == []
    assert cluster.is_drained("small", drain=False) == ["r2: out_of_capacity", "f: answer 7"]
    assert cluster.arrives("r3", prompt=1, max_tokens=2) == ["small: start r3"]
