"""An engine's adapters on its host: in memory, and packed on the disk."""

from dataclasses import dataclass

from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.host_cache import HostCache
from punica_serve.engine.adapters.layer_arrival import ArrivalWords
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.cpu_assist.assistant import CpuAssist, open_cpu_assist
from punica_serve.engine.engine_parts import Agree, EngineParts
from punica_serve.engine.memory.auto_sizes import host_bytes
from punica_serve.engine.memory.pinned_memory import open_host_memory
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
        cls, config: EngineConfig, parts: EngineParts, packed_cache: PackedCache | None, agree: Agree
    ) -> "HostTiers":
        """Raises ConfigError if the host can't have them, and leaves nothing open then."""
        num_bytes = host_bytes(config, parts.share, parts.dtype, parts.device)
        memory = open_host_memory(num_bytes, parts.device, is_shared=config.uses_cpu_assist)
        cache = HostCache(memory)
        try:
            assist = open_cpu_assist(config, parts.share, parts.dtype, memory, parts.device, agree)
        except BaseException:
            cache.close()
            raise
        return cls(cache, assist, PackedStore(packed_cache, parts.share, parts.dtype) if packed_cache else None)

    @property
    def arrival_words(self) -> ArrivalWords | None:
        """Where the processes see which layers have arrived on the device."""
        return self.assist.arrival_words if self.assist is not None else None

    def close(self) -> None:
        """The processes end first: they read the cache's memory."""
        if self.assist is not None:
            self.assist.close()
        self.cache.close()
