"""Punica's figure 5, to the letter: a request moves from one GPU to another while both go on."""

import pytest

from punica_scheduler.core.actions import Start
from scheduler_in_words import Cluster, NewCluster


@pytest.fixture
def cluster(new_cluster: NewCluster) -> Cluster:
    """GPU 1 runs R1, R2 and R3, and its KvCache is full; GPU 2 runs R4."""
    cluster = new_cluster()
    cluster.gpu_joins("1", pages=6)
    for name in ("R1", "R2", "R3"):
        assert cluster.arrives(name, prompt=6) == [f"1: start {name}"]
    cluster.gpu_joins("2", pages=8)
    assert cluster.arrives("R4", prompt=6) == ["2: start R4"]
    cluster.steps("2", "R4")
    return cluster


def test_r3_moves_without_waiting_and_its_token_of_the_batch_in_flight_is_omitted(cluster: Cluster) -> None:
    old = cluster.assignments["R3"]
    # The next steps of GPU 1 would not fit: its newest request is cancelled there and added to GPU 2, back to back.
    assert cluster.steps("1", "R1 R2 R3")[3:] == ["1: stop R3", "2: start R3 after 1"]

    # GPU 2 prefills prompt and generated, as if R3 were new.
    start = cluster.actions[-1]
    assert isinstance(start, Start)
    assert (start.request.prompt_ids, start.request.generated_ids) == ((7,) * 6, (100,))
    assert start.assignment != old

    # GPU 1 had begun a batch with R3 in it: that token is dropped, those of R1 and R2 are delivered.
    in_flight = [(cluster.assignments[name].counter, 1) for name in ("R1", "R2")]
    assert cluster.reports("1", [*in_flight, (old.counter, 1)], applied=3) == ["R1: 1 token at 1", "R2: 1 token at 1"]

    # GPU 2 gives R3 that same token, in one step with R4's next; then GPU 1 has seen the stop, and R3's pages are back.
    assert cluster.steps("2", "R3 R4") == ["R3: 1 token at 1", "R4: 1 token at 1"]
    assert cluster.steps("1", "R1 R2") == ["R1: 1 token at 2", "R2: 1 token at 2"]

    assert cluster.delivered["R3"] == [100, 101]
    assert cluster.working_sets() == {"1": 2, "2": 2}
    assert (cluster.counter("evictions"), cluster.counter("migrations")) == (1, 1)


def test_the_omitted_token_does_no_harm_after_its_successor_either(cluster: Cluster) -> None:
    old = cluster.assignments["R3"]
    cluster.steps("1", "R1 R2 R3")
    assert cluster.steps("2", "R3 R4") == ["R3: 1 token at 1", "R4: 1 token at 1"]
    assert cluster.reports("1", [(old.counter, 1)], applied=3) == []
    assert cluster.delivered["R3"] == [100, 101]
