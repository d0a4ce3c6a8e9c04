import cProfile
import pstats
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from punica_serve.adapters.dummy import dummy_adapters
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.adapters.shared_adapter import shared_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.dummy_adapters_section import DummyAdaptersConfig
from punica_serve.engine.adapters import reader as adapter_reader
from punica_serve.engine.adapters.adapter_packer import pack_adapter
from punica_serve.engine.adapters.host_cache import HostCache
from punica_serve.engine.adapters.load_trace import LoadTrace
from punica_serve.engine.adapters.packing import PackedAdapter
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.engine.adapters.reader_process import MAX_LOADS
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.errors import AdapterRejected
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S, wait_for

CPU = torch.device("cpu")


def test_a_failed_read_leaves_no_trace(tiny_model: ModelConfig, make_adapter: Callable[..., AdapterRef]) -> None:
    ref = make_adapter()
    cache = HostCache(HostMemory(1 << 24))
    reader = AdapterReader(cache, tiny_model, torch.float32, CPU)
    (Path(ref.uri) / "adapter_config.json").write_text("{}")
    with pytest.raises(AdapterRejected, match="changed on disk"):
        reader.start(ref).result(DEADLINE_S)
    assert cache.used_bytes == 0
    reader.close()


@pytest.mark.parametrize(("num_cores", "expected"), [(2, 4), (16, 7), (256, MAX_LOADS)])
def test_the_process_has_a_lane_for_each_thread_however_many_cores(
    tiny_model: ModelConfig, monkeypatch: pytest.MonkeyPatch, num_cores: int, expected: int
) -> None:
    monkeypatch.setattr(adapter_reader, "usable_cores", lambda: num_cores)
    reader = AdapterReader(HostCache(HostMemory(4096)), tiny_model, torch.float32, CPU)
    assert reader.num_threads == expected
    reader.close()


def test_a_read_that_has_ended_is_not_kept(tiny_model: ModelConfig, make_adapter: Callable[..., AdapterRef]) -> None:
    """Its adapter may lie outside the cache, in memory that only those have who hold it."""
    reader = AdapterReader(HostCache(HostMemory(4096)), tiny_model, torch.float32, CPU)
    read = reader.start(make_adapter())
    assert read.result(DEADLINE_S).start is None
    kept = weakref.ref(read)
    del read
    wait_for(lambda: kept() is None)
    reader.close()


@pytest.mark.parametrize("place", [3, 300, -1])
def test_changed_weights_are_never_seen_whatever_they_do_to_packing(
    tiny_model: ModelConfig, make_adapter: Callable[..., AdapterRef], place: int
) -> None:
    """They are packed before their digest is known: a header that is none, one that is another, one value."""
    ref = make_adapter()
    weights = Path(ref.uri) / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[place] ^= 0x7F
    weights.write_bytes(content)
    cache = HostCache(HostMemory(1 << 24))
    reader = AdapterReader(cache, tiny_model, torch.float32, CPU)
    with pytest.raises(AdapterRejected, match="changed on disk"):
        reader.start(ref).result(DEADLINE_S)
    assert cache.used_bytes == 0 and cache.take_changes() == ((), ())
    reader.close()


def test_what_is_packed_is_what_is_hashed_though_the_file_changes_meanwhile(
    tiny_model: ModelConfig, make_adapter: Callable[..., AdapterRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = make_adapter()
    cache = HostCache(HostMemory(1 << 24))
    reader = AdapterReader(cache, tiny_model, torch.float32, CPU)
    expected = reader.start(ref).result(DEADLINE_S).packed.groups["o"].a.clone()
    cache.evict(ref.digest)

    def pack_late(*arguments: Any) -> PackedAdapter:
        weights = Path(ref.uri) / "adapter_model.safetensors"
        weights.write_bytes(bytes(weights.stat().st_size))
        return pack_adapter(*arguments)

    monkeypatch.setattr(adapter_reader, "pack_adapter", pack_late)
    assert torch.equal(reader.start(ref).result(DEADLINE_S).packed.groups["o"].a, expected)
    reader.close()


def test_as_many_loads_as_threads_end_though_none_is_left_to_help(
    tiny_model: ModelConfig, make_adapter: Callable[..., AdapterRef]
) -> None:
    cache = HostCache(HostMemory(1 << 24))
    reader = AdapterReader(cache, tiny_model, torch.float32, CPU)
    refs = [make_adapter(seed=seed) for seed in range(4 * reader.num_threads)]
    loads = [reader.start(ref) for ref in refs]
    assert [load.result(DEADLINE_S).digest for load in loads] == [ref.digest for ref in refs]
    reader.close()


def test_reading_takes_few_operations_of_python(tiny_model: ModelConfig, tmp_path: Path) -> None:
    """The step loop needs Python, too. A model of 32 layers has 448 tensors; taken one by one they took 26000 calls.

    The first adapter of a kind does take them one by one, to find out what lies where.
    """
    model = replace(tiny_model, num_hidden_layers=32)
    refs = []
    for seed in range(3):
        folder = write_random_adapter(tmp_path / str(seed), model, rank=16, seed=seed, lora_alpha=32)
        refs.append(read_adapter(folder, model))
    cache = HostCache(HostMemory(1 << 24))
    reader = AdapterReader(cache, model, torch.float32, CPU)
    cache.release(reader._read(refs[0], LoadTrace(refs[0].digest)))
    profile = cProfile.Profile()
    for ref in refs[1:]:
        copy = profile.runcall(reader._read, ref, LoadTrace(ref.digest))
        cache.release(copy)
    assert pstats.Stats(profile).total_calls < 2 * 3000  # type: ignore[attr-defined]
    reader.close()


def test_a_dummy_is_made_of_its_number_and_needs_no_files(tiny_model: ModelConfig) -> None:
    cache = HostCache(HostMemory(1 << 24))
    reader = AdapterReader(cache, tiny_model, torch.float32, CPU)
    first, second = dummy_adapters(DummyAdaptersConfig(count=2, rank=(12,)), tiny_model).values()
    packed = [reader.start(ref).result(DEADLINE_S).packed.groups["o"] for ref in (first, second)]
    assert not torch.equal(packed[0].a, packed[1].a)
    assert packed[0].a.shape[0] == 2, "twelve rank rows take two pages"
    assert packed[0].a[0].abs().min() > 0 and packed[0].a.isfinite().all()
    assert not packed[0].a[1, ..., 4:, :].any() and not packed[0].b[1, ..., 4:, :].any()
    reader.close()


def test_an_adapter_that_shares_anothers_bytes_is_read_from_host_memory(
    tiny_model: ModelConfig, make_adapter: Callable[..., AdapterRef]
) -> None:
    origin = make_adapter()
    cache = HostCache(HostMemory(1 << 24))
    reader = AdapterReader(cache, tiny_model, torch.float32, CPU)
    held = reader.start(origin).result(DEADLINE_S)
    shared = reader.start(shared_adapter(origin, "another")).result(DEADLINE_S)
    assert shared.packed is held.packed and "another" in cache
    reader.close()
