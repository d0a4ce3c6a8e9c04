"""An engine's adapters on its host: in memory, and packed on the disk."""

import sys
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.rank import Rank
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.host_cache import HostCache
from punica_serve.engine.adapters.layer_arrival import ArrivalWords
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.cpu_assist.assistant import CpuAssist, open_cpu_assist
from punica_serve.engine.engine_parts import Agree, EngineParts
from punica_serve.engine.memory.auto_sizes import host_bytes
from punica_serve.engine.memory.host_memory_opening import HostMemoryOpening
from punica_serve.engine.memory.pinned_memory import HostMemory, allocate_host_memory
from punica_serve.store.packed_folder import PackedCache


@dataclass(frozen=True, slots=True)
class HostTiers:
    """One rank's. Its owner closes it."""

    cache: HostCache
    #: The processes that compute from adapters in the cache, if the mode of cold starts has them.
    assist: CpuAssist | None
    #: None without a folder for packed adapters.
    packed_store: PackedStore | None

    @classmethod
    def open(
        cls,
        config: EngineConfig,
        parts: EngineParts,
        memory: HostMemory,
        packed_cache: PackedCache | None,
        agree: Agree,
    ) -> "HostTiers":
        """``memory``: the cache's, which it owns from now on.

        Raises ConfigError if the host can't have them, and leaves nothing open then.
        """
        with ExitStack() as opened:
            cache = HostCache(memory)
            opened.callback(cache.close)
            assist = open_cpu_assist(config, parts.share, parts.dtype, memory, parts.device, agree)
            if assist is not None:
                opened.callback(assist.close)
            store = PackedStore(packed_cache, parts.share, parts.dtype, memory) if packed_cache else None
            if store is not None and memory.is_whole:
                store.start_process(0.0)  # it maps all of the memory, beside which the first loads would be slow
            opened.pop_all()
        return cls(cache, assist, store)

    @property
    def arrival_words(self) -> ArrivalWords | None:
        """Where the processes see which layers have arrived on the device."""
        return self.assist.arrival_words if self.assist is not None else None

    def close(self) -> None:
        """The processes end first: they read the cache's memory."""
        if self.assist is not None:
            self.assist.close()
        self.cache.close()


def open_early(config: EngineConfig, device: torch.device, rank: Rank) -> HostMemoryOpening:
    """The memory of a rank's host cache, made ready while weights load and ranks meet. Raises ConfigError.

    That of a CPU is had at once, and only later: where its size is `auto`, it depends on what the weights leave.
    """
    model = read_model_config(config.model)
    share = config.share_of(model, rank)
    dtype: torch.dtype = getattr(torch, config.dtype_of(model))

    def allocate() -> HostMemory:
        num_bytes = host_bytes(config, share, dtype, device)
        return allocate_host_memory(num_bytes, device, is_shared=config.uses_cpu_assist or sys.platform == "linux")

    return HostMemoryOpening(allocate, in_background=device.type == "cuda")
