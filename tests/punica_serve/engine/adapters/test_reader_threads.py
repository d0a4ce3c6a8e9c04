"""Threads of a worker read what its process can't, and leave what they can't read."""

import os
from pathlib import Path

import pytest
import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters import chunk_reads
from punica_serve.engine.adapters.chunk_reads import ChunkReads
from punica_serve.engine.adapters.disk_watch import DiskWatch
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.packed_chunk import PackedFileInvalid
from punica_serve.engine.adapters.packed_file import PackedLayout, packed_name
from punica_serve.engine.adapters.packed_header import PackedName, chunk_ranges
from punica_serve.engine.adapters.packing import packed_memory
from punica_serve.engine.adapters.reader_threads import ReaderThreads
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S


@pytest.fixture
def file(folder: Path, model: ModelConfig, ref: AdapterRef, made: HostCopy) -> tuple[Path, PackedName]:
    (path,) = (folder / "packed" / ref.digest).iterdir()
    return path, packed_name(ref, PackedLayout.of(model, torch.float32))


def _read(reads: ChunkReads) -> list[range]:
    with reads:
        return [read.place for batch in reads.batches(lambda *_: None) for read in batch]


@pytest.mark.parametrize("numbers", [None, [0, 2]])
def test_they_read_all_chunks_or_those_that_are_left(
    file: tuple[Path, PackedName], made: HostCopy, numbers: list[int] | None
) -> None:
    threads, memory = ReaderThreads(3, DiskWatch()), torch.zeros(made.num_bytes, dtype=torch.uint8)
    content, places = packed_memory(made.packed, made.num_bytes), chunk_ranges(made.num_bytes)
    reads = threads.begin(*file, memory, numbers)
    expected = places if numbers is None else [places[number] for number in numbers]
    assert sorted(_read(reads), key=lambda place: place.start) == expected and not reads.left
    for place in places:
        part = slice(place.start, place.stop)
        assert torch.equal(memory[part], content[part]) is (place in expected)
    threads.close()


def test_all_chunks_come_in_one_batch_if_nobody_uses_some_before(
    file: tuple[Path, PackedName], made: HostCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_reads, "LOOK_S", DEADLINE_S)
    threads, memory = ReaderThreads(3, DiskWatch()), torch.zeros(made.num_bytes, dtype=torch.uint8)
    opened = list[bool]()
    with threads.begin(*file, memory) as reads:
        (batch,) = reads.batches(lambda is_direct, _: opened.append(is_direct), at_once=True)
    assert len(batch) == len(chunk_ranges(made.num_bytes)) and len(opened) == 1
    assert torch.equal(memory, packed_memory(made.packed, made.num_bytes))
    threads.close()


def test_a_failure_ends_the_wait_for_all_chunks(file: tuple[Path, PackedName], made: HostCopy) -> None:
    content = bytearray(file[0].read_bytes())
    content[-1] ^= 1
    file[0].write_bytes(content)
    threads, memory = ReaderThreads(3, DiskWatch()), torch.zeros(made.num_bytes, dtype=torch.uint8)
    with threads.begin(*file, memory) as reads, pytest.raises(PackedFileInvalid, match="damaged"):
        list(reads.batches(lambda *_: None, at_once=True))
    threads.close()


def test_after_the_close_they_leave_everything(file: tuple[Path, PackedName], made: HostCopy) -> None:
    threads, memory = ReaderThreads(3, DiskWatch()), torch.zeros(made.num_bytes, dtype=torch.uint8)
    threads.close()
    open_files = os.listdir("/proc/self/fd")
    reads = threads.begin(*file, memory)
    assert not _read(reads) and len(reads.left) == len(chunk_ranges(made.num_bytes)) and not memory.any()
    assert set(os.listdir("/proc/self/fd")) <= set(open_files), "others may close theirs meanwhile"
