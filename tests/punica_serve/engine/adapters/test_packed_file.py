"""A packed file is its memory behind a header; a file that is damaged, cut short or not ours is made again."""

import os
import shutil
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from packed_worker import Worker, equal, held
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.rank import Rank
from punica_serve.engine.adapters import chunk_job, packed_chunk, packed_file, packed_store
from punica_serve.engine.adapters.packed_file import PackedLayout
from punica_serve.engine.adapters.packed_header import MAX_READERS, chunk_ranges
from punica_serve.engine.adapters.packing import packed_memory
from punica_serve.protocol import AdapterRef
from tiny_config import tiny_config


def test_a_file_is_the_memory_behind_a_header(folder: Path, model: ModelConfig, ref: AdapterRef) -> None:
    worker = Worker(folder, model)
    file = worker.packs(ref)
    copy = held(worker, ref)
    content = file.read_bytes()[4096:]
    assert content == packed_memory(copy.packed, copy.num_bytes).numpy().tobytes()
    places = chunk_ranges(len(content))
    assert 8 < len(places) <= MAX_READERS and all(place.start % 4096 == 0 for place in places)
    assert [place.stop for place in places] == [*(place.start for place in places[1:]), len(content)]


@pytest.mark.parametrize("megabytes", [80, 320, 640, 2000])
def test_threads_share_the_chunks_of_large_adapters_evenly(megabytes: int) -> None:
    """A last round of fewer chunks would leave threads idle."""
    sizes = [len(place) for place in chunk_ranges(megabytes * 1_000_000)]
    assert sum(sizes) == megabytes * 1_000_000 and len(sizes) % MAX_READERS == 0
    assert min(sizes) > 0.9 * max(sizes)


def test_where_chunks_lie_is_part_of_the_format() -> None:
    """Files of another version are left alone: raise ``_VERSION`` with every change of these numbers."""
    counts = [len(chunk_ranges(megabytes * 1_000_000)) for megabytes in (1, 80, 320, 640, 1280, 2560)]
    assert (packed_file._VERSION, counts) == (6, [16, 16, 48, 80, 128, 128])


def test_after_a_damaged_chunk_no_other_is_begun(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Worker(folder, model).packs(ref)
    content = bytearray(file.read_bytes())
    content[4096] ^= 1
    file.write_bytes(content)
    monkeypatch.setattr(packed_store, "reader_count", lambda *_: 1)
    starts: list[int] = []
    original = packed_chunk.read_checked

    def read(*arguments: Any) -> float:
        starts.append(arguments[1].place.start)
        return original(*arguments)

    monkeypatch.setattr(chunk_job, "read_checked", read)
    copy = Worker(folder, model).load(ref)
    assert starts == [0] and len(packings) == 2
    assert equal(copy, Worker(folder.parent / "other", model).load(ref))


@pytest.mark.parametrize("place", [0, 20, 30, 60, 4096, 9000, -5000, -1])
def test_one_changed_byte_is_found_and_the_file_made_again(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str], place: int
) -> None:
    file = Worker(folder, model).packs(ref)
    whole = bytearray(file.read_bytes())
    whole[place] ^= 1
    file.write_bytes(whole)
    second = Worker(folder, model)
    copy = second.load(ref)
    second.settle()
    assert len(packings) == 2
    fresh = Worker(folder.parent / "other", model).load(ref)
    assert equal(copy, fresh)
    third = Worker(folder, model)
    assert equal(third.load(ref), fresh), "the file is good again"


@pytest.mark.parametrize("num_bytes", [0, 10, 100, 4096, 20_000, 1 << 24])
def test_a_file_that_is_cut_short_or_too_long_is_made_again(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str], num_bytes: int
) -> None:
    file = Worker(folder, model).packs(ref)
    size = file.stat().st_size
    os.truncate(file, num_bytes)
    second = Worker(folder, model)
    second.load(ref)
    second.settle()
    assert len(packings) == 2 and file.stat().st_size == size


def test_a_file_under_another_adapters_name_or_of_another_meaning_is_not_taken(
    folder: Path, model: ModelConfig, ref: AdapterRef, tmp_path: Path, packings: list[str]
) -> None:
    other = read_adapter(write_random_adapter(tmp_path / "b", model, rank=12, seed=2, lora_alpha=7), model)
    worker = Worker(folder, model)
    file = worker.packs(ref)
    (file.parent.parent / other.digest).mkdir()
    shutil.copy(file, file.parent.parent / other.digest / file.name)
    assert not equal(Worker(folder, model).load(other), Worker(folder, model).load(ref))
    assert packings == [ref.digest, other.digest]
    scaled = replace(ref, scalings=tuple(2 * scaling for scaling in ref.scalings))
    Worker(folder, model).load(scaled)
    assert packings[2:] == [ref.digest], "its configuration means something else now"


def test_another_dtype_or_model_has_files_of_its_own(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str]
) -> None:
    names = {Worker(folder, model).packs(ref).name}
    names.add(PackedLayout.of(model, torch.bfloat16).name)
    names.add(PackedLayout.of(replaced(model, num_hidden_layers=8), torch.float32).name)
    assert len(names) == 3


@pytest.mark.parametrize(
    "size",
    ["vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"],
)
def test_each_size_of_a_models_projections_is_part_of_the_layout(size: str) -> None:
    model = tiny_config()
    other = replaced(model, **{size: 2 * getattr(model, size)})
    assert PackedLayout.of(other, torch.float32) != PackedLayout.of(model, torch.float32)


def test_the_ranks_of_groups_have_files_of_their_own() -> None:
    ranks = [Rank(0, 1), Rank(0, 2), Rank(1, 2), Rank(0, 4)]
    layouts = {PackedLayout.of(replaced(tiny_config(), rank=rank), torch.float32) for rank in ranks}
    assert len(layouts) == len(ranks)


def test_a_file_of_another_version_is_not_taken(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(packed_file, "_VERSION", packed_file._VERSION - 1)
        old = Worker(folder, model).packs(ref)
    new = old.rename(old.with_name(PackedLayout.of(model, torch.float32).name))
    assert new != old, "each version has names of its own"
    assert Worker(folder, model).packs(ref) == new
    assert packings == [ref.digest] * 2
