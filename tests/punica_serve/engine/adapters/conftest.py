"""A model whose adapters are packed in several chunks, one adapter of it, and the folder of packed files."""

from collections.abc import Iterator
from dataclasses import replace as replaced
from pathlib import Path

import pytest

from packed_worker import Worker
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.protocol import AdapterRef


@pytest.fixture(autouse=True)
def _nothing_is_written_after_a_test() -> Iterator[None]:
    """The next one may have patched what writes."""
    yield
    while Worker.all:
        worker = Worker.all.pop()
        worker.reader._threads.shutdown()
        worker.store._writer.shutdown()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def model(tiny_model: ModelConfig) -> ModelConfig:
    """A model whose adapters have several chunks."""
    return replaced(tiny_model, num_hidden_layers=7)


@pytest.fixture
def ref(model: ModelConfig, tmp_path: Path) -> AdapterRef:
    return read_adapter(write_random_adapter(tmp_path / "adapter", model, rank=12, seed=1, lora_alpha=7), model)


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Digests of the adapters that were read from their folders."""
    seen: list[str] = []
    original = AdapterReader._pack_folder

    def pack(self: AdapterReader, ref: AdapterRef) -> HostCopy:
        seen.append(ref.digest)
        return original(self, ref)

    monkeypatch.setattr(AdapterReader, "_pack_folder", pack)
    yield seen
