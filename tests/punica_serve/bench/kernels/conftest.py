"""A machine under measurement that takes no time: tiny operators on the CPU, one replay each."""

from collections.abc import Iterator

import pytest
import torch
from rich.progress import Progress

from punica_serve.bench.kernels.setting import KernelBench, KernelSettings

SETTINGS = KernelSettings(
    dtype="float32",
    hidden_size=256,
    intermediate_size=384,
    num_layers=2,
    batch_sizes=(1, 4),
    ranks=(8, 16),
    num_prefill_rows=20,
    num_replays=1,
)


@pytest.fixture
def settings() -> KernelSettings:
    return SETTINGS


@pytest.fixture
def bench(settings: KernelSettings) -> Iterator[KernelBench]:
    with torch.inference_mode():
        yield KernelBench(settings, torch.device("cpu"), Progress(disable=True))
