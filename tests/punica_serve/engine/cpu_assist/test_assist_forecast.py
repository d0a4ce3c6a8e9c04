"""Foreseeing whether CPU processes beat the link."""

import pytest

from punica_serve.engine.adapters.copy_forecast import StepForecast
from punica_serve.engine.cpu_assist.assist_forecast import (
    AssistForecast,
    AssistTimes,
    exchanged_bytes,
    fit_times,
    products_per_row,
)
from punica_serve.engine.cpu_assist.exchange_memory import ExchangeShape, GroupShape

_QKV = GroupShape("qkv", 4096, (0, 4096, 8192, 12288))
_SHAPE = ExchangeShape("bfloat16", 32, (_QKV, GroupShape("o", 4096, (0, 4096))), 256)
_TIMES = AssistTimes(fixed_s=30e-6, per_byte_s=1 / 50e9, per_product_s=1 / 50e9)
#: A prefill of 8 ms, of which nothing runs before.
_STEP = StepForecast(0.0, 0.008)


def _arrives_in_s(copy_s: float) -> list[float]:
    return [copy_s * (group + 1) / 8 for group in range(8)]


def test_three_measurements_give_the_three_times() -> None:
    sizes = ((1, 1), (32, 1), (32, 8))
    cases = [(exchanged_bytes(_QKV, rows, 2), rows * products_per_row(_QKV, pages)) for rows, pages in sizes]
    measured = [(num_bytes, products, _TIMES.exchange_s(num_bytes, products)) for num_bytes, products in cases]
    found = fit_times(measured)
    assert found.fixed_s == pytest.approx(_TIMES.fixed_s)
    assert found.per_byte_s == pytest.approx(_TIMES.per_byte_s)
    assert found.per_product_s == pytest.approx(_TIMES.per_product_s)


def test_noise_gives_no_negative_times() -> None:
    found = fit_times([(10, 10, 3e-6), (1000, 100, 2e-6), (1000, 1000, 1e-6)])
    assert (found.fixed_s, found.per_byte_s, found.per_product_s) == (3e-6, 0.0, 0.0)


def test_a_row_of_x_a_b_takes_as_many_products_as_the_matrices_have_numbers() -> None:
    assert products_per_row(_QKV, 2) == 16 * (3 * 4096 + 12288)
    assert exchanged_bytes(_QKV, 3, 2) == 3 * (4096 + 12288) * 2


@pytest.mark.parametrize(
    ("num_rows", "num_ready", "expected"), [(1, 8, 1), (4, 8, 2), (128, 8, 8), (9, 2, 2), (9, 1, 1)]
)
def test_processes_are_as_many_as_tokens_over_the_tokens_of_a_core(
    num_rows: int, num_ready: int, expected: int
) -> None:
    """A core computes three rows of rank 16 on q, k and v in 24 of the 30 us that an exchange takes anyway."""
    assert AssistForecast(_SHAPE, _TIMES).num_processes(num_rows, (2, 0), num_ready) == expected


def test_exchanges_take_as_long_as_their_groups_and_the_rows_of_each_process() -> None:
    forecast = AssistForecast(_SHAPE, _TIMES)
    both, qkv = forecast.layer_s(8, (2, 2), 2), forecast.layer_s(8, (2, 0), 2)
    assert both > qkv == pytest.approx(_TIMES.exchange_s(exchanged_bytes(_QKV, 8, 2), 4 * products_per_row(_QKV, 2)))
    assert forecast.layer_s(8, (2, 0), 1) > qkv


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
        (0.050, 100e-6, True),  # a slow link, and few rows
        (0.050, 2e-3, False),  # a slow link, and many rows
        (0.0, 100e-6, False),
    ],
)
def test_help_pays_while_the_link_is_slower_than_the_processes(copy_s: float, layer_s: float, pays: bool) -> None:
    assert AssistForecast(_SHAPE, _TIMES).pays(_arrives_in_s(copy_s), _STEP, layer_s) is pays
