"""An engine's adapters on its host are opened together, or not at all."""

import threading
from pathlib import Path

import pytest

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.errors import ConfigError
from punica_serve.store.packed_folder import PackedCache


def test_a_start_that_fails_after_its_processes_were_started_ends_them(tiny_llama: Path, tmp_path: Path) -> None:
    before, no_folder = _pools(), tmp_path / "file"
    no_folder.touch()
    with pytest.raises(ConfigError, match="data_folder"):
        Engine(EngineConfig(model=tiny_llama, cold_start="cpu_assist"), packed_cache=PackedCache(no_folder, 1 << 20))
    assert _pools() == before


def _pools() -> set[threading.Thread]:
    """Each pool of processes has a thread, which ends after them."""
    return {thread for thread in threading.enumerate() if thread.name == "cpu-assist"}
