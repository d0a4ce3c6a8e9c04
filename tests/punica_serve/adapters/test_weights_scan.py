"""Weights of several pieces: what is wrong is found wherever it is, and only a piece is in memory."""

import hashlib
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME, read_adapter
from punica_serve.adapters.layout import layout_of
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.adapters.weights_scan import PIECE_BYTES
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected
from tiny_config import tiny_config

#: Each tensor then takes 1 MiB, which is several pieces.
RANK = 64


@pytest.fixture(scope="session")
def model() -> ModelConfig:
    return tiny_config(hidden_size=4096, num_attention_heads=512)


@pytest.fixture
def folder(tmp_path: Path, model: ModelConfig) -> Path:
    folder = write_random_adapter(tmp_path, model, rank=RANK, seed=0, target_modules=("q_proj",), lora_alpha=RANK * 2)
    assert (folder / WEIGHTS_NAME).stat().st_size > 8 * PIECE_BYTES
    return folder


def put(folder: Path, offset: int, value: float) -> None:
    """Writes one element. Negative offsets, in elements, count from the file's end, which is the last tensor's."""
    with (folder / WEIGHTS_NAME).open("r+b") as file:
        file.seek(4 * offset, 2)
        file.write(np.float32(value).tobytes())


def test_the_digest_is_that_of_the_whole_file(folder: Path, model: ModelConfig) -> None:
    hashes = [hashlib.sha256((folder / name).read_bytes()).digest() for name in (CONFIG_NAME, WEIGHTS_NAME)]
    assert read_adapter(folder, model).digest == hashlib.sha256(b"".join(hashes)).hexdigest()


@pytest.mark.parametrize("offset", [-1, -PIECE_BYTES // 4, -PIECE_BYTES // 4 - 1, -2 * PIECE_BYTES // 4])
def test_a_value_is_checked_wherever_it_is(folder: Path, model: ModelConfig, offset: int) -> None:
    put(folder, offset, float("nan"))
    with pytest.raises(AdapterRejected, match=r"layers\.1\.self_attn\.q_proj\.lora_B.*NaN or infinity"):
        read_adapter(folder, model)
    put(folder, offset, -2e38)  # twice that is no float32
    with pytest.raises(AdapterRejected, match=r"layers\.1\.self_attn\.q_proj\.lora_B.*times its scaling of 2"):
        read_adapter(folder, model)
    put(folder, offset, -1e38)
    read_adapter(folder, model)


def test_a_large_adapter_is_not_held_in_memory(folder: Path, model: ModelConfig) -> None:
    read_adapter(folder, model)
    tracemalloc.start()
    try:
        read_adapter(folder, model)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * PIECE_BYTES < (folder / WEIGHTS_NAME).stat().st_size / 2


def test_a_file_that_shrinks_while_it_is_read_is_refused(
    folder: Path, model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*arguments: Any) -> Any:
        with (folder / WEIGHTS_NAME).open("r+b") as file:
            file.truncate(PIECE_BYTES)
        return layout_of(*arguments)

    monkeypatch.setattr("punica_serve.adapters.folder.layout_of", cut)
    with pytest.raises(AdapterRejected, match=r"adapter_model\.safetensors: it was truncated"):
        read_adapter(folder, model)
