"""Loads of packed adapters that go on to the device while they are read."""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from torch import Tensor

from loader_harness import LoaderHarness
from punica_serve.engine.adapters import chunk_job, packed_header
from punica_serve.engine.adapters.entry import AdapterState
from punica_serve.engine.adapters.loader import AdapterLoader
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.adapters.packed_chunk import Chunk, read_checked
from punica_serve.engine.adapters.packing import PackedAdapter, packed_views
from punica_serve.engine.adapters.range_reader import RangeReader
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedCache
from waits import DEADLINE_S

Make = Callable[..., LoaderHarness]


class HeldLastChunk:
    """Holds the reads of an adapter's last chunk until ``release``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.others_done, self._released = Event(), Event(), Event()
        copy, bytes_left = LoraPool.write_part, 0
        last = 0

        def open_chunks(*arguments: Any) -> list[Chunk]:
            nonlocal last, bytes_left
            chunks = packed_header.open_chunks(*arguments)
            last = bytes_left = chunks[-1].place.start
            return chunks

        def read(file: RangeReader, chunk: Chunk, *piece: Any) -> float:
            if chunk.place.start == last:
                self.begun.set()
                assert self._released.wait(DEADLINE_S)
            return read_checked(file, chunk, *piece)

        def write(pool: LoraPool, batch: Any, first: int, last: int) -> None:
            nonlocal bytes_left
            copy(pool, batch, first, last)
            bytes_left -= last - first
            if bytes_left == 0:
                self.others_done.set()

        monkeypatch.setattr(chunk_job, "open_chunks", open_chunks)
        monkeypatch.setattr(chunk_job, "read_checked", read)
        monkeypatch.setattr(LoraPool, "write_part", write)

    def release(self) -> None:
        self._released.set()


def state(harness: LoaderHarness, ref: AdapterRef) -> AdapterState:
    return harness.loader.adapters[ref.digest].state


def check_pages(harness: LoaderHarness, ref: AdapterRef, packed: PackedAdapter) -> None:
    for group, numbers in harness.loader.adapters.pages(ref.digest).items():
        assert torch.equal(harness.pool.groups[group].a[numbers].cpu(), packed.groups[group].a)
        assert torch.equal(harness.pool.groups[group].b[numbers].cpu(), packed.groups[group].b)


def copied(memory: Tensor, packed: PackedAdapter, ref: AdapterRef, harness: LoaderHarness) -> PackedAdapter:
    """The same adapter in other memory."""
    views = packed_views(memory, ref.ranks, harness.loader._model, torch.float32)
    for group, pages in views.groups.items():
        pages.a.copy_(packed.groups[group].a)
        pages.b.copy_(packed.groups[group].b)
    return views


def settle(loader: AdapterLoader) -> None:
    """Waits for what is written and removed in the background."""
    store = loader._host._reader._packed_store
    assert store is not None
    store._writer.submit(lambda: None).result(DEADLINE_S)


def file_of(cache: PackedCache, ref: AdapterRef) -> Path:
    (file,) = (cache.folder / "packed" / ref.digest).iterdir()
    return file
