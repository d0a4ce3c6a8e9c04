from punica_serve.bench.control_plane.hosts import Gpu
from punica_serve.bench.control_plane.settings import NUM_STAMPS, age, stamp
from punica_serve.protocol import AssignmentId, GpuInfo, Request, SamplingParams, StartRequest, StopRequest


def start(seq: int, max_tokens: int, generated_ids: tuple[int, ...] = ()) -> StartRequest:
    request = Request(f"r{seq}", 1, (1,), SamplingParams(max_tokens=max_tokens), None, generated_ids)
    return StartRequest("G", seq, AssignmentId(7, 10 + seq), request)


def test_each_step_gives_every_request_its_next_token_until_its_last() -> None:
    gpu = Gpu(GpuInfo("G", "simulated", 8, 16, 100, {}), incarnation=7)
    gpu.start(start(1, max_tokens=2))
    gpu.start(start(2, max_tokens=9, generated_ids=(5, 5, 5)))
    first, second, third = gpu.step(), gpu.step(), gpu.step()
    assert (first.assignments, first.positions, first.finished) == ((11, 12), (0, 3), ())
    assert (second.assignments, second.num_repeats, second.finished) == ((), 1, ((11, "length"),))
    assert (third.assignments, third.positions, third.applied_seq) == ((12,), (5,), 2)


def test_a_stopped_request_gets_nothing_more_and_a_late_stop_harms_nobody() -> None:
    gpu = Gpu(GpuInfo("G", "simulated", 8, 16, 100, {}), incarnation=7)
    gpu.start(start(1, max_tokens=9))
    gpu.start(start(2, max_tokens=9))
    gpu.stop(StopRequest("G", 3, AssignmentId(7, 11)))
    gpu.stop(StopRequest("G", 4, AssignmentId(7, 99)))
    assert (gpu.step().assignments, gpu.applied_seq) == ((12,), 4)


def test_ages_are_right_when_the_clock_of_the_stamps_goes_round() -> None:
    for made_s in (0.0, 12.3, 13.1071, 1e6):
        assert abs(age(stamp(made_s), made_s + 0.25) - 2_500) <= 1
    assert 0 <= stamp(1e9) < NUM_STAMPS
