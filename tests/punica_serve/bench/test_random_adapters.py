"""Random adapters in bulk: what the engine finds in its host cache, and what PEFT finds in the folders."""

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from punica_serve.adapters.folder import load_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench import random_adapters
from punica_serve.bench.driver import MaxConcurrency, drive
from punica_serve.bench.random_adapters import adapter_files, fill_host_cache, write_folders
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import StepOutput
from punica_serve.errors import ConfigError
from punica_serve.protocol import Request, SamplingParams

CPU = torch.device("cpu")
ON_A_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


@pytest.mark.parametrize("rank", [4, 8, 20])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=ON_A_GPU)])
def test_adapters_in_the_host_cache_are_all_different_and_run(tiny_llama: Path, device: str, rank: int) -> None:
    config = EngineConfig(model=tiny_llama, dtype="float32", num_kv_pages=64, num_lora_pages=16, cpu_threads=1)
    engine = Engine(config, device)
    made: list[int] = []
    refs = fill_host_cache(engine, 3, rank, torch.float32, lambda: made.append(1))
    assert len(made) == 3
    params = SamplingParams(max_tokens=4, ignore_eos=True, logprobs=0)
    requests = [Request(f"{i}", i, (1, 2, 3), params, ref) for i, ref in enumerate((*refs, None))]
    logprobs: dict[str, float] = {}

    def note(output: StepOutput) -> None:
        for token in output.tokens:
            assert token.logprobs is not None
            logprobs.setdefault(token.request_id, token.logprobs.logprob)

    assert drive(engine, MaxConcurrency(requests), note).num_tokens == 16
    engine.close()
    assert len(set(logprobs.values())) == 4, "adapters that are equal, or do nothing"


def test_a_host_cache_that_is_too_small_is_named(tiny_llama: Path) -> None:
    engine = Engine(EngineConfig(model=tiny_llama, num_kv_pages=8, host_cache_bytes=100_000, cpu_threads=1))
    with pytest.raises(ConfigError, match=r"`engine.host_cache_bytes` is too small for 9 adapters"):
        fill_host_cache(engine, 9, 8, torch.float32, lambda: None)
    engine.close()


def test_folders_are_adapters_with_bytes_of_their_own(tiny_model: ModelConfig, tmp_path: Path) -> None:
    refs = write_folders(tmp_path, tiny_model, 3, 4, CPU, lambda: None)
    assert len({ref.digest for ref in refs}) == 3
    adapter = load_adapter(refs[2], tiny_model)
    pair = adapter.pairs[1, "down_proj"]
    assert pair.rank == 4 and pair.scaling == 1.0 and pair.a.dtype == "BF16"
    assert 0.01 < pair.b.float32().std() < 0.03
    assert refs[0].ranks == dict.fromkeys(tiny_model.linear_shapes, 4)


def test_a_full_disk_is_told_with_the_option_that_names_another(
    tiny_model: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_adapters, "WEIGHTS_NAME", "/dev/full")
    with pytest.raises(ConfigError, match=rf"^`--folder`: {tmp_path} can't be written: No space left on device; make"):
        write_folders(tmp_path, tiny_model, 3, 4, CPU, lambda: None)


def test_a_folder_that_cannot_be_made_is_told_too() -> None:
    with (
        pytest.raises(ConfigError, match=r"^`--folder`: /dev/null/x can't be written: Not a directory; "),
        adapter_files(Path("/dev/null/x")),
    ):
        pass


def test_a_system_whose_own_folders_are_all_full_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with (
        pytest.raises(ConfigError, match=r"^`--folder`: the system's temporary folder can't be written: "),
        adapter_files(None),
    ):
        pass


def test_what_fails_among_the_files_is_no_fault_of_their_folder(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError), adapter_files(tmp_path):
        raise ConnectionError


def test_files_have_a_folder_of_their_own_for_a_while(tmp_path: Path) -> None:
    parent = tmp_path / "not" / "there"
    with adapter_files(parent) as first, adapter_files(parent) as second:
        assert first.parent == second.parent == parent and first != second
        (first / "adapter").write_text("bytes")
    assert parent.is_dir() and not list(parent.iterdir())
    with adapter_files(None) as folder:
        assert folder.is_dir() and tmp_path not in folder.parents


def test_files_that_are_still_written_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was closed may keep a packed form that it has begun."""
    rmtree, written = shutil.rmtree, iter(("packed", "incoming"))

    def remove(path: Path, **options: Any) -> None:
        rmtree(path, **options)
        if (name := next(written, None)) is not None:
            (Path(path) / name).mkdir(parents=True)

    monkeypatch.setattr(shutil, "rmtree", remove)
    with adapter_files(tmp_path) as folder:
        (folder / "adapter").write_text("bytes")
    assert next(written, None) is None and not list(tmp_path.iterdir())


def test_files_that_can_not_be_removed_cost_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_adapters, "_LAST_WRITE_S", 0.1)
    monkeypatch.setattr(os, "rmdir", _refuse)
    monkeypatch.setattr(os, "unlink", _refuse)
    with adapter_files(tmp_path) as folder:
        (folder / "adapter").write_text("bytes")
    assert (folder / "adapter").exists()


def _refuse(*_: Any, **__: Any) -> None:
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
