"""Foreseeing whether CPU processes beat the link."""

from dataclasses import replace

import pytest

from punica_serve.engine.adapters.copy_forecast import StepForecast
from punica_serve.engine.cpu_assist.assist_forecast import (
    AssistForecast,
    AssistTimes,
    ExchangeTimes,
    ExchangeWork,
    fit_times,
)
from punica_serve.engine.cpu_assist.exchange_memory import ExchangeShape, GroupShape

_QKV = GroupShape("qkv", 4096, (0, 4096, 8192, 12288))
_SHAPE = ExchangeShape("bfloat16", 32, (_QKV, GroupShape("o", 4096, (0, 4096))), 256)
_ALONE = ExchangeTimes(fixed_s=30e-6, per_byte_s=1 / 50e9, per_weight_s=1 / 5e9, per_product_s=1 / 500e9)
_TOGETHER = replace(_ALONE, fixed_s=60e-6)
_TIMES = AssistTimes(_ALONE, _TOGETHER)
#: A prefill of 8 ms, of which nothing runs before.
_STEP = StepForecast(0.0, 0.008)


def _arrives_in_s(copy_s: float) -> list[float]:
    return [copy_s * (group + 1) / 8 for group in range(8)]


def _work(num_rows: int, num_pages: int) -> ExchangeWork:
    return ExchangeWork.of(_QKV, num_rows, num_pages, 2)


_CASES = [_work(num_rows, num_pages) for num_rows in (16, 128) for num_pages in (1, 8)]


@pytest.mark.parametrize("num_processes", [1, 8])
def test_four_measurements_give_the_four_times(num_processes: int) -> None:
    found = fit_times([(work, _TOGETHER.exchange_s(work, num_processes)) for work in _CASES], num_processes)
    assert found.fixed_s == pytest.approx(_TOGETHER.fixed_s)
    assert found.per_byte_s == pytest.approx(_TOGETHER.per_byte_s)
    assert found.per_weight_s == pytest.approx(_TOGETHER.per_weight_s)
    assert found.per_product_s == pytest.approx(_TOGETHER.per_product_s)


def test_noise_gives_no_negative_times() -> None:
    found = fit_times(list(zip(_CASES, (4e-6, 3e-6, 2e-6, 1e-6), strict=True)), 1)
    assert found == ExchangeTimes(4e-6, 0.0, 0.0, 0.0)


def test_work_is_as_large_as_the_matrices_and_the_rows() -> None:
    num_weights = 16 * (3 * 4096 + 12288)
    assert _work(3, 2) == ExchangeWork(3 * (4096 + 12288) * 2, num_weights, 3 * num_weights)


@pytest.mark.parametrize(
    ("num_rows", "num_pages", "num_ready", "expected"), [(1, 1, 8, 8), (128, 2, 8, 8), (128, 2, 3, 3), (9, 2, 1, 1)]
)
def test_all_processes_that_are_ready_compute(num_rows: int, num_pages: int, num_ready: int, expected: int) -> None:
    assert AssistForecast(_SHAPE, _TIMES).num_processes(num_rows, (num_pages, 0), num_ready) == expected


def test_one_process_computes_if_several_wait_for_each_other_for_longer() -> None:
    slow = AssistTimes(_ALONE, replace(_TOGETHER, fixed_s=1e-3))
    forecast = AssistForecast(_SHAPE, slow)
    assert forecast.num_processes(128, (2, 0), 8) == 1
    assert forecast.num_processes(256, (16, 0), 8) == 8


def test_exchanges_take_as_long_as_their_groups_and_the_share_of_each_process() -> None:
    forecast = AssistForecast(_SHAPE, _TIMES)
    both, qkv = forecast.layer_s(8, (2, 2), 2), forecast.layer_s(8, (2, 0), 2)
    assert both > qkv == pytest.approx(_TOGETHER.exchange_s(_work(8, 2), 2))
    assert qkv > forecast.layer_s(8, (2, 0), 4) > _TOGETHER.fixed_s
    assert forecast.layer_s(8, (2, 0), 1) == pytest.approx(_ALONE.exchange_s(_work(8, 2), 1))


def test_a_step_exchanges_only_the_layers_that_it_reaches_before_they_arrive() -> None:
    forecast = AssistForecast(_SHAPE, _TIMES)
    end_s, exchanged_s = forecast.assisted_s(_arrives_in_s(0.004), _STEP, 1e-3)
    assert exchanged_s == pytest.approx(1e-3), "meanwhile the next layers arrive, each before the step needs it"
    assert end_s == pytest.approx(0.008 + 1e-3)
    assert forecast.assisted_s([0.0] * 8, _STEP, 1e-3)[1] == 0.0


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
    assert AssistForecast(_SHAPE, _TIMES).pays(_arrives_in_s(copy_s), _STEP, layer_s) is pays
