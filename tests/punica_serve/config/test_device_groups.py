"""Which devices form which workers."""

import pytest

from punica_serve.config.device_groups import grouped, neighbours, on_hosts, place_of, ranks_of, why_no_device


def test_devices_are_workers_by_themselves_or_in_groups_of_neighbours() -> None:
    gpus = tuple(f"cuda:{number}" for number in range(4))
    assert grouped(gpus, 1) == gpus
    assert grouped(gpus, 2) == ("cuda:0,cuda:1", "cuda:2,cuda:3")
    assert grouped(("cuda:0,cuda:1", "cuda:2,cuda:3"), 1) == ("cuda:0,cuda:1", "cuda:2,cuda:3")
    assert ranks_of("cuda:0, cuda:1") == ("cuda:0", "cuda:1")
    assert ranks_of("cpu") == ("cpu",)


def test_a_group_has_the_same_devices_on_each_of_its_hosts() -> None:
    group = on_hosts("cuda:0,cuda:1", 2)
    assert group == "cuda:0,cuda:1,1/cuda:0,1/cuda:1"
    assert [place_of(rank) for rank in ranks_of(group)] == [(0, "cuda:0"), (0, "cuda:1"), (1, "cuda:0"), (1, "cuda:1")]
    assert on_hosts("cpu", 1) == "cpu"


def test_a_group_begins_at_its_first_device() -> None:
    assert neighbours("cuda:2", 2) == "cuda:2,cuda:3"
    assert neighbours("cuda", 2) == "cuda:0,cuda:1"
    assert neighbours("cpu", 3) == "cpu,cpu,cpu"
    assert neighbours("cuda:1", 1) == "cuda:1"


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("cuda", "must be cpu"),
        ("cuda:0,", "must be cpu"),
        ("cuda:00", "must be cpu"),
        ("cuda:0,cuda:1,cuda:0", "names cuda:0 twice"),
        ("cpu,cuda:0", "mixes kinds"),
        ("simulated,simulated", "simulated devices need no groups"),
        (",".join(["cpu"] * 65), "at most 64 devices, not 65"),
        ("1/cpu", "must be cpu"),
        ("cpu,cpu", None),
        ("simulated", None),
    ],
)
def test_the_reason_against_a_device_is_told(device: str, reason: str | None) -> None:
    told = why_no_device(device)
    assert told is reason if reason is None else told is not None and reason in told
