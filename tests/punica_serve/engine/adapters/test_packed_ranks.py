"""Packed files of high ranks on all projections, beside low ones in the same pool."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from cold_requests import NUM_LAYERS, cold_request, run_requests
from packed_loads import settle
from punica_serve.adapters.folder import load_adapter, read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.adapter_packer import pack_adapter
from punica_serve.engine.adapters.packing import PackedAdapter, packed_num_bytes
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import Failure
from punica_serve.errors import InvalidRequest
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedCache
from waits import DEADLINE_S

_RANKS = (8, 128, 256, 8)
#: Each group has no more than all adapters together need.
_NUM_PAGES = sum(_RANKS) // LORA_PAGE_RANKS
_SETTINGS: dict[str, Any] = {"dtype": "float32", "page_size": 4, "num_kv_pages": 256, "max_lora_rank": 256}

#: Runs a request for each of these adapters in an engine of so many pages.
Run = Callable[..., tuple[dict[str, list[int]], list[Failure]]]


@pytest.fixture
def folder(make_llama: Callable[..., Path]) -> Path:
    return make_llama(num_hidden_layers=NUM_LAYERS)


@pytest.fixture
def model(folder: Path) -> ModelConfig:
    return read_model_config(folder)


@pytest.fixture
def refs(model: ModelConfig, tmp_path: Path) -> list[AdapterRef]:
    folders = [
        write_random_adapter(tmp_path / f"{number}", model, rank=rank, seed=number, scale=0.5)
        for number, rank in enumerate(_RANKS)
    ]
    return [read_adapter(each, model) for each in folders]


@pytest.fixture
def cache(folder: Path, refs: list[AdapterRef], tmp_path: Path) -> PackedCache:
    """Has the packed forms of all, as loads from folders leave them."""
    cache = PackedCache(tmp_path / "cache", 1 << 30)
    for ref in refs:  # one at a time: few may wait to be written
        with _engine(folder, cache) as engine:
            run_requests(engine, cold_request("only", ref))
            settle(engine._loader)
    return cache


@contextmanager
def _engine(folder: Path, cache: PackedCache | None, num_pages: int = _NUM_PAGES) -> Iterator[Engine]:
    """Its packed files are read by a process, where there is one."""
    engine = Engine(EngineConfig(model=folder, **_SETTINGS, num_lora_pages=num_pages), "cpu", packed_cache=cache)
    store = engine._loader._host._reader._packed_store
    if store is not None:
        assert store.start_process(DEADLINE_S) or sys.platform != "linux"
    try:
        yield engine
    finally:
        engine.close()


def test_all_ranks_share_a_pool_and_are_what_their_folders_have(
    folder: Path, model: ModelConfig, refs: list[AdapterRef], cache: PackedCache, packings: list[str]
) -> None:
    requests = [cold_request(f"{number}", ref) for number, ref in enumerate(refs)]
    with _engine(folder, None) as engine:
        expected = run_requests(engine, *requests)
    assert sorted(packings) == sorted(ref.digest for ref in refs)
    packings.clear()
    with _engine(folder, cache) as engine:
        assert run_requests(engine, *requests) == expected and not expected[1]
        assert not packings and set(engine.resident_adapters) == {ref.digest for ref in refs}
        for ref in refs:
            _check_pages(engine, ref, _unpacked(ref, model))


@pytest.mark.parametrize("place", [4096, -1])
def test_damage_of_a_high_rank_is_found_and_its_file_made_again(
    folder: Path, model: ModelConfig, refs: list[AdapterRef], cache: PackedCache, packings: list[str], place: int
) -> None:
    ref = refs[2]
    (file,) = (cache.folder / "packed" / ref.digest).iterdir()
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[place] ^= 1
    file.write_bytes(damaged)
    packings.clear()
    with _engine(folder, cache) as engine:
        run_requests(engine, cold_request("only", ref))
        _check_pages(engine, ref, _unpacked(ref, model))
        settle(engine._loader)
    assert packings == [ref.digest] and file.read_bytes() == whole


def test_a_pool_without_pages_for_a_high_rank_refuses_it(
    folder: Path, refs: list[AdapterRef], cache: PackedCache
) -> None:
    with _engine(folder, cache, num_pages=31) as engine:
        with pytest.raises(InvalidRequest, match="larger than the LoRA pool"):
            engine.add(cold_request("high", refs[2]))
        tokens, failures = run_requests(engine, cold_request("low", refs[0]))
        assert tokens["low"] and not failures


def test_a_high_rank_waits_for_the_pages_of_low_ones(
    folder: Path, refs: list[AdapterRef], cache: PackedCache, packings: list[str]
) -> None:
    requests = [cold_request(f"{number}", ref, max_tokens=6 + 10 * number) for number, ref in enumerate(refs)]
    with _engine(folder, cache) as engine:
        expected = run_requests(engine, *requests)
    packings.clear()
    with _engine(folder, cache, num_pages=32) as engine:
        assert run_requests(engine, *requests) == expected and not expected[1]
        assert sum(len(engine._loader.adapters.pages(digest)["o"]) for digest in engine.resident_adapters) <= 32
    assert not packings


def _unpacked(ref: AdapterRef, model: ModelConfig) -> PackedAdapter:
    memory = torch.empty(packed_num_bytes(ref.ranks, model, torch.float32), dtype=torch.uint8)
    return pack_adapter(load_adapter(ref, model), model, torch.float32, memory)


def _check_pages(engine: Engine, ref: AdapterRef, packed: PackedAdapter) -> None:
    pages = engine._loader.adapters.pages(ref.digest)
    assert set(pages) == set(packed.groups)
    for group, numbers in pages.items():
        pool = engine._loader._pool.groups[group]
        assert torch.equal(pool.a[numbers], packed.groups[group].a)
        assert torch.equal(pool.b[numbers], packed.groups[group].b)
