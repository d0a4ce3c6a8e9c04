"""A simulated GPU of known speed."""

from collections.abc import Callable
from typing import Any

import pytest

from punica_serve.simulation.gpu import SimulatedGpu
from punica_serve.simulation.profile import AdapterLoad, DecodeTimes, LoraTimes, PerformanceProfile, PrefillTimes
from punica_serve.simulation.step_time import StepTimeModel
from simulated_gpus import VOCAB_SIZE, gpu_info

MakeGpu = Callable[..., SimulatedGpu]


@pytest.fixture
def profile() -> PerformanceProfile:
    """Round numbers: a prefill takes 10 ms plus 1 ms a token, a copy 1 ms plus 1 ms a megabyte."""
    return PerformanceProfile(
        name="round",
        source="made up",
        prefill=PrefillTimes(tokens=(1, 100), ms=(11.0, 110.0)),
        decode=DecodeTimes(batch=(1, 11), context=(10, 110), ms=((11.0, 12.0), (21.0, 31.0))),
        lora=LoraTimes(adapters=(0, 10), ms=(0.0, 5.0)),
        adapter_load=AdapterLoad(latency_ms=1.0, gb_per_s=1.0),
    )


@pytest.fixture
def make_gpu(profile: PerformanceProfile) -> MakeGpu:
    """A GPU of 4 requests and 32 pages of 4 tokens by default."""

    def make(*, prefill_budget_tokens: int = 8, **sizes: Any) -> SimulatedGpu:
        model = StepTimeModel(profile)
        return SimulatedGpu(
            gpu_info(**sizes), model, prefill_budget_tokens=prefill_budget_tokens, vocab_size=VOCAB_SIZE
        )

    return make
