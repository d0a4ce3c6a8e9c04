import pytest

from punica_serve.bench.serving.served_times import ServedTimes, ServiceLevel, beside_long_prompts, result_of

LEVEL = ServiceLevel(first_token_s=0.5, per_token_s=0.1)


def served(due_s: float, *arrivals: tuple[float, int]) -> ServedTimes:
    return ServedTimes(due_s, [*arrivals], arrivals[-1][0])


def test_tokens_that_come_together_have_one_gap_and_count_each() -> None:
    times = served(1.0, (1.2, 1), (1.5, 4), (1.6, 5))
    assert times.first_token_s == pytest.approx(0.2)
    assert times.gaps_s == pytest.approx([0.3, 0.1])
    assert times.per_token_s == pytest.approx(0.1)


def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    assert served(0.0, (0.3, 1)).per_token_s == 0.0


def test_goodput_counts_requests_that_keep_both_promises() -> None:
    kept, late, slow = served(0.0, (0.4, 1), (0.5, 2)), served(0.0, (0.6, 1)), served(0.0, (0.1, 1), (2.0, 2))
    result = result_of([kept, late, slow], LEVEL)
    assert result.seconds == 2.0 and result.goodput_per_s == 0.5
    assert result.tokens_per_s == pytest.approx(5 / 2.0)
    assert result.first_token_ms[0] == pytest.approx(400)


def test_failed_requests_count_as_failed_alone() -> None:
    failed = ServedTimes(0.0, [(0.1, 1)], 9.0, "HTTP 500")
    result = result_of([served(0.0, (0.2, 1), (1.0, 9)), failed, ServedTimes(0.0, [], 0.5)], LEVEL)
    assert (result.num_failed, result.first_error, result.seconds) == (2, "HTTP 500", 1.0)
    nothing = result_of([failed], LEVEL)
    assert (nothing.tokens_per_s, nothing.goodput_per_s) == (0.0, 0.0)
    assert nothing.first_token_ms == nothing.gap_ms == (None, None)


def test_a_loads_times_are_divided_by_the_long_prompts_that_come_in() -> None:
    load = [served(0.0, (1.0, 1), (2.0, 2), (5.0, 3), (5.5, 4)), served(2.6, (3.0, 1)), served(3.1, (3.2, 1))]
    long = [served(2.5, (3.0, 1)), ServedTimes(5.1, [], 6.0, "HTTP 500")]
    result = beside_long_prompts(load, long)
    assert result.num_prompts == 1 and result.first_token_ms[0] == pytest.approx(500)
    assert result.beside.gap_ms == pytest.approx((3000, 3000))
    assert result.without.gap_ms[0] == pytest.approx(750)
    assert result.beside.first_token_ms == pytest.approx((400, 400))
    assert result.without.first_token_ms[0] == pytest.approx(550)
    assert beside_long_prompts(load, []).beside.first_token_ms == (None, None)
