"""Good adapters for a tiny model, and an HTTP server of files."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapter_uploads import CONFIG, WEIGHTS, Files
from file_server import FileServer, serve_files
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.protocol import AdapterRef
from tiny_config import tiny_config


@pytest.fixture(scope="session")
def model() -> ModelConfig:
    return tiny_config()


@pytest.fixture
def make_adapter(tmp_path: Path, model: ModelConfig) -> Callable[[int], AdapterRef]:
    """Writes the good adapter of a seed; its uri is its folder."""

    def make(seed: int) -> AdapterRef:
        folder = tmp_path / f"adapter-{seed}"
        write_random_adapter(folder, model, rank=4, seed=seed, target_modules=("q_proj", "up_proj"))
        return read_adapter(folder, model)

    return make


@pytest.fixture
def ref(make_adapter: Callable[[int], AdapterRef]) -> AdapterRef:
    return make_adapter(0)


@pytest.fixture
def http_server() -> Iterator[FileServer]:
    with serve_files() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "received"
    folder.mkdir()
    return folder


@pytest.fixture
def files(ref: AdapterRef) -> Files:
    return {name: (Path(ref.uri) / name).read_bytes() for name in (CONFIG, WEIGHTS)}
