import pytest

from punica_scheduler.simulator.recorder import Recorder


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(["A", "B"], interval_s=2.0, max_batch_size=4)


def test_batch_sizes_are_means_over_time(recorder: Recorder) -> None:
    recorder.stepped("A", 1.0, 1.0, 4)
    recorder.stepped("A", 3.0, 0.5, 2)
    timeline = recorder.timeline(3.5)
    assert timeline.batch_sizes == {"A": [2.0, 0.5], "B": [0.0, 0.0]}
    assert recorder.busy_s == {4: 1.0, 2: 0.5}


def test_rates_are_per_second(recorder: Recorder) -> None:
    for now_s in (0.0, 1.9, 2.0):
        recorder.arrived(now_s)
    recorder.delivered(1.0, 30)
    recorder.queued(2.0, 7)
    timeline = recorder.timeline(2.0)
    assert timeline.requests_per_s == [1.0, 0.5]
    assert timeline.tokens_per_s == [15.0, 0.0]
    assert timeline.queue_length == [0, 7]
    assert timeline.times_s == [0.0, 2.0]


def test_idle_stretches_last_from_the_end_of_one_step_to_the_beginning_of_another(recorder: Recorder) -> None:
    recorder.began("A", 1.0)
    recorder.idled("A", 3.0)
    recorder.idled("A", 4.0)
    recorder.began("A", 8.0)
    recorder.began("A", 9.0)
    recorder.finish(10.0)
    assert sorted(recorder.idle_stretches_s) == [1.0, 5.0, 10.0]


def test_a_gpu_without_a_step_is_unused(recorder: Recorder) -> None:
    assert recorder.num_unused_gpus == 2
    recorder.stepped("B", 1.0, 1.0, 4)
    assert recorder.num_unused_gpus == 1
