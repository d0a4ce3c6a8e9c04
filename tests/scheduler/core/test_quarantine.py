import pytest

from punica_scheduler.core import events
from scheduler_in_words import Cluster, NewAdapter, NewCluster


@pytest.fixture
def with_suspects(filled: NewCluster, adapter: NewAdapter) -> NewCluster:
    """Called with names: no GPU is left, since B and then A died while these were running on them."""

    def suspect(*names: str, prompt: int = 3) -> Cluster:
        cluster = filled("A", "B", pages=32)
        for name in names:
            cluster.arrives(name, prompt=prompt, max_tokens=40, lora=adapter("toxic"))
        for uuid in ("B", "A"):
            cluster.steps(uuid)
            cluster.gpu_is_lost(uuid)
        return cluster

    return suspect


def test_a_request_that_was_running_at_two_losses_runs_alone_and_the_others_elsewhere(
    with_suspects: NewCluster,
) -> None:
    cluster = with_suspects("r1")
    assert cluster.gpu_joins("B") == ["B: start r1"]
    assert cluster.arrives("r2") == []
    assert cluster.gpu_joins("A") == ["A: start r2"]
    assert cluster.arrives("r3") == ["A: start r3"]


def test_a_third_loss_alone_fails_it_and_names_its_adapter(with_suspects: NewCluster) -> None:
    cluster = with_suspects("r1")
    cluster.arrives("r2")
    cluster.gpu_joins("B")
    cluster.steps("B", "r1")
    assert cluster.gpu_is_lost("B") == ["r1: request_failed"]
    assert "or its adapter toxic," in cluster.error.message
    assert cluster.gpu_joins("B") == ["B: start r2"]


def test_losses_before_a_start_was_applied_do_not_count(filled: NewCluster) -> None:
    cluster = filled("A")
    cluster.arrives("r1")
    for _ in range(5):
        assert cluster.gpu_joins("A") == ["A: start r1"]
    assert cluster.arrives("r2") == ["A: start r2"]


def test_a_cleared_request_shares_a_gpu_again_and_counts_from_zero(with_suspects: NewCluster) -> None:
    cluster = with_suspects("r1")
    cluster.gpu_joins("B", pages=32)
    for _ in range(15):
        cluster.steps("B", "r1")
    assert cluster.arrives("r2") == []
    assert cluster.steps("B", "r1") == ["r1: 1 token at 15", "B: start r2"]
    assert cluster.gpu_joins("B", pages=32) == ["B: start r1 after 16", "B: start r2"]


def test_suspects_are_tried_one_after_the_other(with_suspects: NewCluster) -> None:
    cluster = with_suspects("r1", "r2")
    assert cluster.gpu_joins("A", pages=32) == ["A: start r1"]
    assert cluster.gpu_joins("B", pages=32) == []
    assert cluster.arrives("r3") == ["B: start r3"]
    assert cluster.steps("A", "r1", finished="r1")[1:] == ["B: stop r3", "B: start r2", "A: start r3"]
    assert cluster.counter("evictions") == 0, "those are for lack of memory, and raise an alert"


def test_a_gpu_is_kept_for_a_suspect_until_its_pages_are_back(filled: NewCluster) -> None:
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


def test_a_suspect_runs_rather_not_where_it_was_lost_last(filled: NewCluster) -> None:
    cluster = filled("A", "B")
    cluster.arrives("r1")
    cluster.steps("B")
    cluster.gpu_is_lost("B")
    cluster.gpu_joins("B")
    cluster.steps("A")
    assert cluster.gpu_joins("A") == ["B: start r1"]


def test_a_suspect_may_be_cancelled_wherever_it_is(with_suspects: NewCluster) -> None:
    cluster = with_suspects("r1", "r2", "r3")
    assert cluster.scheduler.snapshot(0).queue_length == 3
    assert cluster.is_cancelled("r2") == []
    assert cluster.gpu_joins("A", pages=32) == ["A: start r1"]
    assert cluster.is_cancelled("r1") == ["A: stop r1", "A: start r3"]


def test_a_suspect_waits_no_longer_than_others(with_suspects: NewCluster) -> None:
    cluster = with_suspects("r1")
    assert cluster.time_passes(600) == ["r1: out_of_capacity"]


def test_a_suspect_that_no_gpu_can_run_waits_for_one_that_can(with_suspects: NewCluster) -> None:
    cluster = with_suspects("r1", "r2")
    assert cluster.gpu_joins("A", lora=0) == []
    assert cluster.gpu_joins("B") == ["B: start r1"]


def test_a_suspect_that_no_gpu_can_run_does_not_hold_up_the_next(filled: NewCluster) -> None:
    cluster = filled("A", "B", pages=32)
    cluster.arrives("big", prompt=40, max_tokens=40)
    cluster.arrives("little", max_tokens=20)
    for uuid in ("B", "A"):
        cluster.steps(uuid)
        cluster.gpu_is_lost(uuid)
    assert cluster.gpu_joins("C", pages=8) == ["C: start little"]
    cluster.gpu_joins("D", pages=8)
    assert cluster.steps("C", "little", finished="little") == ["little: 1 token at 0 stop"]
    assert cluster.gpu_joins("A", pages=32) == ["A: start big"]


def test_a_suspect_that_outgrows_its_gpu_goes_on_in_another(with_suspects: NewCluster) -> None:
    cluster = with_suspects("r1")
    cluster.arrives("r2")
    cluster.gpu_joins("A", pages=32)
    assert cluster.gpu_joins("B", pages=32) == ["B: start r2"]
    assert cluster.steps("A", starved="r1") == ["A: stop r1", "B: stop r2", "B: start r1", "A: start r2"]


def test_without_migration_a_preempted_suspect_waits_in_quarantine_and_for_no_gpu(new_cluster: NewCluster) -> None:
    cluster = new_cluster(migration=False)
    cluster.gpu_joins("A")
    cluster.arrives("r1")
    for _ in range(2):
        cluster.steps("A")
        cluster.gpu_is_lost("A")
        cluster.gpu_joins("A")
    assert cluster.steps("A", starved="r1") == ["A: stop r1"]
    cluster.gpu_is_lost("A")
    assert cluster.is_cancelled("r1") == []


def test_a_failed_load_is_tried_elsewhere_three_times_in_all(cluster: Cluster, adapter: NewAdapter) -> None:
    cluster.arrives("r1", lora=adapter("broken"))
    assert cluster.load_fails("B", "r1") == ["A: start r1"]
    assert cluster.load_fails("A", "r1") == ["B: start r1"]
    assert cluster.load_fails("B", "r1") == ["r1: request_failed"]
    assert "the disk is gone" in cluster.error.message


def test_a_failed_load_does_not_go_back_in_the_same_decision(filled: NewCluster, adapter: NewAdapter) -> None:
    cluster = filled("A", pages=2)
    cluster.arrives("r1", lora=adapter("slow disk"), prompt=7, max_tokens=1)
    assert cluster.load_fails("A", "r1") == []
    assert cluster.time_passes(0) == ["A: start r1"]  # its pages are back, though no step has told so


def test_a_permanently_failed_load_fails_the_request_and_no_other(cluster: Cluster, adapter: NewAdapter) -> None:
    cluster.arrives("r1", lora=adapter("broken"))
    cluster.arrives("r2")
    assert cluster.load_fails("B", "r1", permanent=True) == ["r1: request_failed"]
    assert cluster.working_sets()["B"] == 1


def test_a_lost_link_or_runner_makes_nobody_a_suspect(filled: NewCluster) -> None:
    cluster = filled("A")
    cluster.arrives("r1")
    for _ in range(5):
        cluster.steps("A", "r1")
        cluster.tell(events.RunnerLost("runner"))
        cluster.gpu_joins("A")
    assert cluster.arrives("r2") == ["A: start r2"]


def test_progress_between_two_deaths_clears(filled: NewCluster) -> None:
    cluster = filled("A", pages=64)
    cluster.arrives("r1", max_tokens=200)
    for _ in range(4):
        for _ in range(16):
            cluster.steps("A", "r1")
        cluster.gpu_is_lost("A")
        cluster.gpu_joins("A", pages=64)
    assert cluster.arrives("r2") == ["A: start r2"]


def test_a_drain_moves_nobody_to_the_gpu_that_the_next_suspect_takes(filled: NewCluster) -> None:
    cluster = filled("A", "B", pages=32)
    for name, prompt in (("first", 3), ("big", 40), ("little", 3)):
        cluster.arrives(name, prompt=prompt)
    for uuid in ("B", "A"):
        cluster.steps(uuid)
        cluster.gpu_is_lost(uuid)
    assert cluster.gpu_joins("A", pages=8) == ["A: start first"]
    cluster.gpu_joins("small", pages=8, runner="host")
    assert cluster.arrives("r1") == ["small: start r1"]
    cluster.gpu_joins("large", pages=32, runner="host")
    assert cluster.arrives("r2", prompt=90) == ["large: start r2"]
    assert cluster.steps("A", "first", finished="first")[1:] == ["large: stop r2"]
    assert cluster.tell(events.RunnerDrainRequested("host")) == ["A: start little"]


def test_a_gpu_that_is_taken_back_takes_the_suspect_that_waited_for_one_so_large(filled: NewCluster) -> None:
    cluster = filled("A", "B", pages=32)
    cluster.arrives("big", prompt=40)
    for uuid in ("B", "A"):
        cluster.steps(uuid)
        cluster.gpu_is_lost(uuid)
    cluster.gpu_joins("A", pages=32)
    cluster.gpu_joins("C", pages=8, batch=1)
    cluster.gpu_joins("D", pages=8, batch=1)
    cluster.is_drained("A")
    cluster.gpu_is_lost("A")
    assert [cluster.arrives(name) for name in ("r1", "r2")] == [["D: start r1"], ["C: start r2"]]
    cluster.is_drained("D")
    assert cluster.gpu_joins("A", pages=32) == []
    assert cluster.is_drained("A", drain=False) == ["f: answer 7", "A: start big"]
