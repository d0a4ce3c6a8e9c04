"""How long a prefill with CPU processes takes, and so whether they pay: a model with six measured numbers.

An exchange takes a fixed time, a time for each byte of x and of the result on the link, and a time for each weight and
each product of one process: it packs its weights for each exchange, however few rows there are. x A B of 128 tokens is
10 GFLOP at rank 16 on seven projections of a 7B model: few cores do that in the time in which the adapter arrives.

Two things cost as much however few layers are exchanged: to wake the processes before the step, and to ask in each
layer that has arrived. Results come over the link that the copy has to itself otherwise, so each delays the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS
from punica_serve.engine.adapters.copy_forecast import StepForecast
from punica_serve.engine.adapters.layer_arrival import layer_groups
from punica_serve.engine.cpu_assist.exchange_memory import ExchangeShape, GroupShape

#: Assistance must be predicted to be so much faster than waiting for layers.
_MARGIN = 0.9


@dataclass(frozen=True, slots=True)
class ExchangeWork:
    """An exchange, by what its time depends on."""

    #: On the link.
    num_bytes: int
    #: Those of them that go the same way as the adapter's copy: the results.
    num_result_bytes: int
    #: Values of A and B.
    num_weights: int
    #: Multiplications.
    num_products: int

    @classmethod
    def of(cls, group: GroupShape, num_rows: int, num_pages: int, itemsize: int) -> "ExchangeWork":
        num_weights = num_pages * LORA_PAGE_RANKS * (group.num_slices * group.in_features + group.out_features)
        num_result_bytes = num_rows * group.out_features * itemsize
        num_bytes = num_rows * group.in_features * itemsize + num_result_bytes
        return cls(num_bytes, num_result_bytes, num_weights, num_rows * num_weights)


@dataclass(frozen=True, slots=True)
class ExchangeTimes:
    """Seconds of an exchange: in any case, for each byte on the link, and for each weight and product of a process."""

    fixed_s: float
    per_byte_s: float
    per_weight_s: float
    per_product_s: float
    #: From the beginning of a job until its processes wait for x: once for each step.
    start_s: float

    def exchange_s(self, work: ExchangeWork, num_processes: int) -> float:
        own_s = work.num_weights * self.per_weight_s + work.num_products * self.per_product_s
        return self.fixed_s + work.num_bytes * self.per_byte_s + own_s / num_processes


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds that help adds to one step."""

    #: Once.
    start_s: float
    #: For each layer that is exchanged, while nothing else is on the link.
    layer_s: float
    #: The part of it in which results are on the link.
    results_s: float
    #: For each layer that has arrived.
    arrived_s: float


@dataclass(frozen=True, slots=True)
class AssistTimes:
    """The times of one process by itself, and of several, which wait for each other within each exchange."""

    alone: ExchangeTimes
    together: ExchangeTimes
    #: What a step with help spends on each exchange of a layer that has arrived: it looks, and tells the processes.
    arrived_s: float

    def of(self, num_processes: int) -> ExchangeTimes:
        return self.alone if num_processes == 1 else self.together


def fit_times(measured: Sequence[tuple[ExchangeWork, float]], num_processes: int, start_s: float) -> ExchangeTimes:
    """Fits the times to four exchanges: few rows with few weights and with many, then many rows with the same weights.

    Parts that noise would make negative become 0.
    """
    (small, small_s), (wide, wide_s), (long, long_s), (_, large_s) = measured
    weights = (wide.num_weights - small.num_weights) / num_processes
    few_rows, many_rows = (own.num_products / own.num_weights for own in (small, long))
    few_per_weight_s, many_per_weight_s = (wide_s - small_s) / weights, (large_s - long_s) / weights
    per_product_s = max(0.0, (many_per_weight_s - few_per_weight_s) / (many_rows - few_rows))
    per_weight_s = max(0.0, few_per_weight_s - few_rows * per_product_s)
    products = (long.num_products - small.num_products) / num_processes
    per_byte_s = max(0.0, (long_s - small_s - products * per_product_s) / (long.num_bytes - small.num_bytes))
    found = ExchangeTimes(0.0, per_byte_s, per_weight_s, per_product_s, start_s)
    return replace(found, fixed_s=max(0.0, small_s - found.exchange_s(small, num_processes)))


class AssistForecast:
    """Answers for one worker."""

    def __init__(self, shape: ExchangeShape, times: AssistTimes) -> None:
        self._shape = shape
        self.times = times

    def num_processes(self, num_rows: int, pages: Sequence[int], num_ready: int) -> int:
        """All that are ready, or one if it is quicker by itself. ``pages``: of each group.

        Toppings takes ceil(tokens / c) processes, since it divides tokens and a core does c of them in time. Weights
        are divided here: each further process takes some of them from all others, whatever the number of tokens, and
        only the wait of several for each other can make them slower than one.
        """
        return min((num_ready, 1), key=lambda count: self.layer_s(num_rows, pages, count))

    def costs(self, num_rows: int, pages: Sequence[int], num_ready: int) -> StepCosts:
        """What help by as many processes as are best adds to a step."""
        num_processes = self.num_processes(num_rows, pages, num_ready)
        times, works = self.times.of(num_processes), self._works(num_rows, pages)
        return StepCosts(
            start_s=times.start_s,
            layer_s=self.layer_s(num_rows, pages, num_processes),
            results_s=sum(work.num_result_bytes for work in works) * times.per_byte_s,
            arrived_s=len(works) * self.times.arrived_s,
        )

    def layer_s(self, num_rows: int, pages: Sequence[int], num_processes: int) -> float:
        """All exchanges of one layer."""
        return sum(self.exchanges_s(num_rows, pages, num_processes))

    def exchanges_s(self, num_rows: int, pages: Sequence[int], num_processes: int) -> list[float]:
        """Each exchange of one layer."""
        times = self.times.of(num_processes)
        return [times.exchange_s(work, num_processes) for work in self._works(num_rows, pages)]

    def _works(self, num_rows: int, pages: Sequence[int]) -> list[ExchangeWork]:
        """The exchanges of one layer."""
        itemsize, groups = self._shape.torch_dtype.itemsize, zip(self._shape.groups, pages, strict=True)
        return [ExchangeWork.of(group, num_rows, count, itemsize) for group, count in groups if count]

    def assisted_s(self, arrives_in_s: Sequence[float], step: StepForecast, costs: StepCosts) -> float:
        """The end of a step that exchanges the layers that have not arrived, in seconds from now.

        Results and the copy share the link: while both are on it, each takes as much longer as the other needs.
        """
        compute_s = step.lasts_s / self._shape.num_layers
        now_s, num_exchanged = step.starts_in_s + costs.start_s, 0
        for arrival_s, layers in zip(arrives_in_s, layer_groups(self._shape.num_layers), strict=True):
            for _ in layers:
                is_missing = arrival_s + num_exchanged * costs.results_s > now_s if arrival_s else False
                now_s += compute_s + (costs.layer_s + costs.results_s if is_missing else costs.arrived_s)
                num_exchanged += is_missing
        return now_s

    def pays(self, arrives_in_s: Sequence[float], step: StepForecast, costs: StepCosts) -> bool:
        """Whether the step ends sooner with exchanges than if it waits for each layer."""
        return self.assisted_s(arrives_in_s, step, costs) < _MARGIN * self._waiting_s(arrives_in_s, step)

    def _waiting_s(self, arrives_in_s: Sequence[float], step: StepForecast) -> float:
        """The end of a step that waits for each group of layers."""
        now_s = step.starts_in_s
        for arrival_s, layers in zip(arrives_in_s, layer_groups(self._shape.num_layers), strict=True):
            now_s = max(now_s, arrival_s) + len(layers) * step.lasts_s / self._shape.num_layers
        return now_s
