"""The batch of `max_batch_size: auto` within a GPU's memory."""

import pytest

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.memory.auto_batch_memory import batch_fits, largest_that_fits

GIB = 1 << 30
CONFIG = EngineConfig.model_validate(
    {"model": "shape:llama-2-7b", "load_format": "dummy", "max_batch_size": 256, "num_lora_pages": None}
)


@pytest.mark.parametrize(
    ("num_gib", "group_size", "largest"),
    [(40, 1, 64), (80, 1, 128), (141, 1, 256), (80, 2, 256)],
)
def test_a_batch_fits_if_its_adapters_and_keys_and_values_do(num_gib: int, group_size: int, largest: int) -> None:
    fitting = [size for size in (32, 64, 128, 256) if batch_fits(size, CONFIG, group_size, num_gib * GIB)]
    assert max(fitting) == largest


def test_a_cpu_keeps_the_size_that_the_profile_allows() -> None:
    assert largest_that_fits(CONFIG, ["cpu"]) == 256
