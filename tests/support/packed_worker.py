"""Workers that share the packed adapters of a folder, and comparisons of what they have loaded."""

from pathlib import Path
from typing import ClassVar

import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedCache
from waits import DEADLINE_S

CPU = torch.device("cpu")
GB = 1 << 30


class Worker:
    """One process's reader, with a cold host cache."""

    #: Workers of the running test.
    all: ClassVar[list["Worker"]] = []

    def __init__(
        self,
        folder: Path,
        model: ModelConfig,
        dtype: torch.dtype = torch.float32,
        budget: int = GB,
        shared: HostMemory | None = None,
    ) -> None:
        """``shared``: the host cache's memory, which a process reads into."""
        self.store = PackedStore(PackedCache(folder, budget), model, dtype, shared)
        self.cache = HostCache(shared or HostMemory(1 << 25))
        self.reader = AdapterReader(self.cache, model, dtype, CPU, self.store)
        self.all.append(self)

    def load(self, ref: AdapterRef) -> HostCopy:
        return self.reader.start(ref).result(DEADLINE_S)

    def settle(self) -> None:
        """Waits for what is written and removed in the background."""
        self.store._writer.submit(lambda: None).result(DEADLINE_S)

    def packs(self, ref: AdapterRef) -> Path:
        """Loads an adapter for the first time; returns its packed file."""
        self.cache.release(self.load(ref))
        self.settle()
        (file,) = (self.store._folder.packed._root / ref.digest).iterdir()
        return file


def equal(one: HostCopy, other: HostCopy) -> bool:
    return all(
        torch.equal(getattr(pages, part), getattr(other.packed.groups[name], part))
        for name, pages in one.packed.groups.items()
        for part in ("a", "b")
    )


def held(worker: Worker, ref: AdapterRef) -> HostCopy:
    copy = worker.cache.get(ref.digest)
    assert copy is not None
    return copy
