from punica_serve.bench.control_plane.full_fleet import FullFleet
from punica_serve.bench.control_plane.settings import ControlPlaneSettings

SETTINGS = ControlPlaneSettings(num_gpus=3, batch_size=4, tokens_per_s=1_000.0)


def test_every_gpu_is_full() -> None:
    fleet = FullFleet(SETTINGS, lambda: 9)
    assert [len(gpu.counters) for gpu in fleet.gpus.values()] == [4, 4, 4]


def test_a_request_takes_the_place_of_one_that_ended() -> None:
    fleet = FullFleet(SETTINGS, lambda: 1)
    (gpu, *_) = fleet.shuffled()
    actions, seconds = fleet.report(gpu.step())
    assert actions and seconds > 0 and not gpu.counters
    fleet.arrive()
    assert len(gpu.counters) == 1
