"""A profile of round numbers."""

import pytest

from punica_serve.performance.profile import PerformanceProfile
from simulated_gpus import round_profile


@pytest.fixture
def profile() -> PerformanceProfile:
    return round_profile()
