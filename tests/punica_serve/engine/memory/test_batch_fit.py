"""The batch of `max_batch_size: auto` within the memory of GPUs of a known size."""

import json
from pathlib import Path

import pytest

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.memory.batch_fit import batch_fits, largest_within
from punica_serve.shapes import shape_folder

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


def test_requests_behind_windows_need_the_pages_of_a_window(tmp_path: Path) -> None:
    shape = json.loads((shape_folder("llama-2-7b") / "config.json").read_text())
    fitting = {}
    for window in (4096, 512):
        shape |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window}
        (tmp_path / "config.json").write_text(json.dumps(shape | {"max_position_embeddings": 8192}))
        config = CONFIG.model_copy(update={"model": tmp_path, "target_context": 4000})
        fitting[window] = [size for size in (32, 64, 128, 256) if batch_fits(size, config, 1, 141 * GIB)]
    assert fitting == {4096: [32], 512: [32, 64, 128]}


def test_the_largest_that_fits_is_no_larger_than_the_profile_allows_and_never_nothing() -> None:
    assert largest_within(CONFIG, 1, 80 * GIB) == 128
    assert largest_within(CONFIG.model_copy(update={"max_batch_size": 64}), 1, 80 * GIB) == 64
    assert largest_within(CONFIG, 1, 16 * GIB) == 32
