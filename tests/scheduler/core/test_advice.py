"""More GPUs are asked for after 5 s without a lightly loaded one, and idle runners released after 60 s."""

import pytest

from punica_scheduler.core.advice import ScaleRule
from punica_scheduler.core.consolidate_slo import ConsolidateSloPlacement
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_columns import StepTimeColumns
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.protocol import ScaleAdvice, Slo
from scheduler_in_words import Cluster, NewCluster

NONE = ScaleAdvice()


@pytest.fixture
def two_hosts(new_cluster: NewCluster) -> Cluster:
    """A and B on hosts of their own, with two places each."""
    cluster = new_cluster(scale=ScaleRule())
    for uuid in ("A", "B"):
        cluster.gpu_joins(uuid, batch=2, runner=f"host {uuid}")
    return cluster


def test_more_are_asked_for_when_none_is_lightly_loaded_for_a_while(two_hosts: Cluster) -> None:
    for i in range(3):
        two_hosts.arrives(f"r{i}")
    for _ in range(5):
        two_hosts.time_passes(1)
        assert two_hosts.advice is None
    two_hosts.time_passes(1)
    assert two_hosts.advice == ScaleAdvice(num_more_gpus=1)
    assert two_hosts.scheduler.snapshot(0).advice == ScaleAdvice(num_more_gpus=1)
    two_hosts.time_passes(1)
    assert two_hosts.advice is None, "only what differs is said"


def test_a_gpu_that_breaks_promises_is_not_lightly_loaded(new_cluster: NewCluster) -> None:
    """B has nothing to do, and A's one request was promised more than any GPU can do."""
    costs = StepTimeColumns(StepTimeModel(load_profile("h200-7b")))
    cluster = new_cluster(scale=ScaleRule(), placement=ConsolidateSloPlacement(costs))
    cluster.gpu_joins("A")
    cluster.arrives("r1", slo=Slo(time_per_token_s=0.001))
    cluster.time_passes(1)
    cluster.time_passes(5)
    assert cluster.advice == ScaleAdvice(num_more_gpus=1)
    cluster.gpu_joins("B")
    cluster.time_passes(1)
    assert cluster.advice == NONE


def test_those_who_wait_get_gpus_too(two_hosts: Cluster) -> None:
    for i in range(9):
        two_hosts.arrives(f"r{i}")
    two_hosts.time_passes(1)
    two_hosts.time_passes(5)
    assert two_hosts.advice == ScaleAdvice(num_more_gpus=1 + 3)  # 5 wait, and a GPU runs 2


def test_the_number_does_not_fall_while_gpus_are_short(two_hosts: Cluster) -> None:
    for i in range(9):
        two_hosts.arrives(f"r{i}")
    two_hosts.time_passes(1)
    two_hosts.time_passes(5)
    for i in range(4, 9):
        two_hosts.is_cancelled(f"r{i}")
    two_hosts.time_passes(1)
    assert two_hosts.advice is None
    two_hosts.is_cancelled("r0")
    two_hosts.is_cancelled("r1")
    two_hosts.time_passes(1)
    assert two_hosts.advice == NONE


def test_gpus_that_have_joined_are_not_asked_for_again(two_hosts: Cluster) -> None:
    for i in range(9):
        two_hosts.arrives(f"r{i}")
    two_hosts.time_passes(1)
    two_hosts.time_passes(5)
    for uuid, num_left in (("C", 3), ("D", 2)):
        two_hosts.gpu_joins(uuid, batch=2, runner=f"host {uuid}")
        two_hosts.time_passes(1)
        assert two_hosts.advice == ScaleAdvice(num_more_gpus=num_left)
    two_hosts.gpu_is_lost("D")
    two_hosts.time_passes(1)
    assert two_hosts.advice == ScaleAdvice(num_more_gpus=3)


def test_a_short_rise_asks_for_nothing(two_hosts: Cluster) -> None:
    for _ in range(5):
        for i in range(4):
            two_hosts.arrives(f"r{i}")
        two_hosts.time_passes(4)
        assert two_hosts.advice is None
        for i in range(4):
            two_hosts.is_cancelled(f"r{i}")
        two_hosts.time_passes(1)
        assert two_hosts.advice is None


def test_a_runner_is_released_when_it_has_been_idle_for_long_and_enough_is_left(two_hosts: Cluster) -> None:
    two_hosts.time_passes(59)
    assert two_hosts.advice is None
    two_hosts.time_passes(1)
    assert two_hosts.advice == ScaleAdvice(releasable_runners=("host A",))


def test_a_request_that_comes_takes_the_release_back(two_hosts: Cluster) -> None:
    two_hosts.time_passes(60)
    two_hosts.arrives("r1")
    two_hosts.time_passes(1)
    assert two_hosts.advice == NONE


def test_the_last_lightly_loaded_gpu_is_not_released(two_hosts: Cluster) -> None:
    two_hosts.arrives("r1")
    two_hosts.time_passes(600)
    assert two_hosts.advice is None


def test_a_runner_is_idle_when_all_its_gpus_are(new_cluster: NewCluster) -> None:
    cluster = new_cluster(scale=ScaleRule())
    for uuid, host in (("A", "one"), ("B", "two"), ("C", "two"), ("D", "three")):
        cluster.gpu_joins(uuid, runner=host)
    for uuid in ("A", "B", "D"):
        cluster.is_drained(uuid)
    cluster.arrives("r1")
    for uuid in ("A", "B", "D"):
        cluster.is_drained(uuid, drain=False)
    cluster.time_passes(60)
    assert cluster.advice == ScaleAdvice(releasable_runners=("one", "three"))


def test_the_fewest_that_are_wanted_are_kept_and_asked_for(new_cluster: NewCluster) -> None:
    cluster = new_cluster(scale=ScaleRule(min_gpus=3))
    for uuid in ("A", "B", "C"):
        cluster.gpu_joins(uuid, runner=uuid)
    cluster.time_passes(60)
    assert cluster.advice is None
    cluster.gpu_is_lost("A")
    cluster.gpu_is_lost("B")
    cluster.time_passes(1)
    cluster.time_passes(5)
    assert cluster.advice == ScaleAdvice(num_more_gpus=2)


def test_with_no_gpu_at_all_one_is_asked_for(new_cluster: NewCluster) -> None:
    cluster = new_cluster(scale=ScaleRule())
    cluster.arrives("r1")
    cluster.time_passes(1)
    cluster.time_passes(5)
    assert cluster.advice == ScaleAdvice(num_more_gpus=1)


def test_a_draining_gpu_is_neither_spare_nor_released(two_hosts: Cluster) -> None:
    two_hosts.is_drained("A")
    two_hosts.arrives("r1")
    two_hosts.time_passes(60)
    two_hosts.time_passes(5)
    assert two_hosts.advice == ScaleAdvice(num_more_gpus=1)
