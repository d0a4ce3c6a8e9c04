"""Foreseeing whether CPU processes beat the link."""

from dataclasses import replace

import pytest

from punica_serve.engine.adapters.copy_forecast import StepForecast
from punica_serve.engine.cpu_assist.assist_forecast import (
    AssistForecast,
    AssistTimes,
    ExchangeTimes,
    ExchangeWork,
    StepCosts,
    fit_times,
)
from punica_serve.engine.cpu_assist.exchange_memory import ExchangeShape, GroupShape

_QKV = GroupShape("qkv", 4096, (0, 4096, 8192, 12288))
_SHAPE = ExchangeShape("bfloat16", 32, (_QKV, GroupShape("o", 4096, (0, 4096))), 256)
_ALONE = ExchangeTimes(30e-6, per_byte_s=1 / 50e9, per_weight_s=1 / 5e9, per_product_s=1 / 500e9, start_s=0.0)
_TOGETHER = replace(_ALONE, fixed_s=60e-6)
_TIMES = AssistTimes(_ALONE, _TOGETHER, arrived_s=0.0)
#: A prefill of 8 ms, of which nothing runs before.
_STEP = StepForecast(0.0, 0.008)


def _arrives_in_s(copy_s: float) -> list[float]:
    return [copy_s * (group + 1) / 8 for group in range(8)]


def _work(num_rows: int, num_pages: int) -> ExchangeWork:
    return ExchangeWork.of(_QKV, num_rows, num_pages, 2)


_CASES = [_work(num_rows, num_pages) for num_rows in (16, 128) for num_pages in (1, 8)]


@pytest.mark.parametrize("num_processes", [1, 8])
def test_four_measurements_give_the_four_times(num_processes: int) -> None:
    found = fit_times([(work, _TOGETHER.exchange_s(work, num_processes)) for work in _CASES], num_processes, 80e-6)
    assert found.fixed_s == pytest.approx(_TOGETHER.fixed_s)
    assert found.per_byte_s == pytest.approx(_TOGETHER.per_byte_s)
    assert found.per_weight_s == pytest.approx(_TOGETHER.per_weight_s)
    assert found.per_product_s == pytest.approx(_TOGETHER.per_product_s)
    assert found.start_s == 80e-6


def test_noise_gives_no_negative_times() -> None:
    found = fit_times(list(zip(_CASES, (4e-6, 3e-6, 2e-6, 1e-6), strict=True)), 1, 0.0)
    assert found == ExchangeTimes(4e-6, 0.0, 0.0, 0.0, 0.0)


def test_work_is_as_large_as_the_matrices_and_the_rows() -> None:
    num_weights = 16 * (3 * 4096 + 12288)
    assert _work(3, 2) == ExchangeWork(3 * (4096 + 12288) * 2, 3 * 12288 * 2, num_weights, 3 * num_weights)


@pytest.mark.parametrize(
    ("num_rows", "num_pages", "num_ready", "expected"), [(1, 1, 8, 8), (128, 2, 8, 8), (128, 2, 3, 3), (9, 2, 1, 1)]
)
def test_all_processes_that_are_ready_compute(num_rows: int, num_pages: int, num_ready: int, expected: int) -> None:
    assert AssistForecast(_SHAPE, _TIMES).num_processes(num_rows, (num_pages, 0), num_ready) == expected


def test_one_process_computes_if_several_wait_for_each_other_for_longer() -> None:
    slow = replace(_TIMES, together=replace(_TOGETHER, fixed_s=1e-3))
    forecast = AssistForecast(_SHAPE, slow)
    assert forecast.num_processes(128, (2, 0), 8) == 1
    assert forecast.num_processes(256, (16, 0), 8) == 8


def test_exchanges_take_as_long_as_their_groups_and_the_share_of_each_process() -> None:
    forecast = AssistForecast(_SHAPE, _TIMES)
    both, qkv = forecast.layer_s(8, (2, 2), 2), forecast.layer_s(8, (2, 0), 2)
    assert both > qkv == pytest.approx(_TOGETHER.exchange_s(_work(8, 2), 2))
    assert qkv > forecast.layer_s(8, (2, 0), 4) > _TOGETHER.fixed_s
    assert forecast.layer_s(8, (2, 0), 1) == pytest.approx(_ALONE.exchange_s(_work(8, 2), 1))


def _costs(layer_s: float, *, start_s: float = 0.0, results_s: float = 0.0, arrived_s: float = 0.0) -> StepCosts:
    return StepCosts(start_s, layer_s, results_s, arrived_s)


def test_costs_are_those_of_all_groups_by_the_processes_that_would_compute() -> None:
    times = AssistTimes(replace(_ALONE, start_s=10e-6), replace(_TOGETHER, start_s=80e-6), arrived_s=3e-6)
    forecast = AssistForecast(_SHAPE, times)
    costs = forecast.costs(128, (2, 2), 8)
    assert costs.layer_s == pytest.approx(forecast.layer_s(128, (2, 2), 8))
    assert costs.results_s == pytest.approx(128 * (12288 + 4096) * 2 / 50e9)
    assert (costs.start_s, costs.arrived_s) == pytest.approx((80e-6, 6e-6))
    assert forecast.costs(128, (2, 0), 1).start_s == pytest.approx(10e-6)
    assert forecast.costs(128, (2, 0), 8).arrived_s == pytest.approx(3e-6)


def test_a_step_exchanges_only_the_layers_that_it_reaches_before_they_arrive() -> None:
    forecast = AssistForecast(_SHAPE, _TIMES)
    one_s = forecast.assisted_s(_arrives_in_s(0.004), _STEP, _costs(1e-3))
    assert one_s == pytest.approx(0.008 + 1e-3), "meanwhile the next layers arrive, each before the step needs it"
    assert forecast.assisted_s([0.0] * 8, _STEP, _costs(1e-3)) == pytest.approx(0.008)


def test_a_step_wakes_processes_once_and_asks_in_each_layer_that_has_arrived() -> None:
    forecast = AssistForecast(_SHAPE, _TIMES)
    costs = _costs(1e-3, start_s=100e-6, arrived_s=10e-6)
    assert forecast.assisted_s([0.0] * 8, _STEP, costs) == pytest.approx(0.008 + 100e-6 + 32 * 10e-6)
    assert forecast.assisted_s([1.0] * 8, _STEP, costs) == pytest.approx(0.008 + 100e-6 + 32 * 1e-3)


def test_results_delay_the_copy_and_the_copy_delays_results() -> None:
    forecast, arrives_in_s = AssistForecast(_SHAPE, _TIMES), [0.0] * 7 + [0.0076]
    assert forecast.assisted_s(arrives_in_s, _STEP, _costs(300e-6)) == pytest.approx(0.008 + 2 * 300e-6)
    both_s = forecast.assisted_s(arrives_in_s, _STEP, _costs(300e-6, results_s=200e-6))
    assert both_s == pytest.approx(0.008 + 2 * 500e-6), "at 7.75 ms the second is not there"


@pytest.mark.parametrize(
    ("copy_s", "layer_s", "pays"),
    [
        (0.002, 100e-6, False),  # the prefill hides the copy
        (0.008, 100e-6, False),  # it takes as long as the copy: the last layers are waited for anyway
        (0.050, 100e-6, True),  # a slow link, and few rows
        (0.050, 2e-3, False),  # a slow link, and many rows
        (0.0, 100e-6, False),
    ],
)
def test_help_pays_while_the_link_is_slower_than_the_processes(copy_s: float, layer_s: float, pays: bool) -> None:
    assert AssistForecast(_SHAPE, _TIMES).pays(_arrives_in_s(copy_s), _STEP, _costs(layer_s)) is pays


@pytest.mark.parametrize("costs", [_costs(100e-6, start_s=0.05), _costs(100e-6, results_s=2e-3)])
def test_help_does_not_pay_if_what_comes_with_it_takes_longer_than_the_copy(costs: StepCosts) -> None:
    forecast = AssistForecast(_SHAPE, _TIMES)
    assert forecast.pays(_arrives_in_s(0.050), _STEP, _costs(costs.layer_s))
    assert not forecast.pays(_arrives_in_s(0.050), _STEP, costs)


#: About what figures 17 and 18 of docs/coldstart.md show for processes on a host with AMX: round trips of 0.2 ms, and
#: 0.65 ms for q, k and v at rank 32 and 128 rows by eight processes.
_MEASURED = ExchangeTimes(150e-6, 1 / 50e9, 2.2e-9, 1.65e-11, start_s=200e-6)
_LLAMA_7B = ExchangeShape(
    "bfloat16",
    32,
    (*_SHAPE.groups, GroupShape("gate_up", 4096, (0, 11008, 22016)), GroupShape("down", 11008, (0, 4096))),
    256,
)


def _pays(gbps: float, rank: int, num_groups: int, num_rows: int, num_processes: int) -> bool:
    """On an idle engine with a 7B model, whose prefill of 20 tokens lasts 6.5 ms, and of 256 11.5."""
    forecast = AssistForecast(_LLAMA_7B, AssistTimes(_MEASURED, _MEASURED, arrived_s=4e-6))
    pages = tuple(rank // 8 if number < num_groups else 0 for number in range(4))
    works = [ExchangeWork.of(group, 1, count, 2) for group, count in zip(_LLAMA_7B.groups, pages, strict=True)]
    copy_s = 2 * 32 * sum(work.num_weights for work in works) / gbps / 1e9
    prefill = StepForecast(0.0, 0.0061 + 21e-6 * num_rows)
    return forecast.pays(_arrives_in_s(copy_s), prefill, forecast.costs(num_rows, pages, num_processes))


@pytest.mark.parametrize("num_processes", [1, 8])
@pytest.mark.parametrize("num_rows", [20, 128, 256])
@pytest.mark.parametrize("num_groups", [1, 4])
@pytest.mark.parametrize("rank", [16, 64, 128])
@pytest.mark.parametrize("gbps", [12, 25, 50])
def test_todays_links_are_faster_than_cpus(
    gbps: float, rank: int, num_groups: int, num_rows: int, num_processes: int
) -> None:
    assert not _pays(gbps, rank, num_groups, num_rows, num_processes)


@pytest.mark.parametrize(
    ("gbps", "rank", "num_groups", "num_rows", "num_processes", "expected"),
    [
        (1, 16, 1, 20, 8, True),
        (1, 16, 1, 20, 1, False),  # one core is slower
        (1, 16, 1, 128, 8, False),  # a long prompt
        (1, 64, 1, 128, 8, True),  # whose adapter has more bytes
        (1, 64, 4, 256, 8, True),
        (1, 64, 4, 256, 1, False),
        (4, 128, 4, 20, 8, True),
        (4, 128, 4, 256, 8, False),
        (4, 16, 4, 20, 8, False),
    ],
)
def test_slow_links_are_not_if_there_are_cores_and_few_tokens(
    gbps: float, rank: int, num_groups: int, num_rows: int, num_processes: int, expected: bool
) -> None:
    assert _pays(gbps, rank, num_groups, num_rows, num_processes) is expected
