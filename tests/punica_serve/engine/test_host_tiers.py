"""An engine's adapters on its host are opened together, or not at all."""

import select
import signal
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.errors import ConfigError
from punica_serve.store.packed_folder import PackedCache
from waits import DEADLINE_S


def test_a_start_that_fails_after_its_processes_were_started_ends_them(tiny_llama: Path, tmp_path: Path) -> None:
    before, no_folder = _pools(), tmp_path / "file"
    no_folder.touch()
    with pytest.raises(ConfigError, match="data_folder"):
        Engine(EngineConfig(model=tiny_llama, cold_start="cpu_assist"), packed_cache=PackedCache(no_folder, 1 << 20))
    assert _pools() == before


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no memory files")
@pytest.mark.parametrize("is_whole", [True, False], ids=["as a GPU's", "as a CPU's"])
def test_memory_that_a_reader_process_has_to_map_is_mapped_before_the_first_load(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    monkeypatch.setattr(HostMemory, "is_whole", is_whole)
    config = EngineConfig(model=tiny_llama, host_cache_bytes=1 << 20)
    with closing(Engine(config, "cpu", packed_cache=PackedCache(tmp_path / "cache", 1 << 20))) as engine:
        store = engine._opening.tiers.packed_store
        assert store is not None and store._process is not None
        child = store._process._child
        assert (child is not None) == is_whole
        if child is not None:
            assert select.select([child.control], [], [], DEADLINE_S)[0], "it says that it is ready"
            assert isinstance(child.popen.args, list) and "--map" in child.popen.args
    assert child is None or child.popen.wait(DEADLINE_S) == -signal.SIGKILL


def _pools() -> set[threading.Thread]:
    """Each pool of processes has a thread, which ends after them."""
    return {thread for thread in threading.enumerate() if thread.name == "cpu-assist"}
