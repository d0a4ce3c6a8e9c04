"""How long exchanges with CPU processes take, and so whether they pay: a model with three measured numbers.

An exchange takes a fixed time, a time for each byte of x and of the result on the link, and a time for each product of
one process. x A B of 128 tokens is 10 GFLOP at rank 16 on seven projections of a 7B model: few cores do that in the
time in which the adapter arrives.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS
from punica_serve.engine.adapters.copy_forecast import StepForecast
from punica_serve.engine.adapters.layer_arrival import layer_groups
from punica_serve.engine.cpu_assist.exchange_memory import ExchangeShape, GroupShape

#: Assistance must be predicted to be so much faster than waiting for layers.
_MARGIN = 0.9


@dataclass(frozen=True, slots=True)
class AssistTimes:
    """Seconds of an exchange: in any case, for each byte on the link, and for each multiplication of a process."""

    fixed_s: float
    per_byte_s: float
    per_product_s: float

    def exchange_s(self, num_bytes: int, num_products: float) -> float:
        return self.fixed_s + num_bytes * self.per_byte_s + num_products * self.per_product_s


def fit_times(measured: Sequence[tuple[int, int, float]]) -> AssistTimes:
    """Fits the times to (bytes, products, seconds) of three exchanges: a small one, more of both, and more products.

    Parts that noise would make negative become 0.
    """
    (bytes_0, products_0, s_0), (bytes_1, products_1, s_1), (_, products_2, s_2) = measured
    per_product_s = max(0.0, (s_2 - s_1) / (products_2 - products_1))
    rest_s = s_1 - s_0 - (products_1 - products_0) * per_product_s
    per_byte_s = max(0.0, rest_s / (bytes_1 - bytes_0))
    fixed_s = max(0.0, s_0 - bytes_0 * per_byte_s - products_0 * per_product_s)
    return AssistTimes(fixed_s, per_byte_s, per_product_s)


class AssistForecast:
    """Answers for one worker."""

    def __init__(self, shape: ExchangeShape, times: AssistTimes) -> None:
        self._shape = shape
        self.times = times

    def num_processes(self, num_rows: int, pages: Sequence[int], num_ready: int) -> int:
        """Processes for so many rows: ceil(rows / c), where a core computes c rows in the fixed time of the exchanges.

        With more processes, less would be gained than an exchange takes anyway. ``pages``: of each group.
        """
        per_row_s = self._layer_products(pages) * self.times.per_product_s
        fixed_s = sum(count > 0 for count in pages) * self.times.fixed_s
        rows_per_core = max(1, int(fixed_s / per_row_s)) if per_row_s else num_rows
        return max(1, min(num_ready, num_rows, math.ceil(num_rows / rows_per_core)))

    def layer_s(self, num_rows: int, pages: Sequence[int], num_processes: int) -> float:
        """All exchanges of one layer."""
        rows_each = math.ceil(num_rows / num_processes)
        return sum(
            self.times.exchange_s(
                exchanged_bytes(group, num_rows, self._shape.torch_dtype.itemsize),
                rows_each * products_per_row(group, count),
            )
            for group, count in zip(self._shape.groups, pages, strict=True)
            if count
        )

    def assisted_s(self, arrives_in_s: Sequence[float], step: StepForecast, layer_s: float) -> tuple[float, float]:
        """(The end of a step that exchanges the layers that have not arrived, the time of these exchanges)."""
        compute_s = step.lasts_s / self._shape.num_layers
        now_s, exchanged_s = step.starts_in_s, 0.0
        for arrival_s, layers in zip(arrives_in_s, layer_groups(self._shape.num_layers), strict=True):
            for _ in layers:
                own_s = layer_s if arrival_s > now_s else 0.0
                now_s += compute_s + own_s
                exchanged_s += own_s
        return now_s, exchanged_s

    def pays(self, arrives_in_s: Sequence[float], step: StepForecast, layer_s: float) -> bool:
        """Whether the step ends sooner with exchanges than if it waits for each layer."""
        assisted_s, _ = self.assisted_s(arrives_in_s, step, layer_s)
        return assisted_s < _MARGIN * self._waiting_s(arrives_in_s, step)

    def _waiting_s(self, arrives_in_s: Sequence[float], step: StepForecast) -> float:
        """The end of a step that waits for each group of layers."""
        now_s = step.starts_in_s
        for arrival_s, layers in zip(arrives_in_s, layer_groups(self._shape.num_layers), strict=True):
            now_s = max(now_s, arrival_s) + len(layers) * step.lasts_s / self._shape.num_layers
        return now_s

    def _layer_products(self, pages: Sequence[int]) -> int:
        return sum(products_per_row(group, count) for group, count in zip(self._shape.groups, pages, strict=True))


def products_per_row(group: GroupShape, num_pages: int) -> int:
    """Multiplications of x A B for one row."""
    return num_pages * LORA_PAGE_RANKS * (group.num_slices * group.in_features + group.out_features)


def exchanged_bytes(group: GroupShape, num_rows: int, itemsize: int) -> int:
    """Bytes of x and of the result."""
    return num_rows * (group.in_features + group.out_features) * itemsize
