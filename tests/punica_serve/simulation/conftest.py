"""A simulated GPU of known speed."""

from collections.abc import Callable
from typing import Any

import pytest

from punica_serve.performance.profile import PerformanceProfile
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.simulation.gpu import SimulatedGpu
from simulated_gpus import VOCAB_SIZE, gpu_info, round_profile

MakeGpu = Callable[..., SimulatedGpu]


@pytest.fixture
def profile() -> PerformanceProfile:
    return round_profile()


@pytest.fixture
def make_gpu(profile: PerformanceProfile) -> MakeGpu:
    """A GPU of 4 requests and 32 pages of 4 tokens by default."""

    def make(*, prefill_budget_tokens: int = 8, **sizes: Any) -> SimulatedGpu:
        model = StepTimeModel(profile)
        budget = PrefillBudget(prefill_budget_tokens)
        return SimulatedGpu(gpu_info(**sizes), model, prefill_budget=budget, vocab_size=VOCAB_SIZE)

    return make
