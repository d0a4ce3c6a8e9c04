"""The subject of an engine benchmark: a config on a device, with room for the benchmark's adapters."""

import gc
from dataclasses import dataclass

import torch

from punica_serve.base_model.lora_layout import pages_of_rank
from punica_serve.base_model.model_config import ModelConfig, read_model_config
from punica_serve.base_model.rank import SINGLE, Rank
from punica_serve.config.cluster import EngineConfig
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.engine.memory.device_memory import open_device
from punica_serve.shapes import shape_folder


@dataclass(frozen=True, slots=True)
class Subject:
    """The engine to be measured, on one device."""

    config: EngineConfig
    device: torch.device
    #: The model, or one rank's share of it.
    model: ModelConfig

    @classmethod
    def of(cls, config: EngineConfig, device: str, rank: Rank = SINGLE) -> "Subject":
        """Raises ConfigError if the device can't be used, and ModelRejected if the config's model can't be served."""
        return cls(config, open_device(device), read_model_config(config.model).shard(rank))

    @classmethod
    def of_shape(cls, name: str, device: str, rank: Rank = SINGLE) -> "Subject":
        """Random weights of a known shape. Raises ConfigError."""
        return cls.of(EngineConfig(model=shape_folder(name), load_format="dummy"), device, rank)

    @property
    def title(self) -> str:
        """The model's name, and the rank if it is one of several."""
        rank = self.model.rank
        return self.model.name if rank.size == 1 else f"{self.model.name}, rank {rank.index} of {rank.size}"

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.config.dtype_of(self.model))
        return dtype

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def device_bytes(self) -> int:
        """All memory of the GPU."""
        return int(torch.cuda.get_device_properties(self.device).total_memory)

    def free_memory(self) -> None:
        """Frees the device memory of a closed engine: the next one sizes its KvCache by the free memory."""
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()

    def sized(self, *, batch_size: int, rank: int, num_host: int, num_resident: int) -> EngineConfig:
        """The config with room for ``num_host`` adapters in host memory, and ``num_resident`` on the device."""
        pages = pages_of_rank(rank) * num_resident
        ranks = dict.fromkeys(self.model.linear_shapes, rank)
        needed_bytes = num_host * packed_num_bytes(ranks, self.model, self.dtype)
        return self.config.model_copy(
            update={
                "max_batch_size": batch_size,
                "num_lora_pages": max(pages, self.config.lora_pages),
                "host_cache_bytes": max(needed_bytes, self.config.host_cache_bytes or 0),
            }
        )
